"""What compiling a model came to: times, graphs, breaks, recompilations, error, memory."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field

import torch

KEPT_CALLS = 256  # the last ones


@dataclass
class Call:
    """One run of the model."""

    shape: tuple[int, ...]
    compiled: int  # functions that were compiled in it
    seconds: float | None = None
    events: tuple | None = field(default=None, repr=False)

    def ms(self) -> float | None:
        """None while a GPU is still at it."""
        if self.seconds is None and self.events and self.events[1].query():
            self.seconds = self.events[0].elapsed_time(self.events[1]) / 1e3
            self.events = None
        return None if self.seconds is None else self.seconds * 1e3


@dataclass(frozen=True)
class Graph:
    """One compilation of a function."""

    function: str
    ops: int
    seconds: float
    again_because: str = ""  # of a recompilation


@dataclass
class CompileReport:
    """Print it for a page of text."""

    model: str = ""
    regions: dict[str, int] = field(default_factory=dict)  # what is compiled, and how many of it
    settings: dict = field(default_factory=dict)
    reused: bool = False
    calls: list[Call] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    breaks: Counter = field(default_factory=Counter)
    cache: Counter = field(default_factory=Counter)
    warmups: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: float | None = None  # largest relative error against eager
    error_bound: float | None = None
    peak_bytes: int | None = None
    fallback: str = ""  # why the model runs eagerly

    @property
    def cold_ms(self) -> list[float]:
        return [ms for call in self.calls if call.compiled and (ms := call.ms()) is not None]

    @property
    def warm_ms(self) -> list[float]:
        return [ms for call in self.calls if not call.compiled and (ms := call.ms()) is not None]

    @property
    def recompiles(self) -> list[Graph]:
        return [graph for graph in self.graphs if graph.again_because]

    def add_call(self, call: Call) -> None:
        self.calls.append(call)
        del self.calls[:-KEPT_CALLS]

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def to_dict(self) -> dict:
        """Plain values, for JSON."""
        return {
            "model": self.model, "regions": self.regions, "settings": self.settings,
            "reused": self.reused, "cold_ms": self.cold_ms, "warm_ms": self.warm_ms,
            "graphs": [asdict(graph) for graph in self.graphs], "breaks": dict(self.breaks),
            "cache": dict(self.cache), "warmups": self.warmups, "notes": self.notes,
            "error": self.error, "error_bound": self.error_bound, "peak_bytes": self.peak_bytes,
            "fallback": self.fallback,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.model or 'model'}: " + (self._regions() or "nothing compiled")]
        lines += [f"runs eagerly: {self.fallback}"] if self.fallback else []
        lines += self._times() + self._compilations()
        if self.error is not None:
            bound = "" if self.error_bound is None else f" (bound {self.error_bound:g})"
            lines.append(f"error against eager: {self.error:.2e}{bound}")
        if self.peak_bytes is not None:
            lines.append(f"peak memory of a step: {self.peak_bytes / 2**20:,.0f} MiB")
        if self.cache:
            parts = (f"{name} {count}" for name, count in sorted(self.cache.items()))
            lines.append(f"caches: {', '.join(parts)}")
        return "\n".join([*lines, *self.warmups, *self.notes])

    def _regions(self) -> str:
        return ", ".join(f"{count} x {name}" for name, count in self.regions.items())

    def _times(self) -> list[str]:
        lines = []
        if cold := self.cold_ms:
            lines.append("steps that compiled: " + ", ".join(f"{ms:,.0f} ms" for ms in cold))
        if warm := self.warm_ms:
            median = statistics.median(warm)
            lines.append(f"other steps: median {median:,.1f} ms of {len(warm)}")
        return lines or ["no step yet"]

    def _compilations(self) -> list[str]:
        lines = [
            f"  {graph.function}: {graph.ops} ops, {graph.seconds:.1f} s"
            + (f", again because {graph.again_because}" if graph.again_because else "")
            for graph in self.graphs
        ]
        total = sum(graph.seconds for graph in self.graphs)
        again = len(self.recompiles)
        lines = [f"compiled {len(lines)} graphs ({again} again), {total:.1f} s", *lines]
        lines.append(f"graph breaks: {sum(self.breaks.values())}")
        lines += [f"  {count} x {reason}" for reason, count in self.breaks.items()]
        return lines


_CACHES = {
    ("inductor", "fxgraph_cache_hit"): "graphs found",
    ("inductor", "fxgraph_cache_miss"): "graphs made",
    ("aot_autograd", "autograd_cache_hit"): "AOT found",
    ("aot_autograd", "autograd_cache_miss"): "AOT made",
}


class Watch:
    """Looks at torch's counters before and after a run, and adds the difference to a report."""

    def __init__(self, report: CompileReport):
        from torch._dynamo.utils import counters

        self.report, self.counters = report, counters
        self.breaks = Counter(counters["graph_break"])
        self.cache = {key: counters[key[0]][key[1]] for key in _CACHES}
        self.since_us = time.time_ns() // 1000

    def compiled(self) -> int:
        """How many functions were compiled since."""
        from torch._dynamo.utils import get_compilation_metrics

        found = [
            one for one in get_compilation_metrics()
            if (one.start_time_us or 0) >= self.since_us and one.is_forward is not False
        ]  # fmt: skip
        for one in found:
            self.report.graphs.append(Graph(
                one.co_name or "?", one.graph_op_count or 0, one.entire_frame_compile_time_s or 0.0,
                _sentence(one.recompile_reason or ""),
            ))  # fmt: skip
            if one.fail_reason:
                self.report.note(f"{one.co_name} was not compiled: {_sentence(one.fail_reason)}")
        now = Counter(self.counters["graph_break"])
        self.report.breaks.update({_sentence(k): n for k, n in (now - self.breaks).items()})
        for key, before in self.cache.items():
            if more := self.counters[key[0]][key[1]] - before:
                self.report.cache[_CACHES[key]] += more
        return len(found)


def _sentence(text: str) -> str:
    """The first line that says something, without dynamo's number of the frame."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    head, colon, rest = line.partition(": ")
    return rest if colon and head.replace("/", "").isdigit() else line


class Peak:
    """Bytes that tensors take at most in a run, weights included; None on a CPU."""

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def add_to(self, report: CompileReport) -> None:
        if self.device.type == "cuda":
            bytes_now = torch.cuda.max_memory_allocated(self.device)
            report.peak_bytes = max(bytes_now, report.peak_bytes or 0)


class Stopwatch:
    """Seconds of a run: of a GPU by events, so that nothing waits."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        if self.cuda:
            self.events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.events[0].record()
        self.start = time.perf_counter()

    def stop(self, shape: tuple[int, ...], compiled: int) -> Call:
        if self.cuda and not compiled:
            self.events[1].record()
            return Call(shape, compiled, events=self.events)
        if self.cuda:
            torch.cuda.synchronize()
        return Call(shape, compiled, time.perf_counter() - self.start)
