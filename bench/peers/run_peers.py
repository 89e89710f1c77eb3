#!/usr/bin/env python3
"""Times PyTorch on the cases of `pestle bench`.

usage: run_peers.py [--pestle build/bin/pestle] [--op OP]... [--out peers.jsonl]
       run_peers.py --serve     answers each case on standard input with its peers' times
       ... --device cuda        on a GPU, by device events
       ... --backends triton,cuda   the installed package's backends too

A request is a case as `pestle bench --list-cases` prints it, with "seconds" and "peers": [names],
or null for all that there are.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import backend_peers
import torch
import torch_peers


def measure(call, seconds, warm_up=True):
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
    short call is timed in a graph of several; as they share their tensors, these are warm in L2."""

    SHORT_US = 20
    CALLS_IN_GRAPH = 20
    SLEEP_CYCLES = 4_000_000  # about 2 ms, for the host to queue a chain of kernels

    def __init__(self):
        size = 4 * torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.ones(size // 4, dtype=torch.int32, device="cuda")
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def sample(self, call):
        self.flush.sum()
        torch.cuda._sleep(self.SLEEP_CYCLES)
        self.events[0].record()
        call()
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e3

    def graph_of(self, call):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.CALLS_IN_GRAPH):
                call()
        return graph

    def measure(self, call, seconds, warm_up=True):
        for _ in range(3 if warm_up else 1):
            call()
        torch.cuda.synchronize()
        calls = 1
        if statistics.median(self.sample(call) for _ in range(5)) < self.SHORT_US:
            graph = self.graph_of(call)  # kept by the call, as its memory is
            call, calls = graph.replay, self.CALLS_IN_GRAPH
        samples = []
        end = time.perf_counter() + seconds
        while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 1000):
            samples.append(self.sample(call) / calls)
        return samples


class Peers:
    """Callables of the case asked for last, so that it can be asked again without its set-up."""

    def __init__(self, backends=()):
        self.backends = backends
        self.key = None
        self.calls = {}
        self.copy = None
        self.warm = set()
        self.measure = GpuTimer().measure if torch_peers.DEVICE == "cuda" else measure

    def calls_for(self, case):
        key = (case["op"], case["case"])
        if key != self.key:
            self.calls = {}  # frees the last case's memory first
            adapter = torch_peers.adapter_of(case["op"])
            self.calls = adapter(case) if adapter else {}
            if self.backends:
                self.calls |= backend_peers.calls(case, self.backends)
            self.key = key
            self.warm = set()
        return self.calls

    def call_for(self, case, peer):
        if peer != "torch_copy":
            return self.calls_for(case).get(peer)
        self.copy = self.copy or torch_peers.copy_of_bf16()
        return self.copy

    def times(self, case, peers, seconds):
        results = []
        for peer in self.calls_for(case) if peers is None else peers:
            found = self.call_for(case, peer)
            if found is None:
                raise LookupError(f"no adapter for {case['op']} '{case['case']}' as {peer}")
            call, moved = found
            samples = self.measure(call, seconds, warm_up=peer not in self.warm)
            self.warm.add(peer)
            results.append(
                {
                    "op": case["op"],
                    "case": case["case"],
                    "peer": peer,
                    "us": statistics.median(samples),
                    "bytes": moved or case["bytes"],
                    "samples_us": samples,
                    "torch": torch.__version__,
                    "threads": torch.get_num_threads(),
                }
            )
        return results


def serve():
    peers = Peers()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"peers": peers.times(request, request["peers"], request["seconds"])}
        except Exception as error:  # the asker decides what a missing peer means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def walk(arguments):
    command = [arguments.pestle, "bench", "--list-cases", "--tags", "bar", *arguments.op]
    cases = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peers = Peers(tuple(filter(None, arguments.backends.split(","))))
    out = open(arguments.out, "w") if arguments.out else sys.stdout  # noqa: SIM115  (closed at exit)
    for case in map(json.loads, cases.splitlines()):
        wanted = ["torch_copy", *peers.calls_for(case)]
        for result in peers.times(case, wanted, arguments.seconds):
            print(json.dumps(result), file=out, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pestle", default="build/bin/pestle")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--backends", default="")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    torch_peers.DEVICE = arguments.device
    with torch.inference_mode():
        serve() if arguments.serve else walk(arguments)


if __name__ == "__main__":
    main()
