"""Nsight Compute, Nsight Systems and PyTorch's profiler around one call of a kernel."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from ..checking import Verdict
from ..errors import CRASH, UNSUPPORTED, LabError
from . import calls, ncu

TOOLS = ("ncu", "nsys", "torch")
_WHERE = {
    "ncu": "Nsight Compute comes with the CUDA toolkit; put ncu on the PATH or set CUDA_HOME",
    "nsys": "Nsight Systems comes with the CUDA toolkit or alone; put nsys on the PATH",
}
FORBIDDEN = "ERR_NVGPUCTRPERM"
HOW_TO_READ_COUNTERS = (
    f"ncu may not read the GPU's counters ({FORBIDDEN}): run it as root, start the container with "
    "--cap-add=SYS_ADMIN, or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0"
)


@dataclass
class Profile:
    tool: str
    files: list[str]
    verdict: Verdict
    launches: list[ncu.Launch] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)  # PyTorch's
    text: str = ""  # what nsys printed

    def json(self) -> dict:
        return {
            "tool": self.tool, "files": self.files, "case": self.verdict.json(),
            "launches": [launch.json() for launch in self.launches], "rows": self.rows,
        }  # fmt: skip


def _run(group: calls.Calls, before: list[str], report: Path) -> str:
    code, out = group.run(before, group.job(warm=True))
    if FORBIDDEN in out:
        raise LabError(HOW_TO_READ_COUNTERS, UNSUPPORTED)
    if code or not report.exists():
        why = "" if report.exists() else f", and there is no {report}"
        last = "\n".join(out.strip().splitlines()[-8:])
        raise LabError(f"{Path(before[0]).name} ended with {code}{why}: {last}", CRASH)
    return out


def by_ncu(group: calls.Calls, stem: Path, sections: str, more: list[str]) -> Profile:
    program, report = calls.program("ncu", _WHERE["ncu"]), stem.with_suffix(".ncu-rep")
    # Clocks as they are: ncu's default holds them low, and its times differ from the bench's.
    before = [program, "--nvtx", "--nvtx-include", "kernel/", "--clock-control", "none",
              "--set", sections, "--import-source", "1", "--target-processes", "all",
              "--force-overwrite", *more, "--export", str(report)]  # fmt: skip
    out = _run(group, before, report)
    read = [program, "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]
    done = subprocess.run(read, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"ncu --import {report}: {(done.stderr or done.stdout).strip()}", CRASH)
    table = stem.with_suffix(".csv")
    table.write_text(done.stdout)
    (verdict,) = group.verdicts(out)
    launches = ncu.launches(done.stdout, group.cases[0].bytes())
    return Profile("ncu", [str(report), str(table)], verdict, launches)


def by_nsys(group: calls.Calls, stem: Path, more: list[str]) -> Profile:
    program, report = calls.program("nsys", _WHERE["nsys"]), stem.with_suffix(".nsys-rep")
    before = [program, "profile", "--trace=cuda,nvtx,osrt", "--force-overwrite=true",
              "--stats=true"]  # fmt: skip
    if group.device.startswith("cuda"):
        # Not the default, which ends the process with the range.
        before += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    out = _run(group, [*before, *more, f"--output={report}"], report)
    (verdict,) = group.verdicts(out)
    return Profile("nsys", [str(report)], verdict, text=out)


def by_torch(group: calls.Calls, stem: Path) -> Profile:
    trace = stem.with_suffix(".json")
    _, out = group.run([], group.job(warm=True, trace=trace))
    (verdict,) = group.verdicts(out)
    rows = stem.with_suffix(".rows")
    if not rows.exists():
        return Profile("torch", [], verdict)
    found = json.loads(rows.read_text())
    rows.unlink()
    return Profile("torch", [str(trace)], verdict, rows=found)


def profile(tool: str, group: calls.Calls, folder: Path, sections: str, more: list[str]) -> Profile:
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{group.kernel.name.replace('/', '_')}_{tool}"
    for old in folder.glob(f"{stem.name}.*"):
        old.unlink()  # an old report must not pass for a new one
    if tool == "ncu":
        return by_ncu(group, stem, sections, more)
    return by_nsys(group, stem, more) if tool == "nsys" else by_torch(group, stem)
