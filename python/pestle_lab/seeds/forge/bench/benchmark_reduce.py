#!/usr/bin/env python3
"""reduce_sum beside torch.sum, as it is and compiled."""

from __future__ import annotations

import argparse
import itertools

import common
import torch


def ways(m: int, n: int, dtype: str, dim: int, compiled) -> dict[str, common.Work]:
    x = common.values(m, n, dtype)
    truth = lambda: common.ref.reduce_sum(x, dim)  # noqa: E731
    moved = (x.numel() + x.select(dim, 0).numel()) * x.element_size()
    calls = {
        "reduce_sum": lambda: common.ops.reduce_sum(x, dim),
        "torch.sum": lambda: torch.sum(x, dim),
    }
    if compiled is not None:
        calls["torch.compile"] = lambda: compiled(x, dim)
    return {k: common.Work(f, truth, moved, common.REDUCTION_SLACK) for k, f in calls.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    common.lists(parser, "m-sizes", [1024, 4096])
    common.lists(parser, "n-sizes", [1024, 4096])
    common.lists(parser, "dtypes", ["float16"], allowed=common.DTYPES)
    common.lists(parser, "dims", [-1], allowed=(-1, 0, 1))
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    common.counts(parser)
    args = parser.parse_args()
    compiled = None if args.no_compile else torch.compile(torch.sum)
    print(common.where())
    cases = []
    for m, n, dtype, dim in itertools.product(args.m_sizes, args.n_sizes, args.dtypes, args.dims):
        print(f"{m} x {n} {dtype}, dim {dim}")
        heading = {"op": "reduce_sum", "shape": [m, n], "dtype": dtype, "dim": dim}
        cases.append(common.compare(ways(m, n, dtype, dim, compiled), args, heading))
    common.save(args.out, cases, args)
    return 0


if __name__ == "__main__":
    common.finish(main)
