"""Medians with their intervals, and verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
FAR, MANY = 1.3, 0.1  # times the fastest tenth: disturbed; a share of the samples to be told


@dataclass(frozen=True)
class Summary:
    n: int
    median: float
    mean: float
    min: float
    p10: float
    p90: float
    mad: float  # median absolute deviation
    low: float  # of the median's 95 % bootstrap interval
    high: float
    disturbed: float = 0.0  # share of the samples that are far beyond the fastest tenth

    @property
    def half_width(self) -> float:
        """Of the interval, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def json(self) -> dict:
        """In microseconds."""
        us = {
            f"{name}_us": round(getattr(self, name) / 1e3, 4)
            for name in ("median", "mean", "min", "p10", "p90", "mad")
        }
        ends = [round(self.low / 1e3, 4), round(self.high / 1e3, 4)]
        return us | {"n": self.n, "ci95_us": ends, "disturbed": round(self.disturbed, 4)}

    def why_unsure(self, name: str) -> str:
        """Where so many samples are disturbed that a middle half of some may have them in it."""
        if self.disturbed < MANY:
            return ""
        return (
            f"{self.disturbed * 100:.0f} % of the calls of {name} took more than {FAR} times what "
            "the fastest tenth took: something else is at work"
        )


def _medians(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picks = rng.integers(0, len(samples), (RESAMPLES, len(samples)))
    return np.median(samples[picks], axis=1)


def summarise(nanoseconds) -> Summary:
    samples = np.asarray(nanoseconds, np.float64)
    if samples.size == 0:
        raise ValueError("no samples")
    if not np.isfinite(samples).all() or (samples < 0).any():
        raise ValueError("a sample that is no time")
    low, high = np.percentile(_medians(samples, np.random.default_rng(0)), [2.5, 97.5])
    median, p10 = float(np.median(samples)), float(np.percentile(samples, 10))
    return Summary(
        n=len(samples),
        median=median,
        mean=float(samples.mean()),
        min=float(samples.min()),
        p10=p10,
        p90=float(np.percentile(samples, 90)),
        mad=float(np.median(np.abs(samples - median))),
        low=float(low),
        high=float(high),
        disturbed=float((samples > FAR * p10).mean()),
    )


def geomean(values) -> float:
    """Of ratios or shares, all above zero."""
    return float(np.exp(np.mean(np.log(np.asarray(values, np.float64)))))


@dataclass(frozen=True)
class Ratio:
    """Time of B over time of A."""

    value: float
    low: float
    high: float
    verdict: str  # of B: FASTER, SLOWER, SAME or AMBIGUOUS

    def json(self) -> dict:
        return {
            "ratio": round(self.value, 5),
            "verdict": self.verdict,
            "ci95": [round(self.low, 5), round(self.high, 5)],
        }


def verdict(low: float, high: float, threshold: float) -> str:
    """Of an interval of B's time over A's."""
    if high < 1 - threshold:
        return "FASTER"
    if low > 1 + threshold:
        return "SLOWER"
    if low >= 1 - threshold and high <= 1 + threshold:
        return "SAME"
    return "AMBIGUOUS"


def middle(values: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis: as deaf to what is far out as a median of many,
    and no multiple of what a clock resolves."""
    count = values.shape[-1]
    return np.sort(values, axis=-1)[..., count // 4 : count - count // 4].mean(-1)


def _resampled(values: np.ndarray, cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`middle` of values that are drawn in two steps: cells, then values of each."""
    groups = [values[cells == cell] for cell in np.unique(cells)]
    counts = np.array([len(group) for group in groups])
    padded = np.zeros((len(groups), counts.max()))
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    each = -(-len(values) // len(groups))
    picks = rng.integers(0, len(groups), (RESAMPLES, len(groups), 1))
    of = (rng.random((RESAMPLES, len(groups), each)) * counts[picks]).astype(np.int64)
    return middle(padded[picks, of].reshape(RESAMPLES, -1))


def ratio(
    a_blocks: list[list[int]],
    b_blocks: list[list[int]],
    threshold: float = 0.005,
    cells: list | None = None,
) -> Ratio:
    """Of blocks that took turns. What is resampled is pairs of neighbours, which have met the same
    clocks and temperatures, and first the cells that they were timed in (a process, and where in
    memory the data lay): what a place makes of the ratio is no property of the kernels, and the
    more calls are made there, the surer it looks."""
    a, b = (
        np.array([max(middle(np.asarray(block, np.float64)), 1.0) for block in blocks])
        for blocks in (a_blocks, b_blocks)
    )
    pairs = np.log(b / a)
    known: dict = {}
    of = np.array([known.setdefault(c, len(known)) for c in cells or [0] * len(pairs)])
    value = float(middle(pairs))
    drawn = _resampled(pairs, of, np.random.default_rng(0)) - value
    # Draws from so few differ less than what they stand for.
    wider = np.sqrt(len(known) / (len(known) - 1)) if len(known) > 1 else 1.0
    low, high = (float(np.exp(value + wider * x)) for x in np.percentile(drawn, [2.5, 97.5]))
    return Ratio(float(np.exp(value)), low, high, verdict(low, high, threshold))


def wider(one: Ratio, other: Ratio, threshold: float) -> Ratio:
    """What both intervals allow for."""
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Ratio(one.value, low, high, verdict(low, high, threshold))
