#!/usr/bin/env python3
"""Checks what no compiler checks: who includes whom, who names an op, who reads the environment,
how long files are, and that every package names its license. The rules are docs/architecture.md's;
prints FILE:LINE: RULE, exit 1 if any.
"""

import re
import subprocess
import sys
from pathlib import Path

# folder -> folders (or single headers) that it may include, besides itself and the standard library
MAY_INCLUDE = {
    "core": [],
    "formats": ["core"],
    "backends/cpu": ["core", "formats"],
    "backends/cuda": ["core", "formats"],
    "ops": ["core", "formats", "backends/cpu", "backends/cuda"],
    "files": ["core", "formats", "backends/cpu/parallel.h"],
    "bindings/c": ["core", "formats", "files", "include", "backends/cpu/parallel.h"],
    "python/csrc": ["core", "include"],
    "harness": [
        "core",
        "formats",
        "backends/cpu/parallel.h",
        "backends/cuda/launched.h",
        "backends/cuda/runtime.h",
        "include",
    ],
    "cli": ["core", "formats", "files", "harness", "backends/cpu", "backends/cuda/runtime.h"],
    "include": [],
}
FIRST_PARTY = (
    "core", "formats", "backends", "ops", "files", "bindings", "python", "harness", "cli"
)  # fmt: skip
# These walk the table and know no op by name.
NAMELESS = ("core/", "backends/", "bindings/", "python/csrc/", "harness/", "cli/")
CODE = {".h", ".hpp", ".inc", ".c", ".cpp", ".cu", ".cuh", ".def"}
MAX_LINES = 800
UNLIMITED = ("docs/", "include/pestle/ops.h")

# A package for others says under which terms: in its own metadata or in its workspace's.
PACKAGE = re.compile(r"^\[(?:project|package)\]$", re.MULTILINE)
LICENSED = re.compile(r'^license(?:\.workspace = true| = "Apache-2\.0")$', re.MULTILINE)

INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
OP_ROW = re.compile(r"^PESTLE_OP\((\w+)", re.MULTILINE)


def layer_of(path: str) -> str | None:
    """The longest key of MAY_INCLUDE that holds `path`."""
    found = [layer for layer in MAY_INCLUDE if path.startswith(layer + "/")]
    return max(found, key=len, default=None)


def include_fault(path: str, target: str) -> str | None:
    if target.startswith("pestle/"):
        target = "include/" + target
    layer, wanted = layer_of(path), layer_of(target)
    if layer is None:
        return None
    if wanted is None:
        generated = target.endswith(".inc") and "/" not in target
        return None if generated else f'"{target}": include paths start at a folder of the root'
    if layer == "ops":
        own = path.split("/")[1] if path.count("/") > 1 else None
        other = (
            target.split("/")[1] if target.startswith("ops/") and target.count("/") > 1 else None
        )
        if other not in (None, own, "common"):
            return f"an op includes another op ({target}); share it through ops/common"
        if own is None and other is not None:
            return f"{path} knows all ops through ops.def, it may not include {target}"
    if wanted != layer and not {wanted, target} & set(MAY_INCLUDE[layer]):
        return f"{layer} may not include {wanted} ({target})"
    return None


def check_code(path: str, lines: list[str], op_name: re.Pattern | None) -> list[tuple[int, str]]:
    faults = []
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            if fault := include_fault(path, match[1]):
                faults.append((number, fault))
            continue
        code = line.split("//")[0]
        if path != "core/env.cpp" and not path.startswith("tests/") and GETENV.search(code):
            faults.append((number, "the environment is read in core/env.cpp only"))
        if op_name and path.startswith(NAMELESS) and (match := op_name.search(code)):
            faults.append((number, f"names the op {match[0]}; this layer walks the table"))
    return faults


def names_license(metadata: str) -> bool:
    """Of a package's metadata; a Cargo workspace without a package of its own needs none."""
    return not PACKAGE.search(metadata) or bool(LICENSED.search(metadata))


def op_pattern(root: Path) -> re.Pattern | None:
    """Ops whose name can't be an everyday word: those of several words."""
    table = root / "ops/ops.def"
    names = OP_ROW.findall(table.read_text()) if table.exists() else []
    names = [name for name in names if "_" in name]
    return re.compile(rf"\b(?:{'|'.join(names)})\b") if names else None


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    op_name = op_pattern(root)
    faults = []
    for path in sorted(filter(None, listed)):
        file = root / path
        if file.name in ("pyproject.toml", "Cargo.toml") and not names_license(file.read_text()):
            faults.append(f'{path}:1: names no license; write license = "Apache-2.0"')
        if not file.is_file() or file.suffix not in CODE | {".py", ".sh", ".cmake"}:
            continue
        lines = file.read_text().splitlines()
        if len(lines) > MAX_LINES and not path.startswith(UNLIMITED):
            faults.append(f"{path}:{len(lines)}: more than {MAX_LINES} lines; split it by role")
        if file.suffix in CODE:
            faults += [f"{path}:{n}: {fault}" for n, fault in check_code(path, lines, op_name)]
    print("\n".join(faults) if faults else f"lint: {len(listed) - 1} files, no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
