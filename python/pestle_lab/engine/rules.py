"""Whether an output is what the contract promises: the rule of harness/compare.cpp over arrays.

exact    bit for bit; in f64, f32, f16 and bf16 any NaN equals any NaN
bounded  |got - want| <= 1 ulp of the dtype + c * sqrt(k) * 2^-24 * sum|terms|, and k * 2^-149 for
         what f32 cannot hold; NaN and infinity where the reference has them
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from ..problems import Bound
from .cases import FLOATS, TensorPlan, numpy_dtype

PIECE = 1 << 15  # elements at a time: their copies in f64 stay in a core's own cache

_GRID = {  # mantissa bits, smallest exponent, largest value
    torch.float64: (52, -1022, np.finfo(np.float64).max),
    torch.float32: (23, -126, float(np.finfo(np.float32).max)),
    torch.float16: (10, -14, 65504.0),
    torch.bfloat16: (7, -126, 3.3895313892515355e38),
}
_F32_MAX = float(np.finfo(np.float32).max)


@dataclass
class Comparison:
    elements: int = 0
    bad: int = 0
    first: list[str] = field(default_factory=list)  # sentences of the first that differ
    worst: float = 0.0  # largest |got - want| / allowed
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float | None = None  # of what is bounded, where both are finite
    rel_l2: float = 0.0
    nonfinite: int = 0  # NaN or infinity where the reference has a number

    @property
    def ok(self) -> bool:
        return self.bad == 0

    def json(self) -> dict:
        sizes = {
            "worst_share_of_bound": self.worst,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "rel_l2": self.rel_l2,
        }
        # JSON has no infinity: null is an error beyond every bound.
        sizes = {name: value if np.isfinite(value) else None for name, value in sizes.items()}
        sizes["max_ulp"] = self.max_ulp
        return {
            "elements": self.elements,
            "n_bad": self.bad,
            "first": self.first,
            "nonfinite": self.nonfinite,
            **sizes,
        }


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def ulp_at(dtype: torch.dtype, values: np.ndarray) -> np.ndarray:
    """Distance from |value| to the next larger one of the dtype."""
    mantissa, smallest, _ = _GRID[dtype]
    values = np.asarray(values, np.float64)
    if dtype == torch.float64:  # whose ulp may be a subnormal number
        exponent = np.frexp(values)[1] - 1
        exponent[~np.isfinite(values) | (values == 0)] = smallest
        return np.ldexp(1.0, np.maximum(exponent, smallest) - mantissa)
    exponent = (values.view(np.int64) >> 52) & 0x7FF
    exponent[exponent == 0x7FF] = 0  # NaN and infinity have the least, as zeros have
    np.maximum(exponent, smallest + 1023, out=exponent)
    exponent -= mantissa
    return (exponent << 52).view(np.float64)


def _allowed(ulp: np.ndarray, magnitude: np.ndarray, bound: Bound, k: int) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        terms = bound.c * np.sqrt(float(max(k, 1))) * 2.0**-24 * magnitude
        return ulp + terms + k * 2.0**-149


def allowed_error(dtype: torch.dtype, want, magnitude, bound: Bound, k: int) -> np.ndarray:
    return _allowed(ulp_at(dtype, want), magnitude, bound, k)


def _most_ulps(ulp: np.ndarray, got: np.ndarray, want: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.abs(got - want) / ulp
    return float(np.max(steps, initial=0.0, where=np.isfinite(steps)))


def _shares(dtype, got, want, magnitude, allowed) -> np.ndarray:
    """|got - want| / allowed of each element; infinite where one alone is NaN or infinite."""
    may_overflow = ~(magnitude <= _F32_MAX / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        shares = np.abs(got - want) / allowed
        if not may_overflow.any() and np.isfinite(got).all() and np.isfinite(want).all():
            return shares
        rounds_up = (np.abs(want) + allowed > _GRID[dtype][2]) & (
            np.signbit(got) == np.signbit(want)
        )
        shares = np.where(may_overflow & ~(magnitude <= np.finfo(np.float64).max), 0, shares)
        shares = np.where(np.isinf(got), np.where(may_overflow | rounds_up, 0, np.inf), shares)
        shares = np.where(np.isinf(want), np.where(got == want, 0, np.inf), shares)
        shares = np.where(np.isnan(got), np.where(may_overflow, 0, np.inf), shares)
        return np.where(np.isnan(want), np.where(np.isnan(got), 0, np.inf), shares)


def compare(
    plan: TensorPlan,
    got: np.ndarray,
    want: np.ndarray,
    magnitude: np.ndarray | None,
    bound: Bound,
    k: int,
) -> Comparison:
    """`got` in the plan's dtype; `want` likewise where exact, else float64 with its magnitudes."""
    result = Comparison(elements=got.size)
    if got.size == 0:
        return result
    if (bound.exact or plan.dtype not in FLOATS) and np.array_equal(
        _bits(got), _bits(want.astype(numpy_dtype(plan.dtype), copy=False))
    ):
        return result
    arrays = [a if a is None else a.reshape(-1) for a in (got, want, magnitude)]
    at = range(0, got.size, PIECE)

    def piece(start: int) -> _Piece:
        some = (a if a is None else a[start : start + PIECE] for a in arrays)
        return _piece(plan, *some, bound, k)

    if len(at) == 1:
        pieces = [piece(0)]
    else:
        with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 16)) as pool:
            pieces = list(pool.map(piece, at))
    _fill(result, pieces)
    _tell_first(result, plan, got, want, pieces)
    return result


