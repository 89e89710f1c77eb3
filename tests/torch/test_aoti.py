"""A model with our ops, compiled by AOTInductor and run by a C++ program without Python."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import cases
import pestle
import pytest
import torch
import torch._inductor.config
from pestle import _library

# Whenever a model is compiled or loaded, AOTInductor asks a C++ compiler for each set of vector
# instructions, 20 s in all; these models have next to nothing to vectorise.
torch._inductor.config.cpp.vec_isa_ok = False
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(1)
        weight = torch.randn(64, 32, generator=random)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        q, scale = pestle.quantize_fp8(x @ self.weight, granularity="row")
        return pestle.dequantize_fp8(q, scale, granularity="row").float() * 2


def build_runner(folder: Path) -> Path:
    runner = folder / "runner"
    subprocess.run(
        ["c++", "-std=c++20", str(HERE / "aoti_runner.cpp"), "-o", str(runner),
         f"-I{TORCH}/include", f"-I{TORCH}/include/torch/csrc/api/include", f"-L{TORCH}/lib",
         f"-Wl,-rpath,{TORCH}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"],
        check=True,
    )  # fmt: skip
    return runner


def test_a_compiled_model_runs_from_cpp(tmp_path):
    model, x = Model(), torch.arange(8 * 64).reshape(8, 64).float() / 64
    rows = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    with torch.no_grad():
        exported = torch.export.export(model, (x,), dynamic_shapes=rows)
        package = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "model.pt2")
        )
        expected = model(x[:5])
    command = [str(build_runner(tmp_path)), package, str(_library.PATH)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = torch.tensor([float(line) for line in result.stdout.split()]).reshape(5, 32)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def as_bytes(tensor):
    """AOTInductor of torch 2.11 knows no float8_e8m0fnu at a model's ends; our ops take bytes."""
    if tensor is not None and tensor.dtype == torch.float8_e8m0fnu:
        return tensor.view(torch.uint8)
    return tensor


# A model is loaded by a process that did not compile it.
LOADS = """
import sys
import cases, pestle, torch
tensors, expected = torch.load(sys.argv[2])
model = torch._inductor.aoti_load_package(sys.argv[1])
with torch.no_grad():
    cases.assert_same(tuple(model(*tensors)), expected)
"""
PARTS = 3


class EveryForm(torch.nn.Module):
    """One call of each functional form that runs on a device, or of every third of them."""

    def __init__(self, device: str, part: int):
        super().__init__()
        self.calls, self.tensors = [], []
        for form in [f for f, d in cases.functional_calls() if d == device][part::PARTS]:
            args, options = cases.call_on(form, device)
            # A dtype among the options arrives as another one (docs/notes/python.md).
            options = {k: v for k, v in options.items() if not isinstance(v, torch.dtype)}
            self.calls.append((form, options, [t is not None for t in args]))
            self.tensors += [as_bytes(t) for t in args if t is not None]

    def forward(self, *tensors):
        left, results = list(tensors), []
        for form, options, is_there in self.calls:
            args = [left.pop(0) if there else None for there in is_there]
            made = form.overload(*args, **options)
            results += [as_bytes(t) for t in cases.outputs_of(made)]
        return tuple(results)


class Plain(torch.nn.Module):
    def forward(self, x):
        return x * 2


def load_apart(model: torch.nn.Module, tensors: tuple, folder: Path) -> subprocess.CompletedProcess:
    """Compiles a model, and holds it to itself in a process of its own."""
    with torch.no_grad():
        expected = model(*tensors)
        exported = torch.export.export(model, tuple(tensors))
        package = torch._inductor.aoti_compile_and_package(
            exported, package_path=str(folder / "model.pt2")
        )
    torch.save((tensors, expected), folder / "values.pt")
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", LOADS, package]
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [*command, str(folder / "values.pt")], env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.skipif(len(cases.DEVICES) == 1, reason="half a minute: where there is a GPU")
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("device", cases.DEVICES)
def test_every_form_in_a_compiled_model(device, part, tmp_path):
    model = EveryForm(device, part)
    done = load_apart(model, model.tensors, tmp_path)
    if done.returncode == -signal.SIGSEGV:
        plain = load_apart(Plain(), (torch.ones(8),), tmp_path)
        if plain.returncode == done.returncode:
            pytest.skip("not run: needs a C++ compiler whose models load, plain ones too")
    assert done.returncode == 0, done.stderr[-4000:]
