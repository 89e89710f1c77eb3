"""A small model that repeats its blocks. Not in conftest.py, whose name as a module other folders'
have too: torch.compile looks a class's module up by its name."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attn = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, transformer_options=None):
        for patch in (transformer_options or {}).get("patches", {}).get("input", ()):
            x = patch(x, transformer_options)
        x = x + self.attn(x)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, depth: int = 3, width: int = 16):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x, options=None):
        x = self.embed(x)
        for index, block in enumerate(self.blocks):
            given = {**(options or {}), "block_index": index, "sigmas": torch.ones(index + 1)}
            x = block(x, transformer_options=given)
        return self.head(x)
