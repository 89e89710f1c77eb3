"""Which blocks of ComfyUI's architectures are compiled."""

import comfy.model_detection
import comfy.ops
import pytest
import torch
from comfy.ldm.lumina.model import NextDiT
from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
from models import ARCHITECTURES
from pestle.comfy import repeated_blocks

BLOCKS = {
    "flux": {"DoubleStreamBlock": 2, "SingleStreamBlock": 2},
    "wan": {"WanAttentionBlock": 2},
    "ltx": {"BasicTransformerBlock": 2},
    "sd15": {"ResBlock": 8, "BasicTransformerBlock": 7},
    "sdxl": {"ResBlock": 17, "BasicTransformerBlock": 7},
    "sd3": {"JointBlock": 4},
    "qwen_image": {"QwenImageTransformerBlock": 3},
    "lumina": {"JointTransformerBlock": 7},
}


def made(name: str) -> torch.nn.Module:
    own = {"device": "meta", "operations": comfy.ops.disable_weight_init}
    if name == "qwen_image":
        return QwenImageTransformer2DModel(num_layers=3, **own)
    if name == "lumina":
        return NextDiT(
            dim=256, n_layers=3, n_heads=2, n_kv_heads=2, axes_dims=[32, 48, 48],
            axes_lens=[1, 2, 2], cap_feat_dim=64, **own,
        )  # fmt: skip
    config = comfy.model_detection.model_config_from_unet_config(dict(ARCHITECTURES[name].config))
    config.set_inference_dtype(torch.bfloat16, None)
    return config.get_model({}, "", device="meta").diffusion_model


@pytest.mark.parametrize("name", BLOCKS)
def test_the_repeated_blocks_are_found(name):
    found = repeated_blocks(made(name))
    assert {one.__name__: len(modules) for one, modules in found.items()} == BLOCKS[name]
