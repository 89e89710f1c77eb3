#!/usr/bin/env python3
"""Attention beside FlashAttention-4, cuDNN and PyTorch's kernels, in turns, on one GPU.

    python3 bench/attention_peers.py --out bench/results/attention_peers.jsonl
    python3 bench/attention_peers.py --rows wan --only backward
    python3 bench/attention_peers.py --compile-only

Every row is a call that models make. Candidates take turns, so all see the same clocks; a figure is
the median of its turns. Rates count the products of the pairs that are seen: 2 (D + Dv) a pair
forward, 2 (3 D + 2 Dv) backward. Errors are relative, of out to float64 over two heads, of a peer's
gradients to ours. FlashAttention-4 (PyPI: flash-attn-4) takes part where it is installed;
--compile-only fills its cache of kernels, for which several processes may run at a time.
"""

import argparse
import json
import os
import statistics
import sys
import time

import pestle
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
except ImportError:
    flash_attn_func = flash_attn_varlen_func = None

UNEQUAL = (8192, 1000, 4096, 2300, 7000, 180, 6000, 4000)
# name: (B, Hq, Hk, S, D, options)
ROWS = {
    "flux 4608": (1, 24, 24, 4608, 128, {}),
    "16k": (1, 24, 24, 16384, 128, {}),
    "4k causal": (1, 24, 24, 4608, 128, {"causal": True}),
    "16k causal": (1, 24, 24, 16384, 128, {"causal": True}),
    "8k causal, 32 heads": (1, 32, 32, 8192, 128, {"causal": True}),
    "wan": (1, 40, 40, 32760, 128, {}),
    "32/4 heads": (1, 32, 4, 8192, 128, {}),
    "32/4 heads causal": (1, 32, 4, 8192, 128, {"causal": True}),
    "D 64": (2, 16, 16, 4096, 64, {}),
    "D 64 causal": (2, 16, 16, 4096, 64, {"causal": True}),
    "D 96": (2, 16, 16, 4096, 96, {}),
    "D 192": (1, 16, 16, 4096, 192, {}),
    "D 256": (1, 16, 16, 4096, 256, {}),
    "packed": (1, 16, 16, sum(UNEQUAL), 128, {"lengths": UNEQUAL}),
    "packed causal": (1, 16, 16, sum(UNEQUAL), 128, {"lengths": UNEQUAL, "causal": True}),
    "packed D 64": (1, 16, 16, sum(UNEQUAL), 64, {"lengths": UNEQUAL}),
    "window 1024": (1, 24, 24, 16384, 128, {"causal": True, "window": 1024}),
    "softcap 50": (1, 24, 24, 4608, 128, {"softcap": 50.0}),
    "mask [1,1,S,S]": (1, 24, 24, 4608, 128, {"mask": torch.bfloat16}),
    "mask bool": (1, 24, 24, 4608, 128, {"mask": torch.bool}),
    "mask D 64": (1, 24, 24, 4608, 64, {"mask": torch.bfloat16}),
    "sinks": (1, 24, 24, 4608, 128, {"sinks": True}),
    "key lengths": (4, 24, 24, 4608, 128, {"key_lengths": (4608, 3000, 1024, 2048)}),
    "f32": (1, 12, 12, 2048, 64, {"dtype": torch.float32}),
    "f32 D 128": (1, 16, 16, 4096, 128, {"dtype": torch.float32}),
    "f32 one head": (1, 1, 1, 8192, 128, {"dtype": torch.float32}),
}
TORCH = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


