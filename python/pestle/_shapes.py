"""Binds a contract's symbols from shapes and gives its outputs theirs: what core/contract.cpp does,
over integers and over torch's symbolic ones."""

from __future__ import annotations

import re

import torch

from ._contract import DTYPE_NAMES, DTYPES, Arg, Op, split_dims
from .errors import InvalidArgumentError

_NAME = re.compile(r"[A-Za-z_]\w*")
_PACKED_FP4 = getattr(torch, "float4_e2m1fn_x2", None)
_RATIO = re.compile(r"([A-Za-z_]\w*)\s*/\s*(\d+)")
_MULTIPLE = re.compile(r"(\d+)\s*\*\s*([A-Za-z_]\w*)")


class _Tensors:
    """What expressions may ask of tensors."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        self._tensors = tensors

    def bytes(self, name: str) -> int:
        return self._tensors[name].element_size()

    def numel(self, name: str):
        return self._tensors[name].numel()

    def rank(self, name: str) -> int:
        return self._tensors[name].ndim

    def size(self, name: str, dim: int):
        return self._tensors[name].shape[dim]

    def broadcasts(self, name: str, to: str) -> bool:
        """Each dimension, counted from the last, is 1 or the other tensor's."""
        a, b = self._tensors[name].shape, self._tensors[to].shape
        if len(a) > len(b):
            return False
        pairs = zip(reversed(a), reversed(b), strict=False)
        return all(bool(one == 1) or bool(one == other) for one, other in pairs)


