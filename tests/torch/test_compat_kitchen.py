"""pestle.compat.comfy_kitchen beside comfy-kitchen 0.2.40: the same names and arguments, and op by
op the same results where its rule is exact, the difference that docs/formats lists elsewhere.

Its eager backend is the one compared with: the only one that runs everywhere."""

import dataclasses
import inspect
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pestle
import pestle.compat.comfy_kitchen as ours
import pytest
import torch
from cases import bits
from kitchen_cases import FLOATS, ULP, assert_same, assert_within, relative_error, values
from torch.nn import functional

theirs = pytest.importorskip("comfy_kitchen")
pytestmark = pytest.mark.usefixtures("kitchen_eager")

POWER = 2.0**-8


# ---- names


def parameters(function):
    """Name, default and kind of each parameter, without self and `backend`."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.default, p.kind) for p in found if p.name not in ("self", "backend")]


def test_every_public_name_is_there():
    missing = [name for name in theirs.__all__ if not hasattr(ours, name)]
    assert not missing


PUBLIC = sorted(n for n in theirs.__all__ if inspect.isfunction(getattr(theirs, n)))


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_and_defaults(name):
    assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name))


@pytest.mark.parametrize("name", ours._functions.__all__)
def test_backend_is_a_keyword(name):
    backend = inspect.signature(getattr(ours, name)).parameters["backend"]
    assert backend.kind is backend.KEYWORD_ONLY and backend.default is None


@pytest.mark.parametrize("name", ["BackendNotFoundError", "BackendNotImplementedError",
                                  "NoCapableBackendError"])  # fmt: skip
def test_exceptions(name):
    mine, other = getattr(ours, name), getattr(theirs, name)
    assert parameters(mine.__init__) == parameters(other.__init__)
    assert issubclass(mine, ours.BackendError) and issubclass(ours.BackendError, RuntimeError)


@pytest.mark.parametrize("name", ["ExactDims", "MinDims", "DivisibleBy", "ParamConstraint",
                                  "FunctionConstraints", "ValidationResult"])  # fmt: skip
def test_constraint_classes(name):
    fields = [
        [f.name for f in dataclasses.fields(getattr(module.constraints, name))]
        for module in (ours, theirs)
    ]
    assert fields[0] == fields[1]
    functions = [n for n, f in vars(getattr(theirs.constraints, name)).items()
                 if callable(f) and not n.startswith("_")]  # fmt: skip
    for function in functions:
        mine, other = (getattr(getattr(m.constraints, name), function) for m in (ours, theirs))
        assert parameters(mine) == parameters(other)


def test_names_of_submodules():
    for module in ("constraints", "exceptions", "tensor"):
        other = getattr(theirs, module)
        public = getattr(other, "__all__", [n for n in vars(other) if n.endswith("Error")])
        assert not [name for name in public if not hasattr(getattr(ours, module), name)]
    known = vars(theirs.float_utils).items()
    known = [n for n, f in known if n.isupper() or "comfy" in str(getattr(f, "__module__", ""))]
    assert len(known) > 20
    assert not [name for name in known if not hasattr(ours.float_utils, name)]
    registry = [n for n in vars(type(theirs.registry)) if not n.startswith("_")]
    for name in registry:
        mine, other = (getattr(m.registry, name) for m in (ours, theirs))
        extra = {"failures"} if name == "get_capable_backend" else set()
        mine = [p for p in parameters(mine) if p[0] not in extra]
        assert [p[:2] for p in mine] == [p[:2] for p in parameters(other)], name


# ---- FP8


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("code", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_quantize_fp8_by_a_power_of_two(device, dtype, code):
    x = values(device, 3, 5, 33, dtype=dtype)
    scale = torch.tensor(POWER, device=device)
    assert_same(ours.quantize_per_tensor_fp8(x, scale, code),
                theirs.quantize_per_tensor_fp8(x, scale, code))  # fmt: skip


def test_quantize_fp8_by_another_scale_moves_codes_at_ties_only(device):
    """Listed: they multiply by the reciprocal, we divide."""
    x = values(device, 64, 128)
    scale = torch.tensor(0.0123, device=device)
    mine, other = (m.quantize_per_tensor_fp8(x, scale) for m in (ours, theirs))
    off = bits(mine).int() - bits(other).int()
    assert off.abs().max() <= 1 and (off != 0).float().mean() < 1e-3
    assert_same(mine, (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dequantize_fp8(device, dtype):
    q = values(device, 7, 40).mul(100).to(torch.float8_e4m3fn)
    power = torch.tensor(POWER, device=device)
    assert_same(ours.dequantize_per_tensor_fp8(q, power, dtype),
                theirs.dequantize_per_tensor_fp8(q, power, dtype))  # fmt: skip
    # Listed: they round the scale to the output's dtype first.
    scale = torch.tensor(0.0123, device=device)
    assert_within(ours.dequantize_per_tensor_fp8(q, scale, dtype),
                  theirs.dequantize_per_tensor_fp8(q, scale, dtype), 2)  # fmt: skip


@pytest.mark.parametrize("code", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_stochastic_rounding(device, code):
    x = values(device, 64, 96)
    rng = torch.randint(0, 256, x.shape, dtype=torch.uint8, generator=torch.Generator())
    rng = rng.to(device)
    before = rng.clone()
    mine, other = (m.stochastic_rounding_fp8(x, rng, code) for m in (ours, theirs))
    assert_same(rng, before)
    # Listed: their log2 in f16 is off just below a power of two.
    half = x.half().float().abs()
    below = torch.exp2(torch.ceil(torch.log2(half))) / half < 1.01
    keep = ~below & (half > 0)
    assert_same(mine.float()[keep], other.float()[keep])
    assert keep.float().mean() > 0.9


# ---- NVFP4, MXFP8


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("hi_first", [True, False])
def test_nvfp4(device, dtype, hi_first):
    x = values(device, 130, 272, dtype=dtype)
    g = (x.float().abs().max() / 2688).reshape(())
    mine, other = (m.quantize_nvfp4(x, g, hi_first=hi_first) for m in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        assert_same(a, b)
    mine, other = (m.dequantize_nvfp4(*mine[:1], g, mine[1], torch.float32, hi_first)
                   for m in (ours, theirs))  # fmt: skip
    assert_same(mine, other)


def test_nvfp4_is_padded(device):
    x = values(device, 7, 33)
    g = torch.tensor([0.001], device=device)
    mine, other = (m.quantize_nvfp4(x, g, pad_16x=True) for m in (ours, theirs))
    assert mine[0].shape == (16, 24) and mine[1].shape == (128, 4)
    for a, b in zip(mine, other, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("shape", [(130, 288), (7, 33)])
def test_mxfp8(device, shape):
    x = values(device, *shape, dtype=torch.bfloat16)
    mine, other = (m.quantize_mxfp8(x, pad_32x=True) for m in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        assert_same(a, b)
    for dtype in FLOATS:
        assert_same(*(m.dequantize_mxfp8(*mine, dtype) for m in (ours, theirs)))


@pytest.mark.parametrize("given", [False, True], ids=["product", "alpha"])
def test_scaled_mm_nvfp4(device, given):
    """Theirs needs a GPU with FP4: compared with the product of what it decodes."""
    a, b = values(device, 20, 64), values(device, 24, 64, seed=2)
    g = torch.tensor(0.001, device=device)
    (qa, sa), (qb, sb) = (ours.quantize_nvfp4(x, g, pad_16x=True) for x in (a, b))
    left, right = (
        theirs.dequantize_nvfp4(q, g, s, torch.float32).double() for q, s in ((qa, sa), (qb, sb))
    )
    bias = values(device, 32, dtype=torch.float16, seed=3)
    alpha = g * g * 2 if given else None
    got = ours.scaled_mm_nvfp4(qa, qb, g, g, sa, sb, bias, torch.float32, alpha)
    want = left @ right.T * (2 if given else 1) + bias.double()
    assert got.shape == (32, 32) and relative_error(got, want) < 1e-6
    assert ours.scaled_mm_nvfp4(qa, qb, g, g, sa, sb).dtype == torch.bfloat16


def test_scaled_mm_mxfp8(device):
    (qa, sa), (qb, sb) = (
        ours.quantize_mxfp8(values(device, m, 96, seed=m), pad_32x=True) for m in (20, 40)
    )
    left, right = (
        theirs.dequantize_mxfp8(q, s, torch.float32).double() for q, s in ((qa, sa), (qb, sb))
    )
    got = ours.scaled_mm_mxfp8(qa, qb, sa, sb, None, torch.float32)
    assert relative_error(got, left @ right.T) < 1e-6
    assert ours.scaled_mm_mxfp8(qa, qb, sa, sb).dtype == torch.bfloat16


# ---- INT8, INT4, W4A8


def assert_same_int8(device, mine, other):
    """Listed: on CUDA their scale is amax times a reciprocal, so an ulp off here and there."""
    if device == "cpu":
        assert_same(mine[0], other[0])
        assert_same(mine[1], other[1])
    else:
        assert (bits(mine[1]) - bits(other[1])).abs().max() <= 1
        assert (mine[0].int() - other[0].int()).abs().max() <= 1


def test_int8_rows(device):
    x = values(device, 3, 11, 130)
    mine, other = (m.quantize_int8_rowwise(x) for m in (ours, theirs))
    assert_same_int8(device, mine, other)


@pytest.mark.parametrize("scale", [None, "recalculate", 0.003, torch.tensor([0.003])], ids=str)
def test_int8_tensor(device, scale):
    x = values(device, 11, 130)
    scale = scale.to(device) if isinstance(scale, torch.Tensor) else scale
    mine, other = (m.quantize_int8_tensorwise(x, scale) for m in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        assert_same(a, b)
    assert_same(*(m.dequantize_int8_simple(*mine) for m in (ours, theirs)))


def test_int8_of_narrow_dtypes_divides_in_f32(device):
    """Listed: their quotient is rounded to x's dtype."""
    x = values(device, 32, 128, dtype=torch.bfloat16)
    mine, other = (m.quantize_int8_rowwise(x) for m in (ours, theirs))
    assert (bits(mine[1]) - bits(other[1])).abs().max() <= (1 if device == "cuda" else 0)
    assert (mine[0].int() - other[0].int()).abs().max() <= 1
    quotient = x.float() / mine[1]
    assert_same(mine[0], quotient.round().clamp(-128, 127).to(torch.int8))


