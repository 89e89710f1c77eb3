#!/usr/bin/env python3
"""usage: bench/lab_bars.py same|slower|cheats|gemv|forge|ladders|check [--device cuda] [--runs N]
       [--budget SECONDS]

The workbench's own bars, each measured by one command, which appends one JSON line to
bench/results/lab.jsonl (or --out FILE) and ends with 0 if the bar is met, 8 if not. It needs an
interpreter that has the wheel (build/wheel-venv/bin/python), nvcc, and a GPU of its own. One that
is stopped (SIGTERM, as `timeout` sends it) or fails writes what it has. With --budget it begins
nothing that would not be over in time, and takes one case of everything before another of anything;
what is left out is named, and the bar is not met.

same    A against A: how often SAME, and how often FASTER or SLOWER, of 40 comparisons or more
slower  a copy that moves 1 and 2 % more: how often SLOWER
cheats  the known cheats and the shipped kernels: how many are caught, how many are accused
gemv    the NVFP4 GEMV's rungs: their speed over that of a copy that moves the same bytes, timed the
        same way; geometric mean of the shapes
forge   the last rung of each of forge's ops in CuTe DSL: its speed over that of Pestle's op
ladders every rung that is shipped and runs here, and Pestle's own op, at one case each: us, share
        of a copy. No bar of its own: docs/site/lab.md has the figures
check   `pestle-lab check`, suite smoke, from start to verdict, of what was compiled before
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import torch
from pestle_lab import benching, checking, errors, kernels, problems
from pestle_lab.engine import cases, child, machine, stats
from pestle_lab.engine.building import build
from pestle_lab.engine.clock import Timer

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = """
from pestle_lab import Problem, input, output

problem = Problem(
    name="stream",
    doc="x, copied.",
    args=[input("x", "f32", "N", "numbers"), output("out", "=x", "N", "the same")],
    constraints=[("N % 1024 == 0", "N must be a multiple of 1024")],
    reference=lambda inputs, _: {"out": (inputs["x"], None)},
    suites={"performance": ["N=16777216"]},
)
"""
HEAD = """\
// kernel: stream/{name}
// language = "{language}"
// arguments = ["out", "x", "N", "stream"]
// constraints = ["memory contiguous"]
"""
# Some blocks copy another block's part once more: the same answer, and that much more to move. They
# begin the last quarter: caches have forgotten the first parts by then, and what comes after them
# leaves nothing waiting for them alone.
CUDA = """\
#include <cstdint>

__global__ void copy(float4* out, const float4* x, unsigned again) {{
  out[blockIdx.x * 256u + threadIdx.x] = x[blockIdx.x * 256u + threadIdx.x];
  const unsigned other = blockIdx.x - gridDim.x / 4 * 3;  // huge before the last quarter
  if (other >= again) return;
  out[other * 256u + threadIdx.x] = x[other * 256u + threadIdx.x];
}}

extern "C" int run(float* out, const float* x, int64_t n, cudaStream_t stream) {{
  const unsigned blocks = static_cast<unsigned>(n / 1024);
  copy<<<blocks, 256, 0, stream>>>(reinterpret_cast<float4*>(out),
                                   reinterpret_cast<const float4*>(x),
                                   static_cast<unsigned>(blocks * {extra}));
  return cudaGetLastError();
}}
"""
CPP = """\
#include <cstdint>
#include <cstring>

