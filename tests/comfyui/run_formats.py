"""usage: run_formats.py kitchen|pestle OUT FILE...: what ComfyUI makes of quantised files, with
comfy-kitchen or with Pestle in its place. Each file's model takes a step, without and with a LoRA;
one of its layers is loaded as a linear, as an embedding and as a bank of experts. OUT gets the
results by names FILE/WHAT. On a CPU ComfyUI decodes most formats; for the one layer none is
disabled, so the products of a GPU's path run too."""

import os
import runpy
import sys
from pathlib import Path

WHO, OUT, *FILES = sys.argv[1:]
if WHO == "pestle":
    runpy.run_path(str(Path(__file__).parent / "stand_in/prestartup_script.py"))
sys.path.insert(0, os.environ["PESTLE_COMFYUI"])

from comfy.cli_args import args  # noqa: E402

args.cpu = True

import comfy.ops  # noqa: E402
import comfy.sd  # noqa: E402
import torch  # noqa: E402
from comfy.quant_ops import QUANT_ALGOS  # noqa: E402
from models import step  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

LAYER, INNER, OUTER, EXPERTS = "double_blocks.0.img_mlp.0", 256, 1024, 3
ALL = {"float8_e4m3fn", "float8_e5m2", "nvfp4", "mxfp8"}  # that ComfyUI ever disables
EMBEDDINGS = ("float8_e4m3fn", "float8_e5m2", "int8_tensorwise")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(torch.bfloat16)


def operations(disabled: set = frozenset()):
    return comfy.ops.mixed_precision_ops({}, torch.bfloat16, disabled=disabled)


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The product of x and decoded weights, in f64."""
    return torch.nn.functional.linear(x.double(), weight.double(), bias.double()).float()


def linear(layer: dict, disabled: set = frozenset()):
    made = operations(disabled).Linear(INNER, OUTER, dtype=torch.bfloat16)
    missing, unexpected = made.load_state_dict(dict(layer), strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return made


def of_linear(layer: dict):
    native, x = linear(layer), random(2, 6, INNER)
    smoothed = x * native.pre_quant_scale if hasattr(native, "pre_quant_scale") else x
    yield "exact", exact(smoothed, native.weight.dequantize(), native.bias)
    yield "native", native(x)
    yield "decoded in the call", linear(layer, ALL)(x)
    yield "decoded", native.weight.dequantize()

    native.weight_function = [lambda weight: weight + 0.01]
    yield "patched in the call", native(x)
    native.weight_function = []

    # What ComfyUI trains through; the other formats have no gradient with comfy-kitchen either.
    if QUANT_ALGOS[native.quant_format].get("quantize_input", True):
        with torch.enable_grad():
            given = x.clone().requires_grad_()
            native(given).float().square().sum().backward()
        yield "gradient", given.grad
    if native.quant_format == "int8_tensorwise":
        for act in comfy.ops.INPUT_ACT_EAGER:
            inner = 2 * INNER if "glu" in act else INNER
            yield f"behind {act}", comfy.ops.linear_input_act(native, random(6, inner), act)
    for key, value in native.state_dict().items():
        yield f"stored {key}", value.view(torch.uint8) if value.ndim else value
    weight = native.convert_weight(native.weight) + 0.01 * random(OUTER, INNER, seed=3)
    for name, seed in (("nearest", 0), ("by chance", 7)):
        again = linear(layer)
        again.set_weight(weight.clone(), seed=seed)
        yield f"patched, {name}", again.weight.dequantize()
        yield f"patched, {name}, native", again(x)


def of_embedding(layer: dict):
    made = operations().Embedding(OUTER, INNER, dtype=torch.bfloat16)
    layer = {name: value for name, value in layer.items() if name != "bias"}
    made.load_state_dict(dict(layer), strict=False)
    yield "embedding", made(torch.tensor([[0, 7, 7], [1023, 3, 512]]))


def of_experts(layer: dict):
    """A bank of the same weight, in one tensor."""
    stacked = {
        name: value if name == "comfy_quant" else torch.stack([value] * EXPERTS)
        for name, value in layer.items()
        if name not in ("input_scale", "pre_quant_scale")
    }
    bank = operations().MoEExperts(EXPERTS, INNER, OUTER, dtype=torch.bfloat16)
    bank.load_state_dict(stacked, strict=False)
    x = random(6, INNER)
    yield "exact expert", exact(x, bank.expert_weight(0).dequantize(), layer["bias"])
    for expert in range(EXPERTS):
        yield f"expert {expert}", bank.expert_linear(x, expert)
    with bank.bank_resident(x):
        yield "resident expert", bank.expert_linear(x, 1)


def lora() -> dict[str, torch.Tensor]:
    made = {}
    for layer, inner in (("double_blocks.0.img_attn.proj", 256), ("single_blocks.1.linear2", 1280)):
        key = f"diffusion_model.{layer}"
        made[f"{key}.lora_down.weight"] = random(4, inner, seed=4) / inner**0.5
        made[f"{key}.lora_up.weight"] = random(256, 4, seed=5)
    return made


def of_model(file: str):
    patcher = comfy.sd.load_diffusion_model(file)
    yield "step", step(patcher, "flux")
    patched, _ = comfy.sd.load_lora_for_models(patcher, None, lora(), 0.3, 0)
    yield "step with a LoRA", step(patched, "flux")


def of_layer(file: str):
    tensors, start = load_file(file), f"{LAYER}."
    layer = {name.removeprefix(start): value for name, value in tensors.items()
             if name.startswith(start)}  # fmt: skip
    if "comfy_quant" not in layer:  # a float model; the older layout, which loads as a whole
        return
    told = bytes(layer["comfy_quant"].tolist()).decode()
    yield from of_linear(layer)
    if any(one in told for one in EMBEDDINGS):
        yield from of_embedding(layer)
    if "asym_w4a8" not in told:  # of a bank in W4A8 ComfyUI drops the scales of channels
        yield from of_experts(layer)


def main() -> None:
    made = {}
    for file in FILES:
        with torch.no_grad():
            layer = dict(of_layer(file))
        for what, one in (layer | dict(of_model(file))).items():
            made[f"{Path(file).stem}/{what}"] = one.detach().contiguous()
    save_file(made, OUT)


main()
