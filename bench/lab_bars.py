#!/usr/bin/env python3
"""usage: bench/lab_bars.py same|slower|cheats|gemv|check [--device cuda|cpu] [--runs N]

The workbench's own bars, each measured by one command, which appends one JSON line to
bench/results/lab.jsonl (or --out FILE) and ends with 0 if the bar is met, 8 if not. It needs an
interpreter that has the wheel (build/wheel-venv/bin/python), nvcc, and a GPU of its own.

same    A against A: how often SAME, and how often FASTER or SLOWER
slower  a copy that moves 1 and 2 % more: how often SLOWER
cheats  the known cheats and the shipped kernels: how many are caught, how many are accused
gemv    the NVFP4 GEMV's rungs: share of a copy's bytes a second, geometric mean of the shapes
check   `pestle-lab check`, suite smoke, from start to verdict, of what was compiled before
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pestle_lab import benching, checking, errors, kernels, problems
from pestle_lab.engine import machine

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = """
from pestle_lab import Problem, input, output

problem = Problem(
    name="stream",
    doc="x, copied.",
    args=[input("x", "f32", "N", "numbers"), output("out", "=x", "N", "the same")],
    constraints=[("N % 1024 == 0", "N must be a multiple of 1024")],
    reference=lambda inputs, _: {"out": (inputs["x"], None)},
    suites={"performance": ["N=67108864"]},
)
"""
HEAD = """\
// kernel: stream/{name}
// language = "{language}"
// arguments = ["out", "x", "N", "stream"]
// constraints = ["memory contiguous"]
"""
# Some blocks copy another block's part once more: the same answer, and that much more to move.
CUDA = """\
#include <cstdint>

