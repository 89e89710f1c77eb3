"""Attention of one token with a cache."""

from ._functions import flash_attention_decode, flash_attention_decode_gqa
from ._refused import (
    flash_attention_decode_gqa_is_available,
    flash_attention_decode_step_merge,
    flash_attention_decode_tree_merge,
)
from ._refused import flash_attention_decode_is_available as is_available

__all__ = [
    "flash_attention_decode",
    "flash_attention_decode_gqa",
    "flash_attention_decode_gqa_is_available",
    "flash_attention_decode_step_merge",
    "flash_attention_decode_tree_merge",
    "is_available",
]
