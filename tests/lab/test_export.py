"""pestle-lab export: the packages are used as their readers would, in processes of their own."""

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from pestle_lab import errors, kernels, problems
from pestle_lab.exporting import command, writing

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

HERE = Path(__file__).parent
MINE = """\
# kernel: double/mine
# language = "python"
# dtypes = ["f32"]
# constraints = ["memory contiguous|offset", "N < 1000"]
# licence = "MIT"
import torch


def run(out, x):
    torch.mul(x, 2, out=out)
"""
BACKWARD = """\
# kernel: double_backward/mine
# language = "python"
import torch


def run(d_x, d_out):
    torch.mul(d_out, 2, out=d_x)
"""
COMPILED = """\
// kernel: double/compiled
// language = "cpp"
// arguments = ["out", "x", "M", "N", "x.stride0", "stream"]
// dtypes = ["f32"]
// constraints = ["memory contiguous|offset"]
#include <cstdint>
extern "C" int run(float* out, const float* x, int64_t m, int64_t n, int64_t, void*) {
  for (int64_t i = 0; i < m * n; ++i) out[i] = 2 * x[i];
  return 0;
}
"""
# Beside the tests that an export writes.
USED = """
import double_compiled, double_mine, pytest, torch


def test_gradients_and_outputs_that_are_given():
    x = torch.randn(3, 5, requires_grad=True)
    (double_mine.run(x) * torch.arange(5)).sum().backward()
    assert torch.equal(x.grad, 2.0 * torch.arange(5).expand(3, 5))
    out = torch.empty(3, 5)
    double_mine.run_out(out, x.detach())
    assert torch.equal(out, 2 * x.detach())
    with pytest.raises(ValueError, match="out is torch.float32.3, 4., expected"):
        double_mine.run_out(torch.empty(3, 4), x.detach())


@pytest.mark.parametrize(("x", "why"), [
    (torch.ones(3, 5, dtype=torch.bfloat16), "x is torch.bfloat16; the kernel takes torch.float32"),
    (torch.ones(5, 3).mT, "x is transposed; the kernel takes contiguous, offset"),
    (torch.ones(2, 1000), "the kernel needs N < 1000"),
])
def test_what_it_does_not_take_is_refused(x, why):
    assert double_mine.takes(x) == why
    with pytest.raises(NotImplementedError, match=why.replace("(", ".")):
        double_mine.run(x)


def test_a_compiled_kernel():
    x = torch.randn(7, 9)
    assert torch.equal(double_compiled.run(x), 2 * x)
    compiled = torch.compile(double_compiled.run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), 2 * x)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    text = (HERE / "double.problem.py").read_text()
    (tmp_path / "double.problem.py").write_text(text)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "backward.py").write_text(BACKWARD)
    back = (
        text.replace('"double"', '"double_backward"')
        .replace('"out"', '"d_x"')
        .replace('"x"', '"d_out"')
    )
    (tmp_path / "double_backward.problem.py").write_text(
        back.replace("=x", "=d_out").replace("x=", "d_out=")
    )
    (tmp_path / "compiled.cpp").write_text(COMPILED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_torch(folder):
    command.export("torch", "mine.py", folder / "a", backward="backward.py", device="cpu")
    command.export("torch", "compiled.cpp", folder / "b", unchecked=True)
    assert "passed `pestle-lab check` on cpu" in (folder / "a/README.md").read_text()
    assert "without a check" in (folder / "b/README.md").read_text()
    (folder / "a/tests/test_used.py").write_text(USED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "a", "b"], cwd=folder,
        capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{folder / 'a'}:{folder / 'b'}",
                          "XDG_CACHE_HOME": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0 and "11 passed" in done.stdout, done.stdout[-6000:] + done.stderr
    with pytest.raises(errors.LabError, match="not an empty folder"):
        command.export("torch", "mine.py", folder / "a")


OPTIONAL = """\
# kernel: softmax/plain
# language = "python"
import torch


def run(out, x, dim, scale):
    out.copy_(torch.softmax(scale * x.double(), dim))
"""
REFUSED = """
import softmax_plain, torch
x = torch.randn(2, 8)
torch.testing.assert_close(softmax_plain.run(x), torch.softmax(x, -1))
assert not softmax_plain.takes(x)
print(softmax_plain.takes(x, x))
try: softmax_plain.run(x, x)
except NotImplementedError as error: print(error)
"""


def test_an_optional_tensor_that_the_kernel_has_no_argument_for(folder):
    (folder / "plain.py").write_text(OPTIONAL)
    command.export("torch", "plain.py", folder / "c", device="cpu")
    done = subprocess.run([sys.executable, "-c", REFUSED], cwd=folder / "c", capture_output=True,
                          text=True)  # fmt: skip
    said = "mask is given, and the kernel has no such argument"
    assert done.stdout.splitlines() == [said, f"softmax: {said}"], done.stdout + done.stderr


def test_a_wrong_kernel_is_not_exported(folder):
    (folder / "mine.py").write_text(MINE.replace("x, 2", "x, 3"))
    with pytest.raises(errors.LabError, match="is not right") as found:
        command.export("torch", "mine.py", folder / "a", device="cpu")
    assert found.value.code == errors.WRONG_RESULT and not (folder / "a").exists()


def load(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)]
    )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Anything:
    """Stands for io.Schema and io.X.Input(...): keeps what it was called with."""

    def __init__(self, *args, **named):
        self.args, self.named = args, named


@pytest.fixture
def comfy(monkeypatch):
    """As much of ComfyUI's API as a node touches."""
    kind = types.SimpleNamespace(Input=Anything, Output=Anything)
    io = types.SimpleNamespace(ComfyNode=object, Schema=Anything, NodeOutput=Anything, Model=kind,
                               Boolean=kind)  # fmt: skip
    for name, holds in {
        "comfy": {}, "comfy_api": {}, "comfy_api.latest": {"io": io, "ComfyExtension": object},
        "comfy.patcher_extension": {"WrappersMP": types.SimpleNamespace(APPLY_MODEL="apply_model")},
    }.items():  # fmt: skip
        module = types.ModuleType(name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)