__global__ void copy(float4* out, const float4* x, unsigned again) {{
  out[blockIdx.x * 256u + threadIdx.x] = x[blockIdx.x * 256u + threadIdx.x];
  if (blockIdx.x >= again) return;
  const unsigned other = (blockIdx.x + gridDim.x / 2) % gridDim.x;
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


def verdicts(args: argparse.Namespace, pairs: list[tuple[str, str]]) -> dict[str, dict]:
    """Verdicts of `runs` comparisons for each pair, by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        own = write_kernels(Path(folder), args.device)
        problem = problems.get("stream", [Path(folder)])
        settings = benching.Settings(
            device=args.device, seconds=args.seconds, folders=[Path(folder)],
            modes=("warm" if args.device == "cpu" else "cold",),
        )  # fmt: skip
        texts = [args.case] if args.case else problem.cases("performance")
        for a, b in pairs:
            counted = collections.Counter()
            for _ in range(args.runs):
                (done,) = benching.compare(own[a], own[b], problem, texts, settings)
                counted[done.ratio.verdict if done.ratio else done.status] += 1
                print(f"{a} against {b}: {dict(counted)}", file=sys.stderr, flush=True)
            found[f"{a} against {b}"] = dict(counted)
    return found


def same(args: argparse.Namespace) -> tuple[dict, bool]:
    found = verdicts(args, [("a", "b")])
    (counts,) = found.values()
    wrong = counts.get("FASTER", 0) + counts.get("SLOWER", 0)
    return found, counts.get("SAME", 0) >= 0.95 * args.runs and wrong <= 0.01 * args.runs


def slower(args: argparse.Namespace) -> tuple[dict, bool]:
    found = verdicts(args, [("a", "slower_2"), ("a", "slower_1")])
    two, one = (counts.get("SLOWER", 0) / args.runs for counts in found.values())
    return found, two >= 0.95 and one >= 0.8


def cheats(args: argparse.Namespace) -> tuple[dict, bool]:
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={lines}",
             *(str(ROOT / "tests/lab" / f) for f in ("test_cheats.py", "test_cheats_cuda.py"))],
            cwd=ROOT / "tests/lab",
        )  # fmt: skip
        import xml.etree.ElementTree as ElementTree

        suite = ElementTree.parse(lines).getroot()[0]
    figures = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    accused = []
    for name, kernel in kernels.find([kernels.BUILT_IN]).items():
        problem = problems.get(kernel.problem, [])
        done = checking.check(
            kernel, problem, problem.cases("smoke"), device=args.device, seed=None, timeout=120,
            problem_folders=[],
        )  # fmt: skip
        accused += [f"{name}: {s}" for s in done.statuses if s not in ("ok", "no_device")]
    return figures | {"accused": accused}, not (figures["failures"] + figures["errors"] or accused)


GEMV = {"cuda": 0.85, "triton": 0.70, "cute": 0.75}


def gemv(args: argparse.Namespace) -> tuple[dict, bool]:
    """Bytes a second over those of a copy, measured on the same machine."""
    problem = problems.get("nvfp4_gemv", [])
    found = kernels.find([kernels.BUILT_IN])
    settings = benching.Settings(device=args.device, seconds=args.seconds)
    copy = machine.ceilings(args.device, again=True)["bytes_per_s"]
    figures: dict = {"copy_gb_per_s": copy / 1e9}
    for name in ("cuda", "triton", "cute", "pestle"):
        kernel = found.get(f"nvfp4_gemv/{name}")
        if kernel is None:
            figures[name] = "not there"
            continue
        timed = benching.bench(kernel, problem, problem.cases("performance"), settings).cases
        bad = [f"{t.verdict.status}: {t.verdict.message}" for t in timed if not t.modes]
        shares = [t.throughput["gbps"] * 1e9 / copy for t in timed if t.throughput]
        geomean = math.exp(sum(map(math.log, shares)) / len(shares)) if shares and not bad else 0
        figures[name] = {"share_of_copy": geomean, "shares": shares, "failed": bad}
    met = [isinstance(figures[n], dict) and figures[n]["share_of_copy"] >= GEMV[n] for n in GEMV]
    return figures, all(met)


def check(args: argparse.Namespace) -> tuple[dict, bool]:
    """Of each shipped kernel that runs here: the second of two runs."""
    figures = {}
    for name, kernel in kernels.find([kernels.BUILT_IN]).items():
        if checking.device_of(kernel, args.device) is None:
            continue
        command = [sys.executable, "-m", "pestle_lab", "check", name, "--device", args.device]
        for _ in range(2):
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, cwd=tempfile.gettempdir())
            seconds = time.monotonic() - began
        figures[name] = {"seconds": round(seconds, 2), "exit": done.returncode}
    return figures, all(f["exit"] == 0 and f["seconds"] <= 8 for f in figures.values())


def commit() -> str:
    """What was measured; tools/performance.py takes no line of an edited tree."""
    said = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
    ]
    if any(done.returncode for done in said):
        return "unknown"
    return said[0].stdout.strip() + ("-dirty" if said[1].stdout else "")


BARS = {f.__name__: f for f in (same, slower, cheats, gemv, check)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bar", choices=BARS)
    parser.add_argument("--device", default=checking.default_device())
    parser.add_argument("--runs", type=int, default=200, help="comparisons of a pair")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing")
    parser.add_argument("--case", help="N=..., instead of 256 MiB")
    parser.add_argument("--commit", help="where this is no git repository")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/lab.jsonl")
    args = parser.parse_args()
    began = time.monotonic()
    figures, met = BARS[args.bar](args)
    line = {
        "date": datetime.date.today().isoformat(),
        "bar": args.bar,
        "met": met,
        "figures": figures,
        "runs": args.runs if args.bar in ("same", "slower") else None,
        "seconds": round(time.monotonic() - began, 1),
        "machine": machine.environment(args.device) | {"commit": args.commit or commit()},
    }
    with args.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=1))
    return errors.OK if met else errors.REGRESSION


if __name__ == "__main__":
    sys.exit(main())
