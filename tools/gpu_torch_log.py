"""A pytest plugin for tools/gpu_torch.sh: what passed, failed and was skipped in each file, and
where. Failures are written when they happen and counts every few seconds, so that a run that is
killed has told them. Workers of pytest-xdist take turns at the GPUs."""

from __future__ import annotations

import collections
import functools
import hashlib
import os
import platform
import subprocess
import time
from pathlib import Path

LOG = Path(os.environ.get("PESTLE_TORCH_LOG", "gpu-torch.log"))
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
SECONDS_BETWEEN_LOGS = 5
counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
seconds: collections.Counter = collections.Counter()
skips: collections.Counter = collections.Counter()
written = time.monotonic()


def _own_gpu_first() -> None:
    """The current GPU of this worker is its own; the others stay visible for tests of several."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if WORKER:
        first = int(WORKER.removeprefix("gw")) % len(gpus)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first:] + gpus[:first])


_own_gpu_first()  # before torch is imported


def _failures() -> Path:
    return LOG.with_suffix(".failures.txt")


def pytest_runtest_logreport(report) -> None:
    if WORKER:
        return
    file = Path(report.nodeid.split("::")[0]).name
    seconds[file] += report.duration
    if report.when == "call" or report.outcome != "passed":
        counts[file][report.outcome] += 1
    if report.skipped and isinstance(report.longrepr, tuple):
        skips[file, report.longrepr[2].removeprefix("Skipped: ")] += 1
    if report.failed:
        with _failures().open("a") as out:
            out.write(f"=== {report.nodeid} ({report.when})\n{report.longreprtext[-3000:]}\n")
    if time.monotonic() - written > SECONDS_BETWEEN_LOGS:
        _write(["stopped before its end", ""])


def pytest_collectreport(report) -> None:
    if report.failed and not WORKER:
        with _failures().open("a") as out:
            out.write(f"=== {report.nodeid} (collecting)\n{report.longreprtext[-3000:]}\n")


@functools.cache
def machine() -> list[str]:
    import torch

    lines = [f"torch {torch.__version__}, Python {platform.python_version()}"]
    if torch.cuda.is_available():
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, check=True)
        lines += sorted({f"GPU {line}" for line in found.stdout.splitlines()})
    return lines


@functools.cache
def package() -> list[str]:
    import pestle

    commit = os.environ.get("PESTLE_COMMIT", "")
    lines = [f"pestle {pestle.__version__}{f', commit {commit}' if commit else ''}"]
    if wheel := os.environ.get("PESTLE_TORCH_WHEEL"):
        data = Path(wheel).read_bytes()
        lines.append(f"{Path(wheel).name}: {len(data):,} bytes, sha256 {_hash(data)}")
    for backend in pestle.list_backends():
        lines.append(f"backend {backend.name}: {backend.reason or f'{len(backend.ops)} ops'}")
    return lines


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pytest_sessionfinish(session) -> None:
    if not WORKER:
        _write([])


def _write(first: list[str]) -> None:
    global written
    lines = [*first, *machine(), *package(), ""]
    for file in sorted(counts):
        told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts[file].items()))
        lines.append(f"{file}: {told} ({seconds[file]:.0f} s)")
    total = sum(counts.values(), collections.Counter())
    lines += ["all: " + ", ".join(f"{n} {o}" for o, n in sorted(total.items()))]
    lines += [f"skipped {n} x {file}: {why}" for (file, why), n in sorted(skips.items())]
    LOG.write_text("\n".join(lines) + "\n")
    written = time.monotonic()