class Row:
    """A row's tensors, [B, S, H, D] as models have them, and what may take it."""

    def __init__(self, name):
        self.name = name
        self.b, self.hq, self.hk, self.s, self.d, options = ROWS[name]
        self.causal, self.window = options.get("causal", False), options.get("window")
        self.softcap = options.get("softcap", 0.0)
        self.lengths, self.key_lengths = options.get("lengths"), options.get("key_lengths")
        self.generator = torch.Generator("cuda").manual_seed(7)
        self.dtype = options.get("dtype", torch.bfloat16)
        self.q, self.d_out = (self.normal(self.b, self.s, self.hq, self.d) for _ in range(2))
        self.k, self.v = (self.normal(self.b, self.s, self.hk, self.d) for _ in range(2))
        self.mask = self.normal(1, 1, self.s, self.s) if "mask" in options else None
        if options.get("mask") == torch.bool:
            self.mask = self.mask > -1
        self.sinks = self.normal(self.hq) if options.get("sinks") else None
        if self.lengths:
            self.offsets = ints([sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)])

    def normal(self, *shape):
        return torch.randn(*shape, device="cuda", dtype=self.dtype, generator=self.generator)

    def is_plain(self):
        options = (self.softcap, self.key_lengths, self.window is not None, self.sinks is not None)
        return not any(options)

    def pairs(self):
        """Pairs of a query and a key that it sees, of one head of all batches."""
        lengths = self.lengths or [self.s] * self.b
        if self.key_lengths:
            return sum(self.s * n for n in self.key_lengths)
        if self.window is not None:
            widths = [min(self.window + 1, n) for n in lengths]
            return sum(n * w - w * (w - 1) // 2 for n, w in zip(lengths, widths, strict=True))
        return sum(n * (n + 1) // 2 if self.causal else n * n for n in lengths)

    def flops(self, direction):
        return self.pairs() * self.hq * self.d * (4 if direction == "forward" else 10)

    def forwards(self):
        """name: a call of q, k, v that gives out, all [B, S, H, D]."""
        found = {"pestle": self.by_pestle()}
        if flash_attn_func and self.mask is None and self.dtype != torch.float32:
            found["flash_attention_4"] = self.by_flash_4()
        if self.is_plain() and not self.lengths:
            found |= {name: self.by_torch(backend) for name, backend in TORCH.items()}
        elif self.is_plain():
            found["flash"] = self.by_torch_packed()
        return found

    def by_pestle(self):
        window = -1 if self.window is None else self.window
        options = {"causal": self.causal, "softcap": self.softcap, "window_left": window}
        options |= {"mask": self.mask, "sinks": self.sinks}
        if self.lengths:
            options |= {"q_offsets": self.offsets, "k_offsets": self.offsets}
        if self.key_lengths:
            options |= {"key_lengths": ints(self.key_lengths)}

        def call(q, k, v, **more):
            turned = (t.transpose(1, 2) for t in (q, k, v))
            return pestle.attention(*turned, **options, **more)[0].transpose(1, 2)

        return call

    def by_flash_4(self):
        options = {"causal": self.causal, "softcap": self.softcap, "learnable_sink": self.sinks}
        if self.window is not None:
            options["window_size"] = (self.window, 0)
        function = flash_attn_varlen_func if self.lengths or self.key_lengths else flash_attn_func
        if self.lengths:
            longest = max(self.lengths)
            options |= {"cu_seqlens_q": self.offsets, "max_seqlen_q": longest}
            options |= {"cu_seqlens_k": self.offsets, "max_seqlen_k": longest}
        if self.key_lengths:
            options |= {"seqused_k": ints(self.key_lengths), "max_seqlen_k": self.s}

        def call(q, k, v, **more):
            q, k, v = (t[0] if self.lengths else t for t in (q, k, v))
            out = function(q, k, v, **options, **more)
            return (out[0] if isinstance(out, tuple) else out).view(self.b, self.s, self.hq, self.d)

        return call

    def by_torch(self, backend):
        options = {"attn_mask": self.mask, "is_causal": self.causal}
        options["enable_gqa"] = self.hq != self.hk

        def call(q, k, v):
            turned = (t.transpose(1, 2) for t in (q, k, v))
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(*turned, **options).transpose(1, 2)

        return call

    def by_torch_packed(self):
        longest = max(self.lengths)

        def call(q, k, v):
            packed = (q[0], k[0], v[0], self.offsets, self.offsets, longest, longest)
            got = torch.ops.aten._flash_attention_forward(*packed, 0.0, self.causal, False)
            return got[0].unsqueeze(0)

        return call

    def reference(self):
        """Rows and heads of out, and what stands there, in float64."""
        first, end = 0, self.key_lengths[0] if self.key_lengths else self.s
        if self.lengths:  # the second sequence
            first, end = self.lengths[0], self.lengths[0] + self.lengths[1]
        rows, keys, group = slice(max(first, end - 512), end), slice(first, end), self.hq // self.hk
        q = self.q[0, rows, ::group][:, :2].double().transpose(0, 1)
        k, v = (t[0, keys, :2].double().transpose(0, 1) for t in (self.k, self.v))
        logits = q @ k.transpose(1, 2) / self.d**0.5
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        i = torch.arange(rows.start, rows.stop, device="cuda")[:, None]
        j = torch.arange(keys.start, keys.stop, device="cuda")[None, :]
        hidden = (j > i) & self.causal
        if self.window is not None:
            hidden |= j < i - self.window
        if self.mask is not None and self.mask.dtype == torch.bool:
            hidden |= ~self.mask[0, 0, rows, keys]
        elif self.mask is not None:
            logits = logits + self.mask[0, 0, rows, keys].double()
        logits = logits.masked_fill(hidden, float("-inf"))
        if self.sinks is not None:
            sinks = self.sinks[::group][:2].double()[:, None, None]
            logits = torch.cat([logits, sinks.expand(-1, logits.shape[1], 1)], 2)
        out = logits.softmax(2)[:, :, : k.shape[1]] @ v
        return rows, group, out.transpose(0, 1)


def ints(values):
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def far(a, b):
    return float(f"{((a.double() - b.double()).norm() / b.double().norm()).item():.3g}")


def forward(row, call):
    """A call without arguments, and the error of its result."""

    def run():
        with torch.no_grad():
            return call(row.q, row.k, row.v)

    rows, group, exact = row.reference()
    return run, far(run()[0, rows, ::group][:, :2], exact)


def backward(row, call, more):
    """A call that gives the gradients of q, k and v."""
    inputs = [t.detach().requires_grad_() for t in (row.q, row.k, row.v)]
    out = call(*inputs, **more)

    def run():
        return torch.autograd.grad(out, inputs, row.d_out, retain_graph=True)

    return run


def candidates(row, direction):
    """name: (a call, its error) of those that take the row; why others don't goes to stderr."""
    found, ours = {}, None
    for name, call in row.forwards().items():
        variants = {name: {}}
        if direction == "backward" and name in ("pestle", "flash_attention_4"):
            variants = {name: {"deterministic": False}}
            variants[name + ", deterministic"] = {"deterministic": True}
        for label, more in variants.items():
            try:
                if direction == "forward":
                    found[label] = forward(row, call)
                    continue
                run = backward(row, call, more)
                got = run()
                ours = got if ours is None else ours
                found[label] = run, [far(a, b) for a, b in zip(got, ours, strict=True)]
            except Exception as e:  # a peer says in many ways that it does not take a call
                why = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:160]}"
                print(f"{row.name} {direction} {label}: {why}", file=sys.stderr)
    return found


