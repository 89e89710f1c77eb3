"""LoRA beside quantised weights and merged into them."""

import copy

import pestle
import pytest
import torch
from quantized_cases import NAMES, nothing_decoded, relative, weight
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))

    def forward(self, x):
        return self.blocks[1](nn.functional.silu(self.blocks[0](x)))


def made(name: str, dtype=torch.float32) -> Net:
    torch.manual_seed(0)
    model = Net().to(dtype)
    pestle.quantize_(model, name, default_keep=False)
    return model


def lora(spelling: str = "peft", size: float = 0.05) -> dict:
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(8, 256, generator=generator) * size for _ in range(2))
    if spelling == "peft":
        start = "base_model.model.blocks.1"
        return {f"{start}.lora_A.weight": a, f"{start}.lora_B.weight": b.t().contiguous()}
    if spelling == "kohya":
        start, alpha = "lora_unet_blocks_1", {"lora_unet_blocks_1.alpha": torch.tensor(8.0)}
    else:
        start, alpha = "diffusion_model.blocks.1", {}
    down, up = f"{start}.lora_down.weight", f"{start}.lora_up.weight"
    return {down: a, up: b.t().contiguous()} | alpha


def added(model: Net, parts: dict, strength: float = 1.0) -> torch.Tensor:
    down, up = (parts[k] for k in parts if k.endswith("weight"))
    return model.blocks[1].weight.dequantize().double() + strength * up.double() @ down.double()


@pytest.mark.parametrize("spelling", ["peft", "kohya", "comfy"])
@pytest.mark.parametrize("name", NAMES)
def test_a_lora_beside_the_weights(name, spelling):
    model, parts = made(name), lora(spelling)
    x = weight(5, 256, dtype=torch.float32)
    plain, before = model(x), copy.deepcopy(model.state_dict())
    hidden = nn.functional.silu(model.blocks[0](x)).double()
    expected = hidden @ added(model, parts, 0.5).t() + model.blocks[1].bias
    with nothing_decoded():
        assert pestle.add_lora_(model, parts, 0.5) == ["blocks.1"]
        found = model(x)
    assert relative(found, expected) < 1e-4
    assert torch.equal(model.blocks[1].weight, before["blocks.1.weight"])
    found.sum().backward()
    side = model.blocks[1].lora_default
    assert side.up.grad is not None and side.down.grad is not None
    again = copy.deepcopy(model)
    assert torch.equal(again(x), found)
    with pytest.raises(pestle.InvalidArgumentError, match="remove_lora_ it first"):
        pestle.add_lora_(model, parts)
    assert pestle.remove_lora_(model) == ["blocks.1"] and torch.equal(model(x), plain)
    assert torch.equal(again(x), found)


@pytest.mark.parametrize("name", NAMES)
def test_merging_and_back(name):
    model, parts = made(name), lora()
    before = copy.deepcopy(model.blocks[1].weight)
    wanted = added(model, parts)
    assert pestle.merge_lora_(model, parts) == ["blocks.1"]
    merged = model.blocks[1].weight
    assert merged._layout is before._layout and merged.dtype == before.dtype
    fresh = before.requantize_from_float(wanted.float())
    assert relative(merged.dequantize(), wanted) == pytest.approx(
        relative(fresh.dequantize(), wanted), rel=1e-2
    )
    pestle.merge_lora_(model, parts)
    assert pestle.unmerge_lora_(model) == ["blocks.1"]
    assert torch.equal(model.blocks[1].weight, before)
    assert pestle.unmerge_lora_(model) == []


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "mxfp8", "int8-row", "w4a4-convrot"])
def test_stochastic_rounding_keeps_changes_below_a_step(name):
    parts = lora(size=0.002)  # far below the codes' steps
    models = {seed: made(name) for seed in (None, 0, 1, 2)}
    base = models[None].blocks[1].weight.dequantize().double()
    step = added(models[None], parts) - base
    for seed, model in models.items():
        pestle.merge_lora_(model, parts, seed=seed)
    again = made(name)
    pestle.merge_lora_(again, parts, seed=1)
    assert torch.equal(again.blocks[1].weight, models[1].blocks[1].weight)
    assert not torch.equal(models[1].blocks[1].weight, models[2].blocks[1].weight)

    def kept(model):
        """How much of the change is there: 1 is all of it."""
        change = model.blocks[1].weight.dequantize().double() - base
        return float((change * step).sum() / step.square().sum())

    shares = [kept(models[seed]) for seed in (0, 1, 2)]
    assert abs(sum(shares) / 3 - 1) < 0.5, (shares, kept(models[None]))


def test_what_does_not_fit_is_a_sentence():
    model = made("fp8")
    before = copy.deepcopy(model.state_dict())
    key = "blocks.1.lora_A.weight"
    for parts, message in (
        ({key: torch.ones(4, 256)}, "needs both factors"),
        ({key: torch.ones(4, 256), "blocks.1.lora_B.weight": torch.ones(256, 5)}, "don't multiply"),
        ({key: torch.ones(4, 99), "blocks.1.lora_B.weight": torch.ones(256, 4)}, r"\[256, 99\]"),
        ({"x.lora_A.weight": torch.ones(4, 8), "x.lora_B.weight": torch.ones(8, 4)}, "no linear"),
        ({"blocks.1.weight": torch.ones(4, 8)}, "no part of a LoRA"),
    ):
        for apply in (pestle.add_lora_, pestle.merge_lora_):
            with pytest.raises(pestle.InvalidArgumentError, match=message):
                apply(model, parts)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    other = {"x.lora_A.weight": torch.ones(4, 8), "x.lora_B.weight": torch.ones(8, 4)}
    assert pestle.merge_lora_(model, other, strict=False) == []


def test_a_lora_may_be_a_file(tmp_path):
    pestle.save_file(lora("kohya"), tmp_path / "lora.safetensors")
    model, other = made("nvfp4"), made("nvfp4")
    pestle.add_lora_(model, tmp_path / "lora.safetensors")
    pestle.add_lora_(other, lora("kohya"))
    x = weight(2, 256, dtype=torch.float32)
    assert torch.equal(model(x), other(x))
