"""The wheel as a file: what its library needs of a machine, how large it is, what it holds."""

import ast
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pestle
import pytest
import torch
from elftools.elf.elffile import ELFFile
from pestle import _library

# glibc, the compiler's libraries, and what the wheel brings along.
USUAL = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1",
         "libstdc++.so.6", "ld-linux-x86-64.so.2"}  # fmt: skip


def needed(path: Path) -> set[str]:
    with path.open("rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags()
        return {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}


def undefined(path: Path) -> set[str]:
    with path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF"}


def test_the_library_asks_for_no_driver_no_cuda_and_no_torch():
    brought = {path.name for path in _library.PATH.parent.parent.glob("pestle.libs/*")}
    assert needed(_library.PATH) <= USUAL | brought
    names = undefined(_library.PATH)
    assert not {n for n in names if n.startswith(("cuda", "aoti_torch", "torch_", "cuInit"))}


def test_the_library_is_small():
    assert _library.PATH.stat().st_size <= 95 * 2**20  # of every architecture of a release


def test_cuda_kernels_are_in_it():
    with_cuda = next(b for b in pestle.list_backends() if b.name == "cuda")
    ops = {op for op, contract in _library.contracts().items()
           if any(i["device"] == "cuda" for i in contract["implementations"])}  # fmt: skip
    assert "quantize_nvfp4" in ops
    assert with_cuda.available == torch.cuda.is_available()


def test_the_tag_names_old_linuxes():
    try:
        wheel = metadata.distribution("pestle").read_text("WHEEL")
    except metadata.PackageNotFoundError:
        pytest.skip("the package was not installed from its wheel")
    tags = [line.split("-")[-1] for line in wheel.splitlines() if line.startswith("Tag: py3-none-")]
    versions = [tuple(map(int, t.split("_")[1:3])) for t in tags if t.startswith("manylinux_")]
    assert versions and min(versions) <= (2, 36)


# What a user may lack: the backend of that name, and the library that ours stands in for.
OPTIONAL = {"triton", "comfy_kitchen"}


def test_what_the_package_imports_is_installed_with_it():
    imported = set()
    for path in Path(pestle.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.split(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - OPTIONAL - {"pestle"}
    try:
        required = metadata.distribution("pestle").requires
    except metadata.PackageNotFoundError:
        pytest.skip("the package was not installed from its wheel")
    always = [line for line in required if "extra ==" not in line]
    assert foreign == {re.match(r"\w+", line).group() for line in always}


def test_the_wheel_carries_the_command(tmp_path):
    """`pip install`, then `pestle quantize`, without importing torch."""
    run_it = "import sys, pestle_cli; sys.exit(pestle_cli.main())"
    command = [sys.executable, "-X", "importtime", "-c", run_it]
    torch.manual_seed(0)
    model, small = tmp_path / "m.safetensors", tmp_path / "small.safetensors"
    pestle.save_file({"a.weight": torch.randn(64, 128), "b.weight": torch.randn(64, 128)}, model)
    run = subprocess.run(
        [*command, "quantize", "--all", "-f", "fp8", "--json", "-", model, small],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert [layer["format"] for layer in json.loads(run.stdout)["layers"]] == ["fp8", "fp8"]
    assert "pestle_cli" in run.stderr and "torch" not in run.stderr
    assert small.stat().st_size < model.stat().st_size / 3
    other = tmp_path / "other.safetensors"
    refused = subprocess.run([*command, "quantize", model, other], capture_output=True, text=True)
    assert refused.returncode == 11 and "\npestle: nothing says which format" in refused.stderr
    scripts = metadata.entry_points(group="console_scripts", name="pestle")
    assert [script.value for script in scripts] == ["pestle_cli:main"]
