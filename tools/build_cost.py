#!/usr/bin/env python3
"""What a build cost: minutes of compiling CUDA, bytes of the library, the dearest files.

usage: tools/build_cost.py FOLDER [--most-mib 95] [--out bench/results/build.jsonl]

Times are ninja's own (.ninja_log), so they say nothing where ccache had the object: set
CCACHE_DISABLE=1 before building what is to be recorded. Exits with 1 if the library is larger.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def last_steps(log):
    """Seconds of each target's last build."""
    steps = {}
    for line in log.read_text().splitlines():
        if line.startswith("#"):
            continue
        start, end, _, target, _ = line.split("\t")
        steps[target] = (int(end) - int(start)) / 1000
    return steps


def cached(folder, name):
    for line in (folder / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split("=", 1)[1]
    return ""


def measure(folder):
    steps = last_steps(folder / ".ninja_log")
    cuda = {t: s for t, s in steps.items() if t.endswith(".cu.o") and (folder / t).exists()}
    library = folder / "lib/libpestle.so"
    commit = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return {
        "build": folder.name,
        "architectures": cached(folder, "CMAKE_CUDA_ARCHITECTURES"),
        "cuda_files": len(cuda),
        "cuda_minutes": sum(cuda.values()) / 60,
        "all_minutes": sum(steps.values()) / 60,
        "cuda_object_bytes": sum((folder / target).stat().st_size for target in cuda),
        "library_bytes": library.stat().st_size if library.exists() else None,
        "dearest": [
            {"file": Path(t).name[:-2], "seconds": cuda[t], "bytes": (folder / t).stat().st_size}
            for t in sorted(cuda, key=cuda.get, reverse=True)[:10]
        ],
        "machine": {
            "commit": subprocess.run(
                commit, cwd=ROOT, capture_output=True, text=True
            ).stdout.strip()
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most-mib", type=float, default=95)
    parser.add_argument("--cpu-minutes", type=float, help="of all, where steps overlap")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cost = measure(arguments.folder)
    if arguments.cpu_minutes is not None:
        cost["cpu_minutes"] = arguments.cpu_minutes
    size = cost["library_bytes"]
    print(
        f"{cost['build']}: {cost['cuda_files']} CUDA files for {cost['architectures']}: "
        f"{cost['cuda_minutes']:.1f} minutes, {cost['cuda_object_bytes'] / 2**20:.1f} MiB of "
        f"objects; everything: {cost['all_minutes']:.1f} minutes, one core each"
    )
    for entry in cost["dearest"]:
        print(f"  {entry['seconds']:7.1f} s {entry['bytes'] / 2**10:8.0f} KiB  {entry['file']}")
    if size is None:
        print("no libpestle.so there: build the target pestle")
        return 1
    print(f"libpestle.so: {size / 2**20:.1f} MiB, at most {arguments.most_mib:g}")
    if arguments.out:
        with open(arguments.out, "a") as file:
            file.write(json.dumps(cost) + "\n")
    return 0 if size <= arguments.most_mib * 2**20 else 1


if __name__ == "__main__":
    sys.exit(main())
