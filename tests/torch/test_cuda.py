"""On a machine with a GPU: the CUDA implementations through torch, against the CPU's."""

import inspect

import cases
import pestle
import pytest
import torch
from pestle import _contract
from pestle._backward import backward_of
from pestle._library import contracts


def has_cuda(name: str) -> bool:
    return any(i["device"] == "cuda" for i in contracts()[name]["implementations"])


def run(case: cases.Case, device: str) -> dict[str, torch.Tensor]:
    form = case.form()
    args, kwargs = case.arguments(form, **{n: t.to(device) for n, t in case.call.tensors.items()})
    with torch.inference_mode():
        result = form.overload(*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    return dict(zip(form.outputs, outputs, strict=True))


@pytest.mark.parametrize(("name", "case"), cases.all_cases(), ids=cases.case_id)
def test_same_as_the_cpu(name, case):
    case = cases.make(_contract.op(name), case)
    expected = run(case, "cpu")
    if not cases.takes(case, "cuda"):
        with pytest.raises(RuntimeError, match="no implementation takes this call"):
            run(case, "cuda")
        return
    got = run(case, "cuda")
    for tensor in got.values():
        assert tensor.device.type == "cuda"
    got = {n: t.cpu() for n, t in got.items()}
    cases.assert_holds(case, got, expected)
    cases.assert_codes(case, got, lambda c: {n: t.cpu() for n, t in run(c, "cuda").items()})


@pytest.mark.parametrize(
    "form", [f for f, device in cases.functional_calls() if device == "cuda"], ids=lambda f: f.name
)
def test_every_form_in_a_graph(form):
    """Captured once, replayed on other values of the inputs, from a stream of its own."""
    tensors, options = cases.call_on(form, "cuda")
    with torch.inference_mode():
        form.overload(*tensors, **options)
        torch.cuda.synchronize()
        values = [None if t is None else t.clone() for t in tensors]
        for tensor in tensors:
            if tensor is not None:
                tensor.view(torch.uint8).zero_() if tensor.ndim else tensor.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = form.overload(*tensors, **options)
        for tensor, value in zip(tensors, values, strict=True):
            if tensor is not None:
                tensor.copy_(value)
        graph.replay()
        cases.assert_same(results, form.overload(*tensors, **options))


@pytest.fixture
def x():
    return torch.randn(256, 1024, device="cuda")


def test_a_graph_replays(x):
    with torch.inference_mode():
        pestle.quantize_fp8(x, granularity="row")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            q, scale = pestle.quantize_fp8(x, granularity="row")
        x.normal_()
        graph.replay()
        fresh, fresh_scale = pestle.quantize_fp8(x, granularity="row")
    assert torch.equal(scale, fresh_scale)
    assert torch.equal(q.view(torch.uint8), fresh.view(torch.uint8))


def test_the_current_stream_is_used(x):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        torch.cuda._sleep(200_000_000)
        x.mul_(2)
        q, scale = pestle.quantize_fp8(x)
    stream.synchronize()
    expected, expected_scale = pestle.quantize_fp8(x.cpu())
    assert torch.equal(scale.cpu(), expected_scale)
    assert torch.equal(q.cpu().view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="not run: needs two GPUs")
def test_another_device_than_the_current_one():
    x = torch.randn(64, 512, device="cuda:1")
    q, _ = pestle.quantize_fp8(x)
    assert q.device == x.device and torch.cuda.current_device() == 0


def test_compile_with_cuda_graphs(x):
    def round_trip(x):
        q, scale = pestle.quantize_fp8(x + 1, granularity="row")
        return pestle.dequantize_fp8(q, scale, granularity="row", out_dtype=torch.float32) * 2

    torch._dynamo.reset()
    compiled = torch.compile(round_trip, fullgraph=True, mode="reduce-overhead")
    with torch.inference_mode():
        for _ in range(3):
            got = compiled(x).clone()
    torch.testing.assert_close(got, round_trip(x))


def test_why_names_the_cuda_implementation(x):
    why = pestle.why("quantize_fp8", x)
    assert why.chosen.startswith("cuda/")
    assert any("CUDA device" in verdict.refusal for verdict in why.verdicts)


def call(case: cases.Case, tensors: dict) -> dict[str, torch.Tensor]:
    """Through the Python function, which finds a backend."""
    function = getattr(pestle, case.op.name)
    asked = {f"{n}_dtype": dtype for n, dtype in case.asked.items()}
    options = {n: v for n, v in asked.items() if n in inspect.signature(function).parameters}
    made = function(**tensors, **case.call.attributes, **options)
    made = made if isinstance(made, tuple) else (made,)
    return dict(zip(case.form().outputs, made, strict=True))


@pytest.mark.parametrize(
    "name",
    [n for n in pestle.list_ops()
     if not has_cuda(n) and not _contract.op(n).has_lists and _contract.op(n).cases],
)  # fmt: skip
def test_ops_without_a_cuda_implementation_go_to_another_backend(name):
    op = _contract.op(name)
    case = cases.make(op, op.cases[0])
    expected = run(case, "cpu")
    with torch.no_grad():
        made = call(case, {n: t.cuda() for n, t in case.call.tensors.items()})
    cases.assert_holds(case, {n: t.cpu() for n, t in made.items()}, expected)


@pytest.mark.parametrize("name", [n for n in pestle.list_ops() if backward_of(_contract.op(n))])
def test_gradients_are_those_of_the_cpu(name):
    op = _contract.op(name)
    case = cases.make_with_numbers(op, op.cases[0])
    plan = backward_of(op)

    def gradients(device: str) -> dict:
        leaves = {
            n: t.to(device).clone().requires_grad_(n in plan.gives)
            for n, t in case.call.tensors.items()
        }
        made = call(case, leaves)
        sum(made[n].float().square().sum() for n in plan.outputs if n in made).backward()
        return {n: leaf.grad.cpu() for n, leaf in leaves.items() if n in plan.gives}

    expected = gradients("cpu")
    assert expected
    for argument, gradient in gradients("cuda").items():
        scale = expected[argument].abs().max().item()
        torch.testing.assert_close(
            gradient.float(), expected[argument].float(), rtol=2e-2, atol=2e-2 * scale
        )
