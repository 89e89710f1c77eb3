"""Calls made from the cases of contracts: tensors with seeded data, and what the C ABI answers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import pestle_ctypes
import torch
from pestle import _contract, list_ops
from pestle._contract import DTYPES, Op
from pestle._forms import Form, all_forms, forms_of
from pestle._library import contracts
from pestle._shapes import Call

_NUMPY = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}
_E8M0 = getattr(torch, "float8_e8m0fnu", None)  # torch before 2.7 has bytes
if _E8M0 is not None:
    _NUMPY[_E8M0] = ml_dtypes.float8_e8m0fnu
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that NaNs compare."""
    return tensor.contiguous().view(_BITS[tensor.element_size()])


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as an array, with the same strides."""
    dtype = _NUMPY.get(tensor.dtype)
    if dtype is None:
        return tensor.numpy()
    return tensor.view(_BITS[tensor.element_size()]).numpy().view(dtype)


@dataclass
class Case:
    op: Op
    call: Call  # inputs, attributes, bound symbols
    asked: dict[str, torch.dtype]  # dtypes of outputs that the case names

    def form(self, kind: str = "functional") -> Form | None:
        """The form whose outputs are those of this call."""
        wanted = tuple(arg.name for arg in self.outputs())
        return next((f for f in forms_of(self.op.name, kind) if f.outputs == wanted), None)

    def outputs(self):
        return [arg for arg in self.op.of_role("output") if self.call.wants(arg)]

    def empty_outputs(self) -> dict[str, torch.Tensor]:
        return {arg.name: _zeros(self.call.shape(arg), self.dtype(arg)) for arg in self.outputs()}

    def dtype(self, arg) -> torch.dtype:
        return self.call.dtype(arg, self.asked.get(arg.name))

    def arguments(self, form: Form, **replaced) -> tuple[tuple, dict]:
        """Positional and keyword arguments of a form's schema."""
        positional, keywords = [], {}
        tensors = self.call.tensors | replaced
        for kind, name, keyword in form.arguments:
            if kind == "dtype":
                keywords[keyword] = self.asked.get(name)
            elif kind in ("tensor", "optional_tensor"):
                if self.op.by_name[name].role == "output":
                    keywords[name] = tensors[name]
                else:
                    positional.append(tensors.get(name))
            else:
                keywords[keyword] = self.call.attributes[name]
        return tuple(positional), keywords

    def _array(self, name: str, tensor: torch.Tensor) -> np.ndarray:
        is_e8m0 = "e8m0" in self.op.by_name[name].dtype_text(self.call.attributes).split("|")
        if _E8M0 is None and is_e8m0 and tensor.dtype == torch.uint8:
            return tensor.numpy().view(ml_dtypes.float8_e8m0fnu)
        return to_numpy(tensor)

    def expected(self, impl: str | None = None) -> dict[str, torch.Tensor]:
        """What the library answers to the same call, made through the C ABI."""
        outputs = self.empty_outputs()
        values = {n: self._array(n, t) for n, t in (self.call.tensors | outputs).items()}
        pestle_ctypes.call(self.op.name, impl, **values, **self.call.attributes)
        return outputs


def _zeros(shape: tuple, dtype: torch.dtype) -> torch.Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.zeros(shape, dtype=_BITS[size]).view(dtype)


