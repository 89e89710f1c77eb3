"""A GPU's clocks while a kernel is timed: watched, and held still where that is asked for."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator

from ..errors import UNSUPPORTED, LabError
from .machine import CLOCK_FIELDS, gpu_index

EVERY_MS = 200
LOW = 0.75  # share of the run's median clock under which samples are flagged


class Watch:
    """What nvidia-smi says of the GPU, five times a second; nothing where there is none."""

    def __init__(self, device: str):
        self.lines: list[tuple[float, dict]] = []
        self.process = None
        if not device.startswith("cuda"):
            return
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(
                ["nvidia-smi", f"--query-gpu={CLOCK_FIELDS}", "--format=csv,noheader,nounits",
                 f"--id={gpu_index(device)}", f"--loop-ms={EVERY_MS}"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            values = [word.strip() for word in line.split(",")]
            self.lines.append(
                (time.monotonic(), dict(zip(CLOCK_FIELDS.split(","), values, strict=False)))
            )

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def low(self, spans: list[tuple[float, float, int]]) -> int:
        """Samples of blocks (began, ended, count) in which the SM clock was low."""
        seen = [(at, float(line["clocks.sm"])) for at, line in list(self.lines)
                if line["clocks.sm"].replace(".", "", 1).isdigit()]  # fmt: skip
        if not seen:
            return 0
        clocks = sorted(clock for _, clock in seen)
        limit = LOW * clocks[len(clocks) // 2]
        return sum(
            count
            for began, ended, count in spans
            if any(began <= at <= ended and clock < limit for at, clock in seen)
        )


@contextlib.contextmanager
def locked(device: str, mhz: int | None) -> Iterator[None]:
    """The SM clock held at `mhz`, and given free afterwards; None changes nothing. The driver
    allows it to root, or not at all: that is an error, since times would not be what was asked."""
    if mhz is None:
        yield
        return
    if not device.startswith("cuda"):
        raise LabError(f"--lock-clocks is of a GPU, and this runs on {device}", UNSUPPORTED)
    _smi(device, f"--lock-gpu-clocks={mhz},{mhz}")
    try:
        yield
    finally:
        _smi(device, "--reset-gpu-clocks")


def _smi(device: str, option: str) -> None:
    command = ["nvidia-smi", f"--id={gpu_index(device)}", option]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"--lock-clocks: {error}", UNSUPPORTED) from None
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise LabError(f"--lock-clocks: {' '.join(command)}: {said}", UNSUPPORTED)
