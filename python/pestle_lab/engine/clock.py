"""Time of single calls. On a GPU by event pairs behind a kernel that holds the stream, so that the
host's launch isn't counted; on a CPU by the monotonic clock."""

from __future__ import annotations

from time import perf_counter_ns

import torch

MODES = ("cold", "warm", "graph", "host")
_Event = torch.cuda.Event
_sync = torch.cuda.synchronize
_sleep = torch.cuda._sleep


class Timer:
    def __init__(self, device: torch.device):
        self.device = device
        self.flusher = None

    def _flush(self) -> None:
        """Evicts the last-level cache by writing a buffer twice its size."""
        if self.flusher is None:
            size = last_level_cache(self.device) * 2
            self.flusher = torch.empty(size // 4, dtype=torch.int32, device=self.device)
        self.flusher.add_(1) if self.device.type == "cpu" else self.flusher.zero_()

    def run(self, calls: list, mode: str) -> list[int]:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}, expected one of {', '.join(MODES)}")
        if self.device.type == "cpu":
            return self._on_cpu(calls, mode)
        if mode == "graph":
            return self._graph(calls)
        if mode == "host":
            return self._host(calls)
        return self._events(calls, cold=mode == "cold")

    def _on_cpu(self, calls: list, mode: str) -> list[int]:
        samples = []
        for call in calls:
            if mode == "cold":
                self._flush()
            start = perf_counter_ns()
            call()
            samples.append(perf_counter_ns() - start)
        return samples

    def _host(self, calls: list) -> list[int]:
        samples = []
        for call in calls:
            _sync(self.device)
            start = perf_counter_ns()
            call()
            samples.append(perf_counter_ns() - start)
        _sync(self.device)
        return samples

    def _events(self, calls: list, cold: bool) -> list[int]:
        samples = []
        for call in calls:
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            if cold:
                self._flush()
            _sleep(100_000)  # some 50 us, in which the host gets ahead
            start.record()
            call()
            end.record()
            # The whole device: work on streams of the kernel's own counts, too.
            _sync(self.device)
            samples.append(round(start.elapsed_time(end) * 1e6))
        return samples

    def _graph(self, calls: list) -> list[int]:
        """All calls in one graph: the mean of its replays, over rotated buffers."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        samples = []
        for _ in range(12):
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            _sync(self.device)
            samples.append(round(start.elapsed_time(end) * 1e6 / len(calls)))
        return samples[2:]


def last_level_cache(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    from pathlib import Path

    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return min(max(sizes), 256 << 20)
