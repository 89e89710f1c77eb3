#!/usr/bin/env python3
"""usage: tools/tidy.py BUILD_DIR [JOBS]: clang-tidy over the host code listed in BUILD_DIR's
compile_commands.json. A file that passed is not looked at again until it, a header of this tree or
.clang-tidy changes."""

import hashlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = (
    "core", "formats", "backends", "ops", "files", "bindings", "python", "harness", "cli"
)  # fmt: skip
# The compile commands are gcc's, whose warnings clang does not know; and one SIMD target is enough.
EXTRA = [
    "--extra-arg=-Wno-unknown-warning-option",
    "--extra-arg=-Wno-error",
    "--extra-arg=-DHWY_COMPILE_ONLY_STATIC",
]
ROOT = Path(__file__).resolve().parent.parent


def digest(*parts: bytes) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(hashlib.sha256(part).digest())
    return sha.hexdigest()


def main() -> int:
    build = Path(sys.argv[1])
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)
    headers = sorted(h for folder in FOLDERS for h in (ROOT / folder).rglob("*.h"))
    shared = digest((ROOT / ".clang-tidy").read_bytes(), *(h.read_bytes() for h in headers))

    def check(entry: dict) -> str:
        source = Path(entry["file"])
        key = digest(shared.encode(), entry["command"].encode(), source.read_bytes())
        stamp = stamps / key
        if stamp.exists():
            return ""
        result = subprocess.run(
            ["clang-tidy", "--quiet", "-p", str(build), *EXTRA, str(source)],
            capture_output=True, text=True,
        )  # fmt: skip
        if result.returncode == 0:
            stamp.touch()
            return ""
        return result.stdout  # stderr only counts the warnings of system headers

    entries = json.loads((build / "compile_commands.json").read_text())
    sources = {
        e["file"]: e
        for e in entries
        if e["file"].endswith(".cpp") and Path(e["file"]).relative_to(ROOT).parts[0] in FOLDERS
    }
    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        faults = [text for text in pool.map(check, sources.values()) if text]
    print("\n".join(faults))
    seconds = time.monotonic() - start
    print(f"clang-tidy: {len(sources)} files, {len(faults)} at fault, {seconds:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
