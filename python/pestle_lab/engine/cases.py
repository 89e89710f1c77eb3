"""A case's text made into tensors: "M=64 N=128 x=bf16 data=outliers memory=strided"."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
from pestle._contract import DTYPE_NAMES, DTYPES
from pestle._shapes import Call, _Tensors

from ..errors import LabError
from ..problems import Problem
from . import buffers

LAYOUTS = ("contiguous", "strided", "offset", "transposed")
DISTRIBUTIONS = (
    "normal",
    "outliers",
    "zeros",
    "subnormal",
    "special",
    "offset",
    "constant",
    "cancelling",
    "bytes",
    "largest",
    "sorted",
)
_NUMPY = {
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return _NUMPY.get(dtype) or torch.empty(0, dtype=dtype).numpy().dtype


@dataclass(frozen=True)
class TensorPlan:
    """A tensor of a case before it has memory."""

    name: str
    role: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


@dataclass
class Case:
    problem: Problem
    text: str
    layout: str
    data: str
    call: Call
    plans: dict[str, TensorPlan]

    @property
    def attributes(self) -> dict:
        return self.call.attributes

    def of_role(self, role: str) -> list[TensorPlan]:
        return [plan for plan in self.plans.values() if plan.role == role]

    def evaluate(self, expression: str) -> int:
        """Over symbols, attributes and every tensor of the case, outputs included."""
        tensors = {
            plan.name: torch.empty(plan.shape, dtype=plan.dtype, device="meta")
            for plan in self.plans.values()
        }
        compiled = self.problem.contract.expression(expression)
        return int(compiled(self.call.values, tensors, _Tensors(tensors)))

    def bytes(self) -> int:
        if self.problem.bytes:
            return self.evaluate(self.problem.bytes)
        return sum(plan.nbytes for plan in self.plans.values())

    def flops(self) -> int:
        return self.evaluate(self.problem.flops)

    def symbols(self) -> dict[str, int]:
        known = self.problem.contract.by_name
        return {n: int(v) for n, v in self.call.values.items() if n not in known}

    def inputs(self, seed: int) -> dict[str, np.ndarray]:
        """Master copies of the inputs: contiguous arrays, never given to a kernel."""
        made = {
            plan.name: _values(
                self, plan, np.random.default_rng([seed, zlib.crc32(plan.name.encode())])
            )
            for plan in self.of_role("input")
        }
        if self.problem.derived is not None:
            for name, array in self.problem.derived(made).items():
                made[name] = np.ascontiguousarray(array)
        return made

    def layout_of(self, name: str) -> buffers.Plan:
        """Where the tensor's elements lie in its buffer."""
        plan = self.plans[name]
        itemsize = numpy_dtype(plan.dtype).itemsize
        return buffers.plan(plan.shape, itemsize, self.layout, self.problem.orders[name])


def _words(problem: Problem, text: str) -> dict[str, str]:
    words = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise LabError(f"problem {problem.name}: case {text!r}: {word!r} is not NAME=VALUE")
        words[key] = value
    return words


def _one_of(words: dict, key: str, allowed: tuple, problem: Problem) -> str:
    value = words.pop(key, allowed[0])
    if value not in allowed:
        raise LabError(
            f"problem {problem.name}: {key}={value}, expected one of {', '.join(allowed)}"
        )
    return value


def _attribute(arg, text: str):
    if arg.kind == "choice":
        if text not in arg.choices:
            raise LabError(f"{arg.name}={text}, expected one of {', '.join(arg.choices)}")
        return text
    return {"int": int, "float": float, "bool": lambda t: t in ("true", "1")}[arg.kind](text)


def make(problem: Problem, text: str) -> Case:
    """Shapes and dtypes of every tensor of the case; no data yet."""
    words = _words(problem, text)
    layout = _one_of(words, "memory", LAYOUTS, problem)
    data = _one_of(words, "data", DISTRIBUTIONS, problem)
    op = problem.contract
    attributes = {a.name: a.default for a in op.of_role("attribute")}
    dtypes, symbols, absent = {}, {}, set()
    for key, value in words.items():
        arg = op.by_name.get(key)
        if arg is None:
            symbols[key] = value
        elif arg.role == "attribute":
            attributes[key] = _attribute(arg, value)
        elif value == "none":
            absent.add(key)
        elif value.removesuffix(".mT") not in DTYPES:
            raise LabError(f"problem {problem.name}: {key}={value} is no dtype")
        else:
            dtypes[key] = DTYPES[value.removesuffix(".mT")]
    call = Call(op, {}, attributes)
    _bind(problem, call, symbols)
    call.asked = {a.name: dtypes[a.name] for a in op.of_role("output") if a.name in dtypes}
    plans = {}
    for arg in sorted(op.of_role("input"), key=lambda a: bool(a.present_if)):
        if arg.name in absent or not (arg.name in dtypes or call.wants(arg)):
            continue
        dtype = dtypes.get(arg.name) or call.dtype(arg)
        if dtype not in call.allowed_dtypes(arg):
            raise LabError(
                f"problem {problem.name}: {arg.name} is {DTYPE_NAMES[dtype]}, expected "
                f"{arg.dtype_text(attributes)}"
            )
        plans[arg.name] = TensorPlan(arg.name, "input", dtype, tuple(map(int, call.shape(arg))))
        call.tensors[arg.name] = torch.empty(plans[arg.name].shape, dtype=dtype, device="meta")
    for condition, sentence in op.constraints:
        if not call.evaluate(condition):
            raise LabError(f"problem {problem.name}: case {text!r}: {sentence} ({condition})")
    for arg in op.of_role("output"):
        if call.wants(arg):
            dtype = call.dtype(arg, call.asked.get(arg.name))
            plans[arg.name] = TensorPlan(
                arg.name, "output", dtype, tuple(map(int, call.shape(arg)))
            )
    return Case(problem, text, layout, data, call, plans)


