"""Transformer blocks of FLUX's and Wan's published shapes, with the arithmetic behind their layers
as a parameter: plain PyTorch, or Pestle with quantised linear layers. Weights are random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pestle
import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """A model's published sizes. `blocks`: how many of each kind a step runs."""

    name: str
    width: int
    heads: int
    hidden: int  # of the MLP
    tokens: int  # of the picture or the film
    text: int
    blocks: dict[str, int]

    @property
    def head(self) -> int:
        return self.width // self.heads


SHAPES = {
    # FLUX.1 at 1024 x 1024: 4,096 tokens of the picture after 512 of the text.
    "flux": Shape("flux", 3072, 24, 12288, 4096, 512, {"double": 19, "single": 38}),
    # Wan 2.1 14B, 81 frames at 480 x 832.
    "wan": Shape("wan", 5120, 40, 13824, 32760, 512, {"wan": 40}),
    # For a machine without a GPU.
    "tiny-flux": Shape("tiny-flux", 256, 4, 1024, 96, 32, {"double": 1, "single": 2}),
    "tiny-wan": Shape("tiny-wan", 256, 4, 704, 160, 32, {"wan": 2}),
}


class Linear(nn.Module):
    """A linear layer whose weight a kit may replace by quantised parts."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5, False)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.02, False)
        self.parts: tuple[torch.Tensor, ...] = ()

    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.parts or (self.weight,)))


class TorchKit:
    """Every layer as PyTorch users write it."""

    def prepare(self, layer: Linear) -> None:
        pass

    def norm(self, x, scale, shift):
        return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift

    def plain_norm(self, x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)

    def linear(self, x, layer: Linear):
        return F.linear(x, layer.weight, layer.bias)

    def gelu_linear(self, x, layer: Linear):
        return F.gelu(self.linear(x, layer), approximate="tanh")

    def add_linear(self, residual, gate, x, layer: Linear):
        y = self.linear(x, layer)
        return residual + (y if gate is None else gate * y)

    def head_norm_rope(self, q, k, q_weight, k_weight, cos, sin):
        return tuple(
            self._rope(F.rms_norm(t, t.shape[-1:], w, 1e-6), cos, sin)
            for t, w in ((q, q_weight), (k, k_weight))
        )

    def row_norm_rope(self, q, k, q_weight, k_weight, heads, cos, sin):
        q = F.rms_norm(q, q.shape[-1:], q_weight, 1e-6).unflatten(-1, (heads, -1))
        k = F.rms_norm(k, k.shape[-1:], k_weight, 1e-6).unflatten(-1, (heads, -1))
        return self._rope(q, cos, sin), self._rope(k, cos, sin)

    def row_norm(self, x, weight):
        return F.rms_norm(x, x.shape[-1:], weight, 1e-6)

    def _rope(self, x, cos, sin):
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
        return turned.flatten(-2).to(x.dtype)


class PestleKit(TorchKit):
    """Norms, rotary embeddings and epilogues in one kernel each. A subclass says how a weight is
    stored and multiplied; `operand` is what a norm or a tensor becomes for that product."""

    norm_format = "none"

    def norm(self, x, scale, shift):
        return pestle.adaln(x, scale, shift, eps=1e-6, out_format=self.norm_format)

    def plain_norm(self, x, weight, bias):
        return pestle.layer_norm(x, weight=weight, bias=bias, eps=1e-6, out_format=self.norm_format)

    def linear(self, x, layer):
        return self.product(self.operand(x), layer)

    def gelu_linear(self, x, layer):
        options = {} if self.norm_format == "none" else {"out_format": self.norm_format}
        return self.product(self.operand(x), layer, activation="gelu_tanh", **options)

    def add_linear(self, residual, gate, x, layer):
        return self.product(self.operand(x), layer, residual=residual, gate=gate)

    def head_norm_rope(self, q, k, q_weight, k_weight, cos, sin):
        q, k = (t.transpose(0, 1)[None] for t in (q, k))  # [1, heads, tokens, head]
        turns = {"cos": cos.transpose(0, 1)[None], "sin": sin.transpose(0, 1)[None]}
        made = pestle.rms_rope(q, q_weight, x2=k, weight2=k_weight, eps=1e-6, **turns)
        return tuple(t[0].transpose(0, 1) for t in made)

    def row_norm_rope(self, q, k, q_weight, k_weight, heads, cos, sin):
        q = pestle.rms_norm(q, weight=q_weight, eps=1e-6).unflatten(-1, (heads, -1))
        k = pestle.rms_norm(k, weight=k_weight, eps=1e-6).unflatten(-1, (heads, -1))
        q, k = (t.transpose(0, 1)[None] for t in (q, k))
        turns = {"cos": cos.transpose(0, 1)[None], "sin": sin.transpose(0, 1)[None]}
        made = pestle.apply_rope(q, x2=k, **turns)
        return tuple(t[0].transpose(0, 1) for t in made)

    def row_norm(self, x, weight):
        return pestle.rms_norm(x, weight=weight, eps=1e-6)


class RowKit(PestleKit):
    """Weights and activations as 8-bit codes with a scale a row; norms and GELU give codes."""

    quantize = product_op = None
    options: ClassVar[dict] = {}

    def prepare(self, layer):
        layer.parts = tuple(type(self).quantize(layer.weight.detach(), granularity="row"))

    def operand(self, x):
        return x if isinstance(x, tuple) else type(self).quantize(x, granularity="row")

    def product(self, operand, layer, **epilogue):
        codes, scales = operand
        weight, weight_scales = layer.parts
        return type(self).product_op(
            codes, weight, scales, weight_scales, bias=layer.bias, granularity="row",
            **self.options, **epilogue,
        )  # fmt: skip


class Int8Kit(RowKit):
    norm_format = "int8_row"
    quantize, product_op = staticmethod(pestle.quantize_int8), staticmethod(pestle.scaled_mm_int8)


class Fp8Kit(RowKit):
    norm_format = "fp8_row"
    quantize, product_op = staticmethod(pestle.quantize_fp8), staticmethod(pestle.scaled_mm_fp8)
    options: ClassVar[dict] = {"accumulation": "fast"}  # as the peers sum


class Nvfp4Kit(PestleKit):
    """Weights in 4 bits, activations as they are."""

    def prepare(self, layer):
        amax = layer.weight.detach().abs().max().float()
        scale = (amax / (6 * 448)).reshape(1)
        layer.parts = (*pestle.quantize_nvfp4(layer.weight.detach(), scale), scale)

    def operand(self, x):
        return x

    def product(self, x, layer, **epilogue):
        return pestle.linear_nvfp4(x, *layer.parts, bias=layer.bias, **epilogue)


def attention(q, k, v):
    """The same for every kit; [tokens, heads, head]."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)


