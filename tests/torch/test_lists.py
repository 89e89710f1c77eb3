"""Ops whose arguments are lists of tensors (docs/contract.md): every case, position by position the
library's results through the C ABI, on each backend and device there is. No op is named."""

import cases
import pestle
import pestle_ctypes
import pytest
import torch
from pestle import _backends, _contract, _python_ops
from pestle._forms import TENSORS, forms_of

DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
OPS = [name for name in pestle.list_ops() if _contract.op(name).has_lists]


def runs_on(name: str, device: str) -> bool:
    return any(i["device"] == device for i in _contract.op(name).implementations)


on_each_device = pytest.mark.parametrize(
    ("name", "device"), [(n, d) for n in OPS for d in DEVICES if runs_on(n, d)]
)


def position_texts(text: str) -> list[str]:
    """A case with lists as cases of its positions: "M=3,5 K=8 length=4" has four of them."""
    words = dict(word.split("=", 1) for word in text.split())
    length = int(words.pop("length", 0))
    values = {key: value.split(",") for key, value in words.items()}
    count = length or max(len(value) for value in values.values())
    return [
        " ".join(f"{key}={value[i % len(value)]}" for key, value in values.items())
        for i in range(count)
    ]


class ListCase:
    """A case as lists of what its positions are; single tensors are the first position's. Inputs
    lie on `device`, what is expected on the CPU."""

    def __init__(self, name: str, case: dict, device: str = "cpu"):
        self.op = _contract.op(name)
        self.each = [cases.make(self.op, case | {"text": t}) for t in position_texts(case["text"])]
        self.attributes = self.each[0].call.attributes
        self.names = tuple(arg.name for arg in self.each[0].outputs())
        self.on_cpu = self._joined([one.call.tensors for one in self.each])
        self.inputs = changed(self.on_cpu, lambda t: t.to(device))

    def _joined(self, each: list[dict]) -> dict:
        return {
            name: [one[name] for one in each] if self.op.by_name[name].is_list else first
            for name, first in each[0].items()
        }

    def empty_outputs(self) -> dict:
        return self._joined([one.empty_outputs() for one in self.each])

    def expected(self) -> dict:
        outputs = self.empty_outputs()
        values = {
            name: [self.each[0]._array(name, t) for t in tensors]
            if isinstance(tensors, list)
            else self.each[0]._array(name, tensors)
            for name, tensors in (self.on_cpu | outputs).items()
        }
        pestle_ctypes.call(self.op.name, **values, **self.attributes)
        return outputs

    def asked(self) -> dict | None:
        """Dtypes of outputs for the whole call; None where positions want several."""
        result = {}
        for arg in self.each[0].outputs():
            dtypes = {one.dtype(arg) for one in self.each}
            if len(dtypes) > 1:
                return None
            result[arg.name] = dtypes.pop()
        return result

    def run(self, space: str, kind: str = "functional", **replaced) -> dict:
        form = next(f for f in forms_of(self.op.name, kind) if f.outputs == self.names)
        values, args, kwargs = self.inputs | replaced, [], {}
        for slot, name, keyword in form.arguments:
            if slot == "dtype":
                kwargs[keyword] = self.asked()[name]
            elif slot not in TENSORS:
                kwargs[keyword] = self.attributes[name]
            elif self.op.by_name[name].role == "output":
                kwargs[keyword] = values[name]
            else:
                args.append(values.get(name))
        made = _python_ops.overloads(form)[space](*args, **kwargs)
        if kind == "out":
            return {name: values[name] for name in self.names}
        return dict(zip(self.names, made if len(self.names) > 1 else (made,), strict=True))


def changed(tensors: dict, change) -> dict:
    return {
        name: [change(t) for t in value] if isinstance(value, list) else change(value)
        for name, value in tensors.items()
    }


def assert_same(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, tensors in expected.items():
        assert len(got[name]) == len(tensors)
        for position, (mine, theirs) in enumerate(zip(got[name], tensors, strict=True)):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            same = cases.bits(mine.cpu()) == cases.bits(theirs)
            if theirs.dtype == torch.float32:
                same |= mine.cpu().isnan() & theirs.isnan()
            assert same.all(), f"{name}[{position}]"


every_case = pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in OPS for case in _contract.op(name).cases
     if {"smoke", "edge"} & set(case["tags"])],
    ids=cases.case_id,
)  # fmt: skip


def spaces(name: str, device: str) -> list[str]:
    """Namespaces of the backends that have the op for the device."""
    found = [_python_ops.namespace(backend) for backend in _backends.PYTHON
             if not _backends.refusal(backend, name, torch.device(device))]  # fmt: skip
    return [*found, "pestle"] if runs_on(name, device) else found


