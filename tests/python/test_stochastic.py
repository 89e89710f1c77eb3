"""stochastic_round_fp8 against comfy-kitchen's eager one, on every f16 and every random byte, and
seeded stochastic rounding against its definition."""

import comfy_kitchen
import numpy as np
import pytest
import torch
from oracles import E4M3, E5M2, F32, LARGEST, all_16_bit, each_variant, quantize_fp8
from pestle_ctypes import call

HALF = np.dtype(np.float16)


def ours(x: np.ndarray, rng: np.ndarray, code: np.dtype, impl: str | None) -> np.ndarray:
    q = np.empty(x.shape, code)
    call("stochastic_round_fp8", impl, x=x, rng=rng, q=q)
    return q.view(np.uint8)


@pytest.mark.parametrize(
    ("code", "kind", "subnormal", "near_power", "infinite"),
    [
        (E4M3, torch.float8_e4m3fn, 640, 88, 0),
        (E5M2, torch.float8_e5m2, 0, 3006, 512),
    ],
    ids=["e4m3", "e5m2"],
)
def test_every_f16_and_byte(code, kind, subnormal, near_power, infinite):
    """All 16.8 million pairs: equal but for the differences that docs/formats/stochastic.md lists,
    which are counted here."""
    values = all_16_bit(HALF)
    x = np.ascontiguousarray(np.broadcast_to(values[:, None], (65536, 256)))
    rng = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (65536, 256)))
    with comfy_kitchen.use_backend("eager"):
        theirs = comfy_kitchen.stochastic_rounding_fp8(
            torch.from_numpy(x), torch.from_numpy(rng), kind
        )
    theirs = theirs.view(torch.uint8).numpy()
    nan, inf = np.isnan(values), np.isinf(values)
    magnitude = np.abs(values.astype(np.float32))
    for impl in each_variant("stochastic_round_fp8"):
        got = ours(x, rng, code, impl)
        assert (got[nan] == 0x7F).all()
        assert (theirs[nan] == 0xFF).all()
        differs = got != theirs
        differs[nan] = False
        minus_zero = values.view(np.uint16) == 0x8000
        assert differs[minus_zero].sum() == 256
        assert (got[minus_zero] == 0x80).all()
        assert differs[inf].sum() == infinite
        smallest_normal = 2.0**-6 if code == E4M3 else 2.0**-14
        below = magnitude < smallest_normal * (1 - 2.0**-10)
        rest = differs & ~(minus_zero | inf)[:, None]
        assert rest[below].sum() == subnormal, "subnormals"
        assert rest[~below].sum() == near_power, "just below a power of two"


@pytest.mark.parametrize("code", [E4M3, E5M2], ids=str)
def test_bytes_0_and_255_bracket_the_value(code):
    """With byte 0 the code towards zero; with 255 the next one, unless the value is a code."""
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(HALF)
    for impl in each_variant("stochastic_round_fp8"):
        low = ours(x, np.zeros(x.shape, np.uint8), code, impl).view(code).astype(np.float32)
        high = ours(x, np.full(x.shape, 255, np.uint8), code, impl).view(code).astype(np.float32)
        wide = np.abs(x.astype(np.float32))
        assert (np.abs(low) <= wide).all() and (np.abs(high) >= np.abs(low)).all()
        assert (
            wide - np.abs(low) < np.maximum(wide, 2.0**-6) * 2.0 ** -(3 if code == E4M3 else 2)
        ).all()


@pytest.mark.parametrize("code", [E4M3, E5M2], ids=str)
def test_seeded_rounding_is_unbiased_and_repeats(code):
    """The mean of many draws nears the value, seeds differ, and one seed gives one result."""
    largest = LARGEST[code]
    x = np.linspace(-largest * 0.9, largest * 0.9, 64, dtype=np.float32).reshape(1, 64)
    many = np.ascontiguousarray(np.broadcast_to(x, (4096, 64)), F32)
    one = np.ones(1, np.float32)
    for impl in each_variant("quantize_fp8"):
        draw = [quantize_fp8(many, code, one, rounding="stochastic", seed=seed, impl=impl)[0]
                for seed in (1, 1, 2)]  # fmt: skip
        assert (draw[0].view(np.uint8) == draw[1].view(np.uint8)).all()
        assert (draw[0].view(np.uint8) != draw[2].view(np.uint8)).any()
        values = draw[0].astype(np.float64)
        step = np.ptp(values, axis=0)
        # A step's draws have a deviation of at most step / 2: five standard errors of the mean.
        assert (np.abs(values.mean(0) - x[0]) <= 5 * step / 2 / 64 + 1e-30).all()
