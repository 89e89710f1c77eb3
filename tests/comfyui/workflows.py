"""Workflows as the page would send them, and what they leave behind."""

import torch
from safetensors.torch import load_file
from server import Run, Server


def link(node: str, slot: int = 0) -> list:
    return [node, slot]


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def sampled(model: list, prefix: str, width: int = 96, steps: int = 2, salt: int = 0) -> dict:
    """From a model to a file with the latent."""
    return {
        "text": node("TestRandomConditioning", width=512, pooled=256, salt=salt),
        "empty": node("EmptySD3LatentImage", width=width, height=64, batch_size=1),
        "sampler": node(
            "KSampler", model=model, seed=5, steps=steps, cfg=1.0, sampler_name="euler",
            scheduler="simple", positive=link("text"), negative=link("text"),
            latent_image=link("empty"), denoise=1.0,
        ),
        "save": node("SaveLatent", samples=link("sampler"), filename_prefix=prefix),
    }  # fmt: skip


def loaded(name: str = "flux.safetensors") -> dict:
    return {"model": node("UNETLoader", unet_name=name, weight_dtype="default")}


def compiled(**settings) -> dict:
    asked = {
        "backend": "inductor", "fullgraph": False, "mode": "default", "dynamic": True,
        "dynamo_cache_size_limit": 64, "compile_transformer_blocks_only": True,
        "reuse_if_similar": True, "experimental_ptx": False, "ptx_fast_math": True,
        "warmup_runs": 1,
    }  # fmt: skip
    return {
        "settings": node("TorchCompileSpeedSettings", **asked | settings),
        "apply": node("ApplyTorchCompile", model=link("model"), compile_args=link("settings")),
        "report": node("PestleCompileReport", model=link("apply"), after=link("sampler")),
    }


def latent(server: Server, prefix: str) -> torch.Tensor:
    """The last file that SaveLatent wrote: PREFIX_00001_.latent and so on."""
    files = sorted((server.base / "output").glob(f"{prefix}_[0-9]*_.latent"))
    return load_file(files[-1])["latent_tensor"].float()


def succeed(server: Server, workflow: dict) -> Run:
    run = server.run(workflow)
    assert run.status == "execution_success", run.error
    return run


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())
