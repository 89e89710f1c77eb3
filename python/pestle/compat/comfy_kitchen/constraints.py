"""What a backend's function asks of its arguments, as data that can be queried: comfy-kitchen's
class names, fields and reasons of a refusal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

__all__ = [
    "DivisibleBy",
    "ExactDims",
    "FunctionConstraints",
    "MinDims",
    "ParamConstraint",
    "ShapeRule",
    "ValidationResult",
    "validate_function_call",
    "validate_param",
    "with_out_param",
    "with_w4a8_packed_storage",
]


class ShapeRule(ABC):
    """A rule on the shape of one tensor."""

    @abstractmethod
    def check(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor keeps the rule."""

    @abstractmethod
    def describe(self) -> str:
        """The rule in words."""


@dataclass(frozen=True)
class ExactDims(ShapeRule):
    """So many dimensions, no more and no fewer."""

    ndim: int

    def check(self, tensor: torch.Tensor) -> bool:
        return tensor.ndim == self.ndim

    def describe(self) -> str:
        return f"exactly {self.ndim}D"


@dataclass(frozen=True)
class MinDims(ShapeRule):
    """At least so many dimensions."""

    ndim: int

    def check(self, tensor: torch.Tensor) -> bool:
        return tensor.ndim >= self.ndim

    def describe(self) -> str:
        return f"at least {self.ndim}D"


@dataclass(frozen=True)
class DivisibleBy(ShapeRule):
    """One dimension is a multiple of a number; a missing dimension is none."""

    dim: int
    factor: int

    def check(self, tensor: torch.Tensor) -> bool:
        there = -tensor.ndim <= self.dim < tensor.ndim
        return there and tensor.shape[self.dim] % self.factor == 0

    def describe(self) -> str:
        return f"dim[{self.dim}] divisible by {self.factor}"


@dataclass
class ValidationResult:
    """A verdict; where it is no, the parameter and the reason."""

    success: bool
    failed_param: str | None = None
    failure_reason: str | None = None

    @staticmethod
    def ok() -> ValidationResult:
        return ValidationResult(True)

    @staticmethod
    def fail(param: str, reason: str) -> ValidationResult:
        return ValidationResult(False, param, reason)

    def __str__(self) -> str:
        return "ok" if self.success else f"{self.failed_param}: {self.failure_reason}"


@dataclass(frozen=True)
class ParamConstraint:
    """Rules for one parameter. `dtypes`: None for any; Python types may stand among them for
    parameters that are no tensors. `devices`: None for the function's own, "*" for any."""

    dtypes: frozenset | None = None
    devices: frozenset[str] | None = None
    shape_rules: tuple[ShapeRule, ...] = ()

    def check_dtype(self, value: object) -> bool:
        if self.dtypes is None:
            return True
        if isinstance(value, torch.Tensor):
            return value.dtype in self.dtypes
        if isinstance(value, torch.dtype):
            return value in self.dtypes
        return type(value) in self.dtypes

    def check_device(self, tensor: torch.Tensor, default_devices: frozenset[str]) -> bool:
        allowed = default_devices if self.devices is None else self.devices
        return "*" in allowed or tensor.device.type in allowed

    def check_shape(self, tensor: torch.Tensor) -> bool:
        return all(rule.check(tensor) for rule in self.shape_rules)


@dataclass(frozen=True)
class FunctionConstraints:
    """Rules for one function of one backend. `call_rules` see all arguments at once."""

    params: dict[str, ParamConstraint] = field(default_factory=dict)
    default_devices: frozenset[str] = frozenset({"cpu", "cuda"})
    min_compute_capability: tuple[int, int] | None = None
    call_rules: tuple[Callable[[Mapping[str, object]], ValidationResult], ...] = ()

    def __hash__(self) -> int:
        parts = tuple(sorted(self.params)), self.default_devices, self.min_compute_capability
        return hash((*parts, self.call_rules))


def _names(values) -> str:
    names = sorted(getattr(value, "__name__", None) or str(value) for value in values)
    return "{" + ", ".join(names) + "}"


