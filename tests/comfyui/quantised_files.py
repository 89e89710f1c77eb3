"""A file of FLUX in every quantised format that ComfyUI knows, with the options of its layout."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from server import Server

FLOAT = "flux.safetensors"


@dataclass(frozen=True)
class File:
    """`format`: of `pestle quantize`; `known_as`: ComfyUI's name for it; `option`: of ComfyUI's
    layout, which `pestle quantize` does not write."""

    format: str
    known_as: str
    option: str = ""


FILES = {
    "fp8": File("fp8", "float8_e4m3fn"),
    "fp8-input-scale": File("fp8", "float8_e4m3fn", "input scale"),
    "fp8-legacy": File("fp8", "float8_e4m3fn", "legacy"),
    "fp8-decoded": File("fp8", "float8_e4m3fn", "full precision"),
    "fp8-e5m2": File("fp8-e5m2", "float8_e5m2"),
    "mxfp8": File("mxfp8", "mxfp8"),
    "nvfp4": File("nvfp4", "nvfp4"),
    "nvfp4-smoothed": File("nvfp4", "nvfp4", "smoothed"),
    "int8": File("int8", "int8_tensorwise"),
    "int8-row": File("int8-row", "int8_tensorwise"),
    "int8-convrot": File("int8-convrot", "int8_tensorwise"),
    "w4a4-convrot": File("w4a4-convrot", "convrot_w4a4"),
    "w4a4-in-int8": File("w4a4-convrot", "convrot_w4a4", "in int8"),
    "w4a8": File("w4a8", "asym_w4a8_int8"),
}
MORE = {
    "full precision": {"full_precision_matrix_mult": True},
    "in int8": {"linear_dtype": "int8"},
}


def write_quantised(server: Server, name: str, pestle_bin: str) -> Path:
    """Among the server's models; once."""
    folder = server.base / "models/diffusion_models"
    path = folder / f"every_{name}.safetensors"
    if path.exists():
        return path
    command = [pestle_bin, "quantize", folder / FLOAT, path, "--layout", "comfy"]
    subprocess.run([*command, "--format", FILES[name].format], check=True, capture_output=True)
    if option := FILES[name].option:
        save_file(changed(load_file(path), option), path)
    return path


def changed(tensors: dict, option: str) -> dict:
    layers = [name.removesuffix(".comfy_quant") for name in tensors if name.endswith("comfy_quant")]
    assert layers
    for layer in layers:
        told = json.loads(bytes(tensors[f"{layer}.comfy_quant"].tolist())) | MORE.get(option, {})
        stored = torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)
        tensors[f"{layer}.comfy_quant"] = stored
        if option == "input scale":
            tensors[f"{layer}.input_scale"] = torch.tensor(0.03)
        if option == "smoothed":
            width = 2 * tensors[f"{layer}.weight"].shape[1]
            tensors[f"{layer}.pre_quant_scale"] = torch.linspace(0.8, 1.2, width)
            tensors[f"{layer}.input_scale"] = torch.tensor(0.01)
        if option == "legacy":
            del tensors[f"{layer}.comfy_quant"]
            tensors[f"{layer}.scale_weight"] = tensors.pop(f"{layer}.weight_scale")
    if option == "legacy":
        tensors["scaled_fp8"] = torch.empty(0, dtype=torch.float8_e4m3fn)
    return tensors
