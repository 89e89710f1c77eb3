"""INT8 attention: names that Pestle has no op for yet."""

from ._not_yet import (
    PrequantizedInt8Attention,
    int8_attention,
    int8_attention_from_prequantized,
    prequantize_int8_attention,
)
from ._not_yet import int8_attention_is_available as is_available

__all__ = [
    "PrequantizedInt8Attention",
    "int8_attention",
    "int8_attention_from_prequantized",
    "is_available",
    "prequantize_int8_attention",
]
