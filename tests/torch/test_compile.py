"""torch.compile without graph breaks and with changing shapes, torch.export."""

import cases
import pestle
import pytest
import torch
from pestle import _contract
from torch._dynamo.testing import CompileCounterWithBackend

ROUND_TRIPS = {
    "fp8": lambda x: pestle.dequantize_fp8(
        *pestle.quantize_fp8(x, granularity="row"), granularity="row", out_dtype=x.dtype),
    "int4": lambda x: pestle.dequantize_int4(
        *pestle.quantize_int4(x, group_size=32, mode="asymmetric"),
        group_size=32, mode="asymmetric", out_dtype=x.dtype),
    "nvfp4": lambda x: pestle.dequantize_nvfp4(*pestle.quantize_nvfp4(x), out_dtype=x.dtype),
    "mxfp8": lambda x: pestle.dequantize_mxfp8(*pestle.quantize_mxfp8(x), out_dtype=x.dtype),
    "hadamard": lambda x: pestle.hadamard_(x * 2),
}  # fmt: skip


class RoundTrip(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return ROUND_TRIPS[self.name](x + 1) * 2


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_one_graph_for_all_shapes(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = RoundTrip(name)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for rows in (16, 48, 80):
        x = torch.randn(rows, 512)
        assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1


def test_inductor():
    torch._dynamo.reset()
    model = RoundTrip("nvfp4")
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (16, 48):
        x = torch.randn(rows, 512)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", ["fp8", "int4", "nvfp4"])
def test_export(name):
    model = RoundTrip(name)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(model, (torch.randn(32, 512),), dynamic_shapes=({0: rows},))
    targets = {str(node.target) for node in program.graph.nodes}
    assert any(target.startswith("pestle.") for target in targets)
    x = torch.randn(80, 512)
    assert torch.equal(program.module()(x), model(x))


def test_shapes_that_break_a_rule_fail_while_tracing():
    torch._dynamo.reset()
    compiled = torch.compile(RoundTrip("mxfp8"), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="K must be a multiple of 32"):
        compiled(torch.randn(4, 48))


def test_kernels_are_the_librarys():
    """Nothing of Python runs in inference mode."""
    key = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in ("pestle::quantize_fp8", "pestle::quantize_fp8.scale"):
        assert key(name, "CPU") and key(name, "CUDA")


CALLS = cases.functional_calls()
if len(cases.DEVICES) == 1:  # one form of each op will do; on GPU machines it is all of them
    CALLS = list({form.op: (form, device) for form, device in CALLS}.values())
every_call = pytest.mark.parametrize(
    ("form", "device"), CALLS,
    ids=lambda value: value if isinstance(value, str) else value.name,
)  # fmt: skip


class Once(torch.nn.Module):
    """One call of a form as a model."""

    def __init__(self, form, options):
        super().__init__()
        self.form, self.options = form, options

    def forward(self, *tensors):
        return self.form.overload(*tensors, **self.options)


def test_every_op_is_among_the_calls():
    lists = {op for op in pestle.list_ops() if _contract.op(op).has_lists}  # test_lists.py
    called = {form.op for form, device in CALLS if device == "cpu"}
    assert called == set(pestle.list_ops()) - lists


@every_call
def test_every_form_compiles_and_exports(form, device):
    tensors, options = cases.call_on(form, device)
    model = Once(form, options)
    with torch.no_grad():
        expected = model(*tensors)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        cases.assert_same(compiled(*tensors), expected)
        program = torch.export.export(model, tensors)
        assert any(str(n.target) == f"pestle.{overload_name(form)}" for n in program.graph.nodes)
        cases.assert_same(program.module()(*tensors), expected)


def overload_name(form) -> str:
    return form.name if form.variant else f"{form.name}.default"
