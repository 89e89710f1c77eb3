"""The triton backend: its kernels on a GPU or in Triton's interpreter, against the library.

On a machine without a GPU test_triton_alone.py runs this file once more under TRITON_INTERPRET=1.
"""

import os
import re

import cases
import pestle
import pytest
import torch
from pestle import _backends, _contract, _python_ops

triton = pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if GPU else "cpu"
RUNS = GPU or INTERPRETED
needs_kernels = pytest.mark.skipif(not RUNS, reason="kernels run in the interpreter's process")
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU")

_backends.load("triton")
# Lists are test_lists.py's matter.
OPS = [op for op in _backends.implementations("triton") if not _contract.op(op).has_lists]
ASKED = [
    (op, case, cases.refusal("triton", op, case)) for op, case in cases.all_cases() if op in OPS
]
CASES = [(op, case) for op, case, refusal in ASKED if not refusal]
every_case = pytest.mark.parametrize(("op", "case"), CASES, ids=cases.case_id)


def run(case: cases.Case, kind: str = "functional", **replaced) -> dict[str, torch.Tensor]:
    form = case.form(kind)
    replaced = {n: t.to(DEVICE) for n, t in case.call.tensors.items()} | replaced
    args, kwargs = case.arguments(form, **replaced)
    with torch.no_grad():
        result = _python_ops.overloads(form)["pestle_triton"](*args, **kwargs)
    if kind != "functional":
        return {}
    outputs = result if isinstance(result, tuple) else (result,)
    return dict(zip(form.outputs, outputs, strict=True))


KNOWN = ("activations=row", "pairs, gate or beta", "heads of 256")


@pytest.mark.parametrize(("op", "case", "why"), [a for a in ASKED if a[2]], ids=cases.case_id)
def test_refusals_say_why(op, case, why):
    """What this backend does not have, of ops that it has: few cases, and no others."""
    assert any(known in why for known in KNOWN)
    with pytest.raises(pestle.NoCapableBackendError, match=re.escape(why)):
        run(cases.make(_contract.op(op), case))


def by_library(case: cases.Case) -> dict[str, torch.Tensor]:
    """What the compiled CPU implementation answers."""
    form = case.form()
    args, kwargs = case.arguments(form)
    with torch.no_grad():
        result = form.overload(*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    return dict(zip(form.outputs, outputs, strict=True))


def check(case: cases.Case, got: dict, run=run) -> None:
    got = {name: tensor.cpu() for name, tensor in got.items()}
    cases.assert_holds(case, got, by_library(case))
    cases.assert_codes(case, got, lambda c: {n: t.cpu() for n, t in run(c).items()})


@pytest.mark.parametrize("depth", [16, 40, 64, 128, 256])
@pytest.mark.parametrize("value_depth", [8, 24, 64, 200])
def test_attention_s_values_are_no_narrower_than_a_row_of_keys(depth, value_depth):
    """Else ptxas 12.8 gives wgmma descriptors with words of other registers: illegal accesses on an
    H200, with D = 40 and Dv = 24."""
    from pestle.backends.triton import attention

    tile = attention._tile(torch.empty(1, 1, 70, depth, dtype=torch.float16), 70, value_depth)
    assert tile["BV"] >= min(tile["BD"], 64)


@needs_kernels
@every_case
def test_same_as_the_library(op, case):
    case = cases.make(_contract.op(op), case)
    inputs = {n: t.to(DEVICE, copy=True) for n, t in case.call.tensors.items()}
    check(case, run(case, **inputs))
    for name, tensor in case.call.tensors.items():
        assert torch.equal(cases.bits(inputs[name].cpu()), cases.bits(tensor)), name


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between elements, rows and the start of the memory."""
    shape = [size + 1 for size in tensor.shape]
    room = torch.empty([*shape[:-1], 2 * shape[-1]], dtype=tensor.dtype, device=tensor.device)
    view = room[(slice(1, None),) * (tensor.ndim - 1)][..., 2::2]
    view.copy_(tensor)
    return view


STRIDED = [
    (op, case)
    for op in OPS
    for case in [c for o, c in CASES if o == op and "smoke" in c["tags"]][:: 1 if GPU else 4]
]


@needs_kernels
@pytest.mark.parametrize(("op", "case"), STRIDED, ids=cases.case_id)
def test_strides_and_given_outputs(op, case):
    case = cases.make(_contract.op(op), case)

    def gapped(case):
        return run(case, **{n: spread(t.to(DEVICE)) for n, t in case.call.tensors.items()})

    def given(case):
        outputs = {n: spread(t.to(DEVICE)) for n, t in case.empty_outputs().items()}
        run(case, "out", **outputs)
        return outputs

    check(case, gapped(case), gapped)
    check(case, given(case), given)


IN_PLACE = [
    (op, case) for op, case in CASES
    if "smoke" in case["tags"] and cases.make(_contract.op(op), case).in_place_form()
]  # fmt: skip


@needs_kernels
@pytest.mark.parametrize(("op", "case"), IN_PLACE, ids=cases.case_id)
def test_in_place(op, case):
    case = cases.make(_contract.op(op), case)
    form = case.in_place_form()
    aliases = dict(zip(form.outputs, form.aliases, strict=True))
    expected = by_library(case)
    written = {alias: spread(case.call.tensors[alias].to(DEVICE)) for alias in form.aliases}
    run(case, "in_place", **written)
    got = {o: written[a].view(expected[o].dtype) for o, a in aliases.items()}
    cases.assert_holds(case, {n: t.cpu() for n, t in got.items()}, expected)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_bf16_by_arithmetic_and_by_instruction(dtype, monkeypatch):
    """FP8 codes of all bf16 values: made by the GPU's conversion, and as older GPUs make them."""
    from pestle.backends.triton import _rows

    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x.view(256, 256)
    one = torch.ones(1)
    expected = cases.bits(pestle.quantize_fp8(x, one, q_dtype=dtype, backend="cpu"))
    for hardware in (0, 2) if GPU else (0,):
        monkeypatch.setattr(_rows, "hardware", lambda t, h=hardware: h)
        q = pestle.quantize_fp8(x.to(DEVICE), one.to(DEVICE), q_dtype=dtype, backend="triton")
        assert torch.equal(cases.bits(q.cpu()), expected)


@needs_kernels
@pytest.mark.parametrize("op", ["quantize_nvfp4", "quantize_fp8", "quantize_int8"])
@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-20, 1e20, 3e38])
def test_scales_of_every_size(op, size):
    """Quotients by reciprocals and corrections are exact to the ends of f32."""
    x = torch.randn(33, 256, generator=torch.Generator().manual_seed(5))
    x = (x / x.abs().max()) * size * torch.logspace(-6, 0, 256)
    x[3, 5], x[4, 7] = -0.0, torch.inf
    options = {} if op == "quantize_nvfp4" else {"granularity": "row"}
    expected = getattr(pestle, op)(x, backend="cpu", **options)
    got = getattr(pestle, op)(x.to(DEVICE), backend="triton", **options)
    for mine, tensor in zip(got, expected, strict=True):
        assert torch.equal(cases.bits(mine.cpu()), cases.bits(tensor))