extern "C" int run(float* out, const float* x, int64_t n, void*) {{
  std::memcpy(out, x, n * 4);
  std::memcpy(out + n / 2, x + n / 2, static_cast<int64_t>(n * {extra}) * 4);
  return 0;
}}
"""
EXTRA = {"a": 0.0, "b": 0.0, "slower_1": 0.01, "slower_2": 0.02}


def write_kernels(folder: Path, device: str) -> dict[str, kernels.Kernel]:
    language, body, ending = ("cuda", CUDA, ".cu") if device != "cpu" else ("cpp", CPP, ".cpp")
    (folder / "stream.problem.py").write_text(PROBLEM)
    for name, extra in EXTRA.items():
        text = HEAD.format(name=name, language=language) + body.format(extra=extra)
        (folder / f"{name}{ending}").write_text(text)
    return {name: kernels.read(folder / f"{name}{ending}") for name in EXTRA}


def say(**figures) -> None:
    """What is known so far: the line in the file comes at the end."""
    print(json.dumps(figures), file=sys.stderr, flush=True)


class Budget:
    """Seconds that a bar may take: what is begun should be over by then."""

    def __init__(self, seconds: float | None):
        self.until = time.monotonic() + seconds if seconds else float("inf")
        self.longest = 0.0  # part so far

    def left(self) -> float:
        return self.until - time.monotonic()

    @contextlib.contextmanager
    def part(self, figures: dict, name: str):
        """Gives whether there is time. A part that fails is a figure, and the others go on."""
        began = time.monotonic()
        try:
            if not (goes := self.left() > 1.1 * self.longest):
                figures.setdefault("not measured", {})[name] = "the budget was over"
            yield goes
        except Exception as error:
            figures.setdefault("not measured", {})[name] = f"{type(error).__name__}: {error}"
            say(part=name, failed=str(error))
        self.longest = max(self.longest, time.monotonic() - began)


def turns(args, own, problem, case, settings, count: int, seconds: float) -> list[tuple]:
    """What is found by up to `count` comparisons in the same processes, in some seconds, and the
    share of disturbed samples in each."""
    until = time.monotonic() + seconds
    ahead(args, benching.PAIRS)
    built = [(kernel, build(kernel, args.device), args.device) for kernel in own]
    if bad := [made.log for _, made, _ in built if not made.ok]:
        raise errors.LabError(bad[0], errors.COMPILE_ERROR)
    with benching.paired(built, problem, case, settings) as (pairs, why):
        if why:
            raise errors.LabError(why)
        found = []
        while len(found) < count and (not found or time.monotonic() < until):
            one = benching.take_turns(pairs, settings)
            samples = [ns for blocks in one.blocks for block in blocks for ns in block]
            found.append((one.ratio(settings), stats.summarise(samples).disturbed))
        benching.finish(pairs, settings.modes[0])
    return found


ENDING = 3.0  # seconds of the end of a group, or of tests that are stopped
LEAST = 40  # comparisons of a pair, fewer of which are no bar's measure


def verdicts(args: argparse.Namespace, pairs: list[tuple[str, str]], figures: dict) -> None:
    """How often each verdict in `runs` comparisons of each pair, by name, a group after the other;
    fewer where the budget is over."""
    budget = Budget(args.budget)
    counted = {f"{a} against {b}": collections.Counter() for a, b in pairs}
    figures |= counted
    with tempfile.TemporaryDirectory() as folder:
        own = write_kernels(Path(folder), args.device)
        problem = problems.get("stream", [Path(folder)])
        settings = benching.Settings(
            device=args.device, seconds=args.seconds, folders=[Path(folder)], kept={},
            modes=("warm" if args.device == "cpu" else "cold",),
        )  # fmt: skip
        case = cases.make(problem, args.case or problem.cases("performance")[0])
        rounds = -(-args.runs // args.group)
        for number, (a, b) in enumerate(pairs * rounds):
            counts = counted[f"{a} against {b}"]
            each = budget.left() / (len(pairs) * rounds - number)
            if each < ENDING and all(counted.values()):
                return
            count = min(args.runs - counts.total(), args.group)
            mine, began, found = [own[a], own[b]], time.monotonic(), []
            try:
                found = turns(args, mine, problem, case, settings, count, each - ENDING)
            except errors.LabError as error:  # such as: taken apart
                counts["no verdict"] += 1
                say(pair=f"{a} against {b}", failed=str(error))
            counts.update(ratio.verdict for ratio, _ in found)
            ratios = [[round(v, 4) for v in (r.low, r.value, r.high, d)] for r, d in found]
            say(pair=f"{a} against {b}", seconds=round(time.monotonic() - began, 1), **counts,
                ratios_and_disturbed=ratios)  # fmt: skip


def same(args: argparse.Namespace, figures: dict) -> bool:
    verdicts(args, [("a", "b")], figures)
    counts, least = figures["a against b"], min(LEAST, args.runs)
    wrong, done = counts["FASTER"] + counts["SLOWER"], counts.total()
    return done >= least and counts["SAME"] >= 0.95 * done and wrong <= 0.01 * done


def slower(args: argparse.Namespace, figures: dict) -> bool:
    verdicts(args, [("a", "slower_2"), ("a", "slower_1")], figures)
    two, one = (figures[f"a against {b}"] for b in ("slower_2", "slower_1"))
    enough = min(two.total(), one.total()) >= min(LEAST, args.runs)
    return enough and all(
        counts["SLOWER"] >= share * counts.total() for counts, share in ((two, 0.95), (one, 0.8))
    )


class Tests:
    """Tests of tests/lab in processes of their own: what becomes of each is said as it ends."""

    def __init__(self, *arguments: str, workers: int = 1, **environment: str):
        pipe, written = os.pipe()
        several = importlib.util.find_spec("xdist") is not None and workers > 1
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 (`ended` closes it)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "told",
             *(["-n", str(workers)] if several else []), *arguments],
            cwd=ROOT / "tests/lab", stdout=self.printed, stderr=subprocess.STDOUT,
            pass_fds=(written,), start_new_session=True,
            env=os.environ | {"TOLD": str(written)} | environment,
        )  # fmt: skip
        os.close(written)
        self.listed: list[str] = []
        self.became: dict[str, str] = {}
        self.reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self.reader.start()

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe) as lines:
            for told in map(json.loads, lines):
                self.listed = told.get("listed", self.listed)
                if name := told.get("test"):
                    if self.became.get(name) != "failed":  # a test may fail once it has passed
                        self.became[name] = told["outcome"]
                    say(**told)

    def wait(self, seconds: float) -> bool:
        """Whether it is over by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(min(max(seconds, 0), threading.TIMEOUT_MAX))
        return self.process.poll() is not None

    def ended(self) -> None:
        self.reader.join(1)
        if self.process.returncode:
            self.printed.seek(0)
            sys.stderr.write(self.printed.read().decode(errors="replace"))
        self.printed.close()

    def json(self) -> dict:
        counts = collections.Counter(self.became.values())
        made = {"pytest": self.process.poll(), "tests": len(self.became)}
        made |= {name: counts[name] for name in ("passed", "failed", "skipped")}
        left = [name for name in self.listed if name not in self.became]
        if left or not self.listed:
            made["not run"] = left or "all"
        return made

    def passed(self) -> bool:
        return self.process.poll() == 0 and 0 < len(self.listed) == len(self.became)


