"""Follows CONTRIBUTING.md as a stranger would: its commands as they stand, in a copy."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
OP = "leaky_relu"
FENCE = re.compile(r"^```sh( fails)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def environment(tree: Path) -> dict[str, str]:
    # The tests' own build is in the compiler cache; paths below the tree don't count there.
    # PESTLE_* would point the copy's commands at the program under test instead of its own.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PESTLE_")}
    return {**inherited, "CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}


def bash(tree: Path, script: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tree, env=environment(tree), capture_output=True, text=True,
    )  # fmt: skip


def said(run: subprocess.CompletedProcess, script: str) -> str:
    return f"$ {script}\n{run.stdout[-4000:]}{run.stderr[-4000:]}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The tree as it is now, tracked or new, without what git ignores."""
    tree = tmp_path_factory.mktemp("guide") / "pestle"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if (ROOT / ".venv").is_dir():  # what `make setup` installs, so that it is not downloaded again
        (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


@pytest.fixture(scope="module")
def followed(copy) -> Path:
    """The copy after every command of the guide."""
    fences = FENCE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(fences) >= 4, "CONTRIBUTING.md has lost its commands"
    assert any(fails for fails, _ in fences)
    for fails, script in fences:
        run = bash(copy, script)
        if not fails:
            assert run.returncode == 0, said(run, script)
            continue
        # Not just any failure: the check must have run and found the difference.
        assert run.returncode == 1, said(run, script)
        assert f"FAILED {OP} cpu/{OP}_simd" in run.stdout, said(run, script)
    return copy


def test_op_is_listed_with_both_implementations(followed):
    run = bash(followed, f"build/bin/pestle ops && build/bin/pestle ops {OP}")
    assert re.search(rf"^{OP} +Leaky ReLU", run.stdout, re.MULTILINE), run.stdout
    assert f"cpu/{OP}_simd" in run.stdout and "reference" in run.stdout


def test_check_runs_it_and_passes(followed):
    run = bash(followed, f"build/bin/pestle check {OP}")
    assert run.returncode == 0, run.stdout
    count = re.search(rf"^{OP} cpu/{OP}_simd +(\d+) +\d+ +0 +0$", run.stdout, re.MULTILINE)
    assert count and int(count[1]) >= 50, run.stdout


def test_fast_path_is_chosen(followed):
    run = bash(followed, f"build/bin/pestle why {OP} M=8 K=4096")
    assert f"-> cpu/{OP}_simd" in run.stdout, run.stdout


def test_generated_files_have_it(followed):
    assert f"pestle_{OP}(" in (followed / "include/pestle/ops.h").read_text()
    assert f"## {OP}" in (followed / "docs/ops.md").read_text()


def test_lint_accepts_it(followed):
    own = f"ops/activation/{OP}/*.h ops/activation/{OP}/*.cpp"
    run = bash(followed, f"git init -q . && python3 tools/lint.py && clang-format -n -Werror {own}")
    assert run.returncode == 0, run.stdout + run.stderr


def test_broken_reference_is_found(followed):
    reference = followed / f"ops/activation/{OP}/{OP}_ref.cpp"
    before = reference.read_text()
    run = bash(followed, f"sed -i 's/value > 0/value > 1/' {reference} && make cli")
    assert run.returncode == 0, said(run, "make cli")
    assert reference.read_text() != before
    run = bash(followed, f"build/bin/pestle check {OP}")
    assert run.returncode == 1 and f"FAILED {OP}" in run.stdout, run.stdout


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Bad", "lower-case words joined by _"),
        ("../x", "lower-case words joined by _"),
        ("quantize_fp8", "exists already"),
        ("class", "means something in C++"),
        ("x" * 33, "at most 32"),
        ("load", "ops/shared/element.h uses the name"),
        ("call", "include/pestle/pestle.h uses the name"),
    ],
)
def test_scaffold_refuses(copy, name, sentence):
    before = (copy / "ops/ops.def").read_text()
    family = "quant/rowwise" if name == "quantize_fp8" else "activation"
    run = bash(copy, f"tools/new_op.py {family} '{name}'")
    assert run.returncode == 1
    assert run.stderr.startswith("new_op: ") and sentence in run.stderr, run.stderr
    assert run.stderr.count("\n") == 1
    assert (copy / "ops/ops.def").read_text() == before


def test_scaffold_knows_the_families(copy):
    run = bash(copy, "tools/new_op.py nowhere scale_rows")
    assert run.returncode == 1
    assert "no folder ops/nowhere; families of ops are activation, attention, copy," in run.stderr
