#!/usr/bin/env python3
"""Times other libraries on the cases of `pestle bench`: PyTorch, comfy-kitchen, quack.

usage: run_peers.py [--pestle build/bin/pestle] [--op OP]... [--out peers.jsonl]
       run_peers.py --serve     answers each case on standard input with its peers' times
       run_peers.py --warm          runs each peer once, so that what it compiles is there later
       ... --device cuda        on a GPU, by device events
       ... --backends triton,cuda   the installed package's backends too

A request is a case as `pestle bench --list-cases` prints it, with "seconds" and "peers": [names],
or null for all that there are.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import backend_peers
import cublaslt_peer
import kitchen_peer
import quack_peer
import torch
import torch_compile
import torch_eager
from case_tensors import Case

LIBRARIES = (torch_eager, torch_compile, cublaslt_peer, kitchen_peer, quack_peer, backend_peers)
SIBLING_BYTES = 2 << 30
SUSTAINED_FLOPS = 1 << 36
SUSTAINED_SETS = 4
COPY_ELEMENTS = 1 << 28  # bf16: half a GiB read, half a GiB written


def measure(call, seconds, warm_up=True, siblings=None, sustained=False):
    """Microseconds of each call; the first, which may compile or allocate, is not counted."""
    if warm_up:
        call()
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < 2 or (time.perf_counter() < end and len(samples) < 1000):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    return samples


class GpuTimer:
    """Times one call on a GPU: L2 flushed, queued behind work that sleeps, between two events. A
    short call is timed in a graph of several, each on tensors of its own as far as `calls` go."""

    SHORT_US = 20
    CALLS_IN_GRAPH = 20
    SLEEP_CYCLES = 4_000_000  # about 2 ms, for the host to queue a chain of kernels
    # Work that is bound by power: long samples back to back, after a load that lets the clocks
    # settle. No sleep in between, during which power would be saved up (as cuda_bench.cpp).
    SUSTAINED_US = 30_000
    SETTLE_US = 150_000
    MOST_SUSTAINED = 250

    def __init__(self):
        size = 4 * torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.ones(size // 4, dtype=torch.int32, device="cuda")
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def sample(self, call, sustained=False):
        if not sustained:
            self.flush.sum()
            torch.cuda._sleep(self.SLEEP_CYCLES)
        self.events[0].record()
        call()
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e3

    def graph_of(self, calls):
        """Results live until all calls are captured: memory freed before is the next call's,
        which would then write what the L2 still holds. The harness's calls write cold memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]
        del kept
        return graph

    def in_turn(self, call, siblings, count):
        """`count` calls one after the other, on different tensors as far as they go."""
        turns = [call, *(siblings() if siblings else [])]

        def run():
            for i in range(count):
                turns[i % len(turns)]()

        for one in turns[1:]:
            one()
        return run

    def measure(self, call, seconds, warm_up=True, siblings=None, sustained=False):
        for _ in range(3 if warm_up else 1):
            call()
        torch.cuda.synchronize()
        calls, graph = 1, None
        if sustained:
            once = min(self.sample(call) for _ in range(2))
            calls = max(1, min(self.MOST_SUSTAINED, round(self.SUSTAINED_US / once)))
            call = self.in_turn(call, siblings, calls)
            passed = 0
            while passed < self.SETTLE_US:
                passed += self.sample(call, sustained)
        elif statistics.median(self.sample(call) for _ in range(5)) < self.SHORT_US:
            in_turn = [call, *(siblings() if siblings else [])]
            for sibling in in_turn[1:]:
                sibling()
            turns = -(-self.CALLS_IN_GRAPH // len(in_turn)) * in_turn
            calls = len(turns)
            graph = self.graph_of(turns)  # and its memory, until the samples are taken
            call = graph.replay
        samples = []
        end = time.perf_counter() + seconds
        while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 1000):
            samples.append(self.sample(call, sustained) / calls)
        if graph is not None:
            del graph, call
            torch.cuda.empty_cache()  # the harness needs the memory of its results
        return samples


def copy_of_bf16(device):
    source = torch.full((COPY_ELEMENTS,), 1.5, dtype=torch.bfloat16, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source), 4 * COPY_ELEMENTS