class Model:
    def __init__(self, wrappers=()):
        self.wrappers, self.attachments = list(wrappers), {}

    def clone(self):
        return Model(self.wrappers)

    def add_wrapper_with_key(self, kind, key, wrapper):
        assert kind == "apply_model"
        self.wrappers.append(wrapper)

    def set_attachments(self, key, value):
        self.attachments[key] = value


def test_comfy(folder, comfy, caplog):
    caplog.set_level("INFO")
    stands = {"replaces": "torch.nn.functional.silu", "arguments": "input=x,inplace:False"}
    command.export("comfy", "mine.py", folder / "node", unchecked=True, **stands)
    pack = load(folder / "node/__init__.py", "exported_node")
    node = pack.DoubleMine
    assert node.define_schema().named["node_id"].startswith("double_mine_")
    before = Model()
    (after,) = node.execute(before, True).args
    assert before.wrappers == [] and node.execute(before, False).args == (before,)
    x = torch.randn(4, 6)

    def model(*_):
        silu = torch.nn.functional.silu
        return silu(x), silu(x.bfloat16()), silu(x.clone(), inplace=True), x.tanh()

    (wrapper,) = after.wrappers
    for _ in range(2):
        one, left, in_place, other = wrapper(model)
    assert torch.equal(one, 2 * x) and torch.equal(other, x.tanh())
    assert torch.equal(left, torch.nn.functional.silu(x.bfloat16()))
    assert torch.equal(in_place, torch.nn.functional.silu(x))
    (said,) = [r.getMessage() for r in caplog.records if "replaced" in r.getMessage()]
    assert "1 calls" in said and "1 left: x is torch.bfloat16" in said
    assert "1 left: inplace is True, the kernel stands for False" in said
    assert torch.equal(model()[0], torch.nn.functional.silu(x))  # outside of the model


@pytest.mark.parametrize(("options", "sentence"), [
    ({}, "needs them"),
    ({"replaces": "torch.nn.functional.softsign", "arguments": "input=y"}, "OTHER of x"),
    ({"replaces": "torch.nn.functional.silu", "arguments": "inplace:any"}, "gives the kernel no x"),
    ({"replaces": "os.system", "arguments": "command=x"}, "a function of torch's"),
    ({"replaces": "torch.nn.functional.nope", "arguments": "a=x"}, "nope"),
])  # fmt: skip
def test_comfy_says_what_is_wrong(folder, options, sentence):
    with pytest.raises(errors.LabError, match=sentence):
        command.export("comfy", "mine.py", folder / "node", unchecked=True, **options)


def test_hf_of_a_python_kernel(folder):
    command.export("hf", "mine.py", folder / "hub", backward="backward.py", unchecked=True)
    made = tomllib.loads((folder / "hub/build.toml").read_text())
    assert made["general"] == {"name": "double-mine", "version": 1, "edition": 5, "license": "MIT",
                               "backends": ["cuda"]}  # fmt: skip
    assert made["torch-noarch"]["pyext"] == ["py", "json"]
    package = load(folder / "hub/torch-ext/double_mine/__init__.py", "from_the_hub")
    x = torch.randn(2, 3)
    assert torch.equal(package.run(x), 2 * x)


def test_hf_of_a_compiled_kernel(folder):
    command.export("hf", "compiled.cpp", folder / "hub", unchecked=True)
    made = tomllib.loads((folder / "hub/build.toml").read_text())
    for source in made["kernel"]["double_compiled"]["src"] + made["torch"]["src"]:
        assert (folder / "hub" / source).exists()
    assert made["kernel"]["double_compiled"]["backend"] == "cpu"
    text = (folder / "hub/torch-ext/torch_binding.cpp").read_text()
    assert 'extern "C" int run(void*, void*, int64_t, int64_t, int64_t, void*);' in text
    assert (
        'ops.def("launch(Tensor(a0!) out, Tensor x, int M, int N, int x_stride0) -> ()");' in text
    )
    assert "run(out.data_ptr(), x.data_ptr(), static_cast<int64_t>(M)" in text
    package = folder / "hub/torch-ext/double_compiled"
    assert "from ._exported import" in (package / "__init__.py").read_text()
    assert not (package / "_ops.py").exists(), "kernel-builder's own has this name"


def test_what_cannot_be_an_op_is_said(folder):
    shipped = kernels.get("nvfp4_gemv/torch", [kernels.BUILT_IN])
    problem = problems.get("nvfp4_gemv", [folder])
    writing.write_package(folder / "gemv", shipped, problem, None)
    assert (folder / "gemv/contract.json").exists()
    with pytest.raises(errors.LabError, match="its input d_out is none of"):
        writing._check_names(problem, problems.get("double_backward", [folder]))
