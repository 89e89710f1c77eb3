"""Backends: the choice between them, and the same results from all that run here."""

import asyncio
import logging
import subprocess
import sys
import threading

import cases
import pestle
import pytest
import torch
from pestle import _backends, _contract, _dispatch, _generated, _python_ops
from pestle._library import contracts

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))


DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def python_cases():
    """(backend, device, op, case) of each op that a Python backend has and runs there."""
    return [
        (name, device, op, case)
        for name in _backends.PYTHON
        for device in DEVICES
        for op, case in cases.all_cases()
        if name != "triton"  # test_triton.py has the same
        and not _backends.refusal(name, op, torch.device(device))
        and not cases.refusal(name, op, case)
    ]


def run(name: str, device: str, case: cases.Case, kind: str = "functional", **given) -> dict:
    form = case.form(kind)
    given = {n: t.to(device) for n, t in (case.call.tensors | given).items()}
    args, kwargs = case.arguments(form, **given)
    result = _python_ops.overloads(form)[_python_ops.namespace(name)](*args, **kwargs)
    outputs = result if isinstance(result, tuple) else (result,)
    if kind != "functional":
        outputs = [given[output] for output in form.outputs]
    return {n: t.cpu() for n, t in zip(form.outputs, outputs, strict=True)}


every_python_case = pytest.mark.parametrize(
    ("name", "device", "op", "case"), python_cases(), ids=cases.case_id
)


def test_a_result_without_dimensions_is_held_to_its_bound():
    case = cases.make(_contract.op("reduce"), {"text": "M=3x50 op=norm x=f32", "data": "normal"})
    expected = case.expected()
    assert expected["out"].dim() == 0
    near = torch.nextafter(expected["out"], torch.tensor(torch.inf))
    cases.assert_holds(case, {"out": near}, expected)
    with pytest.raises(AssertionError):
        cases.assert_holds(case, {"out": expected["out"] * 1.01}, expected)


@every_python_case
def test_python_backends_give_the_librarys_results(name, device, op, case):
    case = cases.make(_contract.op(op), case)
    expected = case.expected()
    before = {n: t.clone() for n, t in case.call.tensors.items()}
    got = run(name, device, case)
    cases.assert_holds(case, got, expected)
    cases.assert_codes(case, got, lambda c: run(name, device, c))
    for argument, tensor in before.items():
        assert torch.equal(cases.bits(case.call.tensors[argument]), cases.bits(tensor))
    given = run(name, device, case, "out", **case.empty_outputs())
    cases.assert_holds(case, given, expected)
    cases.assert_codes(case, given, lambda c: run(name, device, c))


def test_implementations_are_of_ops():
    for name in _backends.PYTHON:
        _backends.load(name)
        assert set(_backends.implementations(name)) <= set(contracts()), name


def test_the_choice():
    with torch.no_grad():
        q, _ = pestle.quantize_fp8(X, backend="eager")
        assert torch.equal(cases.bits(q), cases.bits(pestle.quantize_fp8(X)[0]))
    with pytest.raises(pestle.InvalidArgumentError, match="no backend 'gpu'"):
        pestle.quantize_fp8(X, backend="gpu")
    # In a build with CUDA each implementation answers, else the backend.
    refusal = "cuda: the tensors lie on cpu|cuda/quantize_fp8: runs on CUDA tensors"
    with pytest.raises(pestle.NoCapableBackendError, match=refusal):
        pestle.quantize_fp8(X, backend="cuda")
    assert pestle.quantize_fp8(X, backend=("cuda", "eager"))[0].dtype == torch.float8_e4m3fn


def chosen() -> str:
    return pestle.why("quantize_fp8", X).chosen


def test_use_backend_is_of_the_thread_and_the_task():
    seen = {}

    async def task(name):
        with pestle.use_backend(name):
            await asyncio.sleep(0.01)
            seen[name] = chosen()

    async def both():
        await asyncio.gather(task("eager"), task("cpu"))

    with pestle.use_backend("eager"):
        worker = threading.Thread(target=lambda: seen.update(thread=chosen()))
        worker.start()
        worker.join()
        assert chosen() == "eager/quantize_fp8"
        with pestle.use_backend("cuda", "cpu"):
            assert chosen() == "cpu/quantize_fp8_simd"
    asyncio.run(both())
    assert seen == {
        "thread": "cpu/quantize_fp8_simd",
        "eager": "eager/quantize_fp8",
        "cpu": "cpu/quantize_fp8_simd",
    }
    assert chosen() == "cpu/quantize_fp8_simd"


def test_priority_and_disabling():
    try:
        pestle.set_backend_priority("eager")
        assert chosen() == "eager/quantize_fp8"
        assert pestle.list_backends()[0].name == "eager"
        pestle.disable_backend("eager")
        assert chosen() == "cpu/quantize_fp8_simd"
        with pytest.raises(pestle.NoCapableBackendError, match="eager: is disabled"):
            pestle.quantize_fp8(X, backend="eager")
    finally:
        pestle.enable_backend("eager")
        pestle.set_backend_priority()
    assert not _backends.settings.special


def test_backends_are_listed():
    found = {backend.name: backend for backend in pestle.list_backends()}
    assert list(found) == ["cuda", "triton", "cpu", "eager"]
    assert found["eager"].available and "apply_rope" in found["eager"].ops
    assert found["cpu"].ops == tuple(contracts())
    assert len(found["eager"].ops) >= 33  # every op there was when the backend was written
    assert found["cuda"].available == (torch.cuda.is_available() and bool(found["cuda"].ops))


