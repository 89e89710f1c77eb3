"""What the documents say: docs/cli.md is complete and true, the README works, no link is dead."""

import json
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PESTLE = os.environ.get("PESTLE_BIN", str(ROOT / "build/bin/pestle"))
CLI = (ROOT / "docs/cli.md").read_text()


def pestle(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([PESTLE, *map(str, arguments)], capture_output=True, text=True)


def commands() -> list[str]:
    listed = pestle("--help").stdout.split("Subcommands:")[1]
    return re.findall(r"^  (\w+) ", listed, re.MULTILINE)


def section(command: str) -> str:
    found = re.search(rf"^### {command}$(.*?)(?=^##)", CLI, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section '### {command}'"
    return found[1]


@pytest.mark.parametrize("command", commands())
def test_every_option_is_described(command):
    offered = set(re.findall(r"--[a-z][a-z-]*", pestle(command, "--help").stdout)) - {"--help"}
    described = set(re.findall(r"--[a-z][a-z-]*", section(command)))
    assert offered - described <= set(), f"docs/cli.md lacks {sorted(offered - described)}"
    # Other commands' options may be named too, but none that no command has.
    known = set().union(
        *(re.findall(r"--[a-z][a-z-]*", pestle(c, "--help").stdout) for c in commands())
    )
    assert described <= known, f"docs/cli.md invents {sorted(described - known)}"


def test_no_command_is_invented():
    assert set(re.findall(r"^### (\w+)$", CLI, re.MULTILINE)) == set(commands())


# ---- exit codes of the table's situations


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header, data=b"", length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


NAN = struct.pack("<f", float("nan"))
EMPTY = b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
BAD_FILES = {
    "not safetensors": b"hello, this is no model",
    "empty file": b"",
    "truncated": safetensors({"a.weight": entry("F32", [4, 4], 0, 64)}, bytes(60)),
    "header that lies about sizes": safetensors({"a": entry("F32", [4, 5], 0, 64)}, bytes(64)),
    "overlapping offsets": safetensors(
        {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3)
    ),
    "out-of-range offsets": safetensors({"a": entry("U8", [2], 5, 7)}, bytes(3)),
    "duplicate names": safetensors(b"{" + EMPTY + b"," + EMPTY + b"}"),
    "non-UTF-8 names": safetensors(b"{" + EMPTY.replace(b"a", b"\xff\xfe", 1) + b"}"),
    "header of 2^63 bytes": safetensors(b"{}", b"", 2**63),
    "JSON nested 50,000 deep": safetensors(b'{"a":' + b"[" * 50000 + b"]" * 50000 + b"}"),
    "unknown dtype": safetensors({"a": entry("Q3", [2], 0, 2)}, bytes(2)),
    "NaN weights": safetensors({"a.weight": entry("F32", [4, 32], 0, 512)}, NAN + bytes(508)),
    "NaN in a kept tensor": safetensors(
        {"a.weight": entry("F32", [4, 32], 0, 512), "b": entry("F32", [1], 512, 516)},
        bytes(512) + NAN,
    ),
}
# tests/files and the crash tests cover these: they need a small disk, a user or a signal.
ELSEWHERE = {"no permission", "disk full", "Ctrl-C", "standard output that can't be written"}


def documented() -> dict[str, int]:
    table = CLI.split("| situation | code |")[1]
    return {name: int(code) for name, code in re.findall(r"^\| ([^|]+) \| (\d+) \|$", table, re.M)}


def assert_refused(run, code: int, *forbidden: Path) -> None:
    assert run.returncode == code, run.stderr
    assert run.stderr.startswith("pestle: ") and run.stderr.count("\n") == 1, run.stderr
    assert run.stdout == ""
    for path in forbidden:
        assert not path.exists(), f"{path} was left behind"


@pytest.mark.parametrize("situation", BAD_FILES)
def test_exit_code_of_a_bad_file(situation, tmp_path):
    bad, out = tmp_path / "bad.safetensors", tmp_path / "out.safetensors"
    bad.write_bytes(BAD_FILES[situation])
    run = pestle("quantize", bad, out, "--format", "fp8", "--all")
    assert_refused(run, documented()[situation], out, tmp_path / "out.safetensors.partial")
    assert sorted(tmp_path.iterdir()) == [bad]


def test_exit_codes_of_other_situations(tmp_path):
    codes = documented()
    good, out = tmp_path / "good.safetensors", tmp_path / "out.safetensors"
    good.write_bytes(safetensors({"a.weight": entry("F32", [4, 32], 0, 512)}, bytes(512)))
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"mine")
    fp8 = ("--format", "fp8", "--all")
    tried = {
        "missing file": pestle("quantize", tmp_path / "none.safetensors", out, *fp8),
        "output exists, no --force": pestle("quantize", good, other, *fp8),
        "folder of the output missing": pestle("quantize", good, tmp_path / "no/out.st", *fp8),
        "output = input": pestle("quantize", good, good, *fp8, "--force"),
        "unknown format": pestle("quantize", good, out, "--format", "fp9"),
        "pattern that matches nothing": pestle("quantize", good, out, *fp8, "--keep", "zzz*"),
        "--layer that takes no layer": pestle(
            "quantize", good, out, *fp8, "--keep", "a", "--layer", "a=int8"
        ),
        "nothing to quantise": pestle("quantize", good, out, *fp8, "--keep", "a"),
        "nothing to decode": pestle("dequantize", good, out),
        "report = output": pestle("quantize", good, out, *fp8, "--json", out),
    }
    for situation, run in tried.items():
        assert_refused(run, codes[situation], out)
    assert other.read_bytes() == b"mine"
    assert sorted(tmp_path.iterdir()) == [good, other]
    assert set(codes) == set(BAD_FILES) | set(tried) | ELSEWHERE


RECIPES = [
    (page.relative_to(ROOT), text)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for text in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.M | re.S)
]