def stop(tests: list[Tests]) -> None:
    """What runs yet is interrupted, so that kernels' processes end with it, or is killed."""
    for number in (signal.SIGINT, signal.SIGKILL):
        for some in tests:
            if not some.wait(0):
                os.killpg(some.process.pid, number)
        until = time.monotonic() + ENDING
        for some in tests:
            some.wait(until - time.monotonic())
    for some in tests:
        some.ended()


CALL = 45.0  # seconds that a call of a shipped kernel may take, with what it compiles
GPU_TESTS = 20.0  # seconds of the test that comes after the checks


class Checks:
    """Of every shipped kernel, several at once, since nothing is timed; what is wrong with one is a
    figure. They go on to their end, or to that of the budget."""

    def __init__(self, args: argparse.Namespace, figures: dict, budget: Budget):
        self.device, self.figures, self.budget = args.device, figures, budget
        self.found = shipped(args)
        self.known = {k.problem: problems.get(k.problem, []) for k in self.found.values()}
        figures |= {"accused": [], "checked": 0}
        self.waiting, self.begun = collections.deque(self.found), set()
        # Not those of a pool, which keep this process from ending.
        self.threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(half_of_cores())
        ]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        while self.waiting:
            with contextlib.suppress(IndexError):  # another thread took the last one
                self.begun.add(name := self.waiting.popleft())
                with self.budget.part(self.figures, name) as goes:
                    if goes:
                        self._check(name)
                self.begun.discard(name)

    def _check(self, name: str) -> None:
        kernel, began = self.found[name], time.monotonic()
        problem = self.known[kernel.problem]
        done = checking.check(
            kernel, problem, problem.cases("smoke"), device=self.device, seed=None,
            timeout=max(min(CALL, self.budget.left()), 1), problem_folders=[],
        )  # fmt: skip
        good = ("ok", "no_device", "unsupported")
        bad = [f"{name} {v.id}: {v.status}: {v.message}" for v in done.cases
               if v.status not in good]  # fmt: skip
        self.figures["accused"].extend(bad)
        self.figures["checked"] += 1
        say(checked=name, accused=bad, seconds=round(time.monotonic() - began, 1))

    def wait(self) -> None:
        try:
            for thread in self.threads:
                thread.join(min(max(self.budget.left(), 0), threading.TIMEOUT_MAX))
        finally:
            for name in [*self.begun, *self.waiting]:
                self.figures.setdefault("not measured", {})[name] = "the time was over"


