"""Quantised copies of a model, files of any layout, reports, and who serves comfy-kitchen."""

import gguf
import pestle
import pestle.compat.comfy_kitchen
import pytest
import torch
from pestle.comfy import (
    FORMATS,
    Served,
    comfy_state_dict,
    is_comfys,
    patterns_of,
    quantised_state_dict,
    serving,
    summary,
    weight_report,
)
from pestle.comfy.kernels import NO_LAYER
from pestle.errors import InvalidArgumentError
from safetensors.torch import load_file, save_file


@pytest.fixture
def wide(make_model):
    torch.manual_seed(1)
    return make_model(depth=2, width=256).to(torch.bfloat16).eval()


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(value.view(torch.uint8), b[name].view(torch.uint8)) if value.ndim else
        torch.equal(value, b[name]) for name, value in a.items()
    )  # fmt: skip


@pytest.mark.parametrize("format", ["fp8", "nvfp4", "int8-convrot"])
def test_a_copy_is_quantised_as_a_file_would_be(wide, format, tmp_path):
    before = {name: value.clone() for name, value in wide.state_dict().items()}
    seen = []
    made, report = quantised_state_dict(wide, format, progress=lambda *given: seen.append(given))
    assert same(dict(wide.state_dict()), before)
    assert not any(hasattr(module, "_pestle_layers") for module in wide.modules())
    assert seen[-1][1] == seen[-1][2] > 0

    save_file(before, tmp_path / "float.safetensors")
    pestle.quantize_file(
        tmp_path / "float.safetensors", tmp_path / "file.safetensors", format, layout="comfy"
    )
    written = load_file(tmp_path / "file.safetensors")
    described = {name for name in made if name.endswith(".comfy_quant")}
    assert same({k: v for k, v in made.items() if k not in described},
                {k: v for k, v in written.items() if k not in described})  # fmt: skip
    assert {layer.name for layer in report.quantised} == {
        name.removesuffix(".comfy_quant") for name in described
    }


def test_patterns_and_keep_choose(wide):
    rules = {"layers": patterns_of("\n *attn*=int8-row \n\n"), "keep": ["*mlp*"]}
    _, report = quantised_state_dict(wide, "fp8", **rules)
    formats = {layer.name: layer.format for layer in report.layers}
    assert formats["blocks.0.attn.qkv"] == "int8-row"
    assert all(format is None for name, format in formats.items() if "mlp" in name)


def test_what_is_quantised_already_is_refused(wide):
    pestle.quantize_(wide, "fp8")
    with pytest.raises(InvalidArgumentError, match="is quantised already"):
        quantised_state_dict(wide, "fp8")
    with pytest.raises(InvalidArgumentError, match=r"is no PATTERN=FORMAT"):
        patterns_of("*attn*")


def test_every_format_of_comfys_layout_is_offered():
    assert set(FORMATS) == {"fp8", "fp8-e5m2", "nvfp4", "mxfp8", "int8", "int8-row",
                            "int8-convrot", "w4a8", "w4a4-convrot"}  # fmt: skip


# ---- files


@pytest.mark.parametrize("format", ["fp8", "nvfp4", "mxfp8", "int8-row", "w4a8"])
def test_the_plain_layout_becomes_comfys(wide, format, tmp_path):
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("float", "plain", "comfy")}
    save_file(dict(wide.state_dict()), paths["float"])
    for layout in ("plain", "comfy"):
        pestle.quantize_file(paths["float"], paths[layout], format, layout=layout)
    assert is_comfys(paths["comfy"]) and is_comfys(paths["float"])
    assert not is_comfys(paths["plain"])
    made, notes = comfy_state_dict(paths["plain"])
    want = load_file(paths["comfy"])
    assert not notes
    names = [name for name in want if not name.endswith(".comfy_quant")]
    assert set(made) == set(want)
    assert same({n: made[n] for n in names}, {n: want[n] for n in names})


def test_formats_that_comfy_lacks_are_decoded_and_said(wide, tmp_path):
    source, plain = tmp_path / "float.safetensors", tmp_path / "plain.safetensors"
    save_file(dict(wide.state_dict()), source)
    pestle.quantize_file(source, plain, "mxfp4", layout="plain")
    made, notes = comfy_state_dict(plain)
    assert {value.dtype for value in made.values()} == {torch.bfloat16}
    (note,) = notes
    assert note.endswith("weights in mxfp4, which ComfyUI does not know, are decoded to bf16")
    weight = wide.state_dict()["blocks.0.attn.qkv.weight"].float()
    error = (made["blocks.0.attn.qkv.weight"].float() - weight).norm() / weight.norm()
    assert 0.01 < error < 0.2


