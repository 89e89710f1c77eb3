#!/usr/bin/env python3
"""Checks what no compiler checks: who includes whom, who names an op, who reads the environment,
how long files and notes are, and that every package names its license. The rules are
docs/architecture.md's; prints FILE:LINE: RULE, exit 1 if any.
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
        "backends/cuda/measure/launched.h",
        "backends/cuda/host/runtime.h",
        "include",
    ],
    "cli": ["core", "formats", "files", "harness", "backends/cpu", "backends/cuda/host/runtime.h"],
    "include": [],
}
# family of ops -> families that it may include, besides itself and ops/shared: no circle
FAMILIES = {
    "shared": [],
    "copy": [],
    "reduce": [],
    "rope": [],
    "softmax": [],
    "quant": ["copy"],
    "activation": ["quant"],
    "norm": ["quant"],
    "attention": ["softmax"],
    "gemm": ["quant", "activation", "norm", "copy"],
}
# Files of a folder itself: more of them are rooms that nobody named. Those of op families hold it.
MAX_FILES = 25
FIRST_PARTY = (
    "core", "formats", "backends", "ops", "files", "bindings", "python", "harness", "cli"
)  # fmt: skip
# These walk the table and know no op by name.
NAMELESS = ("core/", "backends/", "bindings/", "python/csrc/", "harness/", "cli/")
CODE = {".h", ".hpp", ".inc", ".c", ".cpp", ".cu", ".cuh", ".def"}
MAX_LINES = 800
# That a multiprocessor holds at a time, of the architecture that holds fewest (sm_86, 89, 120).
MAX_RESIDENT_THREADS = 1536
UNLIMITED = ("docs/", "include/pestle/ops.h")
# Notes and the ops' notebooks together, so that they are read: what is superseded makes room.
MAX_WORDS = 25_000
MAX_NOTEBOOK_LINES = 120

# A package for others says under which terms: in its own metadata or in its workspace's.
PACKAGE = re.compile(r"^\[(?:project|package)\]$", re.MULTILINE)
LICENSED = re.compile(r'^license(?:\.workspace = true| = "Apache-2\.0")$', re.MULTILINE)

INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(")
CONSTANT = re.compile(r"\bconstexpr int (\w+) = (\d+);")
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\w+), ((?:[^()]|\([^()]*\))*)\)")
LITERAL = re.compile(r"\b\d+\b")
OP_ROW = re.compile(r"^PESTLE_OP\(([\w/]+), (\w+)", re.MULTILINE)


def layer_of(path: str) -> str | None:
    """The longest key of MAY_INCLUDE that holds `path`."""
    found = [layer for layer in MAY_INCLUDE if path.startswith(layer + "/")]
    return max(found, key=len, default=None)


def family_fault(path: str, target: str, ops: dict[str, str]) -> str | None:
    """Of an include within ops/; `ops` has the folder of each op."""
    if path.count("/") == 1:
        known = target.count("/") == 1
        return None if known else f"{path} knows all ops through ops.def, not through {target}"
    if target.count("/") == 1:
        return None
    own, other = path.split("/")[1], target.split("/")[1]
    if own not in FAMILIES:
        return f"ops/{own} is no family that tools/lint.py knows"
    if other not in (own, "shared", *FAMILIES[own]):
        return f"ops/{own} may not include ops/{other} ({target})"
    folder = target.rsplit("/", 1)[0]
    if folder in ops.values() and not path.startswith(folder + "/"):
        return f"an op includes another op ({target}); share it through their family's folder"
    return None


def include_fault(path: str, target: str, ops: dict[str, str]) -> str | None:
    if target.startswith("pestle/"):
        target = "include/" + target
    layer, wanted = layer_of(path), layer_of(target)
    if layer is None:
        return None
    if wanted is None:
        generated = target.endswith(".inc") and "/" not in target
        return None if generated else f'"{target}": include paths start at a folder of the root'
    if layer == "ops" and target.startswith("ops/") and (fault := family_fault(path, target, ops)):
        return fault
    if wanted != layer and not {wanted, target} & set(MAY_INCLUDE[layer]):
        return f"{layer} may not include {wanted} ({target})"
    return None


def check_code(
    path: str, lines: list[str], op_name: re.Pattern | None, ops: dict[str, str]
) -> list[tuple[int, str]]:
    faults = []
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            if fault := include_fault(path, match[1], ops):
                faults.append((number, fault))
            continue
        code = line.split("//")[0]
        if path != "core/env.cpp" and not path.startswith("tests/") and GETENV.search(code):
            faults.append((number, "the environment is read in core/env.cpp only"))
        if op_name and path.startswith(NAMELESS) and (match := op_name.search(code)):
            faults.append((number, f"names the op {match[0]}; this layer walks the table"))
    return faults


def constants_of(texts: dict[str, str]) -> dict[str, int | None]:
    """Values of the integers that device code names; None where two differ."""
    values: dict[str, int | None] = {}
    for text in texts.values():
        for name, value in CONSTANT.findall(text):
            values[name] = int(value) if values.get(name, int(value)) == int(value) else None
    return values


def bounds_faults(texts: dict[str, str]) -> list[str]:
    """Kernels that ask for more threads than fit. ptxas refuses them; CI has sm_80 and 90 alone."""
    shared, faults = constants_of(texts), []
    for path, text in texts.items():
        names = shared | constants_of({path: text})
        for match in LAUNCH_BOUNDS.finditer(text):
            threads, ctas = names.get(match[1]), match[2]
            if match[1].isdigit():
                threads = int(match[1])
            # Of a choice, what is chosen; a name is taken if it is a number.
            counts = [int(n) for n in LITERAL.findall(ctas.split("?")[-1])]
            counts += [n for n in [names.get(ctas)] if n is not None]
            if threads and any(threads * count > MAX_RESIDENT_THREADS for count in counts):
                line = text.count("\n", 0, match.start()) + 1
                faults.append(
                    f"{path}:{line}: {threads} threads times {max(counts)} are more than "
                    f"{MAX_RESIDENT_THREADS}, which is all that some multiprocessors hold"
                )
    return faults


def names_license(metadata: str) -> bool:
    """Of a package's metadata; a Cargo workspace without a package of its own needs none."""
    return not PACKAGE.search(metadata) or bool(LICENSED.search(metadata))


