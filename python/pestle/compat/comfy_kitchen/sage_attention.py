"""INT8 attention, which Pestle does in the inputs' own precision; it has no prequantised form."""

from ._functions import int8_attention
from ._refused import (
    PrequantizedInt8Attention,
    int8_attention_from_prequantized,
    prequantize_int8_attention,
)
from ._refused import int8_attention_is_available as is_available

__all__ = [
    "PrequantizedInt8Attention",
    "int8_attention",
    "int8_attention_from_prequantized",
    "is_available",
    "prequantize_int8_attention",
]
