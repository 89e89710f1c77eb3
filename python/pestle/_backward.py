"""How the gradients of an op are computed: the strings of its contract's backward, read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from ._contract import Op, split_dims
from ._contract import op as contract_of

_CALL = re.compile(r"(\w+)\((.*)\)")


@dataclass(frozen=True)
class Tensor:
    """What a call is given: an argument of the forward call, a gradient, another call's output."""

    argument: str = ""  # of the forward call
    gradient_of: str = ""  # an output of the forward call
    rows_of: Tensor | None = None  # as a matrix: all dimensions but the last as one
    step: Step | None = None  # the one output of this call

    def parts(self) -> Iterator[Tensor]:
        """This one and those that it is made of."""
        yield self
        inner = self.step.tensors.values() if self.step else filter(None, [self.rows_of])
        for tensor in inner:
            yield from tensor.parts()


@dataclass(frozen=True)
class Step:
    """One call of an op."""

    text: str
    op: Op
    tensors: dict[str, Tensor]
    attributes: dict[str, str]  # expressions over the forward call's attributes, or labels
    wanted: dict[str, str]  # attributes that say whether this input's gradient is asked for
    like: Tensor | None = None  # whose dtype the output has


@dataclass(frozen=True)
class Backward:
    """A contract's backward."""

    step: Step
    steps: tuple[Step, ...]  # this one and those that it and `gives` need
    gives: dict[str, Tensor | str]  # input of the forward call -> tensor, or output of the step
    kept: tuple[str, ...]  # arguments and outputs of the forward call that the calls need
    outputs: frozenset[str]  # of the forward call, whose gradients are used
    only_if: str  # condition on the forward call; "": always
    why_not: str  # what to say when it does not hold

    @property
    def op(self) -> Op:
        return self.step.op


def _tensor(forward: Op, text: str) -> Tensor:
    call, separator, like = text.partition(") as ")
    found = _CALL.fullmatch(call + separator[:1])
    if found is None:
        return Tensor(argument=text)
    function, inside = found.groups()
    if function == "grad":
        return Tensor(gradient_of=inside.strip())
    if function == "rows":
        return Tensor(rows_of=_tensor(forward, inside.strip()))
    return Tensor(step=_step(forward, function, inside, _tensor(forward, like) if like else None))


def _pairs(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in split_dims(text))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _step(forward: Op, op: str, call: str, like: Tensor | None = None) -> Step:
    back = contract_of(op)
    shared = {arg.name for arg in forward.of_role("attribute")}
    attributes = {a.name: a.name for a in back.of_role("attribute") if a.name in shared}
    tensors, wanted = {}, {}
    for name, text in _pairs(call).items():
        if text.startswith("wanted("):
            wanted[name] = text.removeprefix("wanted(").removesuffix(")")
        elif back.by_name[name].role == "attribute":
            attributes[name] = text
        else:
            tensors[name] = _tensor(forward, text)
    return Step(f"{op}({call})", back, tensors, attributes, wanted, like)


@cache
def backward_of(forward: Op) -> Backward | None:
    """How the gradients of an op are computed; None if it has none."""
    said = forward.backward
    if not said["op"]:
        return None
    step = _step(forward, said["op"], said["call"])
    gives = {
        name: _tensor(forward, text) if "(" in text else text
        for name, text in _pairs(said["gives"]).items()
    }
    used = [*step.tensors.values(), *(t for t in gives.values() if isinstance(t, Tensor))]
    parts = [part for tensor in used for part in tensor.parts()]
    kept = dict.fromkeys(part.argument for part in parts if part.argument)
    outputs = frozenset(part.gradient_of for part in parts if part.gradient_of)
    condition, _, why_not = said.get("why_not", "").removeprefix("unless ").partition(": ")
    steps = (step, *(part.step for part in parts if part.step))
    return Backward(step, steps, gives, tuple(kept), outputs, condition, why_not)
