"""The pure-Python wheel: these tests run where it is installed (tools/test_wheel_pure.sh), under
the oldest torch that it takes and under the newest. Codes are held to the C ABI of a release
build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cases
import pestle
import pytest
import torch
from pestle import _contract, _library
from pestle._forms import forms_of
from test_backends import python_cases, run

X = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def test_nothing_is_compiled():
    assert _library.LIBRARY is None
    assert not list(Path(pestle.__file__).parent.rglob("*.so*"))
    available = {backend.name: backend.available for backend in pestle.list_backends()}
    assert not available["cpu"] and not available["cuda"] and available["eager"]


def test_every_op_of_the_table_is_there():
    assert set(pestle.list_ops()) == set(_library.contracts()) - set(_library.forms()["unbound"])
    for op in pestle.list_ops():
        assert getattr(pestle, op).__doc__.startswith(_contract.op(op).doc)
        assert all(form.overload is not None for form in forms_of(op))


CASES = [(name, op, case) for name, device, op, case in python_cases() if device == "cpu"]


@pytest.mark.parametrize(("name", "op", "case"), CASES, ids=cases.case_id)
def test_codes_are_the_librarys(name, op, case):
    case = cases.make(_contract.op(op), case)
    expected = case.expected()
    cases.assert_holds(case, run(name, "cpu", case), expected)


@pytest.mark.parametrize("op", sorted({op for _, op, _ in CASES}))
def test_torch_ops_choose_a_backend_by_themselves(op):
    case = next(case for _, other, case in CASES if other == op)
    case = cases.make(_contract.op(op), case)
    form = case.form()
    args, kwargs = case.arguments(form)
    with torch.no_grad():
        result = form.overload(*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    found = dict(zip(form.outputs, outputs, strict=True))
    cases.assert_holds(case, found, case.expected())


def test_processes_end_well():
    code = "import pestle; assert pestle.list_backends()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_functions_and_why():
    q, scale = pestle.quantize_fp8(X, granularity="row")
    again, _ = torch.ops.pestle.quantize_fp8(X, granularity="row")
    assert torch.equal(bytes_of(q), bytes_of(again))
    assert scale.shape == (8, 1)
    assert pestle.why("quantize_fp8", X).chosen == "eager/quantize_fp8"
    with pytest.raises(pestle.NoCapableBackendError, match="cpu: no implementation"):
        pestle.quantize_fp8(X, backend="cpu")


def test_broken_contracts_are_told():
    with pytest.raises(pestle.InvalidArgumentError, match="scale does not have shape"):
        pestle.quantize_fp8(X, torch.ones(3))
    with pytest.raises(pestle.InvalidArgumentError, match="q has dtype i8, expected e4m3"):
        pestle.quantize_fp8(X, q_dtype=torch.int8)


def test_no_gradient_is_said():
    x = X.clone().requires_grad_()
    _, scale = pestle.quantize_fp8(x)
    with pytest.raises(pestle.NoGradientError, match="quantize_fp8 has no gradient"):
        scale.sum().backward()


def test_compiled_in_one_graph():
    def round_trip(x):
        return pestle.dequantize_fp8(*pestle.quantize_fp8(x, granularity="row"), granularity="row")

    torch._dynamo.reset()
    compiled = torch.compile(round_trip, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for rows in (8, 3, 5):
            assert torch.equal(compiled(X[:rows]), round_trip(X[:rows]))


def test_whole_files_need_the_library():
    with pytest.raises(pestle.NotCompiledError, match="compiled wheel"):
        pestle.inspect("model.safetensors")


# ---- other systems

OTHERS = ["win_amd64", "win_arm64", "macosx_11_0_arm64", "macosx_11_0_x86_64"]


def installed(wheel: Path, platform: str, into: Path) -> subprocess.CompletedProcess:
    """What pip does with a wheel for the tags of another system."""
    tags = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.12"]
    command = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", *tags]
    command += [f"--platform={platform}", f"--target={into}", str(wheel)]
    return subprocess.run(
        [sys.executable, "-m", "pip", *command], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("platform", OTHERS)
def test_the_wheel_installs_on_windows_and_macos(platform, tmp_path):
    (wheel,) = (Path(os.environ["PESTLE_BUILD_DIR"]).parent / "dist").glob("pestle-*-none-any.whl")
    done = installed(wheel, platform, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/pestle/table.json").exists()
    assert not [p for p in (tmp_path / "site").rglob("*") if p.suffix in (".so", ".pyd", ".dylib")]
    # The same file by another system's name is refused: pip looks at the tag.
    linux = tmp_path / wheel.name.replace("none-any", "none-manylinux_2_36_x86_64")
    shutil.copy(wheel, linux)
    done = installed(linux, platform, tmp_path / "other")
    assert done.returncode != 0 and "not a supported wheel" in done.stderr
