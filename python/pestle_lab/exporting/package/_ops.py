"""The kernel as ops of PyTorch: schema, fake outputs and gradients follow from contract.json."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import torch

from ._contract import Op
from ._shapes import Call
from .errors import InvalidArgumentError, UnsupportedError

_WHOLE = json.loads(Path(__file__).with_name("contract.json").read_text())
NAMESPACE = _WHOLE["namespace"]
_TYPES = {"int": "int", "float": "float", "bool": "bool", "choice": "str"}


def _default(value) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value)


def _layout(tensor: torch.Tensor, order: list[int]) -> str:
    """As contracts name it; `order` has the dimensions as they lie in memory, the slowest first."""
    laid = tensor.permute(order) if order else tensor
    if laid.is_contiguous():
        return "contiguous" if tensor.data_ptr() % 16 == 0 else "offset"
    return "transposed" if laid.ndim > 1 and laid.mT.is_contiguous() else "strided"


class Exported:
    """One kernel and the contract that it fulfils."""

    def __init__(self, said: dict):
        self.op, self.kernel, self.orders = Op.read(said["op"]), said["kernel"], said["orders"]
        self.inputs, self.outputs = self.op.of_role("input"), self.op.of_role("output")
        # Those that a caller may ask for in one of several dtypes.
        self.asked = [a.name for a in self.outputs if "|" in "".join(a.dtypes.values())]
        self.entry = None

    def schema(self, mutates: bool) -> str:
        words = [f"Tensor(a{i}!) {a.name}" for i, a in enumerate(self.outputs)] if mutates else []
        words += [f"Tensor {a.name}" for a in self.inputs if not a.optional]
        words += [f"Tensor? {a.name}=None" for a in self.inputs if a.optional]
        named = [
            f"{_TYPES[a.kind]} {a.name}={_default(a.default)}" for a in self.op.of_role("attribute")
        ]
        if not mutates:
            named += [f"ScalarType? {name}_dtype=None" for name in self.asked]
        given = ", ".join([*words, *(["*", *named] if named else [])])
        made = "()" if mutates else ", ".join("Tensor" for _ in self.outputs)
        return f"({given}) -> " + (made if mutates or len(self.outputs) == 1 else f"({made})")

    def names(self, mutates: bool) -> list[str]:
        """Of the schema's positional arguments."""
        first = [a.name for a in self.outputs] if mutates else []
        ordered = sorted(self.inputs, key=lambda a: a.optional)  # stable
        return first + [a.name for a in ordered]

    def call(self, args: tuple, named: dict, mutates: bool) -> tuple[Call, dict]:
        """The call with its symbols bound and its rules checked, and the given outputs."""
        given = dict(zip(self.names(mutates), args, strict=False)) | named
        outputs = {a.name: given.pop(a.name) for a in self.outputs} if mutates else {}
        tensors = {a.name: given.get(a.name) for a in self.inputs}
        attributes = {a.name: given.get(a.name, a.default) for a in self.op.of_role("attribute")}
        call = Call(self.op, tensors, attributes)
        call.asked = {n: d for n in self.asked if (d := given.get(f"{n}_dtype")) is not None}
        call.asked |= {n: t.dtype for n, t in outputs.items() if n in self.asked}
        call.bind()
        call.check()
        return call, outputs

    def empty(self, call: Call) -> dict[str, torch.Tensor]:
        first, made = next(iter(call.tensors.values())), {}
        for arg in self.outputs:
            shape, order = call.shape(arg), self.orders.get(arg.name) or []
            dtype = call.dtype(arg, call.asked.get(arg.name))
            if not order:
                made[arg.name] = torch.empty(shape, dtype=dtype, device=first.device)
                continue
            laid = torch.empty([shape[d] for d in order], dtype=dtype, device=first.device)
            made[arg.name] = laid.permute([order.index(d) for d in range(len(order))])
        return made

    def why_not(self, call: Call, outputs: dict) -> str:
        """Why the kernel, by its own words, does not take the call; empty if it does."""
        tensors = call.tensors | outputs
        first = self.inputs[0].name
        allowed, devices = self.kernel["dtypes"], self.kernel["devices"]
        if allowed and str(tensors[first].dtype) not in allowed:
            return f"{first} is {tensors[first].dtype}; the kernel takes {', '.join(allowed)}"
        known = self.kernel["parameters"]
        for name, tensor in tensors.items():
            if known is not None and name not in known:
                return f"{name} is given, and the kernel has no such argument"
            if tensor.device.type not in devices:
                return f"{name} is on {tensor.device}; the kernel needs {' or '.join(devices)}"
        for condition in self.kernel["constraints"]:
            if not condition.startswith("memory "):
                if not call.evaluate(condition):
                    return f"the kernel needs {condition}"
                continue
            layouts = condition.removeprefix("memory ").split("|")
            for name, tensor in tensors.items():
                found = _layout(tensor, self.orders.get(name) or [])
                if found not in layouts:
                    return f"{name} is {found}; the kernel takes {', '.join(layouts)}"
        return ""

    def launch(self, call: Call, outputs: dict) -> None:
        if why := self.why_not(call, outputs):
            raise UnsupportedError(f"{self.op.name}: {why}")
        if self.entry is None:
            self.entry = self._load()
        device = next(iter(outputs.values())).device
        if device.type == "cuda":
            with torch.cuda.device(device):
                self.entry(outputs, call)
        else:
            self.entry(outputs, call)

    def _load(self):
        module = importlib.import_module(f".{self.kernel['module']}", __package__)
        if self.kernel["language"] in ("cuda", "cpp"):
            return module.entry(self.kernel, self.op)
        function = getattr(module, self.kernel["entry"])
        return lambda outputs, call: function(**outputs, **call.tensors, **call.attributes)

    def functional(self, *args, **named):
        call, _ = self.call(args, named, False)
        made = self.empty(call)
        self.launch(call, made)
        return tuple(made.values()) if len(made) > 1 else next(iter(made.values()))

    def fake(self, *args, **named):
        made = tuple(self.empty(self.call(args, named, False)[0]).values())
        return made if len(made) > 1 else made[0]

    def out(self, *args, **named) -> None:
        call, outputs = self.call(args, named, True)
        for arg in self.outputs:
            wanted, given = call.shape(arg), outputs[arg.name]
            dtype = call.dtype(arg, call.asked.get(arg.name))
            if tuple(given.shape) != tuple(wanted) or given.dtype != dtype:
                raise InvalidArgumentError(
                    f"{self.op.name}: {arg.name} is {given.dtype}{list(given.shape)}, expected "
                    f"{dtype}{list(wanted)}"
                )
        self.launch(call, outputs)


