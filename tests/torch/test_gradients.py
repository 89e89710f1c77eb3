"""Gradients of every op that has a backward, by walking the table: against finite differences of
the op itself, between dtypes and between backends."""

import cases
import pestle
import pytest
import torch
from pestle import _contract
from pestle._backward import backward_of
from pestle._contract import DTYPE_NAMES

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def in_dtype(op, case: dict, dtype: torch.dtype) -> dict:
    """The case with every tensor that has a gradient, and the outputs, in one dtype if allowed."""
    words = dict(word.split("=", 1) for word in case["text"].split())
    plan = backward_of(op)
    made = cases.make_with_numbers(op, case)
    there = {*made.call.tensors, *(arg.name for arg in made.outputs())}
    for name in (*plan.gives, *plan.outputs):
        arg = op.by_name[name]
        follows = arg.dtypes.get("", "").startswith("=")  # another argument that is changed too
        allowed = follows or DTYPE_NAMES[dtype] in "|".join(arg.dtypes.values()).split("|")
        if name in there and allowed and not (follows and name not in words):
            words[name] = DTYPE_NAMES[dtype]
    return case | {"text": " ".join(f"{key}={value}" for key, value in words.items())}


def differentiable(case: cases.Case) -> dict[str, torch.Tensor]:
    plan = backward_of(case.op)
    return {n: case.call.tensors[n] for n in plan.gives if n in case.call.tensors}


def is_differentiable(op, case: dict) -> bool:
    """Whether gradients are of floats, and all that the backward op requires is returned."""
    plan = backward_of(op)
    made = cases.make_with_numbers(op, case)
    returned = {arg.name for arg in made.outputs()}
    asked = {n: t.gradient_of for n, t in plan.step.tensors.items() if t.gradient_of}
    return (
        all(t.dtype in FLOATS for t in differentiable(made).values())
        and all(o in returned or plan.op.by_name[n].optional for n, o in asked.items())
        and (not plan.only_if or bool(made.call.evaluate(plan.only_if)))
    )


def smooth_cases():
    """(op, case) of every small case of ops with a backward whose data has finite gradients."""
    return [
        (name, case)
        for name, case in cases.all_cases()
        if backward_of(op := _contract.op(name))
        and case["data"] == "normal"
        and is_differentiable(op, case)
    ]


every_case = pytest.mark.parametrize(("name", "case"), smooth_cases(), ids=cases.case_id)


def call(case: cases.Case, tensors: dict, namespace: str = "pestle") -> dict:
    form = case.form()
    args, kwargs = case.arguments(form, **tensors)
    name, _, variant = form.name.partition(".")
    made = getattr(getattr(getattr(torch.ops, namespace), name), variant or "default")(
        *args, **kwargs
    )
    return dict(zip(form.outputs, made if isinstance(made, tuple) else (made,), strict=True))


def compiled_call(case: cases.Case, leaves: dict) -> dict:
    form = case.form()
    overload = form.overload
    args, kwargs = case.arguments(form)
    tensors = [name for kind, name, _ in form.arguments if kind in ("tensor", "optional_tensor")]
    places = [tensors.index(name) for name in leaves]

    def run(*given):
        filled = list(args)
        for place, leaf in zip(places, given, strict=True):
            filled[place] = leaf
        return overload(*filled, **kwargs)

    made = torch.compile(run, fullgraph=True, backend="aot_eager")(*leaves.values())
    return dict(zip(form.outputs, made if isinstance(made, tuple) else (made,), strict=True))


def weights_of(case: cases.Case, outputs: dict) -> dict[str, torch.Tensor]:
    plan = backward_of(case.op)
    random = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(outputs[name].shape, generator=random).to(outputs[name].dtype)
        for name in sorted(plan.outputs) if name in outputs
    }  # fmt: skip


def gradients(case: cases.Case, weights: dict | None = None, namespace: str = "pestle") -> dict:
    leaves = {n: t.clone().requires_grad_() for n, t in differentiable(case).items()}
    outputs = call(case, leaves, namespace)
    weights = weights or weights_of(case, outputs)
    torch.autograd.backward([outputs[n] for n in weights], list(weights.values()))
    return {name: leaf.grad for name, leaf in leaves.items()}


def loss(case: cases.Case, weights: dict, tensors: dict) -> float:
    with torch.no_grad():
        outputs = call(case, tensors)
    return sum((outputs[n].double() * w.double()).sum().item() for n, w in weights.items())


@every_case
def test_against_finite_differences(name, case):
    op = _contract.op(name)
    case = cases.make_with_numbers(op, in_dtype(op, case, torch.float32))
    leaves = differentiable(case)
    assert all(t.dtype == torch.float32 for t in leaves.values()), "no f32 gradient to compare"
    with torch.no_grad():
        weights = weights_of(case, call(case, {}))
    found = gradients(case, weights)
    random = torch.Generator().manual_seed(9)
    step = 2.0**-7
    for argument, tensor in leaves.items():
        direction = torch.randn(tensor.shape, generator=random)
        slope = (found[argument].double() * direction.double()).sum().item()
        measured = (
            loss(case, weights, {argument: tensor + step * direction})
            - loss(case, weights, {argument: tensor - step * direction})
        ) / (2 * step)
        size = found[argument].double().norm().item()
        assert abs(slope - measured) <= 1e-2 * size + 1e-3, (argument, slope, measured)


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_near_f32(name, case, dtype):
    op = _contract.op(name)
    text, case = case, cases.make_with_numbers(op, in_dtype(op, case, dtype))
    found = gradients(case)
    with torch.no_grad():
        weights = {n: w.float() for n, w in weights_of(case, call(case, {})).items()}
    wide = cases.make_with_numbers(op, in_dtype(op, text, torch.float32))
    wide.call.tensors = {n: t.float() if n in found else t for n, t in case.call.tensors.items()}
    expected = gradients(wide, weights)
    for argument, gradient in found.items():
        assert gradient.dtype == case.call.tensors[argument].dtype
        assert gradient.shape == case.call.tensors[argument].shape
        scale = expected[argument].abs().max().item() if gradient.numel() else 0.0
        torch.testing.assert_close(
            gradient.float(), expected[argument], rtol=4e-2, atol=2e-2 * scale + 1e-5
        )


