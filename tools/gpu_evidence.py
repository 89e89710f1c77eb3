#!/usr/bin/env python3
"""What the present state does on a GPU: checks of all ops, the wheel's tests, host costs.

usage: tools/gpu_evidence.py pack [rust]     here: the program, the wheel and their tests (and the
                                             Rust crates'), for a machine without network and
                                             compiler
       tools/gpu_evidence.py run [MINUTES] [PART...]
                                             there: checks and the wheel's tests in 7 minutes, or
                                             the parts that are named; a JSON line for each in
                                             evidence.jsonl ($OUT or build/gpu-results)
       tools/gpu_evidence.py age             commits of device code since the last such lines

Parts: check, wheel (with host costs), sweep (pestle bench --sweep), step (examples/dit_step.py),
comfy (examples/comfy_compile_bench.py), rust. Each leaves logs and figures in a folder of its name.
Copy evidence.jsonl's lines to the end of bench/results/evidence.jsonl, failures and all.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/evidence.jsonl"
DEVICE_CODE = ("backends/cuda", "*.cu", "*.cuh", "python/csrc")
TORCH = ROOT / "build/gpu-torch"
PARTS = ("check", "wheel", "host", "sweep", "step", "comfy", "rust")
LOG = "printed.txt"  # in each part's folder
MARGIN = 15  # seconds to write results and end


def pack(more: Sequence[str]) -> int:
    commands = ["tools/gpu.sh pack", "tools/wheel.sh", "tools/gpu_torch.sh pack"]
    for command in commands + ["tools/gpu_rust.sh pack"] * ("rust" in more):
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


def left_by(log: Path) -> int:
    """What a bench says that it left for want of time: points of a sweep, rows of the others."""
    text = log.read_text() if log.exists() else ""
    points = sum(map(int, re.findall(r"^sweep: .*, (\d+) left$", text, re.MULTILINE)))
    return points + len(re.findall(r"left out, [\d.]+ s are (?:over|left)", text))


def figures_line(part: str, file: Path, status: int | None) -> dict:
    """How many lines of JSON a bench left in `file`, which are its figures."""
    rows = [json.loads(line) for line in lines_of(file) if line.startswith("{")]
    left = left_by(file.parent / LOG)
    complete = status == 0 and bool(rows) and left == 0
    return {"part": part, "complete": complete, "figures": len(rows), "left": left}


def step_line(file: Path, status: int | None) -> dict:
    """The fastest way of each shape, and how many there were."""
    left = left_by(file.parent / LOG)
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    best = {}
    for row in sorted(rows, key=lambda row: -row["step_ms"]):
        best[row["shape"]] = f"{row['variant']}: {row['step_ms']:.1f} ms"
    complete = status == 0 and bool(rows) and left == 0
    return {"part": "step", "complete": complete, "figures": len(rows), "left": left, "best": best}


def rust_line(folder: Path, status: int | None) -> dict:
    counts, log = {"passed": 0, "failed": 0}, lines_of(folder / "gpu-rust.log")
    for passed, failed in re.findall(
        r"test result: \w+\. (\d+) passed; (\d+) failed", "\n".join(log)
    ):
        counts["passed"] += int(passed)
        counts["failed"] += int(failed)
    failures = [line.split()[1] for line in log if re.match(r"test \S+ \.\.\. FAILED", line)]
    complete = status in (0, 1) and sum(counts.values()) > 0
    return {"part": "rust", "complete": complete, **counts, "failures": failures[:40]}


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def timed(command: list[str], folder: Path, cwd: Path, limit: float, **more) -> tuple:
    """Exit status (None: out of time) and seconds of a command with $OUT in `folder`, where LOG
    keeps what it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    environment = {**os.environ, "OUT": str(folder), **more}
    tee = subprocess.Popen(["tee", folder / LOG], stdin=subprocess.PIPE)
    try:
        status = subprocess.run(
            command, cwd=cwd, env=environment, timeout=limit, stdout=tee.stdin,
            stderr=subprocess.STDOUT,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        status = None
    tee.stdin.close()
    try:
        tee.wait(5)
    except subprocess.TimeoutExpired:  # what the command left behind still holds the pipe
        tee.kill()
    return status, round(time.monotonic() - began)


# What a part does with the seconds that it is given; its lines, and the seconds that it took.


def run_check(folder: Path, seconds: float) -> tuple[list[dict], int]:
    command = [str(ROOT / "tools/gpu.sh"), "run", "--only", "check", "--tags-check", "smoke,edge"]
    command += [
        "--repeats",
        "3",
        "--jobs",
        str(os.cpu_count()),
        "--minutes",
        str(0.8 * seconds / 60),
    ]
    status, took = timed(command, folder, ROOT, seconds)
    return [check_line(folder, status)], took


def run_wheel(folder: Path, seconds: float) -> tuple[list[dict], int]:
    status, took = timed(
        ["tools/gpu_torch.sh", "run"], folder, TORCH, seconds,
        PESTLE_TESTS_SECONDS=str(int(seconds - 40)),
    )  # fmt: skip
    return [wheel_line(folder, status), host_line(folder)], took


def run_sweep(folder: Path, seconds: float) -> tuple[list[dict], int]:
    room, file = ROOT / "build/gpu", folder / "sweep.jsonl"
    command = [str(room / "bin/pestle"), "bench", "--sweep", "--device", "cuda", "--cases"]
    command += [
        str(room / "sweep_cuda.json"),
        "--budget",
        str(int(seconds - 20)),
        "--out",
        str(file),
    ]
    libraries = f"{room}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    status, took = timed(command, folder, ROOT, seconds, LD_LIBRARY_PATH=libraries)
    return [figures_line("sweep", file, status)], took


def run_step(folder: Path, seconds: float) -> tuple[list[dict], int]:
    file = folder / "step.json"
    command = ["tools/gpu_torch.sh", "python", "examples/dit_step.py", "--json", str(file)]
    command += ["--limit", str(int(seconds - 40))]
    status, took = timed(command, folder, TORCH, seconds)
    return [step_line(file, status)], took


def measured() -> str:
    """The commit that was packed."""
    return (ROOT / "build/gpu/commit.txt").read_text().split()[-1]


def run_comfy(folder: Path, seconds: float) -> tuple[list[dict], int]:
    command = ["tools/gpu_torch.sh", "python", "examples/comfy_compile_bench.py"]
    command += ["--seconds", str(int(seconds - 20))]
    status, took = timed(command, folder, TORCH, seconds, PESTLE_COMMIT=measured())
    return [figures_line("comfy", folder / "comfy_compile.jsonl", status)], took


def run_rust(folder: Path, seconds: float) -> tuple[list[dict], int]:
    status, took = timed(["tools/gpu_rust.sh", "run"], folder, ROOT, seconds)
    return [rust_line(folder, status)], took


# Each with the minutes that it takes on one GPU with 16 cores. The first two are the evidence that
# every change of device code needs; the others' figures go where the table in gpu_runs.md says.
WAYS = {
    "check": (run_check, 3), "wheel": (run_wheel, 4), "sweep": (run_sweep, 5),
    "step": (run_step, 4), "comfy": (run_comfy, 4), "rust": (run_rust, 2),
}  # fmt: skip
USUAL = ("check", "wheel")


def run(minutes: float | None, parts: Sequence[str]) -> int:
    """The parts share `minutes` as their own go; what one leaves is the next ones'."""
    left = sum(WAYS[part][1] for part in parts)
    end = time.monotonic() + (minutes or left) * 60 - MARGIN
    out = Path(os.environ.get("OUT") or ROOT / "build/gpu-results").resolve()
    about = {"date": time.strftime("%Y-%m-%d"), "machine": {"commit": measured()}, "gpu": gpu()}
    good = True
    for part in parts:
        way, own = WAYS[part]
        lines, took = way(out / part, (end - time.monotonic()) * own / left)
        left -= own
        for line in lines:
            line = {**about, **line, "seconds": took}
            good &= line["complete"] and not line.get("failed")
            with open(out / "evidence.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    return 0 if good else 1


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


def usage() -> int:
    print(__doc__, file=sys.stderr)
    return 2


def main() -> int:
    match sys.argv[1:]:
        case ["pack", *more] if set(more) <= {"rust"}:
            return pack(more)
        case ["run", *words]:
            minutes = float(words.pop(0)) if words and words[0][0].isdigit() else None
            if unknown := set(words) - WAYS.keys():
                print(f"gpu_evidence: no part {', '.join(sorted(unknown))}; parts are "
                      f"{', '.join(WAYS)}", file=sys.stderr)  # fmt: skip
                return usage()
            return run(minutes, words or USUAL)
        case ["age"]:
            return age()
    return usage()


if __name__ == "__main__":
    sys.exit(main())