def _register(exported: Exported, name: str):
    library = torch.library
    run = library.custom_op(
        f"{NAMESPACE}::{name}", exported.functional, mutates_args=(),
        schema=exported.schema(False),
    )  # fmt: skip
    run.register_fake(exported.fake)
    out = library.custom_op(
        f"{NAMESPACE}::{name}_out", exported.out,
        mutates_args=[a.name for a in exported.outputs], schema=exported.schema(True),
    )  # fmt: skip
    out.register_fake(lambda *args, **named: exported.call(args, named, True) and None)
    return run, out


def _differentiate(run, forward: Exported, backward: Exported, gradients) -> None:
    """`gradients` is the backward kernel's op; its arguments are named after the forward's."""
    positions = {name: i for i, name in enumerate(forward.names(False))}
    outputs = {a.name: i for i, a in enumerate(forward.outputs)}
    attributes = {a.name for a in backward.op.of_role("attribute")}

    def keep(ctx, inputs, output, keyword_only_inputs=None):
        made = output if isinstance(output, tuple) else (output,)
        names = [n for n in backward.names(False) if n in positions or n in outputs]
        tensors = [inputs[positions[n]] if n in positions else made[outputs[n]] for n in names]
        ctx.save_for_backward(*tensors)
        ctx.names, named = names, keyword_only_inputs or {}
        ctx.attributes = {n: v for n, v in named.items() if n in attributes}

    def back(ctx, *grads):
        known = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        known |= {f"d_{name}": grads[i].contiguous() for name, i in outputs.items()}
        given = [known.get(name) for name in backward.names(False)]
        made = gradients(*given, **ctx.attributes)
        made = made if isinstance(made, tuple) else (made,)
        found = {a.name: t for a, t in zip(backward.outputs, made, strict=True)}
        answer = tuple(found.get(f"d_{name}") for name in positions)
        return answer if len(answer) > 1 else answer[0]

    run.register_autograd(back, setup_context=keep)


_forward = Exported(_WHOLE["forward"])
run, run_out = _register(_forward, "run")
if _WHOLE["backward"]:
    _backward = Exported(_WHOLE["backward"])
    _differentiate(run, _forward, _backward, _register(_backward, "run_backward")[0])


def takes(*args, **named) -> str:
    """Why `run` would refuse these arguments; empty if it takes them."""
    try:
        call, _ = _forward.call(args, named, False)
    except InvalidArgumentError as error:
        return str(error)
    return _forward.why_not(call, {})