def validate_param(
    name: str,
    value: object,
    constraint: ParamConstraint,
    default_devices: frozenset[str],
) -> ValidationResult:
    """The verdict on one argument; None, an argument that was left out, is always taken."""
    if value is None:
        return ValidationResult.ok()
    is_tensor = isinstance(value, torch.Tensor)
    if not constraint.check_dtype(value):
        shown = value.dtype if is_tensor else value
        return ValidationResult.fail(name, f"dtype {shown} not in {_names(constraint.dtypes)}")
    if not is_tensor:
        return ValidationResult.ok()
    if not constraint.check_device(value, default_devices):
        allowed = default_devices if constraint.devices is None else constraint.devices
        return ValidationResult.fail(name, f"device {value.device.type} not in {_names(allowed)}")
    for rule in constraint.shape_rules:
        if not rule.check(value):
            return ValidationResult.fail(
                name, f"shape {list(value.shape)} fails: {rule.describe()}"
            )
    return ValidationResult.ok()


def validate_function_call(
    constraints: FunctionConstraints,
    kwargs: Mapping[str, object],
    compute_capability: tuple[int, int] | None = None,
) -> ValidationResult:
    """The verdict on a whole call: the first rule that it breaks."""
    least = constraints.min_compute_capability
    if least is not None:
        if compute_capability is None:
            return ValidationResult.fail("__hardware__", "needs a CUDA device")
        if compute_capability < least:
            has, needs = (".".join(map(str, pair)) for pair in (compute_capability, least))
            return ValidationResult.fail(
                "__hardware__", f"compute capability {has} < required {needs}"
            )
    for name, constraint in constraints.params.items():
        result = validate_param(name, kwargs.get(name), constraint, constraints.default_devices)
        if not result.success:
            return result
    for rule in constraints.call_rules:
        result = rule(kwargs)
        if not result.success:
            return result
    return ValidationResult.ok()


def with_out_param(base: FunctionConstraints) -> FunctionConstraints:
    """The same for a form that fills a given 5-D `out` of x's dtypes."""
    out = ParamConstraint(base.params["x"].dtypes, shape_rules=(ExactDims(5),))
    return replace(base, params={**base.params, "out": out})


def with_w4a8_packed_storage(base: FunctionConstraints) -> FunctionConstraints:
    """The same for packed weights, whose codes and scales are one-dimensional."""
    packed = {
        name: replace(base.params[name], shape_rules=(ExactDims(1),)) for name in ("qdata", "s_rel")
    }
    return replace(base, params={**base.params, **packed})


# ---- neighbourhood attention


def axes_of(value, count: int) -> list:
    """One value for each axis; a single one holds for all, None is False."""
    return list(value) if isinstance(value, list | tuple) else [value or False] * count


def _unlike_q(kwargs: Mapping[str, object]) -> ValidationResult:
    """q, k and v are read by one set of indices."""
    q = kwargs["q"]
    for name in ("k", "v"):
        for what in ("shape", "dtype", "device"):
            mine, wanted = getattr(kwargs[name], what), getattr(q, what)
            if mine != wanted:
                rule = f"has {what} {mine}: must have the same {what} as q, {wanted}"
                return ValidationResult.fail(name, rule)
    return ValidationResult.ok()


def na3d_common_call_rule(kwargs: Mapping[str, object]) -> ValidationResult:
    """The rule of na3d: tensors that agree, and a window along each of three axes."""
    result = _unlike_q(kwargs)
    if not result.success:
        return result
    for name in ("kernel_size", "is_causal"):
        value = kwargs.get(name)
        if isinstance(value, list | tuple) and len(value) != 3:
            rule = f"has {len(value)} elements: must have 3 elements, one an axis"
            return ValidationResult.fail(name, rule)
    sizes = axes_of(kwargs["kernel_size"], 3)
    if min(sizes) < 1:
        return ValidationResult.fail("kernel_size", f"is {sizes}: entries must be positive")
    return ValidationResult.ok()