@every_case
@pytest.mark.parametrize("device", DEVICES)
def test_same_as_the_c_abi(name, case, device):
    case = ListCase(name, case, device)
    expected = case.expected()
    for space in spaces(name, device):
        given = case.inputs
        before = changed(given, torch.clone)
        if case.asked() is not None:
            assert_same(case.run(space, **given), expected)
        if case.asked() is not None or space == "pestle":
            outputs = changed(case.empty_outputs(), lambda t: t.to(device))
            assert_same(case.run(space, "out", **given, **outputs), expected)
        for argument, tensors in before.items():
            for one, other in zip(given[argument], tensors, strict=True):
                assert torch.equal(cases.bits(one), cases.bits(other)), argument


@every_case
def test_meta_tensors_have_the_real_shapes(name, case):
    case = ListCase(name, case)
    if case.asked() is None:
        return
    meta = case.run("pestle", **changed(case.inputs, lambda t: t.to("meta")))
    for output, tensors in case.run("pestle").items():
        for real, other in zip(tensors, meta[output], strict=True):
            assert (real.shape, real.dtype, real.stride()) == (
                other.shape, other.dtype, other.stride()
            )  # fmt: skip


@on_each_device
def test_strided_tensors(name, device):
    case = ListCase(name, _contract.op(name).cases[0], device)
    rows = changed(case.inputs, lambda t: t.transpose(0, -1).contiguous().transpose(0, -1))
    assert_same(case.run("pestle", **rows), case.expected())


@on_each_device
def test_opcheck(name, device):
    for row in _contract.op(name).cases[:3]:
        case = ListCase(name, row, device)
        if case.asked() is None:
            continue
        form = next(f for f in forms_of(name) if f.outputs == case.names)
        args = tuple(case.inputs[n] for kind, n, _ in form.arguments if kind in TENSORS)
        options = {k: case.attributes[n] for kind, n, k in form.arguments
                   if kind not in (*TENSORS, "dtype")}  # fmt: skip
        # test_schema can't compare float8 tensors.
        torch.library.opcheck(form.overload, args, options, test_utils=(
            "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
        ))  # fmt: skip


@on_each_device
def test_compiled(name, device):
    case = ListCase(name, _contract.op(name).cases[0], device)
    function = getattr(pestle, name)

    def call(x):
        made = function(x)
        return made if len(case.names) > 1 else (made,)

    first = next(iter(case.inputs.values()))
    compiled = torch.compile(call, fullgraph=True)
    assert_same(dict(zip(case.names, compiled(first), strict=True)), case.expected())


@pytest.mark.parametrize("name", OPS)
def test_lists_that_do_not_go_in_step_are_refused(name):
    case = ListCase(name, _contract.op(name).cases[0])
    function = getattr(pestle, name)
    x = next(iter(case.inputs.values()))
    for backend in (None, "eager"):
        with pytest.raises(pestle.InvalidArgumentError, match="at least one"):
            function([], backend=backend)
    other = next(arg for arg in case.op.of_role("input")[1:] if arg.is_list)
    if other.optional:
        given = [torch.ones(1) for _ in x]
        with pytest.raises(pestle.InvalidArgumentError, match="tensors, the other lists"):
            function(x, given[:-1])
        given[-1] = torch.ones(2)
        with pytest.raises(pestle.InvalidArgumentError, match=f"position {len(x) - 1}"):
            function(x, given)


@on_each_device
def test_why(name, device):
    case = ListCase(name, _contract.op(name).cases[0], device)
    x = next(iter(case.inputs.values()))
    assert pestle.why(name, x, backend=("cuda", "cpu")).chosen.startswith(f"{device}/")
    assert pestle.why(name, x, backend="eager").chosen == f"eager/{name}"
    with pytest.raises(pestle.InvalidArgumentError, match="at least one"):
        pestle.why(name, [])


@on_each_device
def test_a_remembered_call_sees_new_lists(name, device):
    """Plans are remembered by shapes: longer, shorter and reordered lists are others."""
    case = ListCase(name, _contract.op(name).cases[0], device)
    x = next(iter(case.inputs.values()))
    function = getattr(pestle, name)
    whole = case.expected()
    for _ in range(3):
        for order in ([0, 1, 2], [2, 1, 0], [1], [0, 0, 1]):
            with torch.no_grad():
                made = function([x[i] for i in order])
            made = made if len(case.names) > 1 else (made,)
            expected = {n: [whole[n][i] for i in order] for n in case.names}
            assert_same(dict(zip(case.names, made, strict=True)), expected)
