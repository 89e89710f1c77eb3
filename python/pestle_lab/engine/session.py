"""The parent's side of the process that a kernel runs in."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ..kernels import Kernel
from ..problems import Problem
from . import buffers
from .building import Build
from .cases import Case

STARTING = 180.0  # seconds
# Files of the folder that one stands in come last: a torch.py that a kernel left there is no torch.
_START = (
    "import os, sys; sys.path[:] = [p for p in sys.path if p] + [os.getcwd()]; "
    "from pestle_lab.worker import main; main()"
)


class WorkerError(Exception):
    """How a kernel's process failed: a status of a report, and what it said."""

    def __init__(self, status: str, message: str, log: str = ""):
        super().__init__(message)
        self.status, self.log = status, log


def child_environment(kernel: Kernel, device: str) -> dict[str, str]:
    """Of a process that runs a kernel: it finds this very package."""
    environment = dict(os.environ)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if kernel.language == "triton" and device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    packages = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        p for p in (packages, environment.get("PYTHONPATH")) if p
    )
    return environment


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
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Session:
        self.folder = tempfile.TemporaryDirectory(prefix="pestle-lab-")
        self.log_path = Path(self.folder.name) / "log.txt"
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        environment = child_environment(self.kernel, self.device)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(to_child), str(from_child)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(to_child, from_child),
                env=environment,
                start_new_session=True,
            )
        os.close(to_child)
        os.close(from_child)
        self.requests, self.answers = os.fdopen(from_parent, "w"), to_parent
        self.pending = b""
        self.ask(
            "start",
            device=self.device,
            problem=self.problem.name,
            problem_folders=[str(p) for p in self.problem_folders],
            kernel={
                "path": str(self.kernel.path),
                "entry": self.kernel.entry,
                "library": self.build.library,
                "arguments": self.kernel.arguments,
            },
        )
        return self

    def __exit__(self, *_) -> None:
        self._kill()
        self.requests.close()
        os.close(self.answers)
        self.folder.cleanup()

    def _kill(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            # Its own session, so whatever it started goes, too.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def busy(self) -> dict[str, int]:
        """Nanoseconds that each thread of the child has had a processor, by Linux's account."""
        found = {}
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                found[path.parent.name] = int(path.read_text().split()[0])
        return found

    def log(self, characters: int = 4000) -> str:
        return self.log_path.read_text(errors="replace")[-characters:]

    def _line(self, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while b"\n" not in self.pending:
            left = until - time.monotonic()
            if left <= 0:
                self._kill()
                raise WorkerError("timeout", f"no answer within {seconds:g} s", self.log())
            if not select.select([self.answers], [], [], left)[0]:
                continue
            more = os.read(self.answers, 1 << 16)
            if not more:
                raise WorkerError("crash", self._how_it_ended(), self.log())
            self.pending += more
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        code = self.process.wait()
        if code < 0:
            return f"the process ended by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"

    def ask(self, do: str, **request) -> dict:
        # An answer names its question, so that nothing else that is written to the pipe is one.
        token = secrets.token_hex(8)
        try:
            self.requests.write(json.dumps({"do": do, "token": token, **request}) + "\n")
            self.requests.flush()
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
            status = "unsupported" if answer["kind"] == "Unsupported" else "runtime_error"
            raise WorkerError(status, answer["error"], answer["traceback"])
        return answer

    def open(self, case: Case) -> None:
        self.case = case
        self.ask("load", case=case.text)

    def place(
        self, index: int, inputs: dict[str, np.ndarray], keep_addresses: bool = False
    ) -> None:
        """Inputs into buffers of the child: new ones, or the same with new contents."""
        files = {}
        for name, array in inputs.items():
            files[name] = str(Path(self.folder.name) / f"{name}.in")
            array.tofile(files[name])
        self.ask("place", set=index, inputs=files, keep_addresses=keep_addresses)

    def fetch(self, index: int) -> dict[str, np.ndarray]:
        """The bytes of every buffer of a set."""
        files = self.files()
        self.ask("fetch", set=index, files=files)
        return self.read(files)

    def files(self) -> dict[str, str]:
        """Where the child writes the bytes of its buffers."""
        return {n: str(Path(self.folder.name) / f"{n}.out") for n in self.case.plans}

    @staticmethod
    def read(files: dict[str, str]) -> dict[str, np.ndarray]:
        return {name: np.fromfile(path, np.uint8) for name, path in files.items()}

    def where(self, name: str) -> buffers.Plan:
        return self.case.layout_of(name)
