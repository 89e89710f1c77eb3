#!/usr/bin/env python3
"""Checks and benches on a GPU machine that has no network and no compiler (tools/gpu.sh run).

Checks, mutants and sanitizer runs go over all cores and GPUs at once; then each GPU, with nothing
else running on it, takes one op's bench after the other; what a call costs the host is measured
last, alone.

Results lie in build/gpu-results/HASH-OF-THE-PROGRAM, so that the same command goes on where it
stopped, and are copied to $OUT if that is set: check.jsonl, mutants.jsonl, sanitizer.jsonl,
bench.jsonl, host.jsonl (copy them to bench/results/), log.txt, and done/ with a mark for each
finished step. A failing step is named at the end, makes the exit status 1, and is tried again by
the next run; its lines are in failed.jsonl.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")  # the slowest first
# Its table of barriers is too small for clusters of many, and what overflows it fails the launch.
TOOL_OPTIONS = {"synccheck": ("--num-cuda-barriers", "65536")}
AGAIN = 75  # the exit status that says: time is up, run the same command again
WARMERS = 8  # processes; each holds one case's tensors
SPARE = 40  # seconds that a step may go on after the time is up


def find_pestle():
    given = os.environ.get("PESTLE_BIN")
    if given:
        return Path(given)
    for folder in (ROOT / "build/gpu", ROOT / "build/cuda", ROOT):
        if (folder / "bin/pestle").exists():
            libraries = f"{folder}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
            os.environ["LD_LIBRARY_PATH"] = libraries
            return folder / "bin/pestle"
    sys.exit("gpu.sh: no build/gpu/bin/pestle: run tools/gpu.sh pack where the compiler is")


def gpus():
    """Those that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return given.split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return ["0"]
    return [str(i) for i, _ in enumerate(re.findall(r"^GPU \d+", listed, re.MULTILINE))] or ["0"]


def shares(cores, jobs):
    """Cores for each of so many jobs, each core twice: a job starts a thread for each core that it
    sees, and a hundred jobs with a hundred threads each get nowhere."""
    if jobs < 2 or not shutil.which("taskset"):
        return [None] * max(1, jobs)
    width = min(len(cores), max(4, 2 * len(cores) // jobs))
    twice = cores + cores
    starts = (i * len(cores) // jobs for i in range(jobs))
    return [twice[start : start + width] for start in starts]


def brief(text):
    """Lines of checks with each refusal once: the first case that met it, and how often."""
    lines = []
    for line in map(json.loads, text.splitlines()):
        refusals = {}
        for refusal in line.get("refusals", []):
            key = refusal["impl"], refusal["reason"]
            refusals.setdefault(key, {**refusal, "times": 0})["times"] += 1
        if refusals:
            line["refusals"] = list(refusals.values())
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


def ending(output, sanitizer):
    """The lines to show of a step's output; a sanitizer repeats itself for each hazard."""
    lines = output.splitlines()
    return list(dict.fromkeys(lines))[:400] if sanitizer else lines[-40:]


class Step:
    def __init__(self, kind, name, command, weight=0, sanitizer=None):
        self.kind, self.name, self.command = kind, f"{kind}.{name}", command
        # Bytes that it moves, or cases that it times: the heaviest of a phase start first
        self.weight = weight
        self.sanitizer = sanitizer


class Run:
    def __init__(self, options, pestle):
        self.options, self.pestle = options, pestle
        digest = hashlib.sha256(pestle.read_bytes()).hexdigest()[:12]
        self.out = ROOT / "build/gpu-results" / digest
        (self.out / "done").mkdir(parents=True, exist_ok=True)
        self.start = time.monotonic()
        self.lock = threading.Lock()
        self.gpus = gpus()
        self.passed = self.skipped = self.unfinished = 0
        self.failed = []

    def say(self, text):
        with self.lock:
            print(text, flush=True)
            with open(self.out / "log.txt", "a") as log:
                log.write(text + "\n")

    def left(self):
        return self.options.minutes * 60 - (time.monotonic() - self.start)

    def is_done(self, step):
        folders = [self.out, *map(Path, filter(None, [self.options.done]))]
        return any((folder / "done" / step.name).exists() for folder in folders)

    def environment(self, gpu):
        """Its GPU is device 0; the next one, if any, is the second device of the checks."""
        visible = [self.gpus[(gpu + i) % len(self.gpus)] for i in range(len(self.gpus))]
        return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible)}

    def step(self, step, gpu, cores=None):
        """Once, unless the time is up; its lines reach the results only if it ended. `cores`: the
        only ones that it may use."""
        if self.is_done(step):
            self.skipped += 1
            return
        if self.left() <= 0:
            self.unfinished += 1
            return
        part = self.out / f"part.{step.name}.jsonl"
        part.unlink(missing_ok=True)
        began = time.monotonic()
        try:
            pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
            done = subprocess.run(
                [*pinned, *step.command, "--out", str(part)], env=self.environment(gpu), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self.left() + SPARE,
                cwd=ROOT, errors="replace",
            )  # fmt: skip
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            status, output = None, ""
        seconds = time.monotonic() - began
        text = part.read_text() if part.exists() else ""
        part.unlink(missing_ok=True)
        if step.sanitizer and status is not None:
            text, status = self.findings(step, text, output, status)
        self.note(step, status, text, output, seconds)

    def findings(self, step, text, output, status):
        """One line for the sanitizer's tool: what it found and what ran under it."""
        summary = re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+)", output)
        found = int("".join(summary[-1])) if summary else None
        lines = [json.loads(line) for line in text.splitlines()]
        if found is None or not lines:
            return "", status or 1
        line = {"sanitizer": step.sanitizer, "findings": found, **lines[0]}
        return json.dumps(line) + "\n", 1 if found else status

    def note(self, step, status, text, output, seconds):
        shown = "\n".join(ending(output, step.sanitizer)) if status or step.kind == "bench" else ""
        word = {None: "ran out of time", 0: "passed"}.get(status, f"FAILED ({status})")
        self.say(f"=== {step.name}: {word}, {seconds:.0f} s" + (f"\n{shown}" if shown else ""))
        with self.lock:
            if status is None:
                self.unfinished += 1
                return
            lines = "failed" if status else step.kind
            if text:
                with open(self.out / f"{lines}.jsonl", "a") as file:
                    file.write(brief(text))
            if status:
                self.failed.append(step.name)
            else:
                (self.out / "done" / step.name).touch()
                self.passed += 1

    def at_once(self, steps):
        """Over the cores, the heaviest first, round the GPUs."""
        steps = sorted(steps, key=lambda step: -step.weight)
        free = queue.SimpleQueue()
        for cores in shares(sorted(os.sched_getaffinity(0)), min(self.options.jobs, len(steps))):
            free.put(cores)

        def turn(i):
            cores = free.get()
            try:
                self.step(steps[i], i % len(self.gpus), cores)
            finally:  # the others wait for them
                free.put(cores)

        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(turn, range(len(steps))))

    def alone(self, steps):
        """Each GPU takes the next step, the heaviest first, when it is done with its last."""
        waiting = queue.SimpleQueue()
        for step in sorted(steps, key=lambda step: -step.weight):
            waiting.put(step)

        def turns(gpu):
            with contextlib.suppress(queue.Empty):
                while True:
                    self.step(waiting.get_nowait(), gpu)

        with ThreadPoolExecutor(len(self.gpus)) as pool:
            list(pool.map(turns, range(len(self.gpus))))