def _bind(problem: Problem, call: Call, symbols: dict[str, str]) -> None:
    packs = {
        part.strip()[1:]
        for arg in problem.contract.args
        for shape in arg.shapes.values()
        for part in shape.split(",")
        if part.strip().startswith("*")
    }
    for name, text in symbols.items():
        try:
            if name in packs:
                call.bind_pack(name, tuple(int(part) for part in text.split("x") if part))
            else:
                call.values[name] = int(text)
        except ValueError:
            raise LabError(f"problem {problem.name}: {name}={text}: not a number") from None


def _values(case: Case, plan: TensorPlan, rng: np.random.Generator) -> np.ndarray:
    if case.problem.fill is not None:
        made = case.problem.fill(plan.name, plan.shape, case, rng)
        if made is not None:
            return np.ascontiguousarray(made)
    data = case.problem.data.get(plan.name) or case.data
    dtype = numpy_dtype(plan.dtype)
    if "target" in plan.name and plan.dtype in (torch.int64, torch.int32):
        classes = next(iter(case.plans.values())).shape[-1]
        return rng.integers(0, max(classes, 1), plan.shape).astype(dtype)
    if plan.dtype in FLOATS:
        values = _floats(data, plan.shape, rng)
        if "scale" in plan.name:
            values = np.abs(values) + 0.01
        if plan.dtype == torch.float16:
            values = np.clip(values, -65504, 65504)
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype)
    if plan.dtype == torch.bool:
        return rng.integers(0, 2, plan.shape).astype(bool)
    if plan.dtype == torch.float8_e8m0fnu:  # powers of two around 1, as scales are
        return rng.integers(120, 132, plan.shape, dtype=np.uint8).view(dtype)
    if data == "zeros":
        return np.zeros(plan.shape, np.uint8 if dtype.itemsize == 1 else dtype).view(dtype)
    raw = rng.integers(0, 256, (*plan.shape, dtype.itemsize), dtype=np.uint8)
    if plan.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) and data != "bytes":
        return _without_nonfinite(raw, plan.dtype).view(dtype).reshape(plan.shape)
    return raw.reshape(-1).view(dtype).reshape(plan.shape)


def _without_nonfinite(raw: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Codes of every finite value, negatives included."""
    last = 0x7E if dtype == torch.float8_e4m3fn else 0x7B
    return np.where((raw & 0x7F) > last, raw & 0xC7, raw)


def _floats(data: str, shape: tuple, rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    if data == "zeros":
        values[...] = 0
    elif data == "largest":  # of either sign, as large as f32 has them; inf in narrower dtypes
        values = np.copysign(np.float32(np.finfo(np.float32).max), values)
    elif data == "sorted":
        values = np.sort(values, axis=-1) if values.ndim else values
    elif data == "constant":
        values[...] = rng.choice([0.1, 0.3, 7.7])
    elif data == "offset":
        values = values * 4 + np.float32(128)
    elif data == "subnormal":
        values *= np.float32(1e-41)
    elif data == "outliers":
        values *= np.where(rng.random(shape) < 0.01, np.float32(100), np.float32(1))
    elif data == "cancelling" and values.size:
        half = values.shape[-1] // 2
        values[..., half : 2 * half] = -values[..., :half]
    elif data == "special" and values.size:
        special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, 1e-42], np.float32)
        places = rng.permutation(values.size)[: max(1, values.size // 8)]
        values.reshape(-1)[places] = special[np.arange(len(places)) % len(special)]
    return values


def describe(plan: TensorPlan) -> str:
    return f"{plan.name} {DTYPE_NAMES[plan.dtype]}{list(plan.shape)}"
