"""Time of single calls. On a GPU by event pairs behind a kernel that holds the stream, so that the
host's launch isn't counted; on a CPU by the monotonic clock."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

import torch

MODES = ("cold", "warm", "graph", "host")
# A call and the wait for its work, and calls that nobody waits for: what a clock outside of the
# process sees, too.
WAITED, ISSUED = "waited", "issued"
LATE_NS = 20_000  # work after a call's end that is told from noise
# Cycles for which the stream is held, so that the host gets ahead: some 50 us at least, and more
# where it needs more. A call that waits for the device would ask for ever more.
HELD, MOST_HELD = 100_000, 2_000_000
# The hold covers all that the host does until the call's end is recorded: what that took at the
# second longest of so many calls, and a quarter more, at 2 cycles a nanosecond. By the longest, a
# host that stood still once would make each call wait; by the latest, a third of them are late.
SEEN, CYCLES_A_NS = 64, 2.5
_PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
_Event = torch.cuda.Event
_sync = getattr(torch._C, "_cuda_synchronize", None)  # torch.cuda's takes another 10 us
_sleep = torch.cuda._sleep
_sum = torch.sum


class Timer:
    def __init__(self, device: torch.device):
        self.device = device
        self.flusher = None
        if device.index is not None and device.type == "cuda":
            torch.cuda.set_device(device)  # whose streams events are recorded on
        self.spans = deque(maxlen=SEEN)  # ns from the hold's launch to the end's
        self.forget = _persisting_reset() if device.type == "cuda" else None

    def _flush(self) -> None:
        """Evicts the last-level cache by reading a buffer four times its size. Written lines would
        have to go to memory while the call runs: some 50 MB of them, 12 us of an H200's."""
        if self.flusher is None:
            size = last_level_cache(self.device) * 4
            self.flusher = torch.ones(size // 4, dtype=torch.float32, device=self.device)
        _sum(self.flusher)

    def run(self, calls: list, mode: str) -> list[int]:
        if mode not in (*MODES, WAITED, ISSUED):
            raise ValueError(f"mode {mode!r}, expected one of {', '.join(MODES)}")
        if self.device.type == "cpu":
            return self._on_cpu(calls, mode)
        if mode == "graph":
            return self._graph(calls)
        if mode == ISSUED:
            return self._on_cpu(calls, mode)
        if mode in ("host", WAITED):
            return self._host(calls, waits=mode == WAITED)
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

    def _host(self, calls: list, waits: bool) -> list[int]:
        samples = []
        for call in calls:
            _sync()
            start = perf_counter_ns()
            call()
            if waits:
                _sync()
            samples.append(perf_counter_ns() - start)
        _sync()
        return samples

    def _events(self, calls: list, cold: bool) -> list[int]:
        samples = []
        for call in calls:
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            if cold:
                self.forget()
                self._flush()
            hold, began = self._hold(), perf_counter_ns()
            _sleep(hold)
            start.record()
            call()
            end.record()
            self.spans.append(perf_counter_ns() - began)
            end.synchronize()
            samples.append(round(start.elapsed_time(end) * 1e6) + _late())
        return samples

    def _hold(self) -> int:
        longest = sorted(self.spans)[-2:]
        return round(min(max(HELD, CYCLES_A_NS * min(longest, default=0)), MOST_HELD))

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
            _sync()
            samples.append(round(start.elapsed_time(end) * 1e6 / len(calls)))
        return samples[2:]


def _late() -> int:
    """What the device still worked after a call's end: work on streams of the kernel's own counts,
    too. To find an idle device idle takes a busy host up to 60 us, which are no work: as long as it
    took the next time are taken off."""
    waited = _waited()
    late = waited - _waited() if waited > LATE_NS else 0
    return late if late > LATE_NS else 0


def _waited() -> int:
    began = perf_counter_ns()
    _sync()
    return perf_counter_ns() - began


def _persisting_reset() -> Callable[[], None]:
    """Gives back the part of the L2 cache that a kernel may have set aside for its data, which no
    flush evicts. GPUs that have no such part refuse, and have nothing to give back."""
    driver = ctypes.CDLL("libcuda.so.1")
    limit, reset = driver.cuCtxSetLimit, driver.cuCtxResetPersistingL2Cache
    limit.argtypes = [ctypes.c_int, ctypes.c_size_t]

    def forget() -> None:
        limit(_PERSISTING_L2, 0)
        reset()

    return forget


def last_level_cache(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    from pathlib import Path

    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return min(max(sizes), 256 << 20)