def data_file(name):
    """The bars, which bring cases of their own; more huge cases."""
    places = (ROOT / "build/gpu" / name, ROOT / "bench" / name)
    return next((place for place in places if place.exists()), places[1])


def cases_of(pestle, tags, more=()):
    """By op: its cases with one of the tags."""
    command = [pestle, "bench", "--list-cases", "--tags", tags, *more]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(f"gpu.sh: {listed.stderr.strip()}")
    found = {}
    for row in map(json.loads, listed.stdout.splitlines()):
        found.setdefault(row["op"], []).append(row)
    return found


def chosen_ops(pestle, options):
    if options.op:
        ops = options.op
    else:
        listed = subprocess.run([pestle, "ops", "--json"], check=True, capture_output=True)
        ops = [
            op["name"]
            for op in json.loads(listed.stdout)
            if any(i["device"] == "cuda" for i in op["implementations"])
        ]
    shard, shards = map(int, options.shard.split("/"))
    return [op for i, op in enumerate(ops) if i % shards + 1 == shard]


def bench_steps(pestle, ops, options):
    more = (
        ["--cases", data_file("bars_cuda.json")] if "bar" in options.tags_bench.split(",") else []
    )
    cases = cases_of(pestle, options.tags_bench, more)
    command = [pestle, "bench", "--device", options.device, "--tags", options.tags_bench,
               "--seconds", str(options.seconds), *more]  # fmt: skip
    if options.peers:
        command += ["--with-peers", "--python", sys.executable, "--peers-script", peers_script()]
    there = [op for op in ops if op in cases]
    steps = []
    for i in range(0, len(there), options.batch):
        batch = there[i : i + options.batch]
        name = batch[0] + (f"+{len(batch) - 1}" if len(batch) > 1 else "")
        steps.append(
            Step("bench", f"{name}.{options.tags_bench}", [*map(str, command), *batch],
                 sum(len(cases[op]) for op in batch))
        )  # fmt: skip
    return steps


def peers_script():
    places = (ROOT / "build/gpu/peers", ROOT / "bench/peers")
    return str(next(place for place in places if place.exists()) / "run_peers.py")