def test_gguf_is_decoded(tmp_path):
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "flux")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("a.weight", gguf.quants.quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert not is_comfys(path)
    made, notes = comfy_state_dict(path)
    assert made["a.weight"].dtype == torch.bfloat16
    assert (made["a.weight"].float() - weight).norm() / weight.norm() < 0.01
    assert notes == ["model.gguf is GGUF: its weights are decoded to bf16"]


# ---- reports and kernels


def test_weights_of_both_libraries_are_reported(wide):
    kitchen = pytest.importorskip("comfy_kitchen.tensor")
    pestle.quantize_(wide, "nvfp4", keep=["*mlp*"])
    linear = wide.blocks[0].mlp[0]
    theirs = kitchen.QuantizedTensor.from_float(linear.weight.data, "TensorCoreFP8Layout")
    linear.weight = torch.nn.Parameter(theirs, requires_grad=False)
    found = {layer.name: layer for layer in weight_report(wide).layers}
    assert found["blocks.0.mlp.0"].format == "TensorCoreFP8Layout"
    assert found["blocks.0.mlp.0"].bytes_after == linear.out_features * linear.in_features + 4
    assert found["blocks.0.attn.qkv"].format == "nvfp4" and found["blocks.0.attn.qkv"].kernel
    assert found["embed"].format is None
    text = summary(weight_report(wide))
    assert "nvfp4: " in text and "bfloat16: " in text


def test_kernels_are_chosen_for_the_block_only():
    kitchen = pytest.importorskip("comfy_kitchen")
    registry, before = kitchen.registry, list(kitchen.registry._priority)
    x, scale = torch.randn(4, 32), torch.ones(())

    def ask(mode):
        served = Served(mode)
        with serving(served):
            kitchen.quantize_per_tensor_fp8(x, scale)
        return served

    ours = ask("on")
    assert ours.calls == {("quantize_per_tensor_fp8", "pestle"): 1}
    assert ask("strict").calls == ours.calls
    assert ask("off").calls == {("quantize_per_tensor_fp8", "eager"): 1}
    assert "1 of 1 calls" in str(ours)
    assert "get_implementation" not in vars(registry)
    order = [name for name in registry._priority if name != "pestle"]
    assert order == before and registry._priority == before
    with pytest.raises(InvalidArgumentError, match='mode is "fast"'), serving(Served("fast")):
        pass
    assert registry._priority == before


@pytest.mark.parametrize(
    ("layout", "function"),
    [("TensorWiseINT8Layout", "int8_linear"), ("TensorCoreFP8Layout", "linear_fp8")],
)
def test_calls_are_told_by_layer_and_kernel(wide, layout, function):
    """Also products that comfy-kitchen would make of a decoded weight."""
    kitchen = pytest.importorskip("comfy_kitchen")
    tensor = pytest.importorskip("comfy_kitchen.tensor")
    for block in wide.blocks:
        linear = block.mlp[0]
        theirs = tensor.QuantizedTensor.from_float(linear.weight.data, layout)
        linear.weight = torch.nn.Parameter(theirs, requires_grad=False)
    served = Served("on")
    x = torch.randn(4, 32)
    with torch.inference_mode(), serving(served, wide):
        kitchen.quantize_per_tensor_fp8(x, torch.ones(()))
        for block in wide.blocks:
            block.mlp[0](torch.randn(3, 256, dtype=torch.bfloat16))
    for index in range(2):
        name = f"blocks.{index}.mlp.0"
        assert served.layers[name] == {(function, "pestle"): 1}
        kernels = list(served.kernels[name])
        assert kernels and all(kernel.startswith("cpu/") for kernel in kernels)
        assert f"  {name}: 1 x {function} by pestle ({', '.join(kernels)})" in str(served)
    assert served.layers[NO_LAYER] == {("quantize_per_tensor_fp8", "pestle"): 1}
    assert "function" not in vars(pestle.compat.comfy_kitchen.registry)


@pytest.mark.parametrize("layout", ["TensorWiseINT8Layout", "TensorCoreFP8Layout"])
def test_a_weights_scale_tells_its_layer(wide, layout):
    """And nothing else does that lies where a copy of it once was."""
    kitchen = pytest.importorskip("comfy_kitchen")
    tensor = pytest.importorskip("comfy_kitchen.tensor")
    linear = wide.blocks[1].mlp[0]
    theirs = tensor.QuantizedTensor.from_float(linear.weight.data, layout)
    linear.weight = torch.nn.Parameter(theirs, requires_grad=False)
    served, x, call = Served("on"), torch.randn(4, 32), ("quantize_per_tensor_fp8", "pestle")
    with serving(served, wide):
        kitchen.quantize_per_tensor_fp8(x, linear.weight._params.scale.reshape(-1)[:1])
        assert served.layers == {"blocks.1.mlp.0": {call: 1}}
        for scale in [torch.ones(()) for _ in range(1000)]:
            kitchen.quantize_per_tensor_fp8(x, scale)
    assert served.layers == {"blocks.1.mlp.0": {call: 1}, NO_LAYER: {call: 1000}}


def test_strict_stops_at_a_refusal_with_reasons():
    kitchen = pytest.importorskip("comfy_kitchen")
    x, scale = torch.randn(4, 32, dtype=torch.float64), torch.ones(())
    with pytest.raises(Exception, match="pestle"), serving(Served("strict")):
        kitchen.quantize_per_tensor_fp8(x, scale)