def test_int8_stochastic_is_by_seed(device):
    """Listed: their random numbers are torch's, ours are Philox's."""
    x = values(device, 64, 128)
    first, again, other = (ours.quantize_int8_rowwise(x, seed)[0] for seed in (5, 5, 6))
    assert_same(first, again)
    assert (first != other).any()
    exact = x / ours.quantize_int8_rowwise(x)[1]
    assert ((first.float() - exact).abs() < 1).all()
    assert abs((first.float() - exact).mean().item()) < 0.02


def int8_weight(device, n=24, k=512):
    return ours.quantize_int8_rowwise(values(device, n, k, seed=9))


@pytest.mark.parametrize("act", [None, "gelu_tanh", "swiglu", "situ", "rms_norm"])
def test_int8_linear(device, act):
    w, scale = int8_weight(device)
    x = values(device, 2, 5, 1024 if act in ("swiglu", "situ") else 512)
    bias, residual = values(device, 24, seed=4), values(device, 2, 5, 24, seed=5)
    keywords = {"input_act": act, "input_act_weight": values(device, 512), "input_act_eps": 1e-6}
    keywords |= {"residual": residual, "residual_scale": values(device, 24, seed=6)}
    mine, other = (m.int8_linear(x, w, scale, bias, torch.float32, **keywords)
                   for m in (ours, theirs))  # fmt: skip
    assert mine.shape == other.shape and relative_error(mine, other) < 1e-5
    one = torch.tensor(0.01, device=device)
    mine, other = (m.int8_linear(x[..., :512], w, one) for m in (ours, theirs))
    assert_within(mine, other, 1, floor=1e-12)


