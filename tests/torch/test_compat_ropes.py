"""Rotary embeddings and norms by comfy-kitchen's names beside its eager backend's: rounded in the
same order, but for what docs/comfy-kitchen.md lists."""

import pestle.compat.comfy_kitchen as ours
import pytest
import torch
from kitchen_cases import FLOATS, ULP, assert_same, assert_within, values
from torch.nn import functional

theirs = pytest.importorskip("comfy_kitchen")
pytestmark = pytest.mark.usefixtures("kitchen_eager")


def freqs(device, *lead, half=16, dtype=torch.float32):
    angles = torch.rand(*lead, half, generator=torch.Generator().manual_seed(3)) * 6
    c, s = angles.cos(), angles.sin()
    return torch.stack([c, -s, s, c], -1).view(*lead, half, 2, 2).to(device, dtype)


ROPES = ["apply_rope", "apply_rope_split_half"]


# More positions than x has: their split-half form does not trim.
ROPES_OF = [(name, lead) for name in ROPES for lead in [(1, 1, 9), (2, 1, 9), (1, 3, 1), (1, 1, 12)]
            if lead[2] <= 9 or name == "apply_rope"]  # fmt: skip


@pytest.mark.parametrize(("name", "lead"), ROPES_OF, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope(device, name, dtype, lead):
    q, k = (
        values(device, 2, 3, 9, 32, dtype=dtype),
        values(device, 2, 3, 9, 32, dtype=dtype, seed=2),
    )
    f = freqs(device, *lead)
    # They round the first product before the sum on some devices; one rounding to dtype then.
    mine, other = (getattr(m, name)(q, k, f) for m in (ours, theirs))
    single = [getattr(m, name + "1")(q, f) for m in (ours, theirs)]
    for a, b in [*zip(mine, other, strict=True), single]:
        assert_within(a, b, 1, floor=2.0**-24 * 3)
    assert_same(mine[0], single[0])
    a, b = q.clone(), k.clone()
    written = getattr(ours, name + "_")(a, b, f)
    assert written[0] is a and written[1] is b
    assert_same(a, mine[0])
    assert_same(b, mine[1])
    a = q.clone()
    assert getattr(ours, name + "1_")(a, f) is a
    assert_same(a, mine[0])


@pytest.mark.parametrize("split", ["", "_split_half"])
@pytest.mark.parametrize("of_freqs", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope_is_as_precise_as_its_frequencies(device, dtype, of_freqs, split):
    """They round products and sums to the frequencies' dtype, and so do we, the sums alone."""
    q, k = (values(device, 1, 3, 64, 64, dtype=dtype, seed=s) * 50 for s in (1, 2))
    f = freqs(device, 1, 1, 64, half=32, dtype=of_freqs)
    mine, other = (getattr(m, f"apply_rope{split}")(q, k, f) for m in (ours, theirs))
    ulps = 3 * max(ULP[of_freqs] / ULP[dtype], 1)
    for a, b in zip(mine, other, strict=True):
        assert_within(a, b, ulps, floor=12 * ULP[of_freqs])
        if of_freqs != torch.float32:
            assert torch.equal(a.to(of_freqs).to(dtype), a)
        elif dtype != torch.float32:
            assert (a != b).float().mean() < 1e-3
    a, b = q.clone(), k.clone()
    written = getattr(ours, f"apply_rope{split}_")(a, b, f)
    assert written[0] is a and written[1] is b
    assert_same(a, mine[0])
    assert_same(b, mine[1])


@pytest.mark.parametrize("of_freqs", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_rope(device, dtype, of_freqs):
    """The normalised value is rounded to x's dtype before it is rotated, there and here."""
    q, k = (
        values(device, 2, 3, 9, 32, dtype=dtype),
        values(device, 2, 2, 9, 32, dtype=dtype, seed=2),
    )
    f = freqs(device, 1, 1, 9, dtype=of_freqs)
    w, v = (values(device, 32, dtype=dtype, seed=s) + 1 for s in (3, 4))
    floor = 64 * max(ULP[dtype], ULP[of_freqs])
    share = 0.01 if of_freqs == torch.float32 != dtype else 1.0
    for name, extra in (("rms_rope", {}), ("rms_rope_split_half", {})):
        for second in (None, v):
            mine, other = (getattr(m, name)(q, k, f, w, second, **extra) for m in (ours, theirs))
            for a, b in zip(mine, other, strict=True):
                assert_within(a, b, 4, floor=floor)
                assert (a != b).float().mean() <= share
        single = [getattr(m, name + "1")(q, f, w, 1e-5) for m in (ours, theirs)]
        assert_within(*single, 4, floor=floor)
        a, b = q.clone(), k.clone()
        fresh = getattr(ours, name)(q, k, f, w, v)
        written = getattr(ours, name + "_")(a, b, f, w, v)
        assert written[0] is a and written[1] is b
        for got, want in zip((a, b), fresh, strict=True):
            assert_same(got, want)
        a = q.clone()
        assert getattr(ours, name + "1_")(a, f, w) is a
        assert_same(a, getattr(ours, name + "1")(q, f, w))
    part = freqs(device, 1, 1, 9, half=8, dtype=of_freqs)
    mine, other = (m.rms_rope_split_half(q, k, part, w, v, 1e-6, 16) for m in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        assert_within(a, b, 4, floor=floor)
        assert (a != b).float().mean() <= share


def test_rms_rope_takes_weights_of_two_dtypes():
    q, k = values("cpu", 1, 2, 5, 32), values("cpu", 1, 2, 5, 32, seed=2)
    weights = torch.rand(32), torch.rand(32).bfloat16()
    mine = ours.rms_rope(q, k, freqs("cpu", 1, 1, 5), *weights)
    for got, x, weight in zip(mine, (q, k), weights, strict=True):
        want = ours.rms_rope1(x, freqs("cpu", 1, 1, 5), weight)
        torch.testing.assert_close(got, want)


def test_ropes_of_bf16_have_gradients():
    q = values("cpu", 1, 2, 5, 32, dtype=torch.bfloat16).requires_grad_()
    f, weight = freqs("cpu", 1, 1, 5), torch.rand(32, requires_grad=True)
    ours.rms_rope1(q, f, weight).float().sum().backward()
    assert q.grad.abs().sum() > 0 and weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["adaln", "rms_adaln"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_modulated_norms_of_eager_round_each_step(name, dtype):
    x = values("cpu", 2, 5, 48, dtype=dtype) * 50
    scale, shift = (values("cpu", 2, 1, 48, dtype=dtype, seed=s) * 20 for s in (2, 3))
    mine, other = (getattr(m, name)(x, scale, shift, backend="eager") if m is ours
                   else getattr(m, name)(x, scale, shift) for m in (ours, theirs))  # fmt: skip
    assert_same(mine, other)
    kept = getattr(ours, name)(x, scale.float(), shift.float(), backend="eager")
    assert kept.dtype == dtype


@pytest.mark.parametrize("name", ["adaln", "rms_adaln"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("lead", [(), (1,), (2, 1), (2, 5), (1, 5), (2, 5, 1)], ids=str)
def test_modulated_norms(device, name, dtype, lead):
    """Listed: their eager backend rounds after each step, ours only if it is asked for by name."""
    x = values(device, 2, 5, 7, 48, dtype=dtype)
    lead = (*lead, 1) if len(lead) == 2 else lead
    scale, shift = (values(device, *lead, 48, dtype=dtype, seed=s) * 20 for s in (2, 3))
    mine, other = (getattr(m, name)(x, scale, shift, 1e-5) for m in (ours, theirs))
    if dtype != torch.float32:
        assert_within(mine, other, 4, floor=4 * ULP[dtype] * 8)
        return
    # Near the exact result; theirs subtracts the square of the mean on CUDA, and is less near.
    norm = functional.layer_norm if name == "adaln" else functional.rms_norm
    product = norm(x.double(), x.shape[-1:], eps=1e-5) * (1 + scale.double())
    exact = product + shift.double()
    size = (product.abs() + shift.double().abs()).amax(-1, keepdim=True)
    assert ((mine - exact).abs() <= 2.0**-21 * size).all()
    assert ((other - exact).abs() <= 2.0**-18 * size).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gated_residual(device, dtype):
    x, residual = (values(device, 2, 7, 48, dtype=dtype, seed=s) for s in (1, 2))
    weight, gate = values(device, 48, dtype=dtype, seed=3), values(device, 1, 48, dtype=dtype)
    mine, other = (m.rms_gated_residual(x, weight, residual, gate) for m in (ours, theirs))
    assert_within(mine, other, 4, floor=4 * ULP[dtype])


PADS = [((0, 0, 0, 0, 0), True, False), ((1, 2, 1, 0, 2), True, False),
        ((1, 1, 1, 1, 0), False, True)]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("given", ["norm", "no bias", "stats", "pad alone"])
@pytest.mark.parametrize(("pad", "silu", "zero"), PADS, ids=str)
def test_group_norm_of_frames(device, dtype, given, pad, silu, zero):
    x = values(device, 2, 12, 3, 5, 6, dtype=dtype) * 50 + 0.5
    weight = None if given == "pad alone" else values(device, 12, seed=2)
    bias = values(device, 12, seed=3) if given in ("norm", "stats") else None
    stats = [m.group_norm_stats3d(x, 4, 1e-5) for m in (ours, theirs)]
    torch.testing.assert_close(*stats, rtol=1e-5, atol=1e-5)
    by = stats[1] if given == "stats" else None
    mine, other = (
        m.group_norm_silu_pad3d(x, weight, bias, 4, 1e-5, pad, silu, zero, stats=by)
        for m in (ours, theirs)
    )
    # Affine numbers are rounded to x's dtype there, and the norm before silu.
    assert_within(mine, other, 4, floor=8 * ULP[dtype])
    assert mine.is_contiguous(memory_format=torch.channels_last_3d)
    out = torch.empty_like(mine)
    again = ours.group_norm_silu_pad3d(x, weight, bias, 4, 1e-5, pad, silu, zero, out=out, stats=by)
    assert again is out
    assert_same(out, mine)
