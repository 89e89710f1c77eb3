#!/usr/bin/env python3
"""copy_transpose beside PyTorch's copy of a transposed view."""

from __future__ import annotations

import argparse

import common
import torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--m", type=int, default=4096)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--dtype", choices=common.DTYPES, default="float16")
    parser.add_argument("--tile-size", type=int, choices=(16, 32), default=16)
    parser.add_argument("--compile-ref", action="store_true", help="torch.compile the reference")
    common.counts(parser)
    args = parser.parse_args()
    x = common.values(args.m, args.n, args.dtype)
    truth = common.ref.copy_transpose
    theirs = torch.compile(truth) if args.compile_ref else truth
    moved = 2 * x.numel() * x.element_size()
    ways = {
        "copy_transpose": common.Work(
            lambda: common.ops.copy_transpose(x, args.tile_size), lambda: truth(x), moved, 0
        ),
        "torch.compile" if args.compile_ref else "torch": common.Work(
            lambda: theirs(x), lambda: truth(x), moved, 0
        ),
    }
    print(f"{args.m} x {args.n} {args.dtype}, tile {args.tile_size}, {common.where()}")
    heading = {"op": "copy_transpose", "shape": [args.m, args.n], "dtype": args.dtype,
               "tile_size": args.tile_size}  # fmt: skip
    common.save(args.out, [common.compare(ways, args, heading)], args)
    return 0


if __name__ == "__main__":
    common.finish(main)