class _Block(nn.Module):
    def __init__(self, shape: Shape, kit: TorchKit):
        super().__init__()
        self.shape, self.kit = shape, kit

    def weights(self, *names: str) -> None:
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(self.shape.head), False))

    def heads(self, x):
        return x.unflatten(-1, (self.shape.heads, -1))


class Single(_Block):
    """FLUX's single-stream block; its two fused layers are stored as their halves, which is the
    same arithmetic: the second adds both halves' products."""

    def __init__(self, shape, kit):
        super().__init__(shape, kit)
        width, hidden = shape.width, shape.hidden
        self.modulation = nn.Linear(width, 3 * width)
        self.qkv, self.up = Linear(width, 3 * width), Linear(width, hidden)
        self.out, self.down = Linear(width, width), Linear(hidden, width)
        self.weights("q_norm", "k_norm")

    def forward(self, x, state):
        kit = self.kit
        shift, scale, gate = self.modulation(F.silu(state.vector)).chunk(3, -1)
        h = kit.norm(x, scale, shift)
        q, k, v = (self.heads(t) for t in kit.linear(h, self.qkv).chunk(3, -1))
        q, k = kit.head_norm_rope(q, k, self.q_norm, self.k_norm, state.cos, state.sin)
        x = kit.add_linear(x, gate, attention(q, k, v), self.out)
        return kit.add_linear(x, gate, kit.gelu_linear(h, self.up), self.down)


class _Stream(_Block):
    """One of the two streams of a double block."""

    def __init__(self, shape, kit):
        super().__init__(shape, kit)
        width, hidden = shape.width, shape.hidden
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        self.weights("q_norm", "k_norm")

    def before(self, x, vector, cos, sin):
        modulation = self.modulation(F.silu(vector)).chunk(6, -1)
        h = self.kit.norm(x, modulation[1], modulation[0])
        q, k, v = (self.heads(t) for t in self.kit.linear(h, self.qkv).chunk(3, -1))
        q, k = self.kit.head_norm_rope(q, k, self.q_norm, self.k_norm, cos, sin)
        return modulation, q, k, v

    def after(self, x, mixed, modulation):
        kit = self.kit
        x = kit.add_linear(x, modulation[2], mixed, self.out)
        h = kit.norm(x, modulation[4], modulation[3])
        return kit.add_linear(x, modulation[5], kit.gelu_linear(h, self.up), self.down)


