"""Calls made from the cases of contracts: tensors with seeded data, and what the C ABI answers."""

from __future__ import annotations

import copy
import math
import zlib
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import pestle
import pestle_ctypes
import torch
from pestle import _backends, _contract, _python_ops, _why, list_ops
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

    def in_place_form(self) -> Form | None:
        """The form that writes this call's results into its inputs, if they fit there."""
        form = self.form("in_place")
        if form is None:
            return None
        for output, alias in zip(form.outputs, form.aliases, strict=True):
            dtype, written = self.dtype(self.op.by_name[output]), self.call.tensors[alias].dtype
            is_kept = f"{output}_dtype" not in form.keywords()
            if dtype.itemsize != written.itemsize or (is_kept and dtype != written):
                return None
        return form

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
            special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e30, 1e-42])
            places = torch.randperm(flat.numel(), generator=random)[: max(1, flat.numel() // 8)]
            flat[places] = special[torch.arange(len(places)) % len(special)]
        elif data == "subnormal":
            values *= 1e-41
        elif data == "constant":
            values.fill_(0.3)
        elif data == "offset":
            values = values * 4 + 2.0 ** {torch.float32: 20, torch.float16: 10}.get(dtype, 7)
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


def _offsets(shape: tuple, length: int, seed: int) -> torch.Tensor:
    """Ascending, as contracts ask; the first and the last sequence need not be at the ends."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, length + 1, shape, generator=random).sort().values


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
            dtypes[key] = DTYPES[text.removesuffix(".mT")]
    transposed = {key for key, text in words.items() if text.endswith(".mT")}  # in memory
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
        elif arg.name in ("q_offsets", "k_offsets"):
            tensor = _offsets(call.shape(arg), call.values[f"S{arg.name[0]}"], seed).to(dtype)
        else:
            tensor = _fill(call.shape(arg), dtype, case["data"], seed)
        if dtype == torch.float32 and arg.name != "x":
            tensor = tensor.abs() + 0.01 if "scale" in arg.name else tensor
            tensor = tensor.sort().values if "ascending" in arg.doc else tensor
        call.tensors[arg.name] = tensor.mT.contiguous().mT if arg.name in transposed else tensor
    return Case(op, call, asked)


@cache
def all_cases() -> list[tuple[str, dict]]:
    """(op, case) of every case that each test run takes; test_lists.py takes those of lists."""
    return [
        (name, case)
        for name in list_ops()
        if not _contract.op(name).has_lists
        for case in _contract.op(name).cases
        if {"smoke", "edge"} & set(case["tags"])
    ]


@cache
def in_place_cases() -> list[tuple[str, dict]]:
    return [(name, c) for name, c in all_cases() if make(_contract.op(name), c).in_place_form()]


def make_with_numbers(op: Op, case: dict) -> Case:
    """The case with codes that are numbers: random bytes hold NaNs, and values far from one another
    that drown a difference of the others."""
    made = make(op, case)
    random = torch.Generator().manual_seed(11)
    for name, tensor in made.call.tensors.items():
        if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            values = torch.randn(tensor.shape, generator=random)
            made.call.tensors[name] = values.to(tensor.dtype)
    return made


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


def refusal(backend: str, op: str, case: dict) -> str:
    """Why a Python backend's implementation does not take a case; "" if it does."""
    implementation = _backends.implementation(backend, op)
    if implementation.refuses is None:
        return ""
    made = make(_contract.op(op), case)
    form = made.form()
    return _python_ops.refusal(form, implementation, *made.arguments(form))


DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def takes(case: Case, device: str) -> bool:
    """Whether the library has an implementation that takes the call on this device."""
    if not any(i["device"] == device for i in contracts()[case.op.name]["implementations"]):
        return False
    if device == "cpu":
        return True  # there is a reference
    tensors = {n: t.to(device) for n, t in case.call.tensors.items()}
    call = Call(case.op, tensors, case.call.attributes)
    call.asked = case.asked
    return any(not v.refusal for v in _why._library_verdicts(device, call, case.asked))


@cache
def runs_on(form: Form, device: str) -> bool:
    """Whether some small case calls the form there."""
    try:
        return first_case(form, device) is not None
    except LookupError:
        return False


@cache
def functional_calls() -> list[tuple[Form, str]]:
    """(form, device) of every functional form that some small case calls, where it runs."""
    forms = [form for form in forms_with_a_case() if form.kind == "functional"]
    return [(form, device) for form in forms for device in DEVICES if runs_on(form, device)]


def call_on(form: Form, device: str) -> tuple[tuple, dict]:
    """Arguments of a small call of a form, on a device."""
    case = first_case(form, device)
    return case.arguments(form, **{n: t.to(device) for n, t in case.call.tensors.items()})


def outputs_of(made) -> list[torch.Tensor]:
    return list(made) if isinstance(made, tuple | list) else [made]


def assert_same(got, expected) -> None:
    """Two results of a call, bit for bit but for NaNs."""
    for mine, tensor in zip(outputs_of(got), outputs_of(expected), strict=True):
        assert (mine.dtype, mine.shape, mine.device) == (tensor.dtype, tensor.shape, tensor.device)
        same = bits(mine) == bits(tensor)
        if tensor.dtype in _GRIDS:
            same |= mine.isnan() & tensor.isnan()
        assert same.all()


@cache
def first_case(form: Form, device: str = "cpu") -> Case:
    """A small case that the form takes there; NaNs and empty tensors are other tests' matter."""
    for tag in ("smoke", "edge"):
        for case in form.contract.cases:
            if tag not in case["tags"]:
                continue
            made = make(form.contract, case)
            if made.form(form.kind) == form and takes(made, device):
                return made
    raise LookupError(f"no case for {form.name} on {device}")


def bound_of(case: Case, name: str) -> dict | None:
    """The contract's bound of an output: {"c", "k"}; None where it is exact."""
    arg = next(a for a in contracts()[case.op.name]["args"] if a["name"] == name)
    return None if arg["bound"] == "exact" else arg["bound"]


def truth(case: Case, magnitudes: bool = False) -> dict[str, np.ndarray]:
    """Exact values of the bounded outputs, or their sums of |terms|, from the reference."""
    outputs = {n: case._array(n, t) for n, t in case.empty_outputs().items()}
    wide = {n: np.zeros(t.shape) for n, t in outputs.items() if bound_of(case, n)}
    inputs = {n: case._array(n, t) for n, t in case.call.tensors.items()}
    pestle_ctypes.reference(
        case.op.name, magnitudes, **(inputs | outputs | wide), **case.call.attributes
    )
    return wide


_GRIDS = {
    torch.float64: (52, -1022),
    torch.float32: (23, -126),
    torch.float16: (10, -14),
    torch.bfloat16: (7, -126),
}


def _ulp(dtype: torch.dtype, want: np.ndarray) -> np.ndarray:
    mantissa, smallest = _GRIDS[dtype]
    known = np.where(np.isfinite(want) & (want != 0), want, 2.0**smallest)
    return np.exp2(np.maximum(np.frexp(known)[1] - 1, smallest) - float(mantissa))


def outside_of_bound(case: Case, name: str, got: torch.Tensor) -> np.ndarray:
    """Elements of a bounded output that break the contract, by the rule of harness/compare.cpp."""
    want, terms = truth(case)[name], truth(case, magnitudes=True)[name]
    bound = bound_of(case, name)
    # The number of terms may be said of outputs.
    whole = Call(case.op, case.call.tensors | case.empty_outputs(), case.call.attributes)
    whole.values = case.call.values
    k = max(int(whole.evaluate(bound["k"])), 0)
    mine = got.double().numpy()
    allowed = _ulp(got.dtype, want) + bound["c"] * k**0.5 * 2.0**-24 * terms + k * 2.0**-149
    may_overflow = ~(terms <= torch.finfo(torch.float32).max / 2)
    with np.errstate(invalid="ignore"):
        fine = np.abs(mine - want) <= allowed
        at_the_end = np.abs(want) + allowed > torch.finfo(got.dtype).max
    is_infinite = np.isinf(mine) & np.isfinite(want)
    fine |= is_infinite & (may_overflow | (at_the_end & (np.signbit(mine) == np.signbit(want))))
    fine |= may_overflow & ~(terms <= np.finfo(np.float64).max)
    fine = np.where(np.isinf(want), mine == want, fine)
    fine |= may_overflow & np.isnan(mine)  # two partial sums may be infinities
    return ~np.where(np.isnan(want), np.isnan(mine), fine)


def assert_holds(case: Case, got: dict, expected: dict) -> None:
    """What the contract promises: exact outputs are those expected (any NaN for a NaN in f32, f16
    and bf16), bounded ones as near to the reference as it says. Codes of the call's own output are
    assert_codes' matter."""
    codes = {arg["name"] for arg in contracts()[case.op.name]["args"] if "codes_by" in arg}
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        mine = got[name]
        assert (mine.dtype, mine.shape) == (tensor.dtype, tensor.shape), name
        if name in codes:
            continue
        same = bits(mine) == bits(tensor)
        if tensor.dtype in _GRIDS:
            same |= mine.isnan() & tensor.isnan()
        if not same.all() and bound_of(case, name):
            # numpy makes a number of an array that has no dimensions
            same |= torch.from_numpy(np.asarray(~outside_of_bound(case, name, mine)))
        if not same.all():
            at = tuple((~same).nonzero()[0].tolist())
            raise AssertionError(
                f"{name}: {(~same).sum()} of {same.numel()} are wrong; {list(at)} is "
                f"{mine[at].item()!r} where the library has {tensor[at].item()!r}"
            )


def with_attribute(case: Case, name: str, value) -> Case:
    call = copy.copy(case.call)
    call.attributes = call.attributes | {name: value}
    call.values = call.values | {name: value}
    return Case(case.op, call, case.asked)


def _as_rows(value):
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    return value.reshape(math.prod(value.shape[:-1]), value.shape[-1])


def assert_codes(case: Case, got: dict, run) -> None:
    """Outputs that are another op's codes of the output that this implementation gave
    (core/codes.h): that op, run by the library on that output, gives the same bits. `run` makes a
    case's outputs as `got` was made."""
    rules = {arg["name"]: arg.get("codes_by") for arg in contracts()[case.op.name]["args"]}
    for arg in case.outputs():
        if not rules[arg.name]:
            continue
        keep, *by_label = (part.strip() for part in rules[arg.name].split(";"))
        rule = dict(part.split(": ") for part in by_label)[case.call.attributes[arg.by]]
        op, *words = rule.split()
        made = run(with_attribute(case, keep, True))
        values = made | case.call.tensors | case.call.attributes
        pairs = (word.split("=") for word in words)
        given = {
            key: _as_rows(values.get(text, text)) for key, text in pairs
            if text in values or text not in case.op.by_name
        }  # fmt: skip
        with torch.no_grad():
            outputs = getattr(pestle, op)(**given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        codes = outputs[("q", "scale_out").index(arg.name)]
        for mine in (made[arg.name], got[arg.name]):
            assert torch.equal(bits(mine).view(-1), bits(codes).view(-1)), arg.name