def test_fp16_linear(device):
    """Listed: theirs sums in torch's configured mode, which the tests leave at f32."""
    x, w = values(device, 2, 5, 96).half(), values(device, 24, 96, seed=9).half()
    bias, residual = values(device, 24, seed=4).half(), values(device, 2, 5, 24, seed=5).half()
    scale = values(device, 24, seed=6).half()
    for more in ((), (bias,), (bias, residual, scale)):
        mine, other = (m.fp16_linear(x, w, *more) for m in (ours, theirs))
        assert mine.shape == other.shape and mine.dtype == other.dtype
        assert relative_error(mine, other) < 1e-3
    with pytest.raises(ValueError, match="residual_scale"):
        ours.fp16_linear(x, w, bias, residual)


def test_int8_linear_rotated(device):
    """Listed: the rotation's sums have another order; codes near ties move."""
    w = values(device, 24, 512, seed=9)
    x = values(device, 5, 512)
    run = {"weight": w, "group_size": 256}
    make = ours.registry.get_implementation("quantize_int8_convrot_weight", kwargs=run)
    q, scale = make(**run)
    mine, other = (m.int8_linear(x, q, scale, None, torch.float32, True) for m in (ours, theirs))
    assert relative_error(mine, other) < 2e-3
    exact = x.double() @ w.double().T
    assert relative_error(mine, exact) < 1.05 * relative_error(other, exact) + 1e-4


