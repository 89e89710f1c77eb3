#!/usr/bin/env python3
"""Runs a suite of suites.yaml: every case is checked, timed, and checked again. Exit 0 if all went
well, 4 if a result was wrong, 5 if an op failed, 2 for wrong usage."""

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


def cases(path: Path, suite: str, op: str | None) -> list[dict]:
    try:
        suites = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"--suites {path}: {error}") from None
    if not isinstance(suites, dict) or suite not in suites:
        known = ", ".join(suites) if isinstance(suites, dict) else "none"
        raise ValueError(f"no suite {suite!r} in {path}: there are {known}")
    found = []
    for case in suites[suite]:
        if case.get("op") not in common.OPS:
            raise ValueError(f"{path}: op {case.get('op')!r}, expected {', '.join(common.OPS)}")
        if op in (None, case["op"]):
            for m, n in itertools.product(_list(case["m"]), _list(case["n"])):
                found.append(case | {"m": m, "n": n})
    if not found:
        raise ValueError(f"suite {suite!r} has no case of {op}")
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
    common.counts(parser)
    args = parser.parse_args()
    found = []
    print(f"suite {args.suite}, {common.where()}")
    for case in cases(args.suites, args.suite, args.op):
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
