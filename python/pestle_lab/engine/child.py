"""The process that a kernel runs in, as a process: its pipes, its log, its end. Nothing slow is
imported here: `pestle-lab check` starts one before it imports PyTorch itself."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# Files of the folder that one stands in come last: a torch.py that a kernel left there is no torch.
_START = (
    "import os, sys; sys.path[:] = [p for p in sys.path if p] + [os.getcwd()]; "
    "from pestle_lab.worker import main; main()"
)


def environment() -> dict[str, str]:
    """Of a process that runs a kernel: it finds this very package."""
    made = dict(os.environ)
    made.setdefault("PYTHONUNBUFFERED", "1")
    packages = str(Path(__file__).resolve().parents[2])
    made["PYTHONPATH"] = os.pathsep.join(p for p in (packages, made.get("PYTHONPATH")) if p)
    return made


_living: set[Child] = set()


@atexit.register
def _kill_all() -> None:
    """Also those whose thread was not waited for: a kernel that hangs outlives nobody."""
    while _living:
        with contextlib.suppress(ProcessLookupError):
            _living.pop().kill()


class Child:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pestle-lab-")
        self.log_path = Path(self.folder.name) / "log.txt"
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(to_child), str(from_child)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(to_child, from_child),
                env=environment(),
                start_new_session=True,
            )
        os.close(to_child)
        os.close(from_child)
        _living.add(self)
        self.requests, self.answers = os.fdopen(from_parent, "w"), to_parent

    def kill(self) -> None:
        if self.process.poll() is None:
            # Its own session, so whatever it started goes, too.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        _living.discard(self)
        self.kill()
        with contextlib.suppress(BrokenPipeError):  # a request that nobody read
            self.requests.close()
        os.close(self.answers)
        self.folder.cleanup()

    def busy(self) -> dict[str, int]:
        """Nanoseconds that each of its threads has had a processor, by Linux's account."""
        found = {}
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                found[path.parent.name] = int(path.read_text().split()[0])
        return found

    def log(self, characters: int) -> str:
        return self.log_path.read_text(errors="replace")[-characters:]


_spare: list[Child] = []


def prepare(count: int = 1) -> None:
    """Starts what is missing of so many that `take` finds, the eldest first. Those that nobody
    takes end with this process."""
    while len(_spare) < count:
        _spare.append(Child())


def take() -> Child:
    with contextlib.suppress(IndexError):
        return _spare.pop(0)
    return Child()
