"""Small models of the architectures that ComfyUI has, made by its own classes with random weights.

A configuration is what ComfyUI's detection finds in a file of such a model; where detection fixes a
number (SD's 320 channels, LTX's 32 heads), the model has it."""

from dataclasses import dataclass, field

import comfy.model_detection
import torch
from safetensors.torch import save_file

FLUX = {
    "image_model": "flux", "axes_dim": [16, 56, 56], "num_heads": 2, "mlp_ratio": 4.0,
    "theta": 10000,
    "out_channels": 16, "qkv_bias": True, "txt_ids_dims": [], "in_channels": 16, "hidden_size": 256,
    "context_in_dim": 512, "patch_size": 2, "vec_in_dim": 256, "depth": 2, "depth_single_blocks": 2,
    "guidance_embed": True,
}  # fmt: skip
WAN = {
    "image_model": "wan2.1", "model_type": "t2v", "dim": 256, "out_dim": 16, "num_heads": 2,
    "ffn_dim": 768, "num_layers": 2, "patch_size": (1, 2, 2), "freq_dim": 256,
    "window_size": (-1, -1),
    "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6, "in_dim": 16,
}  # fmt: skip
LTX = {
    "image_model": "ltxv", "num_layers": 2, "attention_head_dim": 16, "cross_attention_dim": 512,
    "use_keyframes_abs_pos_embedding": False,
}  # fmt: skip
UNET = {
    "use_checkpoint": False, "image_size": 32, "use_spatial_transformer": True, "legacy": False,
    "in_channels": 4, "out_channels": 4, "model_channels": 320, "use_temporal_resblock": False,
    "use_temporal_attention": False,
}  # fmt: skip
SD15 = UNET | {
    "adm_in_channels": None, "num_res_blocks": [1, 1], "channel_mult": [1, 1],
    "transformer_depth": [1, 1], "transformer_depth_output": [1, 1, 1, 1],
    "transformer_depth_middle": 1, "use_linear_in_transformer": False, "context_dim": 768,
}  # fmt: skip
# The smallest of SDXL's family: its blocks, fewer of them.
SDXL = UNET | {
    "num_classes": "sequential", "adm_in_channels": 2816, "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 1, 1], "transformer_depth": [0, 0, 1, 1, 2, 2],
    "transformer_depth_output": [0] * 9, "transformer_depth_middle": 1,
    "use_linear_in_transformer": True, "context_dim": 2048,
}  # fmt: skip
SD3 = {
    "in_channels": 16, "patch_size": 2, "out_channels": 16, "depth": 4, "input_size": None,
    "adm_in_channels": 512, "context_embedder_config": {
        "target": "torch.nn.Linear", "params": {"in_features": 768, "out_features": 256}},
    "num_patches": 64, "pos_embed_max_size": 8, "qk_norm": "rms", "pos_embed_scaling_factor": None,
    "x_block_self_attn_layers": [],
}  # fmt: skip


@dataclass
class Architecture:
    """`detected`: the model class that ComfyUI must find. `latent`, `inputs`: shapes of one call's
    tensors; `others`: its arguments that are none."""

    config: dict
    detected: str
    latent: tuple
    inputs: dict = field(default_factory=dict)
    others: dict = field(default_factory=dict)


ARCHITECTURES = {
    "flux": Architecture(FLUX, "Flux", (1, 16, 8, 12),
                         {"c_crossattn": (1, 12, 512), "y": (1, 256), "guidance": (1,)}),
    "wan": Architecture(WAN, "WAN21", (1, 16, 2, 8, 8), {"c_crossattn": (1, 16, 4096)}),
    "ltx": Architecture(LTX, "LTXV", (1, 128, 2, 4, 4),
                        {"c_crossattn": (1, 12, 4096)}, {"attention_mask": None}),
    "sd15": Architecture(SD15, "BaseModel", (1, 4, 8, 8), {"c_crossattn": (1, 12, 768)}),
    "sdxl": Architecture(SDXL, "SDXL", (1, 4, 8, 8),
                         {"c_crossattn": (1, 12, 2048), "y": (1, 2816)}),
    "sd3": Architecture(SD3, "SD3", (1, 16, 8, 8), {"c_crossattn": (1, 12, 768), "y": (1, 512)}),
}  # fmt: skip


def random(shape: tuple, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(name: str) -> dict[str, torch.Tensor]:
    """A float model's tensors in bf16: every layer of the size that keeps a signal's size."""
    config = comfy.model_detection.model_config_from_unet_config(dict(ARCHITECTURES[name].config))
    config.set_inference_dtype(torch.bfloat16, None)
    shapes = config.get_model({}, "").diffusion_model.state_dict()
    made = {}
    for seed, (key, tensor) in enumerate(shapes.items()):
        value = random(tensor.shape, seed)
        if tensor.ndim > 1:
            value /= tensor[0].numel() ** 0.5
        elif key.endswith(("weight", "scale")):  # of a norm
            value = 1 + 0.05 * value
        else:
            value *= 0.05
        made[key] = value.to(torch.bfloat16)
    return made


def write(name: str, path, prefix: str = "") -> None:
    save_file({prefix + key: value for key, value in weights(name).items()}, path)


def step(patcher, name: str) -> torch.Tensor:
    """What one call of the sampler's function takes off the latent, in f32."""
    import comfy.model_management

    architecture = ARCHITECTURES[name]
    inputs = {
        key: random(shape, 100 + i) for i, (key, shape) in enumerate(architecture.inputs.items())
    }
    latent = random(architecture.latent, 99)
    comfy.model_management.load_models_gpu([patcher])
    with torch.inference_mode():
        others = architecture.others
        return latent - patcher.model.apply_model(latent, torch.ones(1), **inputs, **others)