@needs_kernels
@pytest.mark.parametrize(
    "scale", [0.0, 1e-45, 1e-39, 3e-13, -0.7, 2.5e17, 3e38, torch.inf, torch.nan]
)
@pytest.mark.parametrize("op", ["quantize_fp8", "quantize_int8"])
def test_one_given_scale_of_every_size(op, scale):
    """The same for quotients by one number."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(6)).view(torch.int32)
    x = torch.cat(
        [x.view(torch.float32) * abs(scale or 1.0) * 100, (x * 40503).view(torch.float32)]
    )
    x[0, :6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45])
    scale = torch.tensor([scale])
    expected = getattr(pestle, op)(x, scale, backend="cpu")
    got = getattr(pestle, op)(x.to(DEVICE), scale.to(DEVICE), backend="triton")
    assert torch.equal(cases.bits(got.cpu()), cases.bits(expected))


@needs_gpu
def test_graphs_and_streams():
    x = torch.randn(256, 1024, device="cuda")
    with torch.inference_mode():
        pestle.quantize_nvfp4(x, backend="triton")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = pestle.quantize_nvfp4(x, backend="triton")
        x.normal_()
        graph.replay()
        fresh = pestle.quantize_nvfp4(x, backend="triton")
        for mine, tensor in zip(results, fresh, strict=True):
            assert torch.equal(cases.bits(mine), cases.bits(tensor))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            x.mul_(2)
            results = pestle.quantize_nvfp4(x, backend="triton")
        stream.synchronize()
        expected = pestle.quantize_nvfp4(x.cpu(), backend="cpu")
    for mine, tensor in zip(results, expected, strict=True):
        assert torch.equal(cases.bits(mine.cpu()), cases.bits(tensor))


@needs_gpu
def test_more_than_2_to_the_31_elements():
    """Codes at both ends of a tensor with 2^31 + 2^20 elements."""
    rows, columns = (1 << 11) + 1, 1 << 20
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
    x.copy_(torch.randn(columns, device="cuda").bfloat16())
    one = torch.full((1,), 0.01, device="cuda")
    q = pestle.quantize_fp8(x, one, backend="triton")
    back = pestle.dequantize_fp8(q, one, backend="triton")
    expected = pestle.quantize_fp8(x[:1], one, backend="triton")
    for part in (q[:1], q[-1:]):
        assert torch.equal(cases.bits(part), cases.bits(expected))
    assert torch.equal(back[:1], back[-1:])
    q, scale, g = pestle.quantize_nvfp4(x, backend="triton")
    assert torch.equal(q[:1], q[-1:])
    back = pestle.dequantize_nvfp4(q, scale, g, backend="triton")
    assert torch.equal(back[:1], back[-1:])


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run: needs two GPUs")
def test_another_device_than_the_current_one():
    q, _ = pestle.quantize_fp8(torch.randn(64, 512, device="cuda:1"), backend="triton")
    assert q.device.index == 1 and torch.cuda.current_device() == 0


@needs_gpu
def test_compile_fullgraph():
    def round_trip(x):
        q, scale, g = pestle.quantize_nvfp4(x + 1, backend="triton")
        return pestle.dequantize_nvfp4(q, scale, g, backend="triton") * 2

    x = torch.randn(128, 512, device="cuda")
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(round_trip, fullgraph=True)(x), round_trip(x))
