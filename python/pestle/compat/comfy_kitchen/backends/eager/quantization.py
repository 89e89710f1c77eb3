"""Functions of the eager backend, under the name of comfy-kitchen's module."""

import torch

from ..._backend_module import attributes

MXFP8_BLOCK_SIZE = 32


def calc_mantissa(abs_x, exponent, normal_mask, MANTISSA_BITS, EXPONENT_BIAS, rng):
    """The fraction of |x| by its exponent, cut to so many bits after a random byte, in units of
    1/256 of the last bit, was added to it; `normal_mask` says where a leading 1 is left out."""
    power = torch.where(normal_mask, exponent, 1) - EXPONENT_BIAS
    steps = (abs_x / 2.0**power - normal_mask.to(abs_x.dtype)) * 2**MANTISSA_BITS
    return (steps + rng.to(steps.dtype) / 256).floor() / 2**MANTISSA_BITS


__getattr__, __dir__ = attributes("eager", __name__)
