"""A registered kernel through the workbench: a process of its own, poisoned outputs, guard bytes,
data that it has not seen, and a float64 reference that is made afterwards from copies of its own.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pestle_lab import benching, checking
from pestle_lab.errors import LabError
from pestle_lab.kernels import Kernel

from .backends import Backend
from .discovery import HOME
from .results import CorrectnessResult, PerformanceResult
from .task import TestCase, problem

_SHIM = """\
import sys

sys.path.insert(0, {home!r})
from kernel_utils.discovery import function_of

custom_kernel = function_of({name!r}, {source!r})
"""


@contextlib.contextmanager
def as_kernel(backend: Backend) -> Iterator[Kernel]:
    if not backend.source:
        raise LabError(f"backend {backend.name!r} was registered by no file")
    with tempfile.TemporaryDirectory(prefix="kernel-utils-") as folder:
        path = Path(folder) / "entry.py"
        source = str(Path(backend.source).resolve())
        path.write_text(_SHIM.format(home=str(HOME), name=backend.name, source=source))
        yield Kernel(
            name=f"nvfp4_gemv/{backend.name}",
            language="triton" if backend.language == "triton" else "python",
            entry="custom_kernel",
            path=path,
            capturable=False,
            deterministic=backend.deterministic,
        )


def correctness(
    backend: Backend, tests: list[TestCase], device: str | None, seed: int | None, timeout: float
) -> list[CorrectnessResult]:
    with as_kernel(backend) as kernel:
        done = checking.check(
            kernel,
            problem(),
            [test.text for test in tests],
            device=device,
            seed=seed,
            timeout=timeout,
            problem_folders=[],
        )
    found = []
    for test, verdict in zip(tests, done.cases, strict=True):
        errors = verdict.outputs.get("c", {})
        found.append(
            CorrectnessResult(
                test.name,
                backend.name,
                verdict.passed,
                test.serialize(),
                errors.get("max_abs"),
                errors.get("max_rel"),
                None if verdict.passed else verdict.message,
                None if verdict.passed else verdict.status,
            )
        )
    return found


def performance(
    backend: Backend, tests: list[TestCase], device: str | None, seconds: float, timeout: float
) -> list[PerformanceResult]:
    """Medians: with a flushed cache on a GPU; on a CPU, where to flush it takes longer than all
    else, one call after the other. What can't be timed here says why."""
    mode = "cold" if (device or checking.default_device()).startswith("cuda") else "warm"
    settings = benching.Settings(device=device, modes=(mode,), seconds=seconds, timeout=timeout)
    why = None
    with as_kernel(backend) as kernel:
        try:
            timed = benching.bench(kernel, problem(), [test.text for test in tests], settings).cases
        except LabError as error:
            timed, why = [None] * len(tests), str(error)
    found = []
    for test, case in zip(tests, timed, strict=True):
        result = PerformanceResult(test.name, backend.name, False, test.serialize())
        if case is None or not case.verdict.passed:
            result.error_msg = why or f"{case.verdict.status}: {case.verdict.message}"
        else:
            result.successfully_ran = True
            result.avg_time_ms = case.modes[mode].median / 1e6
        found.append(result)
    return found
