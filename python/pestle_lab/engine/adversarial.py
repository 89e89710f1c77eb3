"""Cases that a problem's file need not list: its first case with each extent at its edges and
beside the sizes of tiles, with other layouts, and with values that hide or show mistakes."""

from __future__ import annotations

from ..errors import LabError
from ..problems import Problem
from .cases import make

# Nothing, one, a prime under a warp's width, and one less and more than a tile.
EXTENTS = (0, 1, 17, 127, 129)
LAYOUTS = ("strided", "offset", "transposed")
DATA = ("outliers", "zeros", "largest", "subnormal", "special", "constant", "sorted", "cancelling")


def generated(problem: Problem) -> list[str]:
    """Those that the problem's own rules take."""
    first = next((text for texts in problem.suites.values() for text in texts), None)
    if first is None:
        return []
    words = dict(word.split("=", 1) for word in first.split())
    known = {*problem.contract.by_name, "memory", "data"}
    tried = [
        {**words, name: value}
        for name, text in words.items()
        if name not in known
        for value in _edges(text)
    ]
    if not any(problem.orders.values()):  # one that says how its tensors lie takes no other way
        tried += [{**words, "memory": layout} for layout in LAYOUTS]
    if problem.fill is None:
        tried += [{**words, "data": data} for data in DATA]
    texts = [" ".join(f"{name}={value}" for name, value in case.items()) for case in tried]
    return [text for text in dict.fromkeys(texts) if _takes(problem, text)]


def _edges(text: str) -> list[str]:
    """Of a symbol: each of its extents (`4x1000`), one after the other."""
    parts = text.split("x")
    if not all(part.isdigit() for part in parts):
        return []
    return [
        "x".join([*parts[:i], str(extent), *parts[i + 1 :]])
        for i in range(len(parts))
        for extent in EXTENTS
    ]


def _takes(problem: Problem, text: str) -> bool:
    try:
        make(problem, text)
    except LabError:
        return False
    return True
