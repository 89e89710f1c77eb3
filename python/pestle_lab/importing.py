"""Results of other programs as a report: nvbench's --json, gpu-mode's results (FullResult as JSON,
or the lines that its eval writes), traces of flashinfer-bench. What they don't say is null."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

_TIMING = ("median_us", "mean_us", "min_us", "p10_us", "p90_us", "mad_us")
_FLASHINFER = {
    "PASSED": "ok", "INCORRECT_SHAPE": "wrong_shape", "INCORRECT_DTYPE": "wrong_dtype",
    "INCORRECT_NUMERICAL": "wrong_result", "RUNTIME_ERROR": "runtime_error",
    "COMPILE_ERROR": "compile_error", "TIMEOUT": "timeout",
}  # fmt: skip
_LINE = re.compile(r"^(benchmark\.\d+\.\w+|test\.\d+\.\w+|benchmark-count|check): ?(.*)$", re.M)


def read(text: str, path: Path) -> dict | None:
    """None if it is of no program that is known."""
    values = _json(text)
    if values is None:
        found = dict(_LINE.findall(text))
        return _gpu_mode({"benchmark": found}, path) if found else None
    first = values[0] if isinstance(values, list) and values else values
    if not isinstance(first, dict):
        return None
    if "benchmarks" in first and isinstance(values, dict):
        return _nvbench(values, path)
    if "definition" in first and "workload" in first:
        return _flashinfer(values if isinstance(values, list) else [values], path)
    if isinstance(first.get("runs"), dict):
        runs = {n: (r.get("run") or r).get("result") or {} for n, r in first["runs"].items()}
        return _gpu_mode(runs, path, first.get("system") or {})
    if isinstance(first.get("result"), dict):
        return _gpu_mode({first.get("mode", "benchmark"): first["result"]}, path)
    return None


def _json(text: str):
    """An object, a list, or an object on each line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()] or None
    except json.JSONDecodeError:
        return None


def _number(value) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _timing(n: float | None, **microseconds: float | None) -> dict:
    known = {name: None if us is None else round(us, 4) for name, us in microseconds.items()}
    return dict.fromkeys(_TIMING) | known | {
        "n": None if n is None else int(n), "ci95_us": None, "samples_ns": [],
    }  # fmt: skip


def _case(name: str, status: str = "ok", message: str = "", **more) -> dict:
    correctness = {"passed": status == "ok", "checks": {}, "outputs": {}}
    return {"id": name, "status": status, "message": message, "seed": None, "log": "",
            "correctness": correctness} | more  # fmt: skip


def _kernel(name: str, problem: str, cases: list[dict]) -> dict:
    from . import report

    return {
        "name": name, "problem": problem, "language": "", "source_sha256": None, "flags": [],
        "arch": [], "version": "", "device": "",
        "build": {"ok": True, "seconds": 0.0, "cached": False, "functions": [], "log": ""},
        "cases": cases, "summary": report.summary(cases),
    }  # fmt: skip


def _report(tool: str, path: Path, gpu: str | None, kernels: list[dict]) -> dict:
    """Of another machine, of which this one says nothing."""
    from . import report

    env = {"gpu": {"name": gpu} if gpu else None, "cpu": "", "python": "", "torch": "", "os": ""}
    return {
        "schema": report.SCHEMA,
        "tool": {"name": tool, "version": ""},
        "command": ["import", str(path)],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(path.stat().st_mtime)),
        "duration_s": 0.0,
        "env": env,
        "settings": {"imported_from": tool},
        "kernels": kernels,
        "exit_code": 0 if all(c["status"] == "ok" for k in kernels for c in k["cases"]) else 4,
    }


# ---- nvbench


def _nvbench(given: dict, path: Path) -> dict:
    devices = {d.get("id"): d.get("name") for d in given.get("devices") or []}
    kernels = []
    for bench in given["benchmarks"]:
        cases = [_state(state, len(devices) > 1) for state in bench.get("states") or []]
        kernels.append(_kernel(bench["name"], bench["name"], cases))
    return _report("nvbench", path, next(iter(devices.values()), None), kernels)


