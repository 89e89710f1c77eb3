#!/usr/bin/env python3
"""Writes the first version of a new op: ops/FAMILY/NAME/ and its line in ops/ops.def.

usage: tools/new_op.py FAMILY NAME        (or make new-op FAMILY=FAMILY NAME=NAME)

The op that comes out multiplies by a factor. It compiles, is vectorised and threaded, and passes
`pestle check NAME` as it is; CONTRIBUTING.md shows how to go on from there.
"""

import re
import sys
from pathlib import Path

ROLES = {"spec.h": "_spec.h", "ref.cpp": "_ref.cpp", "cpu.cpp": "_cpu.cpp", "md": ".md"}
MAX_NAME = 32
RESERVED = re.findall(
    r"\w+",
    """
    alignas alignof and asm auto bool break case catch char class compl concept const consteval
    constexpr constinit continue decltype default delete do double else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not
    nullptr operator or private protected public register requires return short signed sizeof
    static struct switch template this throw true try typedef typeid typename union unsigned
    using virtual void volatile while xor main common cpu cuda std pestle
    """,
)


def families(root: Path) -> list[str]:
    """Those that the table has."""
    return sorted(set(re.findall(r"^PESTLE_OP\(([\w/]+),", (root / "ops/ops.def").read_text(),
                                 re.MULTILINE)))  # fmt: skip


def complaint(root: Path, family: str, name: str) -> str | None:
    """Why `name` can't be a new op here, as a sentence; None if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        return f"'{name}' is no op name; use lower-case words joined by _, such as scale_rows"
    if len(name) > MAX_NAME:
        return f"'{name}' has {len(name)} characters; op names have at most {MAX_NAME}"
    if name in RESERVED:
        return f"'{name}' means something in C++ or in this tree; add a word, such as {name}_rows"
    if (
        not re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)?", family)
        or not (root / "ops" / family).is_dir()
    ):
        known = ", ".join(families(root))
        return f"there is no folder ops/{family}; families of ops are {known}"
    if (root / "ops" / family / name).exists():
        return f"ops/{family}/{name} exists already; edit it, or choose another name"
    if re.search(rf"^PESTLE_OP\([\w/]+, {name},", (root / "ops/ops.def").read_text(), re.MULTILINE):
        return f"ops/ops.def lists {name} already; remove that line, or choose another name"
    for header in [*sorted((root / "ops/shared").glob("*.h")), root / "include/pestle/pestle.h"]:
        if re.search(rf"\b(pestle_)?{name}\b\s*[({{]", header.read_text()):
            used = header.relative_to(root)
            return f"{used} uses the name '{name}' for something else; add a word to it"
    return None


def scaffold(root: Path, family: str, name: str) -> list[str]:
    """Writes the files and returns their paths. The table's line is last: until then no build
    looks for the op."""
    folder = root / "ops" / family / name
    folder.mkdir()
    written = []
    for role, suffix in ROLES.items():
        text = (root / f"tools/new_op/{role}.in").read_text()
        text = text.replace("@NAME@", name).replace("@FAMILY@", family)
        file = folder / (name + suffix)
        file.write_text(text)
        written.append(str(file.relative_to(root)))
    table = root / "ops/ops.def"
    text = table.read_text()
    table.write_text(
        text + ("" if text.endswith("\n") else "\n") + f"PESTLE_OP({family}, {name}, 1, 0)\n"
    )
    return written


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    root = Path(__file__).resolve().parent.parent
    family, name = arguments
    if fault := complaint(root, family, name):
        print(f"new_op: {fault}", file=sys.stderr)
        return 1
    for path in scaffold(root, family, name):
        print(f"wrote {path}")
    print(f"added PESTLE_OP({family}, {name}, 1, 0) to ops/ops.def")
    print(f"next: make cli && build/bin/pestle check {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
