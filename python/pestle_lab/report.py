"""Reports: JSON by a published schema (report.schema.json), and one HTML page without links."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from .engine import machine
from .kernels import Kernel

SCHEMA = "pestle-lab/report/1"


def start(command: list[str], device: str) -> dict:
    import pestle

    return {
        "schema": SCHEMA,
        "tool": {"name": "pestle-lab", "version": pestle.__version__},
        "command": command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "duration_s": 0.0,
        "env": machine.environment(device),
        "settings": {},
        "kernels": [],
        "_clock": time.monotonic(),
    }


def add_kernel(report: dict, kernel: Kernel, build: dict, device: str, cases: list[dict]) -> None:
    ok = [c for c in cases if c["status"] == "ok"]
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
            "summary": {
                "passed": len(ok),
                "unsupported": sum(c["status"] == "unsupported" for c in cases),
                "failed": sum(c["status"] not in ("ok", "unsupported") for c in cases),
            },
        }
    )


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
        report = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise LabError(f"{path}: {error}") from None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise LabError(f"{path} is no report of pestle-lab ({SCHEMA})")
    return report


def command_line() -> list[str]:
    return ["pestle-lab", *sys.argv[1:]]


def _bars(case: dict) -> list[dict]:
    """A timed case's samples as a histogram of at most 40 bars, for the page."""
    import numpy as np

    mode = next(iter(case["timing"]))
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
    page = environment.get_template("report.html")
    return page.render(report=report, roofline=_roofline(report), history=history)
