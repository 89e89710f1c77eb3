"""Files from `pestle quantize`: comfy-kitchen 0.2.40 decodes every layer to our values, PyPI's
safetensors reader reads them, and the report's errors are those that numpy finds."""

import json
import os
import subprocess
from pathlib import Path

import comfy_kitchen
import numpy as np
import pytest
import torch
from comfy_kitchen.tensor import QuantizedTensor, get_layout_class
from safetensors import safe_open
from safetensors.torch import load_file, save_file

PESTLE = os.environ.get(
    "PESTLE_BIN", str(Path(__file__).resolve().parent.parent.parent / "build/bin/pestle")
)
COMFY_FORMATS = [
    "fp8", "fp8-e5m2", "nvfp4", "mxfp8", "int8", "int8-row", "int8-convrot", "w4a8", "w4a4-convrot",
]  # fmt: skip
PLAIN_ONLY = ["fp8-row", "fp8-block", "mxfp4", "int4-g32", "int4-g64", "int4-g128"]
# Of a normal weight's relative error, from docs/formats: what no correct quantiser exceeds.
WORST = {"fp8": 0.03, "fp8-e5m2": 0.06, "fp8-row": 0.03, "fp8-block": 0.03, "nvfp4": 0.11,
         "mxfp8": 0.03, "mxfp4": 0.13, "int8": 0.02, "int8-row": 0.01, "int8-convrot": 0.01,
         "int4-g32": 0.11, "int4-g64": 0.13, "int4-g128": 0.15, "w4a8": 0.09,
         "w4a4-convrot": 0.17}  # fmt: skip
SHAPES = {
    "blocks.0.attn.qkv": (768, 256),
    "blocks.0.mlp.up": (1024, 256),
    "blocks.0.mlp.down": (256, 1024),
    "blocks.0.odd": (50, 250),  # padded where the format pads, kept where it can't hold it
    "blocks.0.thin": (3, 512),
}