class Double(_Block):
    """FLUX's double-stream block: text and picture have their own weights and attend together."""

    def __init__(self, shape, kit):
        super().__init__(shape, kit)
        self.text, self.picture = _Stream(shape, kit), _Stream(shape, kit)

    def forward(self, x, state):
        cut = self.shape.text
        parts = (
            (self.text, x[:cut], state.cos[:cut], state.sin[:cut]),
            (self.picture, x[cut:], state.cos[cut:], state.sin[cut:]),
        )
        made = [stream.before(part, state.vector, c, s) for stream, part, c, s in parts]
        q, k, v = (torch.cat([m[i] for m in made]) for i in (1, 2, 3))
        mixed = attention(q, k, v)
        ends = (mixed[:cut], mixed[cut:])
        after = [p[0].after(p[1], e, m[0]) for p, e, m in zip(parts, ends, made, strict=True)]
        return torch.cat(after)


class Wan(_Block):
    """Wan's block: self-attention, attention to the text, MLP."""

    def __init__(self, shape, kit):
        super().__init__(shape, kit)
        width, hidden = shape.width, shape.hidden
        for name in ("q", "k", "v", "out", "text_q", "text_k", "text_v", "text_out"):
            self.add_module(name, Linear(width, width))
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        self.modulation = nn.Parameter(torch.randn(6, width) * width**-0.5, False)
        for name in ("q_norm", "k_norm", "text_q_norm", "text_k_norm", "cross_norm"):
            self.register_parameter(name, nn.Parameter(torch.ones(width), False))
        self.cross_bias = nn.Parameter(torch.zeros(width), False)

    def forward(self, x, state):
        kit = self.kit
        m = (self.modulation + state.vector).split(1)
        h = kit.norm(x, m[1], m[0])
        q, k, v = (kit.linear(h, layer) for layer in (self.q, self.k, self.v))
        q, k = kit.row_norm_rope(
            q, k, self.q_norm, self.k_norm, self.shape.heads, state.cos, state.sin
        )
        x = kit.add_linear(x, m[2], attention(q, k, self.heads(v)), self.out)
        x = self.attend_to_text(x, state.text)
        h = kit.norm(x, m[4], m[3])
        return kit.add_linear(x, m[5], kit.gelu_linear(h, self.up), self.down)

    def attend_to_text(self, x, text):
        kit = self.kit
        h = kit.plain_norm(x, self.cross_norm, self.cross_bias)
        q = kit.row_norm(kit.linear(h, self.text_q), self.text_q_norm)
        k = kit.row_norm(kit.linear(text, self.text_k), self.text_k_norm)
        v = kit.linear(text, self.text_v)
        mixed = attention(self.heads(q), self.heads(k), self.heads(v))
        return kit.add_linear(x, None, mixed, self.text_out)


KINDS = {"single": Single, "double": Double, "wan": Wan}


@dataclass
class State:
    """What all blocks of a step read: conditioning vector, text, rotations of each token."""

    vector: torch.Tensor
    text: torch.Tensor
    cos: torch.Tensor  # [tokens, 1, head / 2], f32
    sin: torch.Tensor


def tokens_of(shape: Shape) -> int:
    return shape.tokens + (shape.text if "double" in shape.blocks else 0)


def make_input(shape: Shape, device: str) -> tuple[torch.Tensor, State]:
    random = torch.Generator(device).manual_seed(1)
    tokens = tokens_of(shape)
    x, vector, text = (
        torch.randn(rows, shape.width, generator=random, device=device).to(torch.bfloat16)
        for rows in (tokens, 1, shape.text)
    )
    powers = torch.arange(0, shape.head, 2, device=device) / shape.head
    angles = torch.arange(tokens, device=device)[:, None, None] * 10000.0**-powers
    return x, State(vector, text, angles.cos(), angles.sin())


def make_blocks(
    shape: Shape, kind: str, count: int, kit: TorchKit, device: str, kinds: dict = KINDS
) -> nn.ModuleList:
    """The same weights for every kit."""
    torch.manual_seed(2)
    with torch.device(device):
        blocks = nn.ModuleList(kinds[kind](shape, kit) for _ in range(count))
    blocks = blocks.to(torch.bfloat16).requires_grad_(False)
    for layer in linears(blocks):
        kit.prepare(layer)
        if layer.parts:
            layer.weight = None
    return blocks


def linears(blocks: nn.Module) -> list[Linear]:
    return [m for m in blocks.modules() if isinstance(m, Linear)]