@pytest.mark.parametrize("name", [n for n in pestle.list_ops() if backward_of(_contract.op(n))])
def test_compiled_and_twice(name):
    """torch.compile traces the backward; a backward op with a backward is differentiated again."""
    op = _contract.op(name)
    case = cases.make_with_numbers(op, in_dtype(op, op.cases[0], torch.float32))
    expected = gradients(case)
    torch._dynamo.reset()
    leaves = {n: t.clone().requires_grad_() for n, t in differentiable(case).items()}
    weights = weights_of(case, call(case, {}))
    outputs = compiled_call(case, leaves)
    torch.autograd.backward([outputs[n] for n in weights], list(weights.values()))
    for argument, leaf in leaves.items():
        assert torch.equal(leaf.grad, expected[argument])
    back = backward_of(op).op
    leaves = {n: t.clone().requires_grad_() for n, t in differentiable(case).items()}
    outputs = call(case, leaves)
    asked = {n: w.clone().requires_grad_() for n, w in weights.items()}
    first = torch.autograd.grad(
        [outputs[n] for n in asked], list(leaves.values()), list(asked.values()), create_graph=True
    )
    total = sum(g.float().square().sum() for g in first)
    if backward_of(back) is None:
        with pytest.raises(pestle.NoGradientError, match=back.name):
            total.backward()
    else:
        total.backward()
        assert any(a.grad is not None and a.grad.abs().sum() > 0 for a in asked.values())


@every_case
def test_python_backends_have_the_same_gradients(name, case):
    op = _contract.op(name)
    with_op = [b.name for b in pestle.list_backends() if b.name == "eager" and name in b.ops]
    case = cases.make_with_numbers(op, case)
    expected = gradients(case)
    for backend in with_op:
        for argument, gradient in gradients(case, namespace=f"pestle_{backend}").items():
            torch.testing.assert_close(gradient, expected[argument], rtol=2e-2, atol=2e-2)


def test_inputs_without_a_gradient_say_so():
    for name in pestle.list_ops():
        op = _contract.op(name)
        plan = backward_of(op)
        if plan is None:
            continue
        case = cases.make_with_numbers(op, op.cases[0])
        others = [
            n for n, t in case.call.tensors.items() if n not in plan.gives and t.dtype in FLOATS
        ]
        for argument in others:
            leaf = case.call.tensors[argument].clone().requires_grad_()
            outputs = call(case, {argument: leaf})
            with pytest.raises(pestle.NoGradientError, match=f"no gradient of {argument}"):
                sum(o.float().sum() for o in outputs.values() if o.requires_grad).backward()


def test_calls_pass_the_python_kernel_by(monkeypatch):
    """It was most of what a call cost outside of inference mode."""
    from pestle import _autograd

    entered = []

    def watched(*args):
        entered.append(args)
        return _autograd._requires_grad(*args)

    monkeypatch.setattr(_autograd, "any_requires_grad", watched)
    x = torch.randn(3, 8)
    pestle.softmax(x)
    pestle.rms_norm(x, weight=torch.ones(8), eps=1e-3)
    assert not entered
    torch.ops.pestle.softmax(x)  # that kernel is what this test thinks it is
    assert len(entered) == 1
    x.requires_grad_()
    pestle.softmax(x).square().sum().backward()  # recorded without a way through the dispatcher
    assert len(entered) == 1 and x.grad.abs().sum() > 0


def test_a_recorded_call_is_seen_by_modes_and_by_jit():
    names = []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 8, requires_grad=True)
    with Seen():
        y = pestle.softmax(x)
    assert any("pestle.softmax" in name for name in names) and y.requires_grad
    graph = torch.jit.trace(pestle.softmax, x, check_trace=False).graph
    assert "pestle::softmax" in str(graph)


def test_an_error_leaves_gradients_on():
    x = torch.randn(3, 8)
    with pytest.raises(pestle.errors.InvalidArgumentError):
        pestle.rms_norm(x, weight=torch.ones(7))
    y = x.clone().requires_grad_()
    assert (y * 2).requires_grad
    with torch.no_grad():
        pestle.softmax(y)
    assert pestle.softmax(y).requires_grad


def test_torch_func_gets_no_gradient_that_is_none():
    """Its transforms come after the call: passing the recording by would give zeros."""
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: pestle.softmax(x).square().sum())(torch.randn(8))


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_cross_entropys_gradient_does_not_depend_on_an_offset(backend):
    """lse, were it f32, would be off by 3 % of a probability at logits around 2^20."""
    logits = torch.randint(-32, 33, (7, 1000)).float() / 8
    target = torch.randint(0, 1000, (7,))
    gradients = []
    for offset in (0.0, 2.0**20):
        x = (logits + offset).requires_grad_()
        loss, _ = pestle.cross_entropy(x, target, backend=backend)
        gradients.append(torch.autograd.grad(loss.sum(), x)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=4e-6, atol=0)
    x = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(x, target, reduction="sum").backward()
    torch.testing.assert_close(gradients[0], x.grad, rtol=4e-6, atol=1e-7)