def test_int8_linear_modulated(device):
    w, scale = int8_weight(device)
    x, by, norm = (values(device, *shape, seed=7) for shape in ((5, 512), (512,), (512,)))
    mine, other = (m.int8_linear_modulated(x, by, w, scale, None, torch.float32)
                   for m in (ours, theirs))  # fmt: skip
    assert relative_error(mine, other) < 1e-5
    mine, other = (
        m.int8_linear_rms_modulated(x, norm, 1e-6, by, w, scale, None, torch.float32)
        for m in (ours, theirs)
    )
    assert relative_error(mine, other) < 1e-5


def test_int8_embedding(device):
    q, scale = int8_weight(device, 32, 256)
    rows = torch.tensor([[3, 1], [31, 3]], device=device)
    for group in (0, 256):
        call = {"q": q, "scale": scale, "indices": rows, "group_size": group}
        call["output_dtype_code"] = 0
        mine, other = (
            m.registry.get_implementation("dequantize_int8_embedding", kwargs=call)(**call)
            for m in (ours, theirs)
        )
        assert mine.shape == (2, 2, 256) and relative_error(mine, other) < 1e-6


def test_w4a4(device):
    w, x = values(device, 24, 512, seed=8), values(device, 5, 512)
    mine, other = (m.quantize_convrot_w4a4_weight(w) for m in (ours, theirs))
    assert [(t.shape, t.dtype) for t in mine] == [(t.shape, t.dtype) for t in other]
    assert (bits(mine[0]) != bits(other[0])).float().mean() < 0.01
    for a, b in ((mine, other), (other, mine)):
        got, want = (m.dequantize_convrot_w4a4_weight(*a) for m in (ours, theirs))
        assert relative_error(got, want) < 1e-6, b
    # Listed: x is not quantised here, so the product is nearer to the exact one.
    exact = x.double() @ w.double().T
    got, want = (m.convrot_w4a4_linear(x, *mine) for m in (ours, theirs))
    assert got.shape == want.shape
    assert relative_error(got, exact) <= relative_error(want, exact)


def test_w4a8(device):
    w, x = values(device, 24, 512, seed=8), values(device, 5, 512)
    mine, other = (m.quantize_w4a8_int8_weight(w) for m in (ours, theirs))
    assert [t if t is None else (t.shape, t.dtype) for t in mine] == [
        t if t is None else (t.shape, t.dtype) for t in other
    ]
    for q, rel, channel, correction, codebook in (mine, other):
        got, want = (
            m.dequantize_w4a8_int8_weight(
                q, rel, channel, codebook, correction, output_dtype=torch.float32
            )
            for m in (ours, theirs)
        )
        assert relative_error(got, want) < 1e-6
        exact = x.double() @ want.double().T
        linear = ours.w4a8_int8_linear(x, q, rel, channel, codebook, out_dtype=torch.float32)
        assert relative_error(linear, exact) < 1e-5


