#!/usr/bin/env python3
"""Linear layers beside PyTorch's and humming's, from 1 row to 8192, on one GPU.

    python3 bench/linear_peers.py --out bench/results/linear_peers.jsonl
    python3 bench/linear_peers.py --what weight_only --shapes 4096x4096 --rows 1 16 64

dispatched   bf16 beside torch's linear, FP8 beside torch._scaled_mm (x's codes given), INT8 and
             FP8 that quantise x in the call: each by the kernel that Pestle chooses
weight_only  weights of 4 and 8 bits, x of bf16, beside humming (PyPI: humming-kernels) where it
             is installed; it compiles a kernel for each layer and number of rows

A candidate is a CUDA graph of calls, each with weights of its own that together are far larger than
the L2. Candidates take turns; a figure is the median of its turns, in microseconds a call. Errors
are relative, to the product in f32. One JSON line for each shape and number of rows.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time

import pestle
import torch
import torch.nn.functional as F

try:
    from humming.layer import HummingLayer
except ImportError:
    HummingLayer = None

SHAPES = ((3072, 3072), (9216, 3072), (12288, 3072), (3072, 12288), (4096, 4096), (14336, 4096),
          (4096, 14336), (5120, 5120), (13824, 5120), (5120, 13824))  # fmt: skip
ROWS = (1, 2, 4, 8, 16, 17, 32, 48, 64, 96, 128, 192, 256, 512, 768, 1024, 2048, 4096, 8192)
WEIGHT_ONLY_SHAPES = ((4096, 4096), (12288, 3072), (14336, 4096))
WEIGHT_ONLY_ROWS = (1, 4, 16, 32, 64, 128, 256, 1024, 4608)
HUMMING = {
    "int4": {"dtype": "int4", "group_size": 128},
    "nvfp4": {"dtype": "float4e2m1", "group_size": 16, "scale_dtype": "float8e4m3",
              "scale_2_type": "tensor"},
    "mxfp4": {"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"},
    "mxfp8": {"dtype": "float8e4m3", "group_size": 32, "scale_dtype": "float8e8m0"},
    "fp8": {"dtype": "float8e4m3"},
    "int8": {"dtype": "int8"},
}  # fmt: skip
CODES = "pestle fp8 x fp8"
ROTATED_BYTES = 192 << 20
MOST_COPIES = 32


def copies_of(values):
    """The tensors (or the layer), as often as it takes to be larger than the L2."""
    tensors = list(values.buffers()) if isinstance(values, torch.nn.Module) else values
    if isinstance(values, torch.nn.Module):
        tensors += list(values.parameters())
    size = sum(t.nbytes for t in tensors)
    count = max(3, min(MOST_COPIES, -(-ROTATED_BYTES // size)))
    if isinstance(values, torch.nn.Module):
        return [values] + [copy.deepcopy(values) for _ in range(count - 1)]
    return [values] + [tuple(t.clone() for t in values) for _ in range(count - 1)]


def weight_formats(what, weight, wanted):
    """name: (a call of x and a copy's tensors, copies)."""
    found = {}

    def is_wanted(name):
        return not wanted or name.endswith(tuple(wanted))

    def add(name, call, tensors):
        if is_wanted(name):
            found[name] = (call, copies_of(tensors))

    if what == "dispatched":
        add("torch bf16", lambda x, w: F.linear(x, w), (weight,))
        add("pestle bf16", lambda x, w: pestle.matmul(x, w.mT), (weight,))
        bf16, fp8 = {"out_dtype": torch.bfloat16}, pestle.quantize_fp8(weight)
        add(
            "torch fp8",
            lambda x, w, s: torch._scaled_mm(x, w.mT, s, s, use_fast_accum=True, **bf16),
            fp8,
        )
        add(
            CODES,
            lambda x, w, s: pestle.scaled_mm_fp8(x, w, s, s, accumulation="fast", **bf16),
            fp8,
        )
        more = {"granularity": "row", "activations": "row"}
        add("pestle int8, x quantised", lambda x, w, s: pestle.linear_int8(x, w, s, **more),
            pestle.quantize_int8(weight, granularity="row"))  # fmt: skip
        add("pestle fp8, x quantised",
            lambda x, w, s: pestle.linear_fp8(x, w, s, accumulation="fast", **more),
            pestle.quantize_fp8(weight, granularity="row"))  # fmt: skip
        return found
    add("torch bf16", lambda x, w: F.linear(x, w), (weight,))
    rows, group = {"granularity": "row"}, {"group_size": 128}
    add("pestle int4", lambda x, *w: pestle.linear_int4(x, *w, decoded="as_x", **group),
        pestle.quantize_int4(weight, **group))  # fmt: skip
    add("pestle int4 exact", lambda x, *w: pestle.linear_int4(x, *w, **group),
        pestle.quantize_int4(weight, **group))  # fmt: skip
    add("pestle nvfp4", lambda x, *w: pestle.linear_nvfp4(x, *w), pestle.quantize_nvfp4(weight))
    add("pestle mxfp4", lambda x, *w: pestle.linear_mxfp4(x, *w), pestle.quantize_mxfp4(weight))
    add("pestle mxfp8", lambda x, *w: pestle.linear_mxfp8(x, *w), pestle.quantize_mxfp8(weight))
    add("pestle fp8", lambda x, *w: pestle.linear_fp8(x, *w, **rows),
        pestle.quantize_fp8(weight, **rows))  # fmt: skip
    add("pestle int8", lambda x, *w: pestle.linear_int8(x, *w, **rows),
        pestle.quantize_int8(weight, **rows))  # fmt: skip
    for name, config in HUMMING.items() if HummingLayer else ():
        if not is_wanted("humming " + name):
            continue
        layer = HummingLayer(
            shape_n=weight.shape[0], shape_k=weight.shape[1], weight_config=dict(config),
            torch_dtype=torch.bfloat16,
        ).cuda()  # fmt: skip
        layer.load_from_unquantized(weight)
        layer.transform()
        found["humming " + name] = (lambda x, layer: layer(x), [[one] for one in copies_of(layer)])
    return found


def captured(call, x, copies):
    """A graph of a call with each copy, and what the last one gives."""
    call(x, *copies[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in copies:
            out = call(x, *one)
    return graph, out


def time_once(graph, calls, seconds):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def of(replays):
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / replays

    return of(max(1, min(200, int(seconds * 1e6 / of(1))))) / calls


def measure(m, weight, formats, options):
    n, k = weight.shape
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16) * 0.5
    exact = x.float() @ weight.float().mT
    graphs, errors, alive = {}, {}, []
    for name, (call, copies) in formats.items():
        # FP8 products take codes, of any scale: making them is not part of the call.
        given = x.to(torch.float8_e4m3fn) if name in ("torch fp8", CODES) else x
        try:
            graph, out = captured(call, given, copies)
        except Exception as e:
            why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"
            print(f"{m}x{n}x{k} {name}: {why}", file=sys.stderr)
            continue
        graph.replay()
        graphs[name] = graph, len(copies)
        alive.append(given)  # what a graph reads is its caller's to keep
        if given is x:
            errors[name] = float(f"{((out.float() - exact).norm() / exact.norm()).item():.3g}")
    times = {name: [] for name in graphs}
    for turn in range(options.turns):
        for name in list(graphs)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(time_once(*graphs[name], options.seconds))
    median = {name: statistics.median(got) for name, got in times.items()}
    return {
        "linear": [m, n, k],
        "what": options.what,
        "us": {name: round(us, 2) for name, us in median.items()},
        "spread": {name: round((max(t) - min(t)) / median[name], 3) for name, t in times.items()},
        "error": errors,
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "machine": {"commit": os.environ.get("PESTLE_COMMIT", "unknown")},
    }


def arguments():
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--what", choices=("dispatched", "weight_only"), default="dispatched")
    parser.add_argument("--shapes", nargs="*", help="NxK")
    parser.add_argument("--rows", nargs="*", type=int)
    parser.add_argument("--formats", nargs="*", help="candidates whose names end with one of these")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th shape from the I-th on")
    parser.add_argument("--seconds", type=float, default=0.003, help="of a candidate's turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--budget", type=float, help="seconds after which no further row begins")
    parser.add_argument("--out", help="append JSON lines to this file")
    return parser.parse_args()


def main():
    options, began = arguments(), time.monotonic()
    index, parts = map(int, options.part.split("/"))
    few = options.what == "weight_only"
    shapes = [tuple(map(int, s.split("x"))) for s in options.shapes or ()]
    shapes = (shapes or (WEIGHT_ONLY_SHAPES if few else SHAPES))[index::parts]
    rows = options.rows or (WEIGHT_ONLY_ROWS if few else ROWS)
    torch.manual_seed(7)
    for n, k in shapes:
        weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02
        formats = weight_formats(options.what, weight, options.formats)
        for m in rows:
            if options.budget and time.monotonic() - began > options.budget:
                print(f"{m}x{n}x{k}: not begun, {options.budget:g} s are over", file=sys.stderr)
                continue
            line = measure(m, weight, formats, options)
            times = "  ".join(f"{name} {us}" for name, us in line["us"].items())
            print(f"{m} x {n} x {k} us: {times}", flush=True)
            if options.out:
                with open(options.out, "a") as f:
                    f.write(json.dumps(line) + "\n")
        del formats
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