def op_folders(root: Path) -> dict[str, str]:
    """Folder of each op of the table."""
    table = root / "ops/ops.def"
    rows = OP_ROW.findall(table.read_text()) if table.exists() else []
    return {name: f"ops/{family}/{name}" for family, name in rows}


def op_pattern(ops: dict[str, str]) -> re.Pattern | None:
    """Ops whose name can't be an everyday word: those of several words."""
    names = [name for name in ops if "_" in name]
    return re.compile(rf"\b(?:{'|'.join(names)})\b") if names else None


def crowded(paths: list[str]) -> list[str]:
    """Folders of ops and backends with more files than a room should have."""
    counts: dict[str, int] = {}
    for path in paths:
        if path.startswith(("ops/", "backends/")):
            folder = path.rsplit("/", 1)[0]
            counts[folder] = counts.get(folder, 0) + 1
    return [
        f"{folder}: {count} files; at most {MAX_FILES} belong in a folder"
        for folder, count in sorted(counts.items())
        if count > MAX_FILES
    ]


def wordy(pages: dict[str, str]) -> list[str]:
    """Of the text of each Markdown page: notes and notebooks that are too long to be read."""
    notes = {path: text for path, text in pages.items() if path.startswith(("docs/notes/", "ops/"))}
    lengths = {path: len(text.splitlines()) for path, text in notes.items()}
    faults = [
        f"{path}:{length}: more than {MAX_NOTEBOOK_LINES} lines for a notebook"
        for path, length in sorted(lengths.items())
        if path.startswith("ops/") and length > MAX_NOTEBOOK_LINES
    ]
    words = sum(len(text.split()) for text in notes.values())
    if words > MAX_WORDS:
        faults.append(
            f"docs/notes: {words} words with the notebooks of ops; at most {MAX_WORDS}: "
            "cut what is superseded, history, or printed in docs/performance.md"
        )
    return faults


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    ops = op_folders(root)
    op_name = op_pattern(ops)
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
            faults += [f"{path}:{n}: {fault}" for n, fault in check_code(path, lines, op_name, ops)]
    faults += crowded(listed)
    device = [path for path in listed if path.endswith((".cu", ".cuh")) and (root / path).is_file()]
    faults += bounds_faults({path: (root / path).read_text() for path in device})
    pages = [path for path in listed if path.endswith(".md") and (root / path).is_file()]
    faults += wordy({path: (root / path).read_text() for path in pages})
    print("\n".join(faults) if faults else f"lint: {len(listed) - 1} files, no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
