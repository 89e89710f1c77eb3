"""NVIDIA's compute-sanitizer around a kernel's smoke cases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import CRASH, LabError
from . import calls

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 86  # the exit code that says so; one that no Python ends with
_TOTAL = re.compile(r"=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
_WHERE = "compute-sanitizer comes with the CUDA toolkit; put its bin/ on the PATH or set CUDA_HOME"


@dataclass
class Finding:
    tool: str
    findings: int
    first: str  # of what, and where
    log: str  # the file

    def json(self) -> dict:
        return {"findings": self.findings, "first": self.first, "log": self.log}


def chosen(words: list[str]) -> tuple[str, list[str]]:
    """The kernel and the tools that a command names, in any order: no kernel has a tool's name."""
    given = [word for word in words if word in (*TOOLS, "all")]
    names = [word for word in words if word not in given]
    if len(names) != 1:
        raise LabError(
            f"sanitize takes one kernel, and not {', '.join(names) or 'none'}; the tools are "
            f"{', '.join(TOOLS)}, all"
        )
    return names[0], list(TOOLS) if not given or "all" in given else list(dict.fromkeys(given))


def read(tool: str, text: str, path: Path) -> Finding | None:
    """None if the tool came to no end."""
    totals = _TOTAL.findall(text)
    if not totals:
        return None
    block: list[str] = []
    for line in text.splitlines():
        said = line.lstrip("=").strip()
        if not line.startswith("========="):
            continue
        if block and (not said or "SUMMARY" in said):
            break
        if block or (said and "COMPUTE-SANITIZER" not in said and "SUMMARY" not in said):
            block.append(said)
    first = " ".join(block[:2])
    return Finding(tool, sum(map(int, totals)), first, str(path))


def run(group: calls.Calls, tool: str, folder: Path) -> tuple[Finding, list]:
    """What the tool found, and the verdicts on the values."""
    program = calls.program("compute-sanitizer", _WHERE)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{group.kernel.name.replace('/', '_')}_{tool}.txt"
    path.unlink(missing_ok=True)
    before = [program, f"--tool={tool}", f"--error-exitcode={FOUND}", "--target-processes=all",
              "--print-limit=100", f"--log-file={path}"]  # fmt: skip
    # The caching allocator's blocks are larger than tensors: memcheck would see no call out of one.
    code, out = group.run(before, group.job(warm=False), PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    text = path.read_text(errors="replace") if path.exists() else ""
    found = read(tool, text, path)
    if found is None:
        last = "\n".join((text + out).strip().splitlines()[-5:])
        raise LabError(f"compute-sanitizer --tool={tool} ended with {code}: {last}", CRASH)
    if code == FOUND and not found.findings:
        found.findings, found.first = 1, "an error that the summary does not count"
    return found, group.verdicts(out)