# ---- other products


@pytest.mark.parametrize("shape", [(5, 40, 9), (17, 3000, 24)], ids=str)
def test_mm_int8(device, shape):
    m, k, n = shape
    random = torch.Generator().manual_seed(4)
    a = torch.randint(-128, 128, (m, k), generator=random).to(device, torch.int8)
    b = torch.randint(-128, 128, (k, n), generator=random).to(device, torch.int8)
    a[0], b[:, 0] = -128, -128
    assert_same(ours.mm_int8(a, b).cpu(), (a.cpu().long() @ b.cpu().long()).int())
    if device == "cpu":
        assert_same(ours.mm_int8(a, b), theirs.mm_int8(a, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lead", [(3,), (2, 5), ()], ids=str)
def test_awq(device, dtype, lead):
    random = torch.Generator().manual_seed(5)
    codes = torch.randint(-128, 128, (24, 64), generator=random, dtype=torch.int8).to(device)
    scales, zeros = (values(device, 4, 24, dtype=dtype, seed=s) * 0.1 for s in (6, 7))
    x, bias = values(device, *lead, 128, dtype=dtype), values(device, 24, dtype=dtype)
    mine = ours.gemv_awq_w4a16(x, codes, scales, zeros, bias, 32)
    other = theirs.gemv_awq_w4a16(x, codes, scales, zeros, bias, 32)
    weight = torch.stack([codes & 15, codes >> 4 & 15], -1).view(24, 4, 32).double() - 8
    weight = weight * scales.t().double()[..., None] + zeros.t().double()[..., None]
    exact = x.double() @ weight.view(24, 128).t() + bias.double()
    size = x.double().abs() @ weight.view(24, 128).abs().t()
    assert ((mine - exact).abs() <= ULP[dtype] * exact.abs() + 1e-5 * size).all()
    assert ((other - exact).abs() <= 4 * ULP[dtype] * (size + 1)).all()
    assert mine.shape == other.shape and mine.dtype == other.dtype


# ---- small pieces


def test_float_utils(device):
    a, b = ours.float_utils, theirs.float_utils
    codes = torch.randint(0, 16, (6, 10), dtype=torch.uint8, device=device)
    for first in (True, False):
        packed = a.pack_uint4(codes, first)
        assert_same(packed, b.pack_uint4(codes, first))
        assert_same(a.unpack_uint4(packed, first), b.unpack_uint4(packed, first))
        assert_same(a.fp4_x2_to_f32(packed, first), b.fp4_x2_to_f32(packed, first))
    assert_same(a.swap_nibbles(packed), b.swap_nibbles(packed))
    assert_same(a.swap_nibbles(packed), pestle.swap_nibbles(packed))
    scales = torch.randint(0, 120, (130, 6), dtype=torch.uint8, device=device)
    for dtype in (torch.uint8, torch.float8_e4m3fn):
        for flat in (True, False):
            blocked = a.to_blocked(scales.view(dtype), flat)
            assert_same(blocked.view(torch.uint8), b.to_blocked(scales, flat))
        assert_same(blocked, pestle.swizzle_scales(scales.view(dtype)))
        assert_same(a.from_blocked(blocked, 130, 6).view(torch.uint8), scales)
    assert_same(a.to_blocked(scales.float()), b.to_blocked(scales.float()))
    exponents = torch.arange(1, 255, dtype=torch.uint8, device=device)
    assert_same(a.e8m0_to_f32(exponents), b.e8m0_to_f32(exponents))
    x = values(device, 4096) * 200
    assert_same(a.f32_to_e8m0(x.abs()), b.f32_to_e8m0(x.abs()))
    for ebits, mbits in ((2, 1), (3, 2), (2, 3), (4, 3)):
        got = a._f32_to_floatx_unpacked(x, ebits, mbits)
        assert_same(got, b._f32_to_floatx_unpacked(x, ebits, mbits))
        assert_same(*(u._floatx_unpacked_to_f32(got, ebits, mbits) for u in (a, b)))


# ---- registry: the same story told to both


class Recorder:
    """A backend that notes its calls."""

    def __init__(self):
        self.calls = 0

    def dequantize_int8_simple(self, q, scale):
        self.calls += 1
        return q.float() * scale


@pytest.fixture(params=["ours", "theirs"])
def library(request):
    library = ours if request.param == "ours" else theirs
    order = library.registry._priority
    yield library
    library.set_backend_priority(list(order))
    library.enable_backend("noted")
    library.registry._backends.pop("noted", None)
    for table in (library.registry._constraints, getattr(library.registry, "_capabilities", {})):
        table.pop("noted", None)


def test_a_registered_backend_is_chosen_by_rules_and_priority(library):
    c = library.constraints
    recorder = Recorder()
    rules = c.FunctionConstraints(
        params={"q": c.ParamConstraint(frozenset({torch.int8}), shape_rules=(c.MinDims(2),))},
        default_devices=frozenset({"cpu"}),
    )
    library.registry.register("noted", recorder, {"dequantize_int8_simple": rules})
    assert library.registry.get_constraints("noted", "dequantize_int8_simple") is rules
    q, scale = torch.ones(2, 4, dtype=torch.int8), torch.tensor(0.5)
    library.dequantize_int8_simple(q, scale)
    assert recorder.calls == 0  # in no priority yet
    library.set_backend_priority(["noted", *library.registry._priority])
    with library.use_backend("noted"):
        assert library.dequantize_int8_simple(q, scale).sum() == 4
        assert recorder.calls == 1
        library.dequantize_int8_simple(q.view(-1), scale)  # falls through: one dimension
        assert recorder.calls == 1
        verdict = library.registry.validate_backend_for_call(
            "noted", "dequantize_int8_simple", {"q": q.view(-1), "scale": scale}
        )
        assert not verdict.success and verdict.failed_param == "q"
    status = library.list_backends()["noted"]
    assert status["available"] and status["capabilities"] == ["dequantize_int8_simple"]
    library.disable_backend("noted")
    assert library.list_backends()["noted"]["disabled"]
    with pytest.raises(library.BackendNotFoundError), library.use_backend("noted"):
        pass
    library.enable_backend("noted")
    with pytest.raises(library.BackendNotImplementedError):
        library.registry.get_implementation("quantize_mxfp8", backend="noted")
    with pytest.raises(library.BackendNotFoundError):
        library.registry.get_implementation("quantize_mxfp8", backend="nobody")
    x = torch.ones(4, 4, dtype=torch.float64)
    with pytest.raises(library.NoCapableBackendError) as caught:
        library.quantize_mxfp8(x)
    assert caught.value.func_name == "quantize_mxfp8" and caught.value.failures


def test_dispatch_is_logged(library, caplog):
    x = torch.ones(4, 32)
    with caplog.at_level(logging.DEBUG, logger="comfy_kitchen.dispatch"):
        library.quantize_mxfp8(x)
    assert "quantize_mxfp8" in caplog.text
    caplog.clear()
    library.quantize_mxfp8(x)
    assert not caplog.text


# ---- Pestle inside comfy-kitchen


@pytest.fixture
def installed():
    order = theirs.registry._priority
    pestle.compat.install()
    yield
    pestle.compat.uninstall()
    theirs.set_backend_priority(list(order))


def ops_of(call):
    """The call's result, and the names of the ops that ran, those inside other ops included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = call()
    return result, {event.key for event in profile.key_averages()}


def in_another_thread(call):
    """Where no backend is in use: theirs, and ours, hold for a thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_install_puts_pestle_before_its_backends(installed, device):
    x = values(device, 20, 64, dtype=torch.bfloat16)

    def chosen():
        return theirs.registry.get_capable_backend("quantize_mxfp8", {"x": x})

    with theirs.use_backend("pestle"):
        (q, scales), ran = ops_of(lambda: theirs.quantize_mxfp8(x, pad_32x=True))
    assert "pestle::quantize_mxfp8" in ran
    _, ran = ops_of(lambda: theirs.quantize_mxfp8(x, pad_32x=True))
    assert "pestle::quantize_mxfp8" not in ran  # the eager backend is in use around this test
    for a, b in zip((q, scales), ours.quantize_mxfp8(x, pad_32x=True), strict=True):
        assert_same(a, b)
    assert in_another_thread(chosen) == "pestle"  # unasked: it comes first
    # What it lacks goes on.
    q = torch.randn(1, 4, 4, 4, 1, 16)
    assert theirs.na3d(q, q, q, 3).shape == q.shape
    pestle.compat.uninstall()
    assert in_another_thread(chosen) != "pestle"


def test_install_serves_their_quantized_tensor(installed):
    x, w = values("cpu", 5, 512), values("cpu", 24, 512, seed=2)
    tensor = theirs.tensor.QuantizedTensor.from_float(
        w, "TensorWiseINT8Layout", per_channel=True, convrot=True
    )
    with theirs.use_backend("pestle"):
        got, ran = ops_of(lambda: functional.linear(x, tensor))
    assert relative_error(got, x.double() @ w.double().T) < 0.02
    assert "pestle::scaled_mm_int8" in ran


def test_what_is_refused_is_what_the_docs_say():
    text = (Path(__file__).parents[2] / "docs/comfy-kitchen.md").read_text()
    listed = re.findall(r"`(\w+)`", text.split("<!-- refused")[1].split("<!-- end")[0])
    status = ours.list_backends().values()
    served = {name for s in status for name in s["capabilities"]}
    functions = {n for n in ours.__all__ if hasattr(getattr(ours, n), "__wrapped__")}
    assert set(listed) == functions - served
    for name in listed:
        function = getattr(ours, name)
        arguments = dict.fromkeys(p[0] for p in parameters(function))
        with pytest.raises(ours.NoCapableBackendError) as caught:
            function(**arguments)
        assert "does not implement it: Pestle" in str(caught.value), name
        with pytest.raises(ours.NoCapableBackendError, match="does not implement it: Pestle"):
            function(**arguments, backend="eager")


@pytest.mark.parametrize("name", ["adaln", "rms_adaln"])
@pytest.mark.parametrize("shared", [(2, 1, 64), (1, 64), (64,)])
def test_modulated_norms_are_one_graph(name, shared):
    x, scale, shift = torch.randn(2, 5, 64), torch.randn(shared), torch.randn(shared)
    function = getattr(ours, name)
    compiled = torch.compile(
        lambda x, scale, shift: function(x, scale, shift), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x, scale, shift), function(x, scale, shift))


def test_a_function_that_nobody_has():
    for options in ({}, {"backend": "eager"}):
        with pytest.raises(ours.BackendNotImplementedError, match="does not implement") as caught:
            ours.registry.get_implementation("unknown", **options)
        assert isinstance(caught.value, ours.NoCapableBackendError)
        assert caught.value.func_name == "unknown" and caught.value.failures


def test_eager_lists_its_devices():
    mine, other = (
        m.registry.get_constraints("eager", "quantize_mxfp8").default_devices
        for m in (ours, theirs)
    )
    assert mine == other


def _message(run) -> str:
    with pytest.raises(RuntimeError) as caught:
        run()
    return str(caught.value)


def test_refusals_have_the_words_that_callers_look_for(library):
    make = library.registry.get_implementation
    assert "'nobody' is not available" in _message(lambda: make("rms_rope", backend="nobody"))
    library.disable_backend("eager")
    try:
        said = _message(lambda: make("quantize_mxfp8", backend="eager"))
    finally:
        library.enable_backend("eager")
    assert "is not available: disabled" in said
    x = torch.ones(4, 4, 32)
    said = _message(lambda: make("quantize_mxfp8", backend="eager", kwargs={"x": x}))
    assert "No backend can handle 'quantize_mxfp8'" in said
    assert "x: shape [4, 4, 32] fails: exactly 2D" in said
    said = _message(lambda: make("quantize_mxfp8", kwargs={"x": torch.ones(4, 32).double()}))
    assert "x: dtype torch.float64 not in {" in said