def warm_steps(pestle, ops, options):
    """Peers compile at their first call: all cores do that while the checks run."""
    command = [sys.executable, peers_script(), "--warm", "--pestle", str(pestle)]
    command += ["--device", "cuda", "--tags", options.tags_bench]
    command += ["--cases", str(data_file("bars_cuda.json"))]
    steps = []
    for i in range(min(WARMERS, len(ops))):
        named = [word for op in ops[i::WARMERS] for word in ("--op", op)]
        steps.append(Step("warm", f"{i}.{len(ops)}", [*command, *named], math.inf))
    return steps


def check_steps(pestle, ops, options, wants):
    huge = "huge" in options.tags_check.split(",")
    more = ["--cases", str(data_file("huge_cuda.json"))] if huge else []
    cases = cases_of(pestle, options.tags_check, more)
    weight = {op: sum(row["bytes"] for row in rows) for op, rows in cases.items()}
    check = [str(pestle), "check", "--device", options.device, *more]
    check += ["--repeats", str(options.repeats)]
    if options.host_gib:
        check += ["--host-gib", str(options.host_gib)]
    steps = []
    if wants("check"):
        steps += [
            Step("check", f"{op}.{options.tags_check}", [*check, op, "--tags", options.tags_check],
                 weight.get(op, 0))
            for op in ops if op in cases
        ]  # fmt: skip
    if wants("mutants"):
        steps += [Step("mutants", op, [*check, op, "--mutants"]) for op in ops]
    return steps


def sanitizer_steps(pestle, ops, options):
    if not shutil.which("compute-sanitizer"):
        sys.exit("gpu.sh: compute-sanitizer is not here")
    check = [str(pestle), "check", "--device", options.device, "--repeats", "1"]
    return [
        Step(
            "sanitizer",
            f"{tool}.{op}",
            ["compute-sanitizer", "--tool", tool, *TOOL_OPTIONS.get(tool, ()),
             "--error-exitcode", "9", *check, "--launch", "default", op],
            sanitizer=tool,
        )
        for tool in options.tools.split(",")
        for op in ops
    ]  # fmt: skip


def arguments():
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="tools/gpu.sh run", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("op", nargs="*", help="ops; all that have a CUDA implementation when none is named")
    add("--only", choices=["check", "mutants", "bench", "host"], help="one part")
    add("--shard", default="1/1", help="I/N: every N-th op, from the I-th")
    add("--minutes", type=float, default=8, help="start nothing new after so many (8)")
    add("--tags-check", default="smoke,edge,bar", help="(smoke,edge,bar)")
    add("--tags-bench", default="bar", help="(bar)")
    add("--seconds", type=float, default=0.3, help="of bench, at most for a case (0.3)")
    add("--device", default="cuda", help="(cuda)")
    add(
        "--jobs", type=int, default=max(1, cores * 3 // 4), help="checks at once (3/4 of the cores)"
    )
    add("--host-gib", type=int, default=0, help="the host's memory, if more than the system says")
    add(
        "--batch", type=int, default=1,
        help="ops a bench step (1): more save the start of each step's peers, some 5 s",
    )  # fmt: skip
    add("--peers", action="store_true", help="time other libraries, too, before and after ours")
    add("--repeats", type=int, default=20, help="of a check's calls, for the same bits (20)")
    add("--done", help="a folder of earlier results: what is done there is not done again")
    add("--sanitizer", action="store_true", help="the small checks under compute-sanitizer instead")
    add("--tools", default=",".join(TOOLS), help="of --sanitizer (" + ",".join(TOOLS) + ")")
    return parser.parse_args()


def main():
    options = arguments()
    pestle = find_pestle()
    run = Run(options, pestle)
    run.say(subprocess.run([pestle, "env"], capture_output=True, text=True).stdout.strip())
    ops = chosen_ops(pestle, options)
    if not ops:
        sys.exit(f"gpu.sh: no op has an implementation for {options.device} in this shard")

    def wants(part):
        return options.only in (None, part)

    if options.sanitizer:
        run.at_once(sanitizer_steps(pestle, ops, options))
    else:
        warm = warm_steps(pestle, ops, options) if options.peers and wants("bench") else []
        run.at_once([*warm, *check_steps(pestle, ops, options, wants)])
        run.alone(bench_steps(pestle, ops, options) if wants("bench") else [])
        if wants("host") and options.shard.startswith("1/"):
            command = [str(pestle), "bench", "--host-cost", "--device", options.device]
            run.step(Step("host", "all", command), 0)
    run.say(
        f"=== {run.passed} passed, {len(run.failed)} failed, {run.skipped} done before, "
        f"{run.unfinished} still to do"
    )
    if run.failed:
        run.say("FAILED: " + " ".join(run.failed))
    elif run.unfinished:
        run.say("run again to go on")
    if os.environ.get("OUT"):
        shutil.copytree(run.out, os.environ["OUT"], dirs_exist_ok=True)
    return 1 if run.failed else AGAIN if run.unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