def test_contracts_are_checked_first_and_in_the_same_words():
    scale = torch.ones(3)
    with pytest.raises(pestle.InvalidArgumentError) as library:
        pestle.quantize_fp8(X, scale, granularity="row")
    with pytest.raises(pestle.InvalidArgumentError) as eager:
        pestle.quantize_fp8(X, scale, granularity="row", backend="eager")
    assert str(eager.value) == str(library.value)


def test_refusals_go_to_the_next_backend(monkeypatch):
    pestle.quantize_fp8(X, backend="eager")
    implementation = _backends.implementation("eager", "dequantize_fp8")
    refusing = _backends.Implementation(
        "dequantize_fp8", "eager", implementation.function, lambda *a, **k: "not today", False
    )
    monkeypatch.setitem(_backends._implementations["eager"], "dequantize_fp8", refusing)
    for known in _python_ops.kernels("eager", "dequantize_fp8"):
        monkeypatch.setattr(known, "implementation", refusing)
        known.plans.clear()
    q, scale = pestle.quantize_fp8(X)
    with pytest.raises(pestle.NoCapableBackendError, match="eager/dequantize_fp8: not today"):
        pestle.dequantize_fp8(q, scale, backend="eager")
    with pestle.use_backend("eager", "cpu"):
        out = pestle.dequantize_fp8(q, scale)
    assert torch.equal(out, pestle.dequantize_fp8(q, scale))


def test_a_usual_call_that_the_library_refuses_goes_on(monkeypatch):
    """Nothing selected, every option by default: the library is called directly, and once."""
    asked = []

    def refuse(*args):
        asked.append(args)
        raise RuntimeError("[pestle unsupported] not this one")

    x = torch.arange(64, dtype=torch.uint8)
    assert pestle.swap_nibbles(x).shape == x.shape  # the function is made when it is first used
    monkeypatch.setattr(_generated, "_swap_nibbles_0_op", refuse)
    expected = pestle.swap_nibbles(x, backend="cpu")
    assert torch.equal(pestle.swap_nibbles(x), expected) and len(asked) == 1


def test_each_backend_is_tried_once_whatever_the_order():
    """What failed is known, not concluded from where it stands or where the tensors lie."""
    error = pestle.UnsupportedError("not this one")
    order = ("eager", "cpu", "cuda")

    def next_after(*tried):
        return _dispatch.after(error, tried, "quantize_fp8", order, (X,), {})

    assert next_after("pestle") == "pestle_eager"
    assert next_after("pestle_eager") == "pestle"
    for tried in (("pestle", "pestle_eager"), ("pestle_eager", "pestle")):
        with pytest.raises(pestle.NoCapableBackendError):
            next_after(*tried)
    with pytest.raises(pestle.OutOfMemoryError):
        _dispatch.after(pestle.OutOfMemoryError("no"), (), "quantize_fp8", order, (X,), {})


def test_dispatch_is_logged(caplog):
    with caplog.at_level(logging.DEBUG, "pestle.dispatch"):
        pestle.quantize_fp8(X)
        pestle.quantize_fp8(X, backend="eager")
    assert [record.args[-1] for record in caplog.records] == ["cpu", "eager"]


def test_compiled_code_follows_the_selection():
    torch._dynamo.reset()
    graphs = []

    def keep(graph, inputs):
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return graph

    def round_trip(x):
        return pestle.dequantize_fp8(*pestle.quantize_fp8(x, granularity="row"), granularity="row")

    compiled = torch.compile(round_trip, fullgraph=True, backend=keep)
    for _ in range(2):
        assert torch.equal(compiled(X), round_trip(X))
        with pestle.use_backend("eager"):
            assert torch.equal(compiled(X), round_trip(X))
    assert len(graphs) == 2
    assert any("pestle.quantize_fp8" in target for target in graphs[0])
    assert any("pestle_eager.quantize_fp8" in target for target in graphs[1])
    named = torch.compile(lambda x: pestle.quantize_fp8(x, backend="eager")[0], fullgraph=True)
    with torch.no_grad():
        assert torch.equal(cases.bits(named(X)), cases.bits(pestle.quantize_fp8(X)[0]))


def test_a_process_that_used_every_backend_ends_well():
    code = "import pestle; pestle.list_backends()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("accumulation", ["accurate", "fast", "f32"])
@pytest.mark.parametrize("rows", [2, 40])
def test_an_infinite_scale_of_fp8_codes_multiplies_the_sum(device, accumulation, rows):
    """Not its terms, of which some are 0 here and some of either sign."""
    inf, nan = float("inf"), float("nan")
    codes = torch.zeros(rows, 64, device=device)
    codes[0, :3] = torch.tensor([1.0, 2.0, -1.0])  # the other rows are 0
    weight = torch.zeros(16, 64, device=device)
    weight[:, :3] = torch.tensor([1.0, 1.0, 1.0])
    weight[8:] *= -1
    a, b = (t.to(torch.float8_e4m3fn) for t in (codes, weight))
    of_all, one = torch.full((1,), inf, device=device), torch.ones(1, device=device)
    of_rows = torch.full((rows, 1), inf, device=device)
    found = ("cuda", "triton", "eager") if device == "cuda" else ("cpu", "eager")
    signs = torch.tensor([inf] * 8 + [-inf] * 8)
    for name in found:
        with pestle.use_backend(name):
            by_tensor = pestle.scaled_mm_fp8(a, b, of_all, one, accumulation=accumulation)
            by_row = pestle.scaled_mm_fp8(
                a, b, of_rows, one.expand(16, 1), granularity="row", accumulation=accumulation
            )
        for out in (by_tensor, by_row):
            torch.testing.assert_close(out[0].float().cpu(), signs)
            expected = torch.full((rows - 1, 16), nan)
            torch.testing.assert_close(out[1:].float().cpu(), expected, equal_nan=True)
