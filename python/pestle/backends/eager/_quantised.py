"""Quantised output of ops that make rows: the codes of the stand-alone quantisers."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _numbers as n
from . import blocks, fp8, int8


def codes_of(out: Tensor, q_scale, global_scale, how: dict) -> tuple:
    """q, and its scales where they are computed here."""
    kind, layout = how["out_format"], how["scale_layout"]
    rounding = {"rounding": "nearest", "seed": 0}
    rows = rounding | {"transposed": False}
    if kind in ("fp8_tensor", "fp8_row", "fp8_block"):
        granularity = "block_1x128" if kind == "fp8_block" else kind.removeprefix("fp8_")
        made = fp8.quantize_fp8(
            out, q_scale, granularity=granularity, q_dtype=torch.float8_e4m3fn, **rows
        )
    elif kind == "int8_row":
        made = int8.quantize_int8(
            out, q_scale, granularity="row", group_size=1, hadamard=how["hadamard"], **rows
        )
    elif kind == "nvfp4":
        q, scale = blocks.quantize_nvfp4(
            n.rows(out), global_scale, nibbles=how["nibbles"], scale_layout=layout, pad=False,
            **rounding,
        )  # fmt: skip
        made = q.reshape(*out.shape[:-1], out.shape[-1] // 2), scale
    else:
        q, scale = blocks.quantize_mxfp8(
            n.rows(out), scale_layout=layout, pad=False, q_dtype=torch.float8_e4m3fn, **rounding
        )
        made = q.reshape(out.shape), scale
    return made if isinstance(made, tuple) else (made,)
