#!/usr/bin/env python3
"""Runs a suite of suites.yaml: every case is checked, timed, and checked again. Exit 0 if all went
well, 4 if a result was wrong, 5 if an op failed, 2 for wrong usage. `python -m bench.run` is this,
too."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import common
import torch
import yaml

HERE = Path(__file__).resolve().parent


def _list(value) -> list:
    return value if isinstance(value, list) else [value]


def suite_of(path: Path, name: str) -> dict:
    """Its `warmup`, `iterations` and `cases`."""
    try:
        suites = (yaml.safe_load(path.read_text()) or {})["suites"]
        suite = suites[name]
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise ValueError(f"--suites {path}: {error}") from None
    except KeyError as error:
        known = "no `suites:`" if error.args == ("suites",) else ", ".join(suites)
        raise ValueError(f"no suite {name!r} in {path}: there are {known}") from None
    if not isinstance(suite, dict) or not isinstance(suite.get("cases"), list):
        raise ValueError(f"{path}: suite {name!r} has no list `cases`")
    return suite


def cases(path: Path, suite: dict, op: str | None) -> list[dict]:
    """Each of one shape: `shape: [m, n]`, where m and n may be lists, which means every pair."""
    found = []
    for case in suite["cases"]:
        if case.get("op") not in common.OPS:
            raise ValueError(f"{path}: op {case.get('op')!r}, expected {', '.join(common.OPS)}")
        shape = case.get("shape", [1024, 1024])
        if not isinstance(shape, list) or len(shape) != 2:
            raise ValueError(f"{path}: shape {shape!r} of {case['op']} is not [m, n]")
        if op in (None, case["op"]):
            rest = {"dtype": "float16"} | {k: v for k, v in case.items() if k != "shape"}
            for m, n in itertools.product(_list(shape[0]), _list(shape[1])):
                found.append(rest | {"m": m, "n": n})
    if not found:
        raise ValueError(f"the suite has no case of {op}")
    return found


def run(case: dict, args: argparse.Namespace) -> dict:
    options = {k: v for k, v in case.items() if k != "op"}
    done = {"op": case["op"], "shape": [case["m"], case["n"]]} | {
        k: v for k, v in options.items() if k not in ("m", "n")
    }
    if case["op"] != "copy_transpose":
        done.setdefault("dim", -1)
    if case["op"] == "reduce":
        done.setdefault("reduce_op", "sum")
    try:
        work = common.OPS[case["op"]](**options)
        return done | {"status": "ok"} | common.measure(work, args.warmup, args.iterations)
    except common.WrongResult as error:
        return done | {"status": "wrong_result", "reason": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        return done | {"status": "skipped", "reason": str(error)}
    except Exception as error:
        return done | {"status": "error", "reason": f"{type(error).__name__}: {error}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="smoke")
    parser.add_argument("--suites", type=Path, default=HERE / "suites.yaml", help="another file")
    parser.add_argument("--op", help="only the cases of this op")
    common.counts(parser, warmup=None, iterations=None)
    args = parser.parse_args()
    suite = suite_of(args.suites, args.suite)
    args.warmup = suite.get("warmup", 10) if args.warmup is None else args.warmup
    args.iterations = suite.get("iterations", 50) if args.iterations is None else args.iterations
    found = []
    print(f"suite {args.suite}, {common.where()}")
    for case in cases(args.suites, suite, args.op):
        done = run(case, args)
        found.append(done)
        name = f"{done['op']} {done['shape'][0]} x {done['shape'][1]} {done['dtype']}"
        is_ok = done["status"] == "ok"
        print(common.line(name, done) if is_ok else f"{name:34} {done['status']}: {done['reason']}")
    common.save(args.out, found, args, suite=args.suite)
    statuses = {case["status"] for case in found}
    if "wrong_result" in statuses:
        return common.WRONG
    return common.FAILED if statuses - {"ok"} else 0


if __name__ == "__main__":
    common.finish(main)
