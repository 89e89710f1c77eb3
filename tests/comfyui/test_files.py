"""Files of `pestle quantize --layout comfy` in the real ComfyUI: every architecture and format is
found as the same model as the float file, with outputs near the float model's."""

import json
import subprocess

import comfy.sd
import comfy_kitchen
import pytest
import torch
from comfy_kitchen.tensor import QuantizedTensor
from models import ARCHITECTURES, step, write

# Of a step's relative error: about twice what a correct quantiser gives on these models.
BOUNDS = {
    "fp8": 0.10, "fp8-e5m2": 0.20, "mxfp8": 0.11, "nvfp4": 0.35, "int8": 0.06, "int8-row": 0.05,
    "int8-convrot": 0.04, "w4a8": 0.25, "w4a4-convrot": 0.55,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def floats(folder):
    """name -> (file, what ComfyUI finds in it, its step), each made once."""
    made = {}

    def make(name: str):
        if name not in made:
            path = folder / f"{name}.safetensors"
            write(name, path)
            patcher = comfy.sd.load_diffusion_model(str(path))
            assert type(patcher.model).__name__ == ARCHITECTURES[name].detected
            made[name] = path, found(patcher), step(patcher, name)
        return made[name]

    return make


def found(patcher) -> dict:
    config = dict(patcher.model.model_config.unet_config)
    config.pop("dtype", None)
    return {"model": type(patcher.model).__name__} | config


def quantized_layers(patcher) -> set[str]:
    return {
        name.removesuffix(".weight")
        for name, value in patcher.model.diffusion_model.named_parameters()
        if isinstance(value, QuantizedTensor)
    }


def quantize(pestle_bin, source, path, *options) -> set[str]:
    """The layers that were quantised."""
    command = [pestle_bin, "quantize", source, path, "--layout", "comfy", "--force", "--json", "-"]
    run = subprocess.run([*command, *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    layers = json.loads(run.stdout)["layers"]
    return {layer["name"].removesuffix(".weight") for layer in layers if layer["format"]}


@pytest.mark.parametrize("choice", ["usual", "all"])
@pytest.mark.parametrize("format", BOUNDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_quantised_file_is_found_and_runs(name, format, choice, floats, folder, pestle_bin):
    source, expected, want = floats(name)
    path = folder / "quantised.safetensors"
    options = ["--format", format] + ["--all"] * (choice == "all")
    written = quantize(pestle_bin, source, path, *options)
    with comfy_kitchen.use_backend("eager"):
        patcher = comfy.sd.load_diffusion_model(str(path))
        assert found(patcher) == expected
        assert quantized_layers(patcher) == written
        assert len(written) >= 4
        got = step(patcher, name)
    assert got.shape == want.shape and torch.isfinite(got).all()
    error = float((got - want).norm() / want.norm())
    assert 1e-4 < error < BOUNDS[format]


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "model."])
def test_a_prefixed_checkpoint_is_found(prefix, floats, folder, pestle_bin):
    _, expected, want = floats("sd15")
    source, path = folder / "prefixed.safetensors", folder / "prefixed-nvfp4.safetensors"
    write("sd15", source, prefix)
    written = quantize(pestle_bin, source, path, "--format", "nvfp4", "--all")
    with comfy_kitchen.use_backend("eager"):
        patcher = comfy.sd.load_diffusion_model(str(path))
        assert found(patcher) == expected
        assert {prefix + layer for layer in quantized_layers(patcher)} == written
        assert 1e-4 < float((step(patcher, "sd15") - want).norm() / want.norm()) < BOUNDS["nvfp4"]
