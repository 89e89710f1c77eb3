"""What a compiled model's quantised linear layers take into their kernels."""

import pestle
import pytest
import torch
from pestle.comfy import CompiledModel, CompileSettings, fusing, relative_error
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional

ROW = {"activations": "row"}


def layer(rows=64, columns=64, format="int8-row", **options):
    made = nn.Linear(columns, rows, dtype=torch.bfloat16).requires_grad_(False)
    weight = pestle.QuantizedTensor.from_float(made.weight.data, format, **options)
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


class Compiled:
    """A function through the pass; `calls` is what is left of the linear layers, in order."""

    def __init__(self, function, *args, grad=False):
        self.calls = []
        torch._dynamo.reset()
        with torch.inference_mode(not grad):
            self.out = torch.compile(function, backend=self.backend, dynamic=True)(*args)
            self.eager = function(*args)

    def backend(self, graph_module, inputs):
        fusing.fuse(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        for node in graph_module.graph.nodes:
            if getattr(node.target, "__module__", "") == fusing.__name__:
                taken = [k for k, v in node.kwargs.items() if v is not None]
                self.calls.append((node.target.__name__, *taken))
        return aot_eager(graph_module, inputs)

    def close(self, bound=0.02):
        assert relative_error(self.out.float(), self.eager.float()) < bound


def tokens(*shape):
    random = torch.Generator().manual_seed(3)
    return torch.randn(*shape, generator=random).to(torch.bfloat16)


@pytest.mark.parametrize("format", ["int8-row", "fp8-row", "nvfp4", "int4-g32", "w4a8"])
def test_gelu_goes_into_the_kernel(format):
    options = ROW if "row" in format else {}
    up, down = layer(256, 256, format, **options), layer(64, 256, format, **options)
    made = Compiled(lambda x: down(functional.gelu(up(x), approximate="tanh")), tokens(2, 9, 256))
    assert made.calls == [("linear", "activation"), ("linear",)]
    made.close()


def test_what_the_kernels_do_not_have_or_others_read_stays():
    up = layer(**ROW)

    def exact(x):
        return functional.gelu(up(x))

    def read_twice(x):
        y = up(x)
        return functional.gelu(y, approximate="tanh") + y

    for function in (exact, read_twice):
        made = Compiled(function, tokens(9, 64))
        assert made.calls == [("linear",)]
        made.close()


@pytest.mark.parametrize("gate", [(1, 64), (64,), (1, 1, 64), (2, 1, 64)])
def test_a_gated_residual_goes_into_the_kernel(gate):
    out = layer(**ROW)
    made = Compiled(lambda x, g: x + g * out(x), tokens(2, 9, 64), tokens(*gate))
    assert made.calls == [("linear", "residual", "gate")]
    made.close()


def test_a_residual_alone_does_for_every_format_and_a_gate_does_not():
    out = layer(256, 256, "w4a8")
    x, gate = tokens(9, 256), tokens(1, 256)
    made = Compiled(lambda x: out(x) + x, x)
    assert made.calls == [("linear", "residual")]
    made.close()
    assert Compiled(lambda x, g: x + g * out(x), x, gate).calls == [("linear",)]


def test_a_gate_or_residual_of_another_shape_stays():
    out = layer(**ROW)
    x = tokens(2, 9, 64)
    for other in (tokens(9, 64), tokens(2, 9, 1), tokens(1, 9, 64)):
        made = Compiled(lambda x, g: x + g * out(x), x, other)
        assert made.calls == [("linear",)]
        made.close()
    made = Compiled(lambda x, r: r + out(x), x, tokens(1, 9, 64))
    assert made.calls == [("linear",)]
    made = Compiled(lambda x, r: r + out(x), x, x.float())
    assert made.calls == [("linear",)] and made.out.dtype == torch.float32


def test_layers_of_the_same_activations_share_their_codes():
    q, k, v = layer(**ROW), layer(**ROW), layer(32, **ROW)
    made = Compiled(lambda x: torch.cat([q(x), k(x), v(x)], -1), tokens(2, 9, 64))
    assert made.calls == [("row_codes",), *[("linear_of_codes",)] * 3]
    assert torch.equal(made.out, made.eager)
    mixed = layer(**ROW), layer(format="fp8-row", **ROW), layer()
    made = Compiled(lambda x: sum(one(x) for one in mixed), tokens(9, 64))
    assert "row_codes" not in {name for name, *_ in made.calls}


def test_writes_in_between_are_seen():
    first, second = layer(**ROW), layer(**ROW)

    def written(x):
        x = x + 1
        y = first(x)
        x.mul_(2)
        return y, second(x)

    made = Compiled(lambda x: torch.cat(written(x)), tokens(9, 64))
    assert made.calls == [("linear",), ("linear",)]
    assert torch.equal(made.out, made.eager)

    def residual(x):
        x = x + 1
        y = first(x)
        x += 1
        return x + y

    made = Compiled(residual, tokens(9, 64))
    assert made.calls == [("linear",)]
    made.close()


def test_calls_with_a_gradient_are_left_alone():
    out = layer(activations="float")
    x = tokens(9, 64).requires_grad_()
    made = Compiled(lambda x: functional.gelu(out(x), approximate="tanh"), x, grad=True)
    assert made.calls == []
    made.out.sum().backward()
    assert x.grad.abs().sum() > 0


def test_a_compiled_model_has_it_and_another_length_compiles_nothing(monkeypatch):
    call = fusing.linear

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = layer(128, 64, **ROW), layer(64, 128, **ROW)

        def forward(self, x, gate):
            return x + gate * self.down(functional.gelu(self.up(x), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x, gate):
            for block in self.blocks:
                x = block(x, gate)
            return x

    model = Model()
    settings = CompileSettings.of({"mode": "default", "dynamic": True})
    compiled = CompiledModel(model, settings)
    fused = []
    monkeypatch.setattr(fusing, "linear", lambda *args, **kw: fused.append(kw) or call(*args, **kw))
    for count in (9, 20):
        with torch.inference_mode():
            x, gate = tokens(1, count, 64), tokens(1, 1, 64)
            out = compiled.run(model, lambda x=x, gate=gate: model(x, gate), x.shape)
            assert relative_error(out.float(), model(x, gate).float()) < 0.02
    assert len(compiled.report.graphs) == 1 and not compiled.report.fallback
    assert {"activation"} in map(set, fused) and {"residual", "gate"} in map(set, fused)
