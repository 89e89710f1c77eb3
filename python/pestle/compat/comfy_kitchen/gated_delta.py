"""Gated DeltaNet: names that Pestle has no op for yet."""

from ._not_yet import (
    deltanet_conv_step,
    deltanet_conv_step_deferred,
    gated_delta_decode_deferred,
    gated_delta_decode_fused,
)
from ._not_yet import gated_delta_ctl_ints as CTL_INTS
from ._not_yet import gated_delta_decode_is_available as is_available
from ._not_yet import gated_delta_deferred_buffers as deferred_buffers
from ._not_yet import gated_delta_deferred_is_available as deferred_is_available
from ._not_yet import gated_delta_slot_max as SLOT_MAX

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
