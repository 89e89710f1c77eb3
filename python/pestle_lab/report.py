"""Reports: JSON by a published schema (report.schema.json), and one HTML page without links."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from . import importing
from .engine import machine, stats
from .kernels import Kernel

SCHEMA = "pestle-lab/report/1"


def start(command: list[str], device: str) -> dict:
    import pestle

    return {
        "schema": SCHEMA,
        "tool": {"name": "pestle-lab", "version": pestle.__version__},
        "folder": _folder(),
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "duration_s": 0.0,
        "env": machine.environment(device),
        "settings": {},
        "kernels": [],
        "_clock": time.monotonic(),
    }


def _folder() -> dict | None:
    """The commit of the folder that one stands in, and whether it is changed."""
    try:
        commit, changed = (
            subprocess.run(["git", *words], capture_output=True, text=True, timeout=20)
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode:
        return None
    return {"commit": commit.stdout.strip(), "dirty": bool(changed.stdout.strip())}


def add_kernel(report: dict, kernel: Kernel, build: dict, device: str, cases: list[dict]) -> None:
    report["kernels"].append(
        {
            "name": kernel.name,
            "problem": kernel.problem,
            "language": kernel.language,
            "source_sha256": kernel.sha256,
            "flags": kernel.flags,
            "arch": kernel.arch,
            "version": kernel.version,
            "device": device,
            "build": build,
            "cases": cases,
            "summary": summary(cases),
        }
    )


def summary(cases: list[dict]) -> dict:
    return {
        "passed": sum(c["status"] == "ok" for c in cases),
        "unsupported": sum(c["status"] == "unsupported" for c in cases),
        "failed": sum(c["status"] not in ("ok", "unsupported") for c in cases),
        "geomean_ratio": mean_ratio(cases),
        "geomean_pct_sol": _mean_share(cases),
    }


def mean_ratio(cases: list[dict]) -> float | None:
    """Of times over the baseline's: the geometric mean; none where there is no baseline."""
    ratios = [c["baseline"]["ratio"] for c in cases if c.get("baseline")]
    return round(stats.geomean(ratios), 5) if ratios else None


def _mean_share(cases: list[dict]) -> float | None:
    """Of the shares of the measured limit, in percent."""
    shares = [t.get("share_of_measured_limit") for c in cases if (t := c.get("throughput"))]
    return round(100 * stats.geomean(shares), 2) if shares and all(shares) else None


def finish(report: dict, exit_code: int) -> dict:
    report["duration_s"] = round(time.monotonic() - report.pop("_clock"), 3)
    report["exit_code"] = exit_code
    return report


def write(report: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(path)


def read(path: Path) -> dict:
    from .errors import LabError

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path}: {error}") from None
    try:
        report = json.loads(text)
        if isinstance(report, dict) and report.get("schema") == SCHEMA:
            return report
    except json.JSONDecodeError:
        pass
    report = importing.read(text, path)
    if report is None:
        raise LabError(
            f"{path} is no report of pestle-lab ({SCHEMA}), and no result of nvbench, gpu-mode or "
            "flashinfer-bench"
        )
    return report


def command_line() -> list[str]:
    return ["pestle-lab", *sys.argv[1:]]


def _bars(case: dict) -> list[dict]:
    """A timed case's samples as a histogram of at most 40 bars, for the page."""
    import numpy as np

    mode = next(iter(case["timing"]))
    if not case["timing"][mode]["samples_ns"]:  # of another program, which kept none
        return []
    samples = np.array(case["timing"][mode]["samples_ns"]) / 1e3
    low, high = np.percentile(samples, [0, 98])
    counts, edges = np.histogram(samples, 40, (low, max(high, low * 1.0001)))
    tallest = max(int(counts.max()), 1)
    return [
        {"x": i * 5, "h": round(36 * int(n) / tallest, 1), "us": round(float(edges[i]), 3)}
        for i, n in enumerate(counts)
    ]


def _roofline(report: dict) -> dict | None:
    """Points of timed cases (flops per byte, achieved flop/s) under the measured roof."""
    import math

    points = [
        {
            "name": k["name"],
            "id": c["id"],
            "x": t["flops"] / t["bytes"],
            "y": t["tflops"] * 1e12,
            "share": t["share_of_measured_limit"],
        }
        for k in report["kernels"]
        for c in k["cases"]
        if (t := c.get("throughput")) and t.get("flops") and t.get("bytes")
    ]
    ceiling = report.get("ceilings")
    if not points or not ceiling:
        return None
    memory, maths = ceiling["bytes_per_s"], ceiling["flops_per_s"]
    x0 = min(0.05, *(p["x"] for p in points)) / 2
    x1 = max(4 * maths / memory, *(2 * p["x"] for p in points))
    y0, y1 = min(x0 * memory, *(p["y"] / 4 for p in points)), 2 * maths

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - math.log(x0)) / (math.log(x1) - math.log(x0))
        up = (math.log(y) - math.log(y0)) / (math.log(y1) - math.log(y0))
        return round(50 + 540 * across, 1), round(300 - 270 * up, 1)

    roof = [place(x0, x0 * memory), place(maths / memory, maths), place(x1, maths)]
    for point in points:
        point["px"], point["py"] = place(point["x"], point["y"])
    return {"roof": " ".join(f"{x},{y}" for x, y in roof), "points": points}


def _shapes(report: dict) -> list[dict]:
    """Each case with the times of all kernels on it, their places on a logarithmic axis."""
    import math

    rows: dict[str, list[dict]] = {}
    names = [k["name"] for k in report["kernels"]]
    for kernel in report["kernels"]:
        for case in kernel["cases"]:
            for mode, timing in list((case.get("timing") or {}).items())[:1]:
                us = timing["median_us"] or timing["mean_us"]
                title = f"{kernel['name']} · {case['id']} · {mode} · {us} µs"
                colour = names.index(kernel["name"]) % 6
                rows.setdefault(case["id"], []).append({"us": us, "title": title, "c": colour})
    times = [dot["us"] for dots in rows.values() for dot in dots if dot["us"]]
    if not times:
        return []
    low, high = math.log10(min(times)), math.log10(max(times))
    for dots in rows.values():
        for dot in dots:
            share = (math.log10(dot["us"]) - low) / max(high - low, 1e-9) if dot["us"] else 0
            dot["x"] = round(260 + 300 * share, 1)
    return [
        {"id": case if len(case) < 40 else case[:39] + "…", "dots": dots, "y": 20 + 22 * i}
        for i, (case, dots) in enumerate(rows.items())
    ]


def html(report: dict, history: list[dict]) -> str:
    """One page with nothing outside of it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for kernel in report["kernels"]:
        for case in kernel["cases"]:
            case["bars"] = _bars(case) if case.get("timing") else []
            for key in ("launched", "baseline", "throughput"):
                case.setdefault(key, None)
            for timing in (case.get("timing") or {}).values():
                timing.setdefault("flagged", 0)
                timing.setdefault("disturbed", 0)
        for mean in ("geomean_ratio", "geomean_pct_sol"):  # reports of before have none
            kernel["summary"].setdefault(mean, None)
    page = environment.get_template("report.html")
    return page.render(report=report, roofline=_roofline(report), history=history,
                       shapes=_shapes(report))  # fmt: skip
