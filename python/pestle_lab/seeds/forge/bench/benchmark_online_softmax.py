#!/usr/bin/env python3
"""softmax_online, forward and backward, by a backend, beside torch.softmax."""

from __future__ import annotations

import argparse
import itertools

import common
import torch

LONG = [16384, 32768, 65536, 131072]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ref", help="ref, kernel, or one that you registered")
    common.lists(parser, "m-sizes", [128, 512])
    common.lists(parser, "n-sizes", [1024, 4096])
    parser.add_argument("--long", action="store_true", help="rows of 16384 and more")
    common.lists(parser, "dtypes", ["float16"], allowed=common.DTYPES)
    common.counts(parser)
    args = parser.parse_args()
    common.ops.set_softmax_online_backend(args.backend)
    print(f"backend {args.backend}, {common.where()}")
    cases = []
    sizes = LONG if args.long else args.n_sizes
    for m, n, dtype in itertools.product(args.m_sizes, sizes, args.dtypes):
        print(f"{m} x {n} {dtype}")
        heading = {"op": "softmax_online", "shape": [m, n], "dtype": dtype,
                   "backend": args.backend}  # fmt: skip
        x = common.values(m, n, dtype)
        forward = common.Work(
            lambda x=x: common.ops.softmax_fwd(x),
            lambda x=x: common.ref.softmax_online(x),
            2 * x.numel() * x.element_size(),
        )
        theirs = common.Work(lambda x=x: torch.softmax(x, -1), forward.truth, forward.nbytes)
        both = {f"forward {args.backend}": forward, "torch.softmax": theirs}
        cases.append(common.compare(both, args, heading | {"pass": "forward"}))
        backward = {f"backward {args.backend}": common.softmax_backward(m, n, dtype)}
        cases.append(common.compare(backward, args, heading | {"pass": "backward"}))
    common.save(args.out, cases, args)
    return 0


if __name__ == "__main__":
    common.finish(main)
