"""The triton backend: its kernels on a GPU or in Triton's interpreter, against the library.

On a machine without a GPU one test runs this file once more under TRITON_INTERPRET=1, which has to
be set before triton is imported; meanwhile this process compiles the kernels for sm_90 and sm_80.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(("op", "case", "why"), [a for a in ASKED if a[2]], ids=cases.case_id)
def test_refusals_say_why(op, case, why):
    """What this backend does not have, of ops that it has: few cases, and no others."""
    assert "activations=row" in why
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


@needs_kernels
@every_case
def test_same_as_the_library(op, case):
    case = cases.make(_contract.op(op), case)
    check(case, run(case))


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
    if "smoke" in case["tags"] and cases.make(_contract.op(op), case).form("in_place")
]  # fmt: skip


@needs_kernels
@pytest.mark.parametrize(("op", "case"), IN_PLACE, ids=cases.case_id)
def test_in_place(op, case):
    case = cases.make(_contract.op(op), case)
    form = case.form("in_place")
    aliases = dict(zip(form.outputs, form.aliases, strict=True))
    for output, alias in aliases.items():
        if case.dtype(case.op.by_name[output]).itemsize != case.call.tensors[alias].itemsize:
            pytest.skip("the output does not fit into the input's memory")
        if (
            f"{output}_dtype" not in form.keywords()
            and case.dtype(case.op.by_name[output]) != case.call.tensors[alias].dtype
        ):
            pytest.skip("the case asks for another dtype than the input's")
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
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
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


# --- without a GPU: the interpreter in a process of its own, and compilation ----------------------


@pytest.mark.skipif(RUNS, reason="kernels run in this process")
def test_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
               __file__, Path(__file__).with_name("test_lists.py")]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = int(re.search(r"(\d+) passed", done.stdout).group(1))
    assert passed >= len(CASES) + len(STRIDED)


TYPES = {torch.float32: "*fp32", torch.int16: "*i16", torch.uint8: "*u8", torch.int8: "*i8",
         torch.int32: "*i32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}  # fmt: skip


def specialized(kernel, arguments: tuple, options: dict) -> tuple[dict, dict, dict]:
    """What a kernel is compiled for when it is started with these: types, constants, attributes."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = options[name] if name in options else arguments[place]
        if isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif name in options or value == 1:
            signature[name] = "constexpr"
            constants[(place,)] = value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def compile_for(capability: int, kernel, arguments: tuple, options: dict) -> str:
    """PTX of a kernel as these arguments would have it compiled."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    compiled = triton.compile(
        ASTSource(kernel, *specialized(kernel, arguments, options)),
        target=GPUTarget("cuda", capability, 32),
        options={k: v for k, v in options.items() if k not in kernel.arg_names},
    )
    return compiled.asm["ptx"]


def read_by_triton(kernel, arguments: tuple, options: dict) -> None:
    """The first step of compilation, where what Triton does not know is found."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    backend = make_backend(target := GPUTarget("cuda", 90, 32))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    known = backend.parse_options({k: v for k, v in options.items() if k not in kernel.arg_names})
    made = ASTSource(kernel, *specialized(kernel, arguments, options)).make_ir(
        target, known, backend.get_codegen_implementation(known), backend.get_module_map(), context
    )
    assert made.verify()


COMPILED = [
    (op, capability)
    for op in OPS
    for capability in ((90, 80) if op in ("quantize_nvfp4", "dequantize_fp8") else (90,))
]


@pytest.mark.skipif(RUNS, reason="kernels run in this process")
@pytest.mark.parametrize(("op", "capability"), COMPILED)
def test_kernels_compile(op, capability, monkeypatch):
    """The kernels of an op's first case, for a GPU that is not here."""
    from pestle.backends.triton import _launch

    texts = []

    def start(kernel, programs, arguments, options):
        texts.append(compile_for(capability, kernel, arguments, options))

    monkeypatch.setattr(_launch, "start", start)
    monkeypatch.setattr(_launch, "capability_of", lambda t: divmod(capability, 10))
    case = cases.make(_contract.op(op), next(c for o, c in CASES if o == op))
    form = case.form()
    run(case)
    assert form.op == op and texts
    assert all(f"sm_{capability}" in text for text in texts)


@pytest.mark.skipif(RUNS, reason="kernels run in this process")
@pytest.mark.parametrize("op", OPS)
def test_kernels_are_triton_in_every_case(op, monkeypatch):
    """A 1 among the arguments makes it a constant, an option other branches."""
    from pestle.backends.triton import _launch

    seen = set()

    def start(kernel, programs, arguments, options):
        key = (kernel.fn.__name__, repr(specialized(kernel, arguments, options)))
        if key not in seen:
            seen.add(key)
            read_by_triton(kernel, arguments, options)

    monkeypatch.setattr(_launch, "start", start)
    monkeypatch.setattr(_launch, "capability_of", lambda t: (9, 0))
    for name, case in CASES:
        if name == op:
            run(cases.make(_contract.op(op), case))
    assert seen
