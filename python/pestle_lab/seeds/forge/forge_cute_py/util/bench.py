"""Times of calls. On a GPU by events behind a kernel that holds the stream, after the cache was
flushed; on a CPU by the monotonic clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import torch
from pestle_lab.engine.clock import Timer


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def do_bench(
    fn: Callable[[], object],
    warmup: int = 10,
    rep: int = 100,
    grad_to_none: Iterable[torch.Tensor] | None = None,
    flush_l2: bool = True,
    l2_cache_bytes: int | None = None,
    device: torch.device | None = None,
) -> list[float]:
    """Milliseconds of `rep` calls, after `warmup` calls. `l2_cache_bytes` is what is written to
    flush the cache, twice its size by default."""
    if warmup < 0 or rep < 1:
        raise ValueError(f"do_bench: {warmup} calls to warm up and {rep} to time")
    timer = Timer(device or default_device())
    if l2_cache_bytes is not None:
        count = max(l2_cache_bytes // 4, 1)
        timer.flusher = torch.empty(count, dtype=torch.int32, device=timer.device)
    leaves = list(grad_to_none or ())
    for _ in range(warmup):
        fn()
    samples = []
    for _ in range(rep):
        for leaf in leaves:
            leaf.grad = None
        samples += timer.run([fn], "cold" if flush_l2 else "warm")
    return [ns / 1e6 for ns in samples]


def summarize_times(times_ms: list[float]) -> dict[str, float]:
    if not times_ms:
        raise ValueError("summarize_times: no times")
    ordered = sorted(times_ms)
    at = lambda share: ordered[min(int(share * len(ordered)), len(ordered) - 1)]  # noqa: E731
    return {
        "mean_ms": statistics.fmean(ordered),
        "p50_ms": statistics.median(ordered),
        "p90_ms": at(0.9),
    }


def estimate_bandwidth(nbytes: int, time_ms: float) -> float:
    """GB/s."""
    if time_ms <= 0:
        raise ValueError(f"estimate_bandwidth: {time_ms} ms is no time")
    return nbytes / time_ms / 1e6