def _state(state: dict, named: bool) -> dict:
    axes = " ".join(f"{a['name']}={a.get('value')}" for a in state.get("axis_values") or [])
    name = " ".join(filter(None, [axes, f"device={state.get('device')}" if named else ""]))
    name = name or state.get("name") or "the only case"
    if state.get("is_skipped"):
        return _case(name, "unsupported", state.get("skip_reason") or "skipped by nvbench")
    said = {s["tag"]: _value(s) for s in state.get("summaries") or [] if "tag" in s}

    def us(tag: str) -> float | None:
        seconds = said.get(tag)
        return None if seconds is None else 1e6 * seconds

    timing = {}
    if us("nv/cold/time/gpu/mean") is not None:
        timing["cold"] = _timing(
            said.get("nv/cold/sample_size"), mean_us=us("nv/cold/time/gpu/mean"),
            median_us=us("nv/cold/time/gpu/median"), min_us=us("nv/cold/time/gpu/min"),
        )  # fmt: skip
    if us("nv/batch/time/gpu/mean") is not None:
        timing["warm"] = _timing(
            said.get("nv/batch/sample_size"), mean_us=us("nv/batch/time/gpu/mean")
        )
    speed = said.get("nv/cold/bw/global/bytes_per_second")
    return _case(name, timing=timing, throughput={"gbps": speed / 1e9} if speed else None)


def _value(summary: dict) -> float | None:
    value = next((d.get("value") for d in summary.get("data") or [] if d["name"] == "value"), None)
    return _number(value)


# ---- gpu-mode


def _gpu_mode(runs: dict[str, dict], path: Path, system: dict | None = None) -> dict:
    """Nanoseconds by number: benchmark.0.mean."""
    cases = []
    for run, result in runs.items():
        for kind in ("test", "benchmark"):
            numbers = {int(key.split(".")[1]) for key in result if key.startswith(f"{kind}.")}
            for i in sorted(numbers):
                said = {k.split(".", 2)[2]: v for k, v in result.items()
                        if k.startswith(f"{kind}.{i}.")}  # fmt: skip
                cases.append(_numbered(f"{run}: {said.get('spec', i)}", said))
    kernel = _kernel(path.stem, "", cases)
    return _report("gpu-mode", path, (system or {}).get("gpu"), [kernel])


def _numbered(name: str, said: dict) -> dict:
    if said.get("status") == "fail" or "error" in said:
        return _case(name, "wrong_result", str(said.get("error", "")))
    mean, best = _number(said.get("mean")), _number(said.get("best"))
    if mean is None:
        return _case(name)
    timing = _timing(
        _number(said.get("runs")), mean_us=mean / 1e3, min_us=None if best is None else best / 1e3
    )
    return _case(name, timing={"cold": timing})


# ---- flashinfer-bench


def _flashinfer(traces: list[dict], path: Path) -> dict:
    found: dict[tuple[str, str], list[dict]] = {}
    hardware = None
    for trace in traces:
        evaluation = trace.get("evaluation")
        if not evaluation:  # a workload that nothing has run on
            continue
        hardware = hardware or (evaluation.get("environment") or {}).get("hardware")
        key = (trace.get("solution") or "?", trace["definition"])
        found.setdefault(key, []).append(_trace(trace["workload"], evaluation))
    kernels = [_kernel(f"{op}/{name}", op, cases) for (name, op), cases in found.items()]
    return _report("flashinfer-bench", path, hardware, kernels)


def _trace(workload: dict, evaluation: dict) -> dict:
    axes = " ".join(f"{k}={v}" for k, v in (workload.get("axes") or {}).items())
    said, status = evaluation.get("performance") or {}, str(evaluation.get("status"))
    more: dict = {"timing": {}}
    if (ms := _number(said.get("latency_ms"))) is not None:
        more["timing"] = {"cold": _timing(None, median_us=1e3 * ms)}
    if factor := _number(said.get("speedup_factor")):
        more["baseline"] = {"name": "reference", "ratio": round(1 / factor, 5), "ci95": [],
                            "verdict": ""}  # fmt: skip
    ours = _FLASHINFER.get(status, "internal_error")
    made = _case(axes or workload.get("uuid", "?"), ours, "" if ours == "ok" else status, **more)
    errors = evaluation.get("correctness") or {}
    if errors:
        made["correctness"]["outputs"]["all"] = {
            "max_abs": errors.get("max_absolute_error"), "max_rel": errors.get("max_relative_error")
        }  # fmt: skip
    return made
