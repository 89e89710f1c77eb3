"""Pestle's backends as backends of this registry.

An adapter is one function of comfy-kitchen written over Pestle's functions: its first argument has
these, bound to one backend. A backend serves it if it has an implementation of every op that the
adapter names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .constraints import (
    DivisibleBy,
    ExactDims,
    FunctionConstraints,
    MinDims,
    ParamConstraint,
    ShapeRule,
    ValidationResult,
)

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
F32 = frozenset({torch.float32})
FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
E4M3 = frozenset({torch.float8_e4m3fn})
E8M0 = frozenset({getattr(torch, "float8_e8m0fnu", None)})  # torch 2.5 has none
BYTES = frozenset({torch.uint8})
INT8 = frozenset({torch.int8})

ONE = ExactDims(1)
TWO = ExactDims(2)
FOUR = ExactDims(4)
ROWS = MinDims(2)
ROWWISE = MinDims(1)  # one value a row, [N] or [N, 1]
PAIRS = DivisibleBy(-1, 2)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton then runs on the CPU, slowly
DEVICES = {
    "cuda": frozenset({"cuda"}),
    "triton": frozenset({"cpu", "cuda"} if INTERPRETED else {"cuda"}),
    "cpu": frozenset({"cpu"}),
    "eager": frozenset({"cpu", "cuda", "mps", "xpu", "hpu", "meta", "*"}),  # "*": any other, too
}


def of(dtypes: frozenset, *rules: ShapeRule) -> ParamConstraint:
    return ParamConstraint(dtypes, shape_rules=rules)


@dataclass(frozen=True)
class Adapter:
    function: Callable
    ops: tuple[str, ...]
    params: dict[str, ParamConstraint]
    rules: tuple[Callable, ...]
    only: str | None  # the one backend that has it
    on_gpu: dict[str, ParamConstraint]  # what cuda and triton ask instead

    def serves(self, backend: str, ops: set[str]) -> bool:
        return self.only in (None, backend) and ops.issuperset(self.ops)

    def constraints(self, backend: str) -> FunctionConstraints:
        stricter = self.on_gpu if backend in ("cuda", "triton") else {}
        return FunctionConstraints(self.params | stricter, DEVICES[backend], None, self.rules)


ADAPTERS: dict[str, Adapter] = {}
WIDER: dict[
    tuple[str, str], Adapter
] = {}  # by function and the backend that takes more calls of it


def adapter(
    *ops: str,
    rules: tuple[Callable, ...] = (),
    only: str | None = None,
    on_gpu: dict[str, ParamConstraint] | None = None,
    **params: ParamConstraint,
) -> Callable:
    """Marks the adapter of a public function of the same name, which calls these ops. Of two the
    one that comes second, for one backend, is that backend's."""

    def keep(function: Callable) -> Callable:
        made = Adapter(function, ops, params, rules, only, on_gpu or {})
        if only and function.__name__ in ADAPTERS:
            WIDER[function.__name__, only] = made
        else:
            ADAPTERS[function.__name__] = made
        return function

    return keep


def refuse_unless(param: str, rule: str, holds: Callable[[object], bool]) -> Callable:
    """A call rule on the value of one argument that is no tensor."""

    def check(kwargs) -> ValidationResult:
        value = kwargs.get(param)
        if holds(value):
            return ValidationResult.ok()
        return ValidationResult.fail(param, f"is {value}; Pestle has {rule} alone")

    return check