@pytest.mark.parametrize("page, recipe", RECIPES, ids=[str(page) for page, _ in RECIPES])
def test_recipes_of_the_documents_run(page, recipe, tmp_path):
    """On a model that has a layer for each pattern."""
    names = ["final_layer.linear", "blocks.0.adaLN", "blocks.0.attn.q", "blocks.4.mlp.up"]
    names += ["blocks.4.attn.q", "blocks.5.attn.q", "blocks.5.mlp.up"]
    size = 64 * 256 * 4
    header = {
        f"{name}.weight": entry("F32", [64, 256], i * size, (i + 1) * size)
        for i, name in enumerate(names)
    }
    model, out = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    model.write_bytes(safetensors(header, struct.pack("<f", 0.5) * (len(names) * size // 4)))
    (tmp_path / "r.toml").write_text(recipe)
    run = pestle("quantize", model, out, "--recipe", tmp_path / "r.toml", "--json", "-")
    assert run.returncode == 0, run.stderr
    formats = {layer["name"]: layer["format"] for layer in json.loads(run.stdout)["layers"]}
    assert formats["final_layer.linear.weight"] is None
    assert formats["blocks.4.mlp.up"] == "mxfp8" and formats["blocks.0.attn.q"] == "int8-row"


def test_the_documents_have_recipes():
    assert RECIPES


def test_usage_is_exit_code_2():
    for arguments in ((), ("quantize",), ("nonsense",), ("ops", "--nonsense")):
        assert pestle(*arguments).returncode == 2


def test_readme_program_compiles_and_runs(tmp_path):
    build = Path(os.environ.get("PESTLE_BUILD_DIR", ROOT / "build"))
    source = re.search(r"^```c\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)[1]
    (tmp_path / "readme.c").write_text(source)
    program = tmp_path / "readme"
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include",
         tmp_path / "readme.c", f"-L{build}/lib", "-lpestle", f"-Wl,-rpath,{build}/lib",
         "-o", program], check=True,
    )  # fmt: skip
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert printed == "127 * 0.0314961 = 4\n"


def test_readme_lists_the_formats_with_their_bits():
    listed = dict(
        re.findall(r"^\| `([\w-]+)`[ †]*\| (\d\.\d\d) \|", (ROOT / "README.md").read_text(), re.M)
    )
    offered = dict(
        re.findall(r"^  ([\w-]+) [ *]+ (\d\.\d\d)\d  ", pestle("quantize", "--help").stdout, re.M)
    )
    assert set(listed) == set(offered)
    for name, bits in offered.items():
        assert abs(float(listed[name]) - float(bits)) <= 0.011, name


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name]


def test_no_link_is_dead():
    by_docs_tool = ("ops.md", "api.md", "performance.html")
    made = {ROOT / "docs/site" / name for name in by_docs_tool}
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target
        and not (page.parent / target).exists()
        and page.parent / target not in made
    ]
    assert len(pages()) > 40 and not dead, dead