@dataclass
class _Piece:
    """What is found in some elements."""

    wrong: np.ndarray  # their places
    nonfinite: int = 0
    worst: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float | None = None
    error_squares: float = 0.0
    squares: float = 0.0


def _piece(plan: TensorPlan, got, want, magnitude, bound: Bound, k: int) -> _Piece:
    is_float, ulps = plan.dtype in FLOATS, None
    if bound.exact or not is_float:
        want = want.astype(numpy_dtype(plan.dtype), copy=False)
        wrong = _bits(got) != _bits(want)
        if is_float:
            wrong &= ~(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
        shares = np.where(wrong, np.inf, 0.0)
    else:
        magnitude = np.abs(want) if magnitude is None else magnitude
        ulp, wide = ulp_at(plan.dtype, want), got.astype(np.float64)
        ulps = _most_ulps(ulp, wide, want)
        shares = _shares(plan.dtype, wide, want, magnitude, _allowed(ulp, magnitude, bound, k))
    found = _Piece(np.flatnonzero(~(shares <= 1)), worst=float(shares.max()), max_ulp=ulps)
    _measure(found, got.astype(np.float64), want.astype(np.float64))
    return found


def _measure(found: _Piece, got: np.ndarray, want: np.ndarray) -> None:
    finite = np.isfinite(got) & np.isfinite(want)
    found.nonfinite = int((~np.isfinite(got) & np.isfinite(want)).sum())
    if not finite.any():
        return
    if not finite.all():
        got, want = got[finite], want[finite]
    error, size = np.abs(got - want), np.abs(want)
    found.max_abs = float(error.max())
    with np.errstate(over="ignore"):
        nonzero = size > 0
        relative = np.divide(error, size, where=nonzero, out=np.zeros_like(error))
        found.max_rel = float(relative.max())
        found.error_squares, found.squares = float(error @ error), float(size @ size)


def _fill(result: Comparison, pieces: list[_Piece]) -> None:
    result.bad = sum(len(p.wrong) for p in pieces)
    result.nonfinite = sum(p.nonfinite for p in pieces)
    for name in ("worst", "max_abs", "max_rel"):
        # numpy's, in which a NaN is larger than any number
        setattr(result, name, float(np.max([getattr(p, name) for p in pieces])))
    ulps = [p.max_ulp for p in pieces if p.max_ulp is not None]
    result.max_ulp = max(ulps) if ulps else None
    norm = np.sqrt(sum(p.squares for p in pieces))
    error = np.sqrt(sum(p.error_squares for p in pieces))
    result.rel_l2 = float(error / norm) if norm else result.max_abs


def _tell_first(result: Comparison, plan: TensorPlan, got, want, pieces: list[_Piece]) -> None:
    places = (i * PIECE + at for i, p in enumerate(pieces) for at in p.wrong[:8].tolist())
    for index, _ in zip(places, range(8), strict=False):
        place = tuple(int(i) for i in np.unravel_index(index, got.shape))
        result.first.append(
            f"{plan.name}{list(place)} is {float(got[place]):.9g}, "
            f"the reference has {float(want[place]):.9g}"
        )