def time_once(run, seconds):
    """Microseconds a call, over as many calls in a row as take that long."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def of(calls):
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / calls

    return of(max(3, min(2000, int(seconds * 1e6 / of(1)))))


def measure(name, direction, seconds, turns):
    row = Row(name)
    found = candidates(row, direction)
    times = {label: [] for label in found}
    for turn in range(turns):
        for label in list(found)[:: 1 if turn % 2 == 0 else -1]:
            times[label].append(time_once(found[label][0], seconds))
    median = {label: statistics.median(got) for label, got in times.items()}
    flops = row.flops(direction)
    return {
        "row": name,
        "direction": direction,
        "shape": [row.b, row.hq, row.hk, row.s, row.d],
        "dtype": str(row.dtype).removeprefix("torch."),
        "us": {label: round(us, 2) for label, us in median.items()},
        "tflops": {label: round(flops / us * 1e-6, 1) for label, us in median.items()},
        "spread": {
            label: round((max(t) - min(t)) / median[label], 4) for label, t in times.items()
        },
        "error": {label: error for label, (_, error) in found.items()},
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "machine": {"commit": os.environ.get("PESTLE_COMMIT", "unknown")},
    }


def arguments():
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="names or parts of names")
    parser.add_argument("--only", choices=("forward", "backward"))
    parser.add_argument("--part", default="0/1", help="I/N: every N-th row from the I-th on")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a candidate's turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--budget", type=float, help="seconds after which no further row begins")
    parser.add_argument("--compile-only", action="store_true", help="call each candidate once")
    parser.add_argument("--out", help="append JSON lines to this file")
    return parser.parse_args()


def main():
    options, began = arguments(), time.monotonic()
    index, parts = map(int, options.part.split("/"))
    names = [n for n in ROWS if any(part in n for part in options.rows)][index::parts]
    if not names:
        sys.exit(f"no row has one of {options.rows} in its name; there are: {', '.join(ROWS)}")
    directions = (options.only,) if options.only else ("forward", "backward")
    for name, direction in ((n, d) for n in names for d in directions):
        if options.budget and time.monotonic() - began > options.budget:
            print(f"{name} {direction}: not begun, {options.budget:g} s are over", file=sys.stderr)
            continue
        if options.compile_only:
            candidates(Row(name), direction)
            continue
        line = measure(name, direction, options.seconds, options.turns)
        rates = "  ".join(f"{label} {rate}" for label, rate in line["tflops"].items())
        print(f"{name:20} {direction:8} TFLOP/s: {rates}", flush=True)
        if options.out:
            with open(options.out, "a") as f:
                f.write(json.dumps(line) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
