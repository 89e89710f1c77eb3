#!/usr/bin/env python3
"""What the present state does on a GPU: checks of all ops, the wheel's tests, host costs.

usage: tools/gpu_evidence.py pack            here: the program, the wheel and their tests, for a
                                             machine without network and compiler
       tools/gpu_evidence.py run [MINUTES]   there: all of it in MINUTES (7); one JSON line for
                                             each part in evidence.jsonl ($OUT or build/gpu-results)
       tools/gpu_evidence.py age             commits of device code since the last such lines

Copy evidence.jsonl's lines to the end of bench/results/evidence.jsonl, failures and all.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/evidence.jsonl"
DEVICE_CODE = ("backends/cuda", "*.cu", "*.cuh", "python/csrc")
PARTS = ("check", "wheel", "host")
MARGIN = 15  # seconds to write results and end


def pack() -> int:
    for command in ("tools/gpu.sh pack", "tools/wheel.sh", "tools/gpu_torch.sh pack"):
        if (status := subprocess.run(command.split(), cwd=ROOT).returncode) != 0:
            return status
    return 0


def gpu() -> dict:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    name, driver = listed[0].split(", ")
    return {"name": name, "driver": driver, "count": len(listed)}


def check_line(folder: Path, status: int | None) -> dict:
    """Sums over the ops of what tools/gpu.sh run found."""
    rows = []
    for name in ("check.jsonl", "failed.jsonl"):
        if (folder / name).exists():
            rows += map(json.loads, (folder / name).read_text().splitlines())
    counts = {"run": 0, "refused": 0, "skipped": 0, "failed": 0}
    for tag in (tag for row in rows for tag in row.get("tags", {}).values()):
        for key in counts:
            counts[key] += tag[key]
    failures = [f for row in rows for f in row.get("failures", [])]
    log = (folder / "log.txt").read_text() if (folder / "log.txt").exists() else ""
    steps = re.findall(r"^=== check\.(\S+): (FAILED|ran out)", log, re.MULTILINE)
    return {
        "part": "check",
        "complete": status in (0, 1),
        "ops": len({row["op"] for row in rows}),
        **counts,
        "steps_failed": [name for name, _ in steps],
        "failures": failures[:40],
    }


def wheel_line(folder: Path, status: int | None) -> dict:
    """Sums over the logs of tools/gpu_torch.sh run, of which AOTInductor's tests have their own."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    complete, failures = status in (0, 1), []
    for log in sorted(folder.glob("gpu-torch*.log")):
        text = log.read_text()
        complete &= not text.startswith("stopped before its end")
        for n, outcome in re.findall(r"(\d+) (\w+)", text.split("\nall: ")[-1].split("\n")[0]):
            counts[outcome] = counts.get(outcome, 0) + int(n)
    for log in sorted(folder.glob("gpu-torch*.failures.txt")):
        failures += re.findall(r"^=== (\S.*) \(\w+\)$", log.read_text(), re.MULTILINE)
    return {"part": "wheel", "complete": complete, **counts, "failures": failures[:40]}


def host_line(folder: Path) -> dict:
    """Microseconds of a call, by its name."""
    file = folder / "gpu-torch.host.txt"
    text = file.read_text() if file.exists() else ""
    rows = re.findall(r"^(\w.*\S)\s+([\d.]+) us\s", text, re.MULTILINE)
    us = {re.sub(r"\s{2,}", ": ", name): float(time) for name, time in rows}
    return {"part": "host", "complete": bool(us), "us": us}


def timed(command: list[str], folder: Path, cwd: Path, limit: float, **more) -> tuple:
    """Exit status (None: out of time) and seconds of a command with $OUT in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    environment = {**os.environ, "OUT": str(folder), **more}
    try:
        status = subprocess.run(command, cwd=cwd, env=environment, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        status = None
    return status, round(time.monotonic() - began)


def run(minutes: float) -> int:
    end = time.monotonic() + minutes * 60 - MARGIN
    out = Path(os.environ.get("OUT") or ROOT / "build/gpu-results")
    commit = (ROOT / "build/gpu/commit.txt").read_text().split()[-1]
    about = {"date": time.strftime("%Y-%m-%d"), "machine": {"commit": commit}, "gpu": gpu()}
    lines = []

    def tell(line: dict, seconds: int) -> None:
        lines.append({**about, **line, "seconds": seconds})
        with open(out / "evidence.jsonl", "a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(json.dumps(lines[-1]), flush=True)

    left = end - time.monotonic()
    check = [str(ROOT / "tools/gpu.sh"), "run", "--only", "check", "--tags-check", "smoke,edge"]
    check += ["--repeats", "3", "--jobs", str(os.cpu_count()), "--minutes", str(0.4 * left / 60)]
    status, seconds = timed(check, out / "check", ROOT, 0.5 * left)
    tell(check_line(out / "check", status), seconds)
    left = end - time.monotonic()
    status, seconds = timed(
        ["tools/gpu_torch.sh", "run"], out / "wheel", ROOT / "build/gpu-torch", left,
        PESTLE_TESTS_SECONDS=str(int(left - 40)),
    )  # fmt: skip
    tell(wheel_line(out / "wheel", status), seconds)
    tell(host_line(out / "wheel"), 0)
    return 0 if all(line["complete"] and not line.get("failed") for line in lines) else 1


def age() -> int:
    """One sentence for the summary of the tests."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    last = {row["part"]: row for row in map(json.loads, lines)}
    for part in PARTS:
        row = last.get(part)
        if row is None:
            print(f"GPU evidence, {part}: none")
            continue
        commit = row["machine"]["commit"]
        newer = subprocess.run(
            ["git", "rev-list", "--count", f"{commit}..HEAD", "--", *DEVICE_CODE],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        since = newer.stdout.strip() if newer.returncode == 0 else "an unknown number of"
        told = "complete" if row["complete"] else "not complete"
        print(f"GPU evidence, {part}: {told} at {commit} on {row['gpu']['name']}, "
              f"{row.get('failed', 0)} failed; {since} commits of device code since")  # fmt: skip
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["pack"]:
            return pack()
        case ["run", *minutes]:
            return run(float(minutes[0]) if minutes else 7)
        case ["age"]:
            return age()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
