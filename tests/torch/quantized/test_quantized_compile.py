"""Quantised models in graphs: torch.compile with dynamic shapes, export, AOTInductor."""

import copy
import os

import pestle
import pytest
import torch
import torch._inductor.config
from quantized_cases import NAMES, nothing_decoded, quantized, relative, weight
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

# Whenever a model is compiled or loaded, AOTInductor asks a C++ compiler for each set of vector
# instructions, 20 s in all; these models have next to nothing to vectorise.
torch._inductor.config.cpp.vec_isa_ok = False
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"


class Block(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.up, self.down = nn.Linear(columns, 512), nn.Linear(512, columns)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(x)))


def made(name: str, dtype=torch.bfloat16, columns: int = 256) -> nn.Module:
    torch.manual_seed(0)
    model = Block(columns).to(dtype)
    pestle.quantize_(model, name, default_keep=False)
    return model


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_serves_every_number_of_rows(name):
    model = made(name)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
    with torch.no_grad(), nothing_decoded():
        for rows in (3, 7, 20):
            x = weight(2 * rows, 256, seed=rows).view(2, rows, 256)
            assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1


def test_padded_columns_compile():
    model = made("nvfp4", columns=72)
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), nothing_decoded():
        for rows in (2, 5):
            x = weight(rows, 72)
            assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("name", ["nvfp4", "fp8", "int8-convrot"])
def test_gradients_in_a_graph(name):
    model = made(name, torch.float32)
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    grads = []
    for run in (model, compiled):
        x = weight(6, 256, dtype=torch.float32).requires_grad_()
        with nothing_decoded():
            run(x).sin().sum().backward()
        grads.append((x.grad, model.up.bias.grad))
        model.zero_grad()
    for found, expected in zip(grads[1], grads[0], strict=True):
        assert relative(found, expected) < 1e-5


def test_inductor_and_a_new_weight():
    model = made("nvfp4")
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    x = weight(5, 256)
    with torch.no_grad(), nothing_decoded():
        assert relative(compiled(x), model(x)) < 1e-2
        model.up.weight = nn.Parameter(quantized("nvfp4", weight(512, 256, 9)), requires_grad=False)
        assert relative(compiled(x), model(x)) < 1e-2


def test_both_sides_quantised_and_moved_in_a_graph():
    w = quantized("nvfp4", weight(64, 256))

    def run(x, w):
        rows = torch.cat([w[32:], w[:32]])
        return torch.nn.functional.linear(x, rows), x @ w.t()

    x = weight(5, 256)
    with torch.no_grad(), nothing_decoded():
        found = torch.compile(run, fullgraph=True, backend="aot_eager")(x, w)
        for one, expected in zip(found, run(x, w), strict=True):
            assert torch.equal(one, expected)


def test_a_lora_compiles():
    model = made("nvfp4", torch.float32)
    pestle.add_lora_(model, {"up.lora_A.weight": torch.randn(4, 256),
                             "up.lora_B.weight": torch.randn(512, 4)})  # fmt: skip
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = weight(5, 256, dtype=torch.float32)
    with torch.no_grad(), nothing_decoded():
        assert relative(compiled(x), model(x)) < 1e-5


@pytest.mark.parametrize("name", ["nvfp4", "fp8-row", "int4-g32", "w4a8"])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_calls_the_kernel(name, strict):
    model = made(name)
    rows = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    with torch.no_grad():
        program = torch.export.export(
            model, (weight(8, 256),), dynamic_shapes=rows, strict=strict
        ).run_decompositions({})
        x = weight(5, 256, seed=3)
        assert torch.equal(program.module()(x), model(x))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    op = model.up.weight.layout_cls.kernel_call(
        x, model.up.weight._qdata, model.up.weight.params
    )[0]  # fmt: skip
    assert called.count(f"pestle.{op}.default") == 2
    assert not [target for target in called if "dequantize" in target]


def test_aot_inductor_runs_a_quantised_model(tmp_path):
    model = made("nvfp4")
    rows = {"x": {0: torch.export.Dim("rows", min=2, max=64)}}
    with torch.no_grad():
        program = torch.export.export(model, (weight(8, 256),), dynamic_shapes=rows)
        package = torch._inductor.aoti_compile_and_package(
            program.run_decompositions({}), package_path=str(tmp_path / "model.pt2")
        )
        x = weight(5, 256, seed=3)
        found = torch._inductor.aoti_load_package(package)(x)
        assert relative(found, model(x)) < 1e-2


def test_a_copied_model_is_another():
    model = made("mxfp8")
    other = copy.deepcopy(model)
    assert torch.equal(other.up.weight, model.up.weight)
    assert other.up.weight.data_ptr() != model.up.weight.data_ptr()
