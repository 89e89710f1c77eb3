"""Medians with their intervals, and verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


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
        return us | {"n": self.n, "ci95_us": [round(self.low / 1e3, 4), round(self.high / 1e3, 4)]}


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
    median = float(np.median(samples))
    return Summary(
        n=len(samples),
        median=median,
        mean=float(samples.mean()),
        min=float(samples.min()),
        p10=float(np.percentile(samples, 10)),
        p90=float(np.percentile(samples, 90)),
        mad=float(np.median(np.abs(samples - median))),
        low=float(low),
        high=float(high),
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


def ratio(a_blocks: list[list[int]], b_blocks: list[list[int]], threshold: float = 0.005) -> Ratio:
    """Of blocks that took turns: a pair of neighbours has met the same clocks and temperatures, so
    pairs are what is resampled."""
    a = np.array([np.median(block) for block in a_blocks])
    b = np.array([np.median(block) for block in b_blocks])
    pairs = b / a
    medians = _medians(pairs, np.random.default_rng(0))
    low, high = (float(x) for x in np.percentile(medians, [2.5, 97.5]))
    return Ratio(float(np.median(pairs)), low, high, verdict(low, high, threshold))
