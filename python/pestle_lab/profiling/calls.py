"""The parent's side of a profiled kernel: inputs as files, the child's command under a program, and
the verdict on what the child wrote."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ..checking import Verdict, Wrong, judge, out_of_domain, takes_none
from ..engine import cases, reference
from ..engine.building import Build
from ..engine.child import environment as child_environment
from ..engine.session import interpreted
from ..errors import UNSUPPORTED, LabError
from ..kernels import Kernel
from ..problems import Problem

STARTING = 180.0  # seconds, of Python and PyTorch under a program that slows them


def program(name: str, why: str) -> str:
    """The path of a profiler; where it is not, a sentence that says where it comes from."""
    found = shutil.which(name)
    if found:
        return found
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root and (path := Path(root) / "bin" / name).exists():
            return str(path)
    raise LabError(f"{name} is not installed: {why}", UNSUPPORTED)


class _Where:
    """What a verdict asks of a session."""

    def __init__(self, case: cases.Case):
        self.where = case.layout_of


class Calls:
    """One call on each of some cases in a process of their own; a context manager."""

    def __init__(
        self, kernel: Kernel, problem: Problem, build: Build, texts: list[str], device: str,
        folders: list[Path], *, seed: int | None = None, timeout: float = 120.0,
    ):  # fmt: skip
        self.kernel, self.problem, self.build, self.device = kernel, problem, build, device
        self.folders, self.timeout = folders, timeout
        self.seed = secrets.randbits(62) if seed is None else seed
        made = [cases.make(problem, text) for text in texts]
        self.cases = [case for case in made if not out_of_domain(kernel, case)]
        if not self.cases:
            raise takes_none(kernel, problem, texts, "called")

    def __enter__(self) -> Calls:
        self.temporary = tempfile.TemporaryDirectory(prefix="pestle-lab-")
        self.folder = Path(self.temporary.name)
        return self

    def __exit__(self, *_) -> None:
        self.temporary.cleanup()

    def _step(self, index: int, case: cases.Case) -> dict:
        place = self.folder / str(index)
        place.mkdir(exist_ok=True)
        inputs = {}
        for name, array in case.inputs(self.seed + index).items():
            inputs[name] = str(place / f"{name}.in")
            array.tofile(inputs[name])
        files = {name: str(place / f"{name}.out") for name in case.plans}
        (place / "done").unlink(missing_ok=True)
        return {"case": case.text, "inputs": inputs, "files": files, "done": str(place / "done")}

    def job(self, *, warm: bool, trace: Path | None = None) -> Path:
        job = {
            "device": self.device,
            "problem": self.problem.name,
            "problem_folders": [str(Path(p).resolve()) for p in self.folders],
            "kernel": {
                "path": str(self.kernel.path.resolve()),
                "entry": self.kernel.entry,
                "library": self.build.library,
                "arguments": self.kernel.arguments,
            },
            "warm": warm,
            "trace": str(trace.resolve()) if trace else "",
            "steps": [self._step(i, case) for i, case in enumerate(self.cases)],
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps(job))
        return path

    def run(self, before: list[str], job: Path, **environment: str) -> tuple[int, str]:
        """Exit code and output of the child under `before`, a program and its options; the whole
        of it is killed when it takes longer than it may."""
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "pestle_lab.profiling.child", str(job)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=child_environment() | interpreted(self.kernel, self.device) | environment,
            start_new_session=True,
        )  # fmt: skip
        seconds = STARTING + self.timeout * len(self.cases)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise LabError(f"{self.kernel.name}: not done after {seconds:g} s") from None
        return process.returncode, out.decode(errors="replace")

    def verdicts(self, log: str) -> list[Verdict]:
        """Right or wrong, for each case; one that was not reached is the fault of the process."""
        return [self._verdict(i, case, log) for i, case in enumerate(self.cases)]

    def _verdict(self, index: int, case: cases.Case, log: str) -> Verdict:
        seed = self.seed + index
        place, verdict = self.folder / str(index), Verdict(case.text, seed=seed)
        if not (place / "done").exists():
            verdict.status, verdict.log = "runtime_error", log[-4000:]
            lines = log.strip().splitlines()
            verdict.message = lines[-1] if lines else "the process ended before the call did"
            return verdict
        import numpy as np

        masters = case.inputs(seed)
        fetched = {n: np.fromfile(place / f"{n}.out", np.uint8) for n in case.plans}
        truth = reference.truth(case, masters)
        try:
            judge(case, _Where(case), masters, fetched, truth, "under the tool", verdict)
            verdict.checks["under the tool"] = "ok"
        except Wrong as wrong:
            verdict.status, verdict.message = wrong.status, str(wrong)
        return verdict