def half_of_cores() -> int:
    return max(len(os.sched_getaffinity(0)) // 2, 1)


QUIET = "test_a_part_of_the_cache"  # which times what is short, on a GPU of its own


def cheats(args: argparse.Namespace, figures: dict) -> bool:
    """The cheats are tested while shipped kernels are checked, but for one."""
    file, on_gpu, whole = "test_cheats_cuda.py", args.device != "cpu", Budget(args.budget)
    until = time.monotonic() + min(args.timeout, whole.left()) - 2 * ENDING
    # Those of a CPU see no GPU, whose ceilings they would measure otherwise.
    tests = {"test_cheats.py": Tests("test_cheats.py", workers=half_of_cores(),
                                     CUDA_VISIBLE_DEVICES="")}  # fmt: skip
    try:
        if on_gpu:
            tests[file] = Tests(file, "-k", f"not {QUIET}")
        reserved = 2 * ENDING + GPU_TESTS * on_gpu
        Checks(args, figures, Budget(args.budget and max(args.budget - reserved, 1))).wait()
        if on_gpu:
            tests[file].wait(until - time.monotonic())
            tests[f"{file}, {QUIET}"] = Tests(file, "-k", QUIET)
        for some in tests.values():
            some.wait(until - time.monotonic())
    finally:
        stop(list(tests.values()))
        figures |= {name: some.json() for name, some in tests.items()}
    say(**figures)
    passed = all(some.passed() for some in tests.values())
    return done_well(figures) and passed and not figures["accused"]


def shipped(args: argparse.Namespace) -> dict[str, kernels.Kernel]:
    """Kernels that a bar measures: all that are shipped, or those that --only names."""
    found = kernels.find([kernels.BUILT_IN])
    if unknown := set(args.only) - found.keys():
        raise errors.LabError(f"--only: no kernel is named {', '.join(sorted(unknown))}")
    return {name: found[name] for name in args.only or found}


def done_well(figures: dict) -> bool:
    return "not measured" not in figures


GEMV = {"cuda": 0.85, "triton": 0.70, "cute": 0.75}


def copy_ns(timer: Timer, moved: int, device: str) -> float:
    """The median of cold copies that move so many bytes: half of them are read, half written."""
    source = torch.ones(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return stats.summarise(timer.run([lambda: target.copy_(source)] * 40, "cold")).median


def ahead(args: argparse.Namespace, processes: int = 1) -> None:
    """The processes of the part after this one start meanwhile."""
    if args.device != "cpu":
        child.prepare(2 * processes)


def gemv(args: argparse.Namespace, figures: dict) -> bool:
    """Time of a copy of the same bytes over the rung's, both cold, by the same clock."""
    problem, budget = problems.get("nvfp4_gemv", []), Budget(args.budget)
    found = shipped(args)
    settings = benching.Settings(device=args.device, seconds=args.seconds, kept={}, names=False)
    large = machine.ceilings(args.device, again=True)["bytes_per_s"]
    figures["large_copy_gb_per_s"] = large / 1e9
    timer = Timer(torch.device(args.device))
    texts = problem.cases("performance")
    names = [n for n in ("cuda", "triton", "cute", "pestle") if f"nvfp4_gemv/{n}" in found]
    done: dict[str, dict[str, dict]] = {name: {} for name in names}
    for text in texts:
        for name in names:
            with budget.part(figures, f"{name} {text}") as goes:
                if not goes:
                    continue
                ahead(args)
                kernel, began = found[f"nvfp4_gemv/{name}"], time.monotonic()
                (timed,) = benching.bench(kernel, problem, [text], settings).cases
                if not timed.throughput:
                    raise errors.LabError(f"{timed.verdict.status}: {timed.verdict.message}")
                moved, gbps = timed.throughput["bytes"], timed.throughput["gbps"]
                copy = copy_ns(timer, moved, args.device)
                done[name][text] = {
                    "share": copy * gbps / moved, "copy_us": copy / 1e3,
                    "of_large_copy": gbps * 1e9 / large,
                    "seconds": round(time.monotonic() - began, 1),
                }  # fmt: skip
                figures[name] = {"cases": done[name]}
                if len(done[name]) == len(texts):
                    shares = [case["share"] for case in done[name].values()]
                    figures[name]["share_of_copy"] = stats.geomean(shares)
                say(kernel=name, **figures[name])
    met = [
        figures.get(name, {}).get("share_of_copy", 0) >= bar
        for name, bar in GEMV.items()
        if name in names or not args.only
    ]
    return done_well(figures) and all(met)


# The last rung of each op, Pestle's op as a kernel of Python's, and a shape whose data no cache
# holds.
FORGE = {
    "copy_transpose/cute_vectors": (
        "out, x, tile_size", "copy_transpose.out(x, tile_size=tile_size, out=out)",
        ["B= M=8192 N=4096 x=f16 tile_size=32", "B= M=8192 N=4096 x=f32 tile_size=32"],
    ),
    "reduce/cute_vectors": (
        "out, x, op, dims, keepdim, out_type", "reduce.out(x, op=op, dims=dims, out=out)",
        ["M=8192x4096 dims=2 x=f16", "M=256x131072 dims=2 x=f16"],
    ),
    "softmax/cute_registers": (
        "out, x, dim, scale", "softmax.out(x, dim=dim, scale=scale, out=out)",
        ["S=8192x4096 x=f16", "S=8192x4096 x=f32"],
    ),
    "softmax_backward/cute_registers": (
        "d_x, d_out, out, dim, scale",
        "softmax_backward.out(d_out, out, dim=dim, scale=scale, d_x=d_x)",
        ["S=8192x4096 d_out=f16"],
    ),
}  # fmt: skip
PESTLE = """\
# kernel: {op}/product
# language = "python"
import pestle
import torch


def run({names}):
    torch.ops.pestle.{call}
"""


def product_of(name: str, folder: str) -> kernels.Kernel:
    """Pestle's op beside the rung of that name, as a kernel in a file of the folder."""
    names, call, _ = FORGE[name]
    path = Path(folder) / "product.py"
    path.write_text(PESTLE.format(op=name.partition("/")[0], names=names, call=call))
    return kernels.read(path)


def forge(args: argparse.Namespace, figures: dict) -> bool:
    """Time of Pestle's op over that of the rung, in turns; and the geometric mean of all."""
    found, budget = shipped(args), Budget(args.budget)
    mode = "warm" if args.device == "cpu" else "cold"
    settings = benching.Settings(device=args.device, seconds=args.seconds, modes=(mode,))
    parts = [
        (i, text, name) for name, (_, _, texts) in FORGE.items() for i, text in enumerate(texts)
    ]
    ratios = []
    for _, text, name in sorted(parts, key=lambda part: part[0]):
        with tempfile.TemporaryDirectory() as folder, budget.part(figures, f"{name} {text}") as go:
            if not go:
                continue
            ahead(args, benching.PAIRS)
            problem, began = problems.get(name.partition("/")[0], []), time.monotonic()
            product = product_of(name, folder)
            (done,) = benching.compare(found[name], product, problem, [text], settings)
            said = done.json() | {"seconds": round(time.monotonic() - began, 1)}
            figures.setdefault(name, []).append(said)
            say(kernel=name, case=said)
            ratios.append(done.ratio.value if done.ratio else 0)
    figures["geomean"] = stats.geomean(ratios) if ratios and all(ratios) else 0
    return done_well(figures) and figures["geomean"] >= 0.95


# The case at which all rungs of a ladder are timed: those in CUDA C++ take f32.
LADDERS = {
    "copy_transpose": "B= M=8192 N=4096 x=f32 tile_size=32",
    "reduce": "M=8192x4096 dims=2 x=f32",
    "softmax": "S=8192x4096 x=f32",
    "softmax_backward": "S=8192x4096 d_out=f32",
    "nvfp4_gemv": "M=7168 K=16384 L=1",
}


def ladders(args: argparse.Namespace, figures: dict) -> bool:
    """Cold medians of all rungs and of Pestle's ops."""
    mode, budget = "warm" if args.device == "cpu" else "cold", Budget(args.budget)
    settings = benching.Settings(
        device=args.device, seconds=args.seconds, modes=(mode,), kept={}, names=False
    )

    def rung(name: str, kernel: kernels.Kernel) -> None:
        with budget.part(figures, name) as goes:
            if not goes:
                return
            ahead(args)
            case, began = LADDERS[kernel.problem], time.monotonic()
            timed = benching.bench(kernel, problems.get(kernel.problem, []), [case], settings)
            one = timed.cases[0]
            said = {"case": case, "status": one.verdict.status, "message": one.verdict.message}
            if one.throughput:
                us = one.throughput["bytes"] / one.throughput["gbps"] / 1e3
                said |= {"us": us, "share": one.throughput["share_of_measured_limit"]}
            figures[name] = said | {"seconds": round(time.monotonic() - began, 1)}
            say(kernel=name, **said)

    found = shipped(args)
    for problem in LADDERS:  # a problem's rungs one after the other: they get the same data
        for name, kernel in found.items():
            runs = checking.device_of(kernel, args.device) is not None
            if kernel.problem == problem and runs:
                rung(name, kernel)
        for name in (n for n in FORGE if n.startswith(f"{problem}/") and not args.only):
            with tempfile.TemporaryDirectory() as folder:
                product = product_of(name, folder)
                rung(product.name, product)
    return done_well(figures)


def check(args: argparse.Namespace, figures: dict) -> bool:
    """Of each shipped kernel that runs here: the second of two runs."""
    budget = Budget(args.budget)
    for name, kernel in shipped(args).items():
        if checking.device_of(kernel, args.device) is None:
            continue
        command = [sys.executable, "-m", "pestle_lab", "check", name, "--device", args.device]
        with tempfile.TemporaryDirectory() as folder, budget.part(figures, name) as goes:
            if not goes:
                continue
            for _ in range(2):
                began = time.monotonic()
                done = subprocess.run(command, capture_output=True, cwd=folder, timeout=120)
                seconds = time.monotonic() - began
            figures[name] = {"seconds": round(seconds, 2), "exit": done.returncode}
            say(kernel=name, **figures[name])
    met = [f["exit"] == 0 and f["seconds"] <= 8 for n, f in figures.items() if n != "not measured"]
    return done_well(figures) and all(met)


def commit() -> str:
    """What was measured; tools/performance.py takes no line of an edited tree."""
    said = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
    ]
    if any(done.returncode for done in said):
        return "unknown"
    return said[0].stdout.strip() + ("-dirty" if said[1].stdout else "")


def whole(bar):
    """bar(args) for other scripts: its figures, and whether it is met."""

    def run(args: argparse.Namespace, figures: dict | None = None) -> tuple[dict, bool]:
        figures = {} if figures is None else figures
        for name, value in DEFAULTS.items():
            vars(args).setdefault(name, value)
        return figures, bar(args, figures)

    return run


DEFAULTS = {"group": 50, "timeout": 1200.0, "budget": None, "only": []}
BARS = {f.__name__: whole(f) for f in (same, slower, cheats, gemv, forge, ladders, check)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bar", choices=BARS)
    parser.add_argument("--device", default=checking.default_device())
    parser.add_argument("--runs", type=int, default=200, help="comparisons of a pair")
    parser.add_argument(
        "--group", type=int, default=DEFAULTS["group"], help="of them in a pair of processes"
    )
    parser.add_argument(
        "--seconds", type=float, help="of timing [default: 0.3 of same and slower, 1]"
    )
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for the whole bar")
    parser.add_argument(
        "--timeout", type=float, default=DEFAULTS["timeout"], help="seconds for the cheats' tests"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KERNEL",
        help="of cheats, gemv, forge, ladders, check; may be given again",
    )
    parser.add_argument("--case", help="N=..., instead of 64 MiB")
    parser.add_argument("--commit", help="where this is no git repository")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/lab.jsonl")
    args = parser.parse_args()
    args.seconds = args.seconds or (0.3 if args.bar in ("same", "slower") else 1.0)
    began, figures, met = time.monotonic(), {}, False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        _, met = BARS[args.bar](args, figures)
    except BaseException as error:
        figures["ended by"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    line = {
        "date": datetime.date.today().isoformat(),
        "bar": args.bar,
        "met": met,
        "figures": figures,
        "runs": args.runs if args.bar in ("same", "slower") else None,
        "seconds": round(time.monotonic() - began, 1),
        "machine": machine.environment(args.device) | {"commit": args.commit or commit()},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=1))
    return errors.OK if met else errors.REGRESSION


if __name__ == "__main__":
    sys.exit(main())
