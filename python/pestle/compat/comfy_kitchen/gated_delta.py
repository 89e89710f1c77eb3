"""Gated DeltaNet, which Pestle refuses: it has no recurrent layers."""

from ._refused import (
    deltanet_conv_step,
    deltanet_conv_step_deferred,
    gated_delta_decode_deferred,
    gated_delta_decode_fused,
)
from ._refused import gated_delta_ctl_ints as CTL_INTS
from ._refused import gated_delta_decode_is_available as is_available
from ._refused import gated_delta_deferred_buffers as deferred_buffers
from ._refused import gated_delta_deferred_is_available as deferred_is_available
from ._refused import gated_delta_slot_max as SLOT_MAX

__all__ = [
    "CTL_INTS",
    "SLOT_MAX",
    "deferred_buffers",
    "deferred_is_available",
    "deltanet_conv_step",
    "deltanet_conv_step_deferred",
    "gated_delta_decode_deferred",
    "gated_delta_decode_fused",
    "is_available",
]
