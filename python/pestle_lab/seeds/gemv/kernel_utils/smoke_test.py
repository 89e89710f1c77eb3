"""python -m kernel_utils.smoke_test [BACKEND]...: are the kernels right, and how fast beside the
reference? Exit 0 if all are right, 1 if one is not (or a profile that was asked for could not be
made), 2 for wrong usage, 9 if nothing could run."""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from pestle_lab.errors import LabError
from pestle_lab.profiling import profilers

from . import running
from .backends import BACKENDS, Backend
from .discovery import discover
from .results import BackendResults, PerformanceResult, TestSuiteResults
from .task import SUITES, TestCase

RESULTS = Path("results/smoke_test_results.json")
ONE_CALL = Path(__file__).with_name("one_call.py")
WRONG, USAGE, NOTHING_RAN = 1, 2, 9


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="kernel_utils.smoke_test", description=__doc__)
    made.add_argument("backends", nargs="*", metavar="BACKEND", help="all, if none is named")
    made.add_argument("--reference", default="reference", help="what speedups are over")
    made.add_argument("--new", nargs="+", default=[], metavar="BACKEND",
                      help="these, and the reference")  # fmt: skip
    made.add_argument("--suite", choices=SUITES, default="smoke")
    made.add_argument("--save", action="store_true", help=f"write {RESULTS}")
    made.add_argument("--list", action="store_true", help="name the kernels, and run none")
    made.add_argument("--profile", action="store_true", help="PyTorch's traces, in profiles/")
    made.add_argument("--ncu", action="store_true", help="Nsight Compute's, in ncu_reports/")
    made.add_argument("--device", help="cuda, cpu [default: cuda if there is one]")
    made.add_argument("--seed", type=int, help="of the data [default: a secret one]")
    made.add_argument("--no-timing", action="store_true", help="check, and time nothing")
    made.add_argument("--seconds", type=float, default=1.0, help="of timing for each test")
    made.add_argument("--timeout", type=float, default=120.0, help="seconds for one answer")
    return made


def chosen(args: argparse.Namespace, failed: dict[Path, str]) -> list[Backend]:
    names = args.backends or ([args.reference] if args.new else BACKENDS.list())
    names = list(dict.fromkeys([*names, *args.new]))
    for name in [*names, args.reference]:
        if name not in BACKENDS:
            why = "".join(f"\n  {path.name}: {reason}" for path, reason in failed.items())
            raise LabError(f"no backend {name!r}: there are {', '.join(BACKENDS)}{why}")
    # The reference first: speedups of the others are over it.
    return [BACKENDS[n] for n in sorted(names, key=lambda n: n != args.reference)]


def _speedups(found: list[PerformanceResult], reference: dict[str, float]) -> None:
    for result in found:
        result.reference_time_ms = reference.get(result.test_name, -1.0)
        if result.successfully_ran and result.reference_time_ms > 0:
            result.speedup = result.reference_time_ms / result.avg_time_ms


def _print(backend: BackendResults, tests: list[TestCase]) -> None:
    timed = {p.test_name: p for p in backend.performance_tests}
    for test, result in zip(tests, backend.correctness_tests, strict=True):
        print(f"  Test: {test.name} (m={test.m}, k={test.k}, l={test.l})")
        if result.is_correct:
            print(f"    Correctness: PASS (max error {result.max_abs_error:.3g})")
        else:
            word = "UNSUPPORTED" if result.error_type == "unsupported" else "FAIL"
            print(f"    Correctness: {word}: {result.error_type}: {result.error_msg}")
        if performance := timed.get(test.name):
            if performance.successfully_ran:
                ratio = f" ({performance.speedup:.2f}x)" if performance.speedup else ""
                print(f"    Performance: {performance.avg_time_ms:.4f}ms{ratio}")
            else:
                print(f"    Performance: not timed: {performance.error_msg}")