class Call:
    """One call of an op: tensors by argument, attributes by name, and the symbols they bind."""

    def __init__(self, op: Op, tensors: dict[str, torch.Tensor], attributes: dict):
        self.op = op
        self.tensors = {name: t for name, t in tensors.items() if t is not None}
        self.attributes = attributes
        self.values = dict(attributes)
        self.packs: dict[str, tuple] = {}
        self.asked: dict[str, torch.dtype] = {}  # dtypes of outputs that the caller names
        self._asked = _Tensors(self.tensors)

    def positions(self) -> list[Call]:
        """A call with lists as calls of its positions; any other as itself. Lists that do not go in
        step are refused."""
        if not self.op.has_lists:
            return [self]
        lists = {name: t for name, t in self.tensors.items() if self.op.by_name[name].is_list}
        for name, tensors in lists.items():
            arg = self.op.by_name[name]
            if not isinstance(tensors, list | tuple):
                raise self.error(arg, "must be a list of tensors")
            if not tensors:
                raise self.error(arg, "has no tensors: a list has at least one")
        lengths = {name: len(tensors) for name, tensors in lists.items()}
        for name, length in lengths.items():
            first = next(iter(lengths.values()))
            if length != first:
                arg = self.op.by_name[name]
                raise self.error(arg, f"has {length} tensors, the other lists {first}")
        calls = []
        for position in range(max(lengths.values(), default=0)):
            own = {n: t[position] if n in lists else t for n, t in self.tensors.items()}
            call = Call(self.op, own, self.attributes)
            call.asked = self.asked
            calls.append(call)
        return calls

    def error(self, arg: Arg, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.op.name}: {arg.name} {what}")

    def evaluate(self, text: str):
        return self.op.expression(text)(self.values, self.tensors, self._asked)

    def wants(self, arg: Arg) -> bool:
        if arg.present_if:
            return bool(self.evaluate(arg.present_if))
        return arg.role == "output" or not arg.optional or arg.name in self.tensors

    def sizes(self, arg: Arg) -> tuple:
        tensor = self.tensors[arg.name]
        return (1,) if tensor.ndim == 0 and arg.lifts_scalar else tuple(tensor.shape)

    def bind(self) -> None:
        inputs = [arg for arg in self.op.of_role("input") if arg.name in self.tensors]
        for ratios in (False, True):
            for arg in inputs:
                self._bind_one(arg, ratios)

    def _bind_one(self, arg: Arg, ratios: bool) -> None:
        dims = split_dims(arg.shape_text(self.attributes))
        sizes = self.sizes(arg)
        if dims and dims[0].startswith("reduced("):
            return  # says nothing of the dimensions that are gone
        pack = dims[0][1:] if dims and dims[0].startswith("*") else None
        fixed = dims[1:] if pack else dims
        if len(sizes) < len(fixed) or (pack is None and len(sizes) != len(fixed)):
            raise self.error(arg, f"has {len(sizes)} dimensions, expected [{', '.join(dims)}]")
        lead = len(sizes) - len(fixed)
        if pack and pack not in self.packs:
            self.bind_pack(pack, sizes[:lead])
        for text, size in zip(fixed, sizes[lead:], strict=True):
            if _NAME.fullmatch(text):
                self.values.setdefault(text, size)
            elif ratios and (ratio := _RATIO.fullmatch(text)):
                self.values.setdefault(ratio[1], size * int(ratio[2]))
            elif ratios and (multiple := _MULTIPLE.fullmatch(text)):
                self.values.setdefault(multiple[2], size // int(multiple[1]))

    def bind_pack(self, name: str, dims: tuple) -> None:
        self.packs[name] = dims
        product = 1
        for dim in dims:
            product = product * dim
        self.values[name] = product

    def shape(self, arg: Arg) -> tuple:
        """The shape that the contract gives an argument for the bound symbols."""
        dims: list = []
        for text in split_dims(arg.shape_text(self.attributes)):
            if text.startswith("*"):
                dims += self.packs[text[1:]]
            elif text.startswith("reduced("):
                dims += self._reduced(arg, *split_dims(text[len("reduced(") : -1]))
            else:
                dims.append(self.evaluate(text))
        return tuple(dims)

    def _reduced(self, arg: Arg, pack: str, dims: str, keepdim: str) -> list:
        """What reduced(*S, dims, keepdim) leaves of a pack: dims has a bit for each dimension."""
        # The rank depends on them: under torch.compile they are constants of the graph.
        sizes, gone, keep = self.packs[pack[1:]], int(self.evaluate(dims)), self.evaluate(keepdim)
        if gone != -1 and (gone < 0 or gone >> len(sizes) != 0):
            raise self.error(
                arg, f"has no shape: {dims} is {gone}, expected a bit for each of {len(sizes)} "
                "dimensions to reduce (bit 0 is the first), or -1 for all"
            )  # fmt: skip
        is_gone = [gone >> d & 1 for d in range(len(sizes))]
        return [
            1 if out else size for size, out in zip(sizes, is_gone, strict=True) if keep or not out
        ]

    def dtype(self, arg: Arg, asked: torch.dtype | None = None) -> torch.dtype:
        """An output's dtype: what is asked for, what another argument has, or the first allowed."""
        text = arg.dtype_text(self.attributes)
        if text.startswith("=") and (asked is None or "|" not in text):
            other = self.op.by_name[text[1:].partition("|")[0]]
            if other.role == "output" and other.name not in self.tensors:
                return self.dtype(other, self.asked.get(other.name))
            return self.allowed_dtypes(arg)[0]
        if asked is None:
            return DTYPES[text.split("|")[0]]
        if asked not in self.allowed_dtypes(arg):
            raise self.error(arg, f"has dtype {DTYPE_NAMES.get(asked, asked)}, expected {text}")
        return asked

    def allowed_dtypes(self, arg: Arg) -> list[torch.dtype]:
        text = arg.dtype_text(self.attributes)
        first, *others = text.split("|")
        if first.startswith("="):
            same, allowed = self.dtype_of(self.op.by_name[first[1:]]), [DTYPES[n] for n in others]
            return [same] if not allowed else sorted(allowed, key=lambda dtype: dtype != same)
        return [DTYPES[name] for name in (first, *others)]

    def dtype_of(self, arg: Arg) -> torch.dtype:
        dtype = self.tensors[arg.name].dtype
        if dtype == torch.uint8 and arg.bytes_stand_for is not None:
            return arg.bytes_stand_for
        return torch.uint8 if dtype == _PACKED_FP4 else dtype

    def check(self) -> None:
        """Presence, dtypes, shapes and constraints of the inputs."""
        for arg in self.op.of_role("input"):
            present = arg.name in self.tensors
            if present != self.wants(arg):
                rule = f" when {arg.present_if}" if arg.present_if else ""
                raise self.error(
                    arg, f"is given, but belongs to a call only{rule}" if present else
                    f"is missing{rule}: {arg.doc}"
                )  # fmt: skip
            if present:
                self._check_input(arg)
        for condition, sentence in self.op.constraints:
            _require(self.evaluate(condition), f"{self.op.name}: {sentence} (needs {condition})")

    def _check_input(self, arg: Arg) -> None:
        text, dtype = arg.dtype_text(self.attributes), self.dtype_of(arg)
        if dtype not in self.allowed_dtypes(arg):
            raise self.error(arg, f"has dtype {DTYPE_NAMES.get(dtype, dtype)}, expected {text}")
        sizes, expected = self.sizes(arg), self.shape(arg)
        rule = arg.shape_text(self.attributes)
        if len(sizes) != len(expected):
            raise self.error(arg, f"has shape {list(sizes)}, expected [{rule}]")
        for size, wanted in zip(sizes, expected, strict=True):
            _require(size == wanted, f"{self.op.name}: {arg.name} does not have shape [{rule}]")


def _require(condition, sentence: str) -> None:
    """A symbolic condition becomes a guard, or a run-time check if nothing decides it yet."""
    if isinstance(condition, torch.SymBool):
        torch._check(condition, lambda: sentence)
    elif not condition:
        raise InvalidArgumentError(sentence)
