"""History: one line of JSON for each timed case, appended and never rewritten."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from .engine import stats
from .engine.building import cache_folder
from .errors import LabError


def default_path() -> Path:
    return cache_folder() / "history.jsonl"


def _lines(report: dict) -> list[dict]:
    return [
        {
            "when": report["started"],
            "kernel": kernel["name"],
            "source_sha256": kernel["source_sha256"],
            # A sweep's kernels ran on machines of their own.
            "machine": _machine(kernel.get("env") or report["env"]),
            "case": case["id"],
            "mode": mode,
            "median_us": timing["median_us"],
            "ci95_us": timing["ci95_us"],
            "n": timing["n"],
        }
        for kernel in report["kernels"]
        for case in kernel["cases"]
        if case["status"] == "ok"
        for mode, timing in (case.get("timing") or {}).items()
    ]


def _machine(env: dict) -> str:
    return (env["gpu"] or {}).get("name") or env["cpu"]


def append(report: dict, path: Path) -> None:
    lines = _lines(report)
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read(path: Path, kernel: str | None = None) -> list[dict]:
    if not path.exists():
        return []
    found = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            raise LabError(f"{path}:{number} is no JSON") from None
        if kernel in (None, line["kernel"]):
            found.append(line)
    return found


def slower(report: dict, earlier: list[dict], allowed: float) -> list[str]:
    """Sentences on cases that became slower than the last line of the same machine by more than
    the allowed share, with intervals that lie apart."""
    found = []
    for line in _lines(report):
        same = [
            e
            for e in earlier
            if all(e[k] == line[k] for k in ("kernel", "machine", "case", "mode"))
        ]
        if not same:
            continue
        before = same[-1]
        verdict = stats.verdict(
            line["ci95_us"][0] / before["ci95_us"][1],
            line["ci95_us"][1] / before["ci95_us"][0],
            allowed,
        )
        if verdict == "SLOWER":
            found.append(
                f"{line['kernel']}, {line['case']}, {line['mode']}: "
                f"{line['median_us']} µs, before {before['median_us']} µs"
            )
    return found