def _fill(shape: tuple, dtype: torch.dtype, data: str, seed: int) -> torch.Tensor:
    """Values that every kernel has something to do with; bytes for codes."""
    random = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    if dtype in (torch.float32, torch.float16, torch.bfloat16):
        values = torch.randn(shape, generator=random)
        if data == "zeros":
            values.zero_()
        elif data == "special" and values.numel():
            flat = values.view(-1)
            # The large one has a square in f32: where sums overflow is the harness's matter.
            special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e17, 1e-42])
            places = torch.randperm(flat.numel(), generator=random)[: max(1, flat.numel() // 8)]
            flat[places] = special[torch.arange(len(places)) % len(special)]
        elif data == "subnormal":
            values *= 1e-41
        return values.to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=random, dtype=torch.uint8).view(dtype)
    if dtype == _E8M0:  # powers of two around 1, as scales are
        return torch.randint(120, 132, shape, generator=random, dtype=torch.uint8).view(dtype)
    count = size
    for dim in shape:
        count *= dim
    raw = torch.randint(0, 256, (count,), generator=random, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if count else _zeros(shape, dtype)


def _classes(call: Call, shape: tuple, seed: int) -> torch.Tensor:
    """Classes of the first input's last dimension, and now and then a row that does not count."""
    random = torch.Generator().manual_seed(seed)
    count = next(iter(call.tensors.values())).shape[-1]
    target = torch.randint(0, max(count, 1), shape, generator=random)
    ignored = torch.rand(shape, generator=random) < 0.1
    return torch.where(ignored, call.attributes.get("ignore_index", -100), target)


def _attribute(arg, text: str):
    return {
        "choice": str, "int": int, "float": float, "bool": lambda t: t in ("true", "1")
    }[arg.kind](text)  # fmt: skip


def make(op: Op, case: dict) -> Case:
    words = dict(word.split("=", 1) for word in case["text"].split())
    attributes = {a.name: a.default for a in op.of_role("attribute")}
    dtypes, symbols = {}, {}
    for key, text in words.items():
        arg = op.by_name.get(key)
        if arg is None:
            symbols[key] = text
        elif arg.role == "attribute":
            attributes[key] = _attribute(arg, text)
        elif text != "none":
            dtypes[key] = DTYPES[text]
    call = Call(op, {}, attributes)
    packs = {part.strip()[1:] for a in op.args for s in a.shapes.values()
             for part in s.split(",") if part.strip().startswith("*")}  # fmt: skip
    for name, text in symbols.items():
        if name in packs:
            call.bind_pack(name, tuple(int(part) for part in text.split("x") if part))
        else:
            call.values[name] = int(text)
    asked = {a.name: dtypes[a.name] for a in op.of_role("output") if a.name in dtypes}
    call.asked = asked
    # An input may ask whether another is there, so those that the case names come first.
    for arg in sorted(op.of_role("input"), key=lambda a: bool(a.present_if)):
        named, excluded = arg.name in dtypes, words.get(arg.name) == "none"
        if excluded or not (named or call.wants(arg)):
            continue
        dtype = dtypes.get(arg.name) or call.dtype(arg)
        seed = zlib.crc32(f"{op.name} {case['text']} {arg.name}".encode())
        if "target" in arg.name:
            tensor = _classes(call, call.shape(arg), seed).to(dtype)
        else:
            tensor = _fill(call.shape(arg), dtype, case["data"], seed)
        if dtype == torch.float32 and arg.name != "x":
            tensor = tensor.abs() + 0.01 if "scale" in arg.name else tensor
            tensor = tensor.sort().values if "ascending" in arg.doc else tensor
        call.tensors[arg.name] = tensor
    return Case(op, call, asked)


@cache
def all_cases() -> list[tuple[str, dict]]:
    """(op, case) of every case that each test run takes."""
    return [
        (name, case)
        for name in list_ops()
        for case in _contract.op(name).cases
        if {"smoke", "edge"} & set(case["tags"])
    ]


def case_id(value) -> str:
    return value if isinstance(value, str) else value["text"].replace(" ", ",")


@cache
def forms_with_a_case() -> list[Form]:
    """Forms that some small case calls. Conditions of outputs may contradict each other, so that
    a form is of no call."""
    called = {
        (n, f.outputs) for n, case in all_cases() if (f := make(_contract.op(n), case).form())
    }
    return [form for form in all_forms() if (form.op, form.outputs) in called]


@cache
def first_case(form: Form) -> Case:
    """A small case that the form takes; NaNs and empty tensors are other tests' matter."""
    for case in form.contract.cases:
        if "smoke" in case["tags"] and (made := make(form.contract, case)).form(form.kind) == form:
            return made
    for case in form.contract.cases:
        if "edge" in case["tags"] and (made := make(form.contract, case)).form(form.kind) == form:
            return made
    raise LookupError(f"no case for {form.name}")


def assert_near(op: str, got: dict, expected: dict, data: str = "normal") -> None:
    """Equal where the contract says exact (any NaN for a NaN); else as near as two may be.

    Where sums are bounded and the data is special, an overflow may decide: only what is finite on
    both sides is compared there.
    """
    bounds = {arg["name"]: arg["bound"] for arg in contracts()[op]["args"] if "bound" in arg}
    codes = {arg["name"] for arg in contracts()[op]["args"] if "codes_by" in arg}
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        mine = got[name]
        assert (mine.dtype, mine.shape) == (tensor.dtype, tensor.shape), name
        if name in codes:  # of this implementation's own output: test_backends.py looks at these
            continue
        if bounds[name] != "exact":
            if data == "special":
                both = mine.isfinite() & tensor.isfinite()
                mine, tensor = mine[both], tensor[both]
            relative = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}.get(tensor.dtype, 1e-4)
            finite = tensor[tensor.isfinite()]
            largest = finite.abs().max().item() if finite.numel() else 0.0
            # Where terms of about 1 cancel to nothing, their roundings are all there is; the
            # harness holds such results to the contract's bound.
            noise = 2.0**-22 if data == "normal" else 2.0**-143
            torch.testing.assert_close(
                mine, tensor, rtol=relative, atol=relative * largest + noise, equal_nan=True
            )
        elif tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
            torch.testing.assert_close(mine, tensor, rtol=0, atol=0, equal_nan=True)
        else:
            assert torch.equal(bits(mine), bits(tensor)), name
