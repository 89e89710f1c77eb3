"""What a case's input sets hold: the inputs, and the right answers to them. Each is made once,
however many kernels and processes are given it, by threads, and before anything is timed."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ..problems import Truth
from . import reference
from .cases import Case

KEPT = 2 << 30  # bytes of right answers that need not be made again, in all sets of a case
AHEAD = 4  # threads that make sets


class Content:
    def __init__(self, case: Case, inputs: dict[str, np.ndarray], keeps: bool = True):
        self.case, self.inputs, self.keeps = case, inputs, keeps
        self.making, self.known = threading.Lock(), None

    def truth(self) -> Truth:
        with self.making:
            if self.known is not None:
                return self.known
            made = reference.truth(self.case, self.inputs)
            if self.keeps:
                self.known = made
            return made


class Contents:
    """Of the sets of a case, by their numbers: those of a seed, and others later on."""

    def __init__(self, case: Case, seed: int):
        self.case, self.seed, self.later = case, seed, 0
        self.first: list[Future[Content]] = []

    def begin(self, count: int) -> None:
        """Starts to make the first `count`; `get` waits for them."""
        if self.first:
            return
        # Values and magnitudes in float64
        size = sum(16 * int(np.prod(plan.shape)) for plan in self.case.of_role("output"))
        keeps = count * size <= KEPT
        pool = ThreadPoolExecutor(AHEAD)
        self.first = [pool.submit(self._make, i, keeps) for i in range(count)]
        pool.shutdown(wait=False)

    def _make(self, number: int, keeps: bool) -> Content:
        made = Content(self.case, self.case.inputs(self.seed + number), keeps)
        if keeps:
            made.truth()
        return made

    def get(self, number: int) -> Content:
        return self.first[number].result()

    def fresh(self) -> Content:
        """Other inputs than any before."""
        self.later += 1
        return Content(self.case, self.case.inputs(self.seed + 1000 * self.later))
