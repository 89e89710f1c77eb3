"""The triton backend without a GPU: the interpreter in a process of its own, because
TRITON_INTERPRET has to be set before triton is imported; meanwhile this process compiles the
kernels for sm_90 and sm_80. conftest.py leaves this file out where there is a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import cases
import pytest
import torch
from pestle import _contract

triton = pytest.importorskip("triton")

from test_triton import CASES, OPS, STRIDED, run  # noqa: E402

HERE = Path(__file__).parent


def test_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
               HERE / "test_triton.py", HERE / "test_lists.py"]  # fmt: skip
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = int(re.search(r"(\d+) passed", done.stdout).group(1))
    assert passed >= len(CASES) + len(STRIDED)


TYPES = {torch.float32: "*fp32", torch.int16: "*i16", torch.uint8: "*u8", torch.int8: "*i8",
         torch.int32: "*i32", torch.int64: "*i64", torch.bfloat16: "*bf16",
         torch.float16: "*fp16"}  # fmt: skip


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
