"""Values for tests beside comfy-kitchen, and how near two results are."""

import torch
from cases import bits

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
ULP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-23}


def values(device, *shape, dtype=torch.float32, seed=1):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    x.view(-1)[:7] = 0
    x.view(-1)[-1] = 1.5
    return x.to(device, dtype)


def assert_same(got, want):
    assert (got.shape, got.dtype, got.device) == (want.shape, want.dtype, want.device)
    assert torch.equal(bits(got), bits(want))


def assert_within(got, want, ulps, floor=0.0):
    """Within so many units in the last place of the wanted value."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    bound = ulps * ULP[want.dtype] * want.double().abs() + floor
    assert ((got.double() - want.double()).abs() <= bound).all()


def relative_error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()
