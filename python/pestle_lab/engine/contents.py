"""What a case's input sets hold: the inputs, and the right answers to them. Each is made once,
however many kernels and processes are given it, by threads, and before anything is timed."""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ..problems import Truth
from . import buffers, reference
from .cases import Case, numpy_dtype

# Bytes of buffers and right answers that need not be made again, in all sets of a case.
KEPT = min(4 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
AHEAD = 4  # threads that make sets


class Content:
    def __init__(self, case: Case, inputs: dict[str, np.ndarray], keeps: bool = True):
        self.case, self.inputs, self.keeps = case, inputs, keeps
        self.making, self.known, self.filled = threading.Lock(), None, {}
        self.right: list[dict[str, np.ndarray]] = []  # bytes of outputs that were judged to be so

    def buffers(self) -> dict[str, np.ndarray]:
        """The bytes of each input's buffer, guards included, as a kernel is to leave them."""
        with self.making:
            if self.filled:
                return self.filled
            made = {}
            for name, values in self.inputs.items():
                where, plan = self.case.layout_of(name), self.case.plans[name]
                made[name] = buffers.filled(where, numpy_dtype(plan.dtype), values)
            if self.keeps:
                self.filled = made
            return made

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
        self.case, self.seed = case, seed
        self.keeps = False
        self.first: list[Future[Content]] = []
        self.others: dict[int, Future[Content]] = {}

    def begin(self, count: int, others: int = 0) -> None:
        """Starts to make the first `count`, and `others` beside them; `get` waits for them."""
        # Values and magnitudes in float64
        size = sum(16 * math.prod(plan.shape) for plan in self.case.of_role("output"))
        size += sum(plan.nbytes for plan in self.case.of_role("input"))
        self.keeps = (count + others) * size <= KEPT
        pool = ThreadPoolExecutor(AHEAD)
        self.first = [pool.submit(self._make, i) for i in range(count)]
        if self.keeps:
            self.others = {i: pool.submit(self._make, 1000 * i) for i in range(1, others + 1)}
        pool.shutdown(wait=False)

    def _make(self, number: int) -> Content:
        made = Content(self.case, self.case.inputs(self.seed + number), self.keeps)
        if self.keeps:
            made.buffers()
            made.truth()
        return made

    def get(self, number: int) -> Content:
        return self.first[number].result()

    def other(self, number: int) -> Content:
        """Values that the first sets do not have; of each number from 1 on."""
        if number in self.others:
            return self.others[number].result()
        return Content(self.case, self.case.inputs(self.seed + 1000 * number), self.keeps)

    def finish(self) -> None:
        """Nothing is being made from here on: calls are about to be timed."""
        for one in (*self.first, *self.others.values()):
            one.result()
