#!/usr/bin/env python3
"""usage: tools/compare_kernels.py BEFORE AFTER [--json]

Holds the machine code of every CUDA kernel of one build to that of another: two libraries with the
CUDA backend, such as build/cuda/lib/libpestle.so. Names don't count, since a move or a renaming
changes them: what is compared, for each architecture, is how many kernels have which instructions,
bit by bit. Ends with 1 if there is a kernel that only one side has. Needs cuobjdump on the PATH."""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_ARCHITECTURE = re.compile(r"^\s*(?:code for|arch =) (sm_\w+)")
_WORD = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")


def kernels(lines: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """{(architecture, hash of the instructions): names} of a dump of cuobjdump -sass."""
    found: dict[tuple[str, str], list[str]] = {}
    architecture, name, digest = "", "", None

    def close() -> None:
        if digest is not None:
            found.setdefault((architecture, digest.hexdigest()), []).append(name)

    for line in lines:
        if match := _ARCHITECTURE.match(line):
            close()
            digest = None
            architecture = match[1]
        elif match := _FUNCTION.match(line):
            close()
            name, digest = match[1], hashlib.sha256()
        elif digest is not None:
            for word in _WORD.findall(line):
                digest.update(word.encode())
    close()
    return found


def dump(library: str) -> dict[tuple[str, str], list[str]]:
    with subprocess.Popen(
        ["cuobjdump", "-sass", library], stdout=subprocess.PIPE, text=True
    ) as run:
        found = kernels(run.stdout)
    if run.returncode != 0:
        sys.exit(f"compare_kernels: cuobjdump -sass {library} ended with {run.returncode}")
    if not found:
        sys.exit(f"compare_kernels: {library} holds no kernels: was it built with CUDA?")
    return found


def differences(before: dict, after: dict) -> list[str]:
    """A line for each kernel that only one side has, or has more often."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, []), after.get(key, [])
        if len(old) != len(new):
            side = "before" if len(old) > len(new) else "after"
            names = ", ".join(sorted(old if side == "before" else new)[:2])
            lines.append(f"{key[0]}: {len(old)} before, {len(new)} after: {names}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sides = [dump(arguments.before), dump(arguments.after)]
    counts = [Counter() for _ in sides]
    for count, side in zip(counts, sides, strict=True):
        for (architecture, _), names in side.items():
            count[architecture] += len(names)
    found = differences(*sides)
    if arguments.json:
        print(json.dumps({"before": counts[0], "after": counts[1], "different": found}))
    else:
        print("\n".join(found))
        for architecture in sorted(counts[0] | counts[1]):
            print(f"{architecture}: {counts[0][architecture]} kernels before, "
                  f"{counts[1][architecture]} after")  # fmt: skip
        print(f"{len(found)} differ" if found else "all have the same machine code")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
