"""Every case of every contract through torch.ops, against the C ABI and the contract's shapes."""

import cases
import pytest
import torch
from pestle import _contract
from pestle._forms import all_forms

every_case = pytest.mark.parametrize(("name", "case"), cases.all_cases(), ids=cases.case_id)


def run(case: cases.Case, kind: str = "functional", **replaced):
    form = case.form(kind)
    args, kwargs = case.arguments(form, **replaced)
    result = form.overload(*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    return dict(zip(form.outputs, outputs, strict=True)) if kind == "functional" else None


def assert_same_bits(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert torch.equal(cases.bits(got[name]), cases.bits(tensor)), name


@every_case
def test_same_as_the_c_abi(name, case):
    case = cases.make(_contract.op(name), case)
    expected = case.expected()
    before = {name: tensor.clone() for name, tensor in case.call.tensors.items()}
    with torch.inference_mode():
        assert_same_bits(run(case), expected)
        assert_same_bits(case.call.tensors, before)
        given = case.empty_outputs()
        run(case, "out", **given)
    assert_same_bits(given, expected)


@pytest.mark.parametrize(("name", "case"), cases.in_place_cases(), ids=cases.case_id)
def test_in_place(name, case):
    case = cases.make(_contract.op(name), case)
    form = case.in_place_form()
    written = {alias: case.call.tensors[alias].clone() for alias in form.aliases}
    expected = case.expected()
    run(case, "in_place", **written)
    got = {
        output: written[alias].view(expected[output].dtype)
        for output, alias in zip(form.outputs, form.aliases, strict=True)
    }
    assert_same_bits(got, expected)


@every_case
def test_meta_tensors_have_the_real_shapes(name, case):
    case = cases.make(_contract.op(name), case)
    real = run(case)
    meta = run(case, **{n: t.to("meta") for n, t in case.call.tensors.items()})
    for output, tensor in real.items():
        assert meta[output].shape == tensor.shape
        assert meta[output].dtype == tensor.dtype
        assert meta[output].stride() == tensor.stride()


def test_every_in_place_form_has_a_case():
    forms = {form.op for form in all_forms() if form.kind == "in_place"}
    assert {name for name, _ in cases.in_place_cases()} == forms


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between elements, rows and the start of the memory."""
    if tensor.ndim == 0:
        return tensor
    shape = [size + 1 for size in tensor.shape]
    room = torch.zeros([*shape[:-1], 2 * shape[-1]], dtype=torch.uint8).new_empty(
        [*shape[:-1], 2 * shape[-1]], dtype=tensor.dtype
    )
    view = room[(slice(1, None),) * (tensor.ndim - 1)][..., 2::2]
    view.copy_(tensor)
    return view


@every_case
def test_strided_inputs(name, case):
    case = cases.make(_contract.op(name), case)

    def strided(case):
        return run(case, **{n: spread(t) for n, t in case.call.tensors.items()})

    got = strided(case)
    cases.assert_holds(case, got, run(case))
    cases.assert_codes(case, got, strided)