def pestle(*arguments: str) -> str:
    run = subprocess.run([PESTLE, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, f"pestle {' '.join(arguments)}: {run.stderr}"
    return run.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    generator = torch.Generator().manual_seed(1)
    tensors = {"blocks.0.norm.weight": torch.ones(256, dtype=torch.bfloat16)}
    for name, shape in SHAPES.items():
        weight = torch.randn(shape, generator=generator) * 0.02
        tensors[name + ".weight"] = weight.to(torch.bfloat16)
        tensors[name + ".bias"] = torch.randn(shape[0], generator=generator).to(torch.bfloat16)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_file(tensors, path, metadata={"author": "a test", "ünïcode": "läuft"})
    return path


@pytest.fixture(scope="module")
def quantized(model):
    """format -> (file, report), each made once."""
    made = {}

    def make(name: str) -> tuple[Path, dict]:
        if name not in made:
            path = model.parent / f"{name}.safetensors"
            report = pestle(
                "quantize", str(model), str(path), "--format", name, "--all", "--json", "-"
            )
            made[name] = path, json.loads(report)
        return made[name]

    return make


@pytest.fixture(autouse=True)
def eager():
    with comfy_kitchen.use_backend("eager"):
        yield


def decoded_by_comfy(tensors: dict, layer: str, shape: tuple[int, int]) -> torch.Tensor:
    """The layer's weight in f32, from the file's tensors alone, as ComfyUI's loader maps them."""
    config = json.loads(bytes(tensors[layer + ".comfy_quant"].tolist()))
    data = tensors[layer + ".weight"]

    def values(layout: str, data: torch.Tensor, **params) -> torch.Tensor:
        made = get_layout_class(layout).Params(orig_dtype=torch.float32, orig_shape=shape, **params)
        return QuantizedTensor(data, layout, made).dequantize()

    def scale(suffix: str = "_scale") -> torch.Tensor:
        return tensors[layer + ".weight" + suffix]

    match config["format"]:
        case "float8_e4m3fn" | "float8_e5m2":
            assert data.dtype == getattr(torch, config["format"])
            assert scale().shape == ()
            return values("TensorCoreFP8Layout", data, scale=scale())
        case "nvfp4":
            assert scale("_scale_2").shape == ()
            return values("TensorCoreNVFP4Layout", data, scale=scale("_scale_2"),
                          block_scale=scale().view(torch.float8_e4m3fn))  # fmt: skip
        case "mxfp8":
            return values("TensorCoreMXFP8Layout", data, scale=scale().view(torch.float8_e8m0fnu))
        case "int8_tensorwise":
            return values("TensorWiseINT8Layout", data, scale=scale(),
                          convrot=config.get("convrot", False),
                          convrot_groupsize=config.get("convrot_groupsize", 256))  # fmt: skip
        case "convrot_w4a4":
            return values("TensorCoreConvRotW4A4Layout", data, scale=scale(),
                          convrot_groupsize=config["convrot_groupsize"])  # fmt: skip
        case "asym_w4a8_int8":
            return values("AsymW4A8Int8Layout", data, scale=scale("_s_rel"),
                          s_channel=scale("_s_channel"), codebook=scale("_codebook"),
                          group_size=config["group_size"],
                          convrot_groupsize=config["convrot_groupsize"])  # fmt: skip
    raise AssertionError(f"{layer}: unknown format {config}")


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    want = want.double()
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("name", COMFY_FORMATS)
def test_comfy_kitchen_decodes_every_layer_to_our_values(name, model, quantized):
    path, report = quantized(name)
    assert report["layout"] == "comfy"
    plain = path.with_suffix(".plain.safetensors")
    pestle("dequantize", str(path), str(plain), "--dtype", "f32", "--force")
    tensors, ours, source = load_file(path), load_file(plain), load_file(model)
    with safe_open(path, "pt") as file:
        listed = json.loads(file.metadata()["_quantization_metadata"])
    rotated = name in ("int8-convrot", "w4a8", "w4a4-convrot")
    layers = [key.removesuffix(".comfy_quant") for key in tensors if key.endswith(".comfy_quant")]
    assert sorted(listed["layers"]) == sorted(layers)
    for layer, shape in SHAPES.items():
        if layer not in layers:
            assert layer == "blocks.0.odd" and (rotated or shape[1] % 16), (layer, name)
            assert torch.equal(tensors[layer + ".weight"], source[layer + ".weight"])
            continue
        assert listed["layers"][layer] == json.loads(
            bytes(tensors[layer + ".comfy_quant"].tolist())
        )
        theirs, mine = decoded_by_comfy(tensors, layer, shape), ours[layer + ".weight"]
        assert theirs.shape == mine.shape == shape
        if rotated:  # both rotate back in f32, summing in different orders
            assert (theirs - mine).abs().max() <= 2.0**-20 * mine.abs().max()
        else:
            assert torch.equal(theirs.contiguous(), mine), layer
        assert relative_error(theirs, source[layer + ".weight"]) < WORST[name]
    assert len(layers) >= 4
    assert torch.equal(tensors["blocks.0.attn.qkv.bias"], source["blocks.0.attn.qkv.bias"])


@pytest.mark.parametrize("name", COMFY_FORMATS + PLAIN_ONLY)
def test_report_has_the_errors_that_numpy_finds(name, model, quantized):
    path, report = quantized(name)
    plain = path.with_suffix(".errors.safetensors")
    pestle("dequantize", str(path), str(plain), "--dtype", "f32", "--force")
    ours, source = load_file(plain), load_file(model)
    checked = 0
    for layer in report["layers"]:
        tensor = layer["name"] if layer["name"] in source else layer["name"] + ".weight"
        if layer["format"] is None:
            if "bias" not in tensor and "norm" not in tensor:
                assert layer["kept_because"], layer
            continue
        checked += 1
        want = source[tensor].double().numpy()
        got = ours[tensor].double().numpy()
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert layer["relative_error"] == pytest.approx(error, rel=1e-3), layer["name"]
        assert layer["sqnr_db"] == pytest.approx(-20 * np.log10(error), abs=0.01)
        assert layer["max_error"] == pytest.approx(np.abs(got - want).max(), rel=1e-3)
        assert error < WORST[name]
    assert checked >= 3


def test_metadata_and_order_survive(model, quantized):
    path, _ = quantized("nvfp4")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["author"] == "a test" and metadata["ünïcode"] == "läuft"


@pytest.mark.parametrize("name", ["nvfp4", "w4a8", "int4-g64"])
def test_thread_count_changes_no_byte(name, model, quantized, tmp_path):
    path, _ = quantized(name)
    for threads in ("1", "3"):
        again = tmp_path / f"{threads}.safetensors"
        pestle("quantize", str(model), str(again), "--format", name, "--all", "-q",
               "--threads", threads)  # fmt: skip
        assert again.read_bytes() == path.read_bytes()


def test_diff_agrees_with_the_report(model, quantized):
    path, report = quantized("mxfp8")
    found = json.loads(pestle("diff", str(model), str(path), "--json"))
    by_name = {layer["name"].removesuffix(".weight"): layer for layer in found["layers"]}
    for layer in report["layers"]:
        if layer["format"] is not None:
            same = by_name[layer["name"].removesuffix(".weight")]
            assert same["relative_error"] == pytest.approx(layer["relative_error"], rel=1e-6)