def _one(
    backend: Backend, args: argparse.Namespace, tests: list[TestCase], reference: dict[str, float]
) -> BackendResults:
    print(f"\nBackend: {backend.name} ({backend.language})\n  {backend.description}", flush=True)
    done = BackendResults(backend.name)
    done.correctness_tests = running.correctness(
        backend, tests, args.device, args.seed, args.timeout
    )
    if done.all_correct and not args.no_timing:
        done.performance_tests = running.performance(
            backend, tests, args.device, args.seconds, args.timeout
        )
        if backend.name == args.reference:
            reference |= {
                p.test_name: p.avg_time_ms for p in done.performance_tests if p.successfully_ran
            }
        _speedups(done.performance_tests, reference)
    _print(done, tests)
    return done


def _profile(backend: Backend, test: TestCase, by_ncu: bool) -> bool:
    """Whether there is one: a profiler that fails takes neither results nor other kernels along."""
    command = [sys.executable, str(ONE_CALL), backend.name, backend.source, test.name]
    folder = Path("ncu_reports" if by_ncu else "profiles")
    folder.mkdir(exist_ok=True)
    if by_ncu:
        report = folder / f"{backend.name}_{test.name}.ncu-rep"
        command = ["ncu", "--set", "full", "--nvtx", "--nvtx-include", "kernel/",
                   "--clock-control", "none", "-f", "-o", str(report), *command]  # fmt: skip
    else:
        report = folder / f"{backend.name}_{test.name}_profile.json"
        command += ["--trace", str(report)]
    report.unlink(missing_ok=True)
    environment = dict(os.environ)
    if backend.language == "triton" and not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0 and report.exists():
        print(f"  profile: {report}")
        return True
    said = (done.stdout + done.stderr).strip()
    why = profilers.HOW_TO_READ_COUNTERS if profilers.FORBIDDEN in said else said[-1500:]
    print(f"  profile: none of {test.name}, it ended with {done.returncode}: {why}")
    return False


def run(args: argparse.Namespace) -> int:
    failed = discover()
    for path, why in failed.items():
        print(f"{path.name} was left out: {why}", file=sys.stderr)
    if args.list:
        for name, backend in BACKENDS.items():
            print(f"{name:20} {backend.language:8} {backend.description}")
        return WRONG if failed else 0
    if args.ncu and shutil.which("ncu") is None:
        raise LabError("--ncu: Nsight Compute (ncu) is not installed", NOTHING_RAN)
    if args.ncu and not torch.cuda.is_available():
        raise LabError("--ncu: no GPU here", NOTHING_RAN)
    backends, tests = chosen(args, failed), SUITES[args.suite]
    where = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"NVFP4 GEMV, suite {args.suite}, on {args.device or where}")
    print(f"   Backends: {', '.join(b.name for b in backends)}; reference: {args.reference}")
    reference: dict[str, float] = {}
    if args.reference not in [b.name for b in backends] and not args.no_timing:
        own = BACKENDS[args.reference]
        for p in running.performance(own, tests, args.device, args.seconds, args.timeout):
            if p.successfully_ran:
                reference[p.test_name] = p.avg_time_ms
    results, unprofiled = TestSuiteResults(args.suite), 0
    tools = [by_ncu for by_ncu, is_asked in ((False, args.profile), (True, args.ncu)) if is_asked]
    for backend in backends:
        results.backends.append(_one(backend, args, tests, reference))
        profiled = tests if results.backends[-1].all_correct else []
        for test, by_ncu in itertools.product(profiled, tools):
            unprofiled += not _profile(backend, test, by_ncu)
    print(f"\n{results.summary_table()}")
    if args.save:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(results.to_json() + "\n")
        print(f"results: {RESULTS}")
    left_out = bool(failed) and not args.backends and not args.new
    return _exit_code(results, left_out or unprofiled > 0)


def _exit_code(results: TestSuiteResults, something_is_missing: bool) -> int:
    """What a kernel declares unsupported is no fault, unless nothing else ran."""
    ran = [b for b in results.backends if not b.unsupported]
    if not ran:
        return NOTHING_RAN
    return 0 if all(b.all_correct for b in ran) and not something_is_missing else WRONG


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        return run(args)
    except LabError as error:
        print(f"smoke_test: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