def note(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def library_of(peer):
    """The library that has a peer: the one whose name it begins with, or plain PyTorch."""
    return next((lib for lib in LIBRARIES if peer.startswith(lib.NAME)), torch_eager)


def sustained(row):
    """Whether arithmetic, and so power, decides the case's time."""
    return row.get("flops", 0) >= SUSTAINED_FLOPS


class Peers:
    """Callables of the case asked for last, so that it can be asked again without its set-up."""

    def __init__(self, device):
        self.device = device
        self.key = None
        self.case = None
        self.row, self.bytes, self.siblings = None, 0, []
        self.calls = {}  # of each library that was asked about the case
        self.copy = None
        self.warm = set()
        self.measure = GpuTimer().measure if device == "cuda" else measure
        self.missing = {lib.NAME: lib.unavailable(device) for lib in LIBRARIES}
        for name, reason in self.missing.items():
            if reason and reason != backend_peers.NOT_ASKED:
                note(f"{name} is left out: {reason}")

    def turn_to(self, row):
        key = (row["op"], row["case"])
        if key != self.key:
            self.calls, self.case = {}, None  # frees the last case's memory first
            self.key, self.case, self.warm = key, Case(row, self.device), set()
            self.row, self.bytes, self.siblings = row, row.get("bytes", 0), []

    def siblings_of(self, peer):
        """The same call on other tensors, up to a graph's calls or a few gigabytes."""
        library = library_of(peer)
        most = GpuTimer.CALLS_IN_GRAPH if not sustained(self.row) else SUSTAINED_SETS
        count = min(most, SIBLING_BYTES // max(1, self.bytes)) - 1
        while len(self.siblings) < count:
            self.siblings.append(Case(self.row, self.device))
        return [library.calls(case)[peer][0] for case in self.siblings[: max(0, count)]]

    def calls_of(self, library):
        if library.NAME not in self.calls:
            there = not self.missing[library.NAME]
            self.calls[library.NAME] = library.calls(self.case) if there else {}
        return self.calls[library.NAME]

    def call_for(self, peer):
        if peer != "torch_copy":
            return self.calls_of(library_of(peer)).get(peer)
        self.copy = self.copy or copy_of_bf16(self.device)
        return self.copy

    def time(self, row, peer, seconds):
        self.turn_to(row)
        found = self.call_for(peer)
        if found is None:
            why = self.missing.get(library_of(peer).NAME) or "its adapter has nothing for it"
            raise LookupError(f"{row['op']} '{row['case']}' can't be timed as {peer}: {why}")
        call, moved = found
        own = peer in self.calls_of(library_of(peer))
        samples = self.measure(
            call,
            seconds,
            peer not in self.warm,
            (lambda: self.siblings_of(peer)) if own else None,
            own and sustained(row),
        )
        self.warm.add(peer)
        return {
            "op": row["op"],
            "case": row["case"],
            "peer": peer,
            "us": statistics.median(samples),
            "bytes": moved or row["bytes"],
            "samples_us": samples,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }

    def all_times(self, row, seconds):
        """Of every peer that there is; one that fails on this case is named and left out."""
        self.turn_to(row)
        results = []
        for library in LIBRARIES:
            try:
                names = list(self.calls_of(library))
            except Exception as error:
                note(f"{library.NAME} has nothing for {row['op']} '{row['case']}': {error}")
                continue
            for peer in names:
                try:
                    results.append(self.time(row, peer, seconds))
                except Exception as error:
                    text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                    note(f"{peer} fails on {row['op']} '{row['case']}': {text}")
        return results

    def times(self, row, peers, seconds):
        if peers is None:
            return self.all_times(row, seconds)
        return [self.time(row, peer, seconds) for peer in peers]


def serve(device):
    # Answers alone go to standard output, whatever the libraries print, compiled ones as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    peers = Peers(device)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"peers": peers.times(request, request["peers"], request["seconds"])}
        except Exception as error:  # the asker decides what a missing peer means
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer.update(op=request["op"], case=request["case"])
        print(json.dumps(answer), file=answers, flush=True)


def cases_of(arguments):
    command = [arguments.pestle, "bench", "--list-cases", "--tags", arguments.tags, *arguments.op]
    command += ["--cases", arguments.cases] if arguments.cases else []
    cases = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return map(json.loads, cases.splitlines())


def warm(arguments):
    peers = Peers(arguments.device)
    for case in cases_of(arguments):
        peers.turn_to(case)
        for library in LIBRARIES:
            try:
                for call, _ in peers.calls_of(library).values():
                    call()
            except Exception as error:
                note(f"{library.NAME} fails on {case['op']} '{case['case']}': {str(error)[:200]}")


def walk(arguments):
    peers = Peers(arguments.device)
    out = open(arguments.out, "w") if arguments.out else sys.stdout  # noqa: SIM115  (closed at exit)
    for case in cases_of(arguments):
        copies = peers.times(case, ["torch_copy"], arguments.seconds)
        for result in [*copies, *peers.all_times(case, arguments.seconds)]:
            print(json.dumps(result), file=out, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pestle", default="build/bin/pestle")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--tags", default="bar")
    parser.add_argument("--cases", help="a file with more cases, such as bench/bars_cuda.json")
    parser.add_argument("--backends", default="")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    backend_peers.BACKENDS = tuple(filter(None, arguments.backends.split(",")))
    with torch.inference_mode():
        if arguments.serve:
            serve(arguments.device)
        else:
            warm(arguments) if arguments.warm else walk(arguments)


if __name__ == "__main__":
    main()
