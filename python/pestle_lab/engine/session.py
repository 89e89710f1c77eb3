"""The parent's side of the process that a kernel runs in."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..kernels import Kernel
from ..problems import Problem
from . import buffers
from .building import Build
from .cases import Case
from .child import Child, take

STARTING = 180.0  # seconds


class WorkerError(Exception):
    """How a kernel's process failed: a status of a report, and what it said."""

    def __init__(self, status: str, message: str, log: str = ""):
        super().__init__(message)
        self.status, self.log = status, log


def interpreted(kernel: Kernel, device: str) -> dict[str, str]:
    """Variables that a kernel needs before its file is loaded."""
    on_cpu = kernel.language == "triton" and device == "cpu"
    return {"TRITON_INTERPRET": "1"} if on_cpu else {}


# Exceptions in the child that are statuses; what else is raised is a runtime_error.
_STATUSES = {
    "Unsupported": "unsupported",
    "WrongShape": "wrong_shape",
    "WrongDtype": "wrong_dtype",
}


def _described(kernel: Kernel, build: Build) -> dict:
    """What its process is told of a kernel."""
    return {
        "path": str(kernel.path),
        "entry": kernel.entry,
        "library": build.library,
        "arguments": kernel.arguments,
    }


@contextlib.contextmanager
def opened(sessions: list[Session]):
    """Their processes, started at once."""
    try:
        with ThreadPoolExecutor(len(sessions)) as pool:
            list(pool.map(Session.__enter__, sessions))
        yield sessions
    finally:
        for session in sessions:
            session.__exit__()


class Session:
    """One kernel in one process; a context manager, so that no process is left behind."""

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        build: Build,
        device: str,
        timeout: float,
        problem_folders: list[Path],
    ):
        self.kernel, self.problem, self.build = kernel, problem, build
        self.device, self.timeout, self.problem_folders = device, timeout, problem_folders
        self.case: Case | None = None
        self.child: Child | None = None

    def __enter__(self) -> Session:
        self.child = take()
        self.folder = Path(self.child.folder.name)
        self.pending = b""
        self.ask(
            "start",
            device=self.device,
            environment=interpreted(self.kernel, self.device),
            problem=self.problem.name,
            problem_folders=[str(p) for p in self.problem_folders],
            kernel=_described(self.kernel, self.build),
        )
        return self

    def add(self, kernel: Kernel, build: Build) -> None:
        """A second kernel into the same process, once a case is open."""
        self.ask("add", kernel=_described(kernel, build))

    def __exit__(self, *_) -> None:
        if self.child is not None:
            self.child.close()

    def busy(self) -> dict[str, int]:
        return self.child.busy()

    def log(self, characters: int = 4000) -> str:
        return self.child.log(characters)

    def _line(self, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while b"\n" not in self.pending:
            left = until - time.monotonic()
            if left <= 0:
                self.child.kill()
                raise WorkerError("timeout", f"no answer within {seconds:g} s", self.log())
            if not select.select([self.child.answers], [], [], left)[0]:
                continue
            more = os.read(self.child.answers, 1 << 16)
            if not more:
                raise WorkerError("crash", self._how_it_ended(), self.log())
            self.pending += more
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        code = self.child.process.wait()
        if code < 0:
            return f"the process ended by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"

    def ask(self, do: str, **request) -> dict:
        # An answer names its question, so that nothing else that is written to the pipe is one.
        token = secrets.token_hex(8)
        try:
            self.child.requests.write(json.dumps({"do": do, "token": token, **request}) + "\n")
            self.child.requests.flush()
        except BrokenPipeError:
            raise WorkerError("crash", self._how_it_ended(), self.log()) from None
        # To start is to import PyTorch, which is no fault of the kernel's.
        line = self._line(max(self.timeout, STARTING) if do == "start" else self.timeout)
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            raise WorkerError(
                "crash", "an answer that is no JSON: something else writes to the pipe", self.log()
            ) from None
        if not isinstance(answer, dict) or answer.pop("token", None) != token:
            raise WorkerError(
                "crash",
                "an answer to no question: something else writes to the pipe",
                self.log(),
            )
        if "error" in answer:
            status = _STATUSES.get(answer["kind"], "runtime_error")
            raise WorkerError(status, answer["error"], answer["traceback"])
        return answer

    def open(self, case: Case) -> None:
        self.case = case
        self.ask("load", case=case.text)

    def place(
        self,
        index: int,
        inputs: dict[str, np.ndarray],
        keep_addresses: bool = False,
        keep_outputs: bool = False,
        same_as: int | None = None,
        are_buffers: bool = False,
    ) -> None:
        """Inputs into buffers of the child: new ones, or the same with new contents. Outputs are
        full of poison, or as the last call left them. The child copies the inputs of a set that has
        the same ones, where that is named. `inputs` are values, or the bytes of whole buffers."""
        files = {}
        for name, array in ({} if same_as is not None else inputs).items():
            files[name] = str(self.folder / f"{name}.in")
            array.tofile(files[name])
        self.ask("place", set=index, inputs=files, keep_addresses=keep_addresses,
                 keep_outputs=keep_outputs, same_as=same_as, are_buffers=are_buffers)  # fmt: skip

    def fetch(self, index: int) -> dict[str, np.ndarray]:
        """The bytes of every buffer of a set."""
        files = self.files()
        self.ask("fetch", set=index, files=files)
        return self.read(files)

    def files(self) -> dict[str, str]:
        """Where the child writes the bytes of its buffers."""
        return {n: str(self.folder / f"{n}.out") for n in self.case.plans}

    def read(self, files: dict[str, str]) -> dict[str, np.ndarray]:
        """Outputs as they are now; inputs as they lie in the files until the next are fetched."""
        return {
            name: np.fromfile(path, np.uint8)
            if self.case.plans[name].role == "output" or not os.path.getsize(path)
            else np.memmap(path, np.uint8, "r")
            for name, path in files.items()
        }

    def where(self, name: str) -> buffers.Plan:
        return self.case.layout_of(name)
