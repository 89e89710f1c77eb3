"""What a kernel gets and gives, and the cases that it is tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from pestle_lab import problems
from pestle_lab.engine import cases

# a, b, scale_a, scale_b, scale_a_permuted, scale_b_permuted, c
input_t = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]
output_t = torch.Tensor


class TestSpec(TypedDict):
    """A case, as gpu-mode writes it."""

    m: int
    k: int
    l: int  # noqa: E741
    seed: int


def problem() -> problems.Problem:
    return problems.get("nvfp4_gemv", [])


@dataclass(frozen=True)
class TestCase:
    """`seed` is of generate(). The smoke test makes its data from a secret seed of its own."""

    __test__ = False  # not one of pytest's

    m: int
    k: int
    l: int  # noqa: E741
    seed: int
    name: str

    def __post_init__(self):
        if self.m <= 0 or self.m % 128 or self.k <= 0 or self.k % 64:
            raise ValueError(f"{self.name}: m must be a multiple of 128, and k of 64")
        if self.l <= 0 or self.seed < 0:
            raise ValueError(f"{self.name}: l must be positive, and seed not negative")

    @property
    def text(self) -> str:
        """As the workbench writes a case."""
        return f"M={self.m} K={self.k} L={self.l}"

    def serialize(self) -> str:
        return f"m={self.m}, k={self.k}, l={self.l}, seed={self.seed}"

    def generate(self, device: torch.device | str | None = None) -> input_t:
        """New tensors with the problem's own layouts: every code and sign, scales of every size
        that keeps sums within f16, and NaN in c."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        case = cases.make(problem(), self.text)
        made = {}
        for name, values in case.inputs(self.seed).items():
            dtype = case.plans[name].dtype
            raw = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8))
            made[name] = _laid_out(raw, case.problem.orders[name], device).view(dtype)
        fp4 = torch.float4_e2m1fn_x2
        c = torch.full((self.l, self.m, 1), torch.nan, dtype=torch.float16, device=device)
        names = ("sfa", "sfb", "sfa_permuted", "sfb_permuted")
        codes = (made[name].view(fp4) for name in ("a", "b"))
        return (*codes, *(made[name] for name in names), c.permute(1, 2, 0))


def _laid_out(x: torch.Tensor, order: tuple[int, ...], device) -> torch.Tensor:
    """x with its dimensions in memory in this order, the slowest first."""
    back = [order.index(dim) for dim in range(x.dim())]
    return x.permute(order).contiguous().to(device).permute(back)


SMOKE_TESTS = [
    TestCase(128, 256, 1, 42, "tiny_single"),
    TestCase(256, 512, 2, 43, "small_batch"),
]
CORRECTNESS_TESTS = [
    TestCase(128, 256, 1, 100, "min_size"),
    TestCase(256, 512, 4, 101, "medium"),
    TestCase(512, 1024, 8, 102, "large"),
    TestCase(1024, 2048, 16, 103, "xlarge"),
]
PERFORMANCE_TESTS = [
    TestCase(512, 2048, 32, 200, "perf_medium"),
    TestCase(1024, 4096, 64, 201, "perf_large"),
]
SUITES = {
    "smoke": SMOKE_TESTS,
    "correctness": CORRECTNESS_TESTS,
    "performance": PERFORMANCE_TESTS,
    "all": [*SMOKE_TESTS, *CORRECTNESS_TESTS, *PERFORMANCE_TESTS],
}
