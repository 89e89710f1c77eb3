#!/usr/bin/env python3
"""usage: tools/tidy.py BUILD_DIR [JOBS]: clang-tidy over the host code listed in BUILD_DIR's
compile_commands.json. A file that passed is not looked at again, in no checkout, until it, a header
that it includes, its compile command, .clang-tidy or clang-tidy itself changes."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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


@cache
def content(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


def known_includes(build: Path) -> dict[str, list[Path]]:
    """By object: the files that its last compilation read, if none of them has changed since."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True)
    found = {}
    for block in listed.stdout.split("\n\n"):
        head, *lines = block.splitlines() or [""]
        match = re.match(r"(.+): #deps \d+, deps mtime (\d+) \(VALID\)", head)
        if not match:
            continue
        files = [(build / line.strip()).resolve() for line in lines]
        if all(f.is_file() and f.stat().st_mtime_ns <= int(match[2]) for f in files):
            found[str(build / match[1])] = files
    return found


def make_key_of(build: Path):
    """A function: compile_commands.json's entry to the name of what clang-tidy would see."""
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    shared = digest(version, (ROOT / ".clang-tidy").read_bytes(), " ".join(EXTRA).encode())
    headers = sorted(h for folder in FOLDERS for h in (ROOT / folder).rglob("*.h"))
    includes = known_includes(build)

    def key_of(entry: dict) -> str:
        read = includes.get(entry.get("output", ""), headers)
        command = entry["command"].replace(str(ROOT), "").encode()
        own = Path(entry["file"]).relative_to(ROOT)
        parts = (content(file) for file in sorted(read))
        return digest(shared.encode(), str(own).encode(), command, content(ROOT / own), *parts)

    return key_of


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    stamps = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pestle" / "tidy"
    stamps.mkdir(parents=True, exist_ok=True)
    key_of = make_key_of(build)

    def check(entry: dict) -> str:
        source = Path(entry["file"])
        stamp = stamps / key_of(entry)
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
