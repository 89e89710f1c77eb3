#!/usr/bin/env python3
"""bench/run.py on a GPU of Modal's: modal run bench/modal_bench.py --suite smoke --out results.json

FORGE_MODAL_GPU names the GPU (B200 by default). The image has what uv.lock names, Pestle's wheel
among it. This file has not run against Modal itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

try:
    import modal
except ModuleNotFoundError:
    sys.exit("modal_bench: the package modal is not installed: uv pip install modal, then "
             "modal token new")  # fmt: skip

PROJECT = Path(__file__).resolve().parents[1]
GPU = os.environ.get("FORGE_MODAL_GPU", "B200")
INSTALL = "uv export --locked --no-dev --no-emit-project | uv pip install --system -r -"

image = (
    modal.Image.from_registry("nvidia/cuda:13.1.0-devel-ubuntu24.04", add_python="3.13")
    .pip_install("uv")
    # A folder of its own, so that an edited kernel makes no new image.
    .add_local_file(PROJECT / "pyproject.toml", "/locked/pyproject.toml", copy=True)
    .add_local_file(PROJECT / "uv.lock", "/locked/uv.lock", copy=True)
    .add_local_dir(PROJECT / "wheels", "/locked/wheels", copy=True)
    .run_commands(f"cd /locked && {INSTALL}")
    .add_local_dir(PROJECT, "/project", ignore=[".venv", ".git", "profiles", "wheels"])
)
app = modal.App("forge-cute-py-bench", image=image)


@app.function(gpu=GPU, timeout=3600)
def bench(arguments: list[str]) -> tuple[int, str, str]:
    command = [sys.executable, "bench/run.py", *arguments, "--out", "/tmp/results.json"]
    done = subprocess.run(
        command, cwd="/project", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    made = Path("/tmp/results.json")
    return done.returncode, done.stdout, made.read_text() if made.exists() else ""


@app.local_entrypoint()
def main(suite: str = "smoke", op: str = "", out: str = ""):
    code, log, results = bench.remote(["--suite", suite, *(["--op", op] if op else [])])
    print(log)
    if out and results:  # whatever the run ended with
        Path(out).write_text(results)
    if code:
        sys.exit(code)
