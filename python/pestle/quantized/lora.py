"""LoRA on quantised weights: beside them, or merged into their codes and out again."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ..errors import InvalidArgumentError
from .tensor import QuantizedTensor

_KINDS = ("lora_A", "lora_B", "lora_down", "lora_up", "alpha")
_DOWN, _UP = ("lora_A", "lora_down"), ("lora_B", "lora_up")
_KEY = re.compile(r"^(?P<layer>.+)\.(?P<kind>lora_A|lora_B|lora_down|lora_up|alpha)(\..*)?$")
_PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.",
             "unet.", "lora_unet_", "lora_transformer_", "lora_te_")  # fmt: skip
_SIDE, _KEPT = "lora_", "_pestle_before_merge"


@dataclass(frozen=True)
class Factors:
    """up @ down is what a LoRA adds to a weight, times `scale`."""

    down: torch.Tensor  # [rank, K]
    up: torch.Tensor  # [N, rank]
    scale: float


def factors_of(lora: dict[str, torch.Tensor] | str | os.PathLike) -> dict[str, Factors]:
    """The factors of each layer, by the file's name for it: PEFT's lora_A and lora_B, or lora_down
    and lora_up with an alpha."""
    if not isinstance(lora, dict):
        from .._files import load_file

        lora = load_file(lora)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in lora.items():
        found = _KEY.match(name)
        if found is None:
            raise InvalidArgumentError(f"{name} is no part of a LoRA: they are {', '.join(_KINDS)}")
        parts.setdefault(found["layer"], {})[found["kind"]] = tensor
    return {layer: _factors(layer, own) for layer, own in parts.items()}


def _factors(layer: str, parts: dict[str, torch.Tensor]) -> Factors:
    down = next((parts[kind] for kind in _DOWN if kind in parts), None)
    up = next((parts[kind] for kind in _UP if kind in parts), None)
    if down is None or up is None:
        raise InvalidArgumentError(f"{layer}: a LoRA needs both factors, it has {sorted(parts)}")
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise InvalidArgumentError(
            f"{layer}: factors of shapes {list(up.shape)} and {list(down.shape)} don't multiply"
        )
    rank = down.shape[0]
    return Factors(down, up, float(parts["alpha"]) / rank if "alpha" in parts else 1.0)


def _plain(name: str) -> str:
    """A layer's name as files of different programs agree on it."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace(".", "_")


def _targets(model: nn.Module, lora, strict: bool) -> list[tuple[str, nn.Module, Factors]]:
    linears = {_plain(n): (n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    found = []
    for layer, factors in factors_of(lora).items():
        if _plain(layer) not in linears:
            if strict:
                raise InvalidArgumentError(f"{layer}: the model has no linear layer of this name")
            continue
        name, module = linears[_plain(layer)]
        wanted = (module.weight.shape[0], module.weight.shape[1])
        if (factors.up.shape[0], factors.down.shape[1]) != wanted:
            given = [factors.up.shape[0], factors.down.shape[1]]
            raise InvalidArgumentError(
                f"{layer}: the LoRA is for a weight of shape {given}, {name} has {list(wanted)}"
            )
        found.append((name, module, factors))
    return found


# ---- beside the weights


class Side(nn.Module):
    """What a LoRA adds to a layer's output; its factors can be trained."""

    def __init__(self, factors: Factors, strength: float, like: nn.Linear):
        super().__init__()
        how = {"device": like.weight.device, "dtype": like.weight.dtype}
        self.down = nn.Parameter(factors.down.to(**how, copy=True))
        self.up = nn.Parameter(factors.up.to(**how, copy=True))
        self.scale = factors.scale * strength

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.linear(x.to(self.down.dtype), self.down) * self.scale
        return nn.functional.linear(inner, self.up)


def _add(name: str, module: nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
    return out + getattr(module, name)(args[0]).to(out.dtype)


def add_lora_(
    model: nn.Module,
    lora: dict[str, torch.Tensor] | str | os.PathLike,
    strength: float = 1.0,
    *,
    name: str = "default",
    strict: bool = True,
) -> list[str]:
    """Puts a LoRA beside the model's linear layers, whose weights are not touched; returns their
    names. `lora` is a safetensors file or its tensors. Gradients go to its factors."""
    key = f"{_SIDE}{name}"
    targets = _targets(model, lora, strict)
    for layer, module, _ in targets:
        if hasattr(module, key):
            raise InvalidArgumentError(f"{layer} has a LoRA {name!r}: remove_lora_ it first")
    for _, module, factors in targets:
        module.add_module(key, Side(factors, strength, module))
        module.register_forward_hook(partial(_add, key))
    return [layer for layer, *_ in targets]


def remove_lora_(model: nn.Module, name: str = "default") -> list[str]:
    """Takes a LoRA away again; returns the layers that had it."""
    key, found = f"{_SIDE}{name}", []
    for layer, module in model.named_modules():
        if not isinstance(getattr(module, key, None), Side):
            continue
        delattr(module, key)
        for number, hook in list(module._forward_hooks.items()):
            if isinstance(hook, partial) and hook.func is _add and hook.args == (key,):
                del module._forward_hooks[number]
        found.append(layer)
    return found


# ---- in the weights


def _seed(layer: str, seed: int) -> int:
    """ComfyUI seeds a weight by the CRC of its name; another seed moves all of them."""
    return (zlib.crc32(f"{layer}.weight".encode()) + seed) % (1 << 31) or 1


def merge_lora_(
    model: nn.Module,
    lora: dict[str, torch.Tensor] | str | os.PathLike,
    strength: float = 1.0,
    *,
    seed: int | None = None,
    strict: bool = True,
) -> list[str]:
    """Merges a LoRA into the weights: decoded, added to in f32, and quantised again in the same
    layout, weight by weight. With a seed the rounding is stochastic, by seed and layer, so that
    changes below a code's step are not lost. unmerge_lora_ gives the old codes back."""
    targets = _targets(model, lora, strict)
    for layer, module, factors in targets:
        weight = module.weight
        if not hasattr(module, _KEPT):
            setattr(module, _KEPT, weight)
        how = {"device": weight.device, "dtype": torch.float32}
        added = factors.up.to(**how) @ factors.down.to(**how)
        with torch.no_grad():
            values = _values(weight) + added * (factors.scale * strength)
            module.weight = nn.Parameter(_like(weight, values, layer, seed), requires_grad=False)
    return [layer for layer, *_ in targets]


def _values(weight: torch.Tensor) -> torch.Tensor:
    if isinstance(weight, QuantizedTensor):
        return weight.to(torch.float32).dequantize()
    return weight.float()


def _like(weight: torch.Tensor, values: torch.Tensor, layer: str, seed: int | None):
    if not isinstance(weight, QuantizedTensor):
        return values.to(weight.dtype)
    options = {} if seed is None else {"stochastic_rounding": _seed(layer, seed)}
    return weight.requantize_from_float(values, **options).to(weight.dtype)


def unmerge_lora_(model: nn.Module) -> list[str]:
    """Puts the weights back that were there before the first merge_lora_; returns the layers."""
    found = []
    for layer, module in model.named_modules():
        if hasattr(module, _KEPT):
            module.weight = getattr(module, _KEPT)
            delattr(module, _KEPT)
            found.append(layer)
    return found
