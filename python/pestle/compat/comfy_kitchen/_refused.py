"""Names that Pestle has no op for, by family, and why. A call raises NoCapableBackendError with the
reason, unless somebody has registered a backend that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps

import torch
from torch import Tensor

from ._dispatch import public
from .exceptions import FunctionNotServedError
from .registry import registry

__all__ = [
    "PrequantizedInt8Attention",
    "closest_point_on_mesh",
    "connected_components",
    "delaunay3d",
    "deltanet_conv_step",
    "deltanet_conv_step_deferred",
    "edge_collapse_checks",
    "flash_attention_decode_gqa_is_available",
    "flash_attention_decode_is_available",
    "flash_attention_decode_step_merge",
    "flash_attention_decode_tree_merge",
    "gated_delta_ctl_ints",
    "gated_delta_decode_deferred",
    "gated_delta_decode_fused",
    "gated_delta_decode_is_available",
    "gated_delta_deferred_buffers",
    "gated_delta_deferred_is_available",
    "gated_delta_slot_max",
    "int8_attention_from_prequantized",
    "int8_attention_is_available",
    "mesh_bvh",
    "min_cut",
    "prequantize_int8_attention",
    "sol_attn",
    "sol_attn_chunked",
    "sol_attn_is_available",
]

gated_delta_ctl_ints = 26
gated_delta_slot_max = 8


@dataclass(frozen=True, slots=True)
class PrequantizedInt8Attention:
    """What prequantize_int8_attention gives to int8_attention_from_prequantized."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_scale: Tensor
    k_scale: Tensor
    v_scale: Tensor
    original_head_dim: int
    input_dtype: torch.dtype
    attention_scale: float
    cta_k: int
    attn_mask: Tensor | None


REASONS = {
    "Pestle has no recurrent layers, and DeltaNet carries a state from token to token": (
        "deltanet_conv_step",
        "deltanet_conv_step_deferred",
        "gated_delta_decode_deferred",
        "gated_delta_decode_fused",
        "gated_delta_deferred_buffers",
    ),
    "Pestle has no geometry: meshes, points and graphs are none of its tensors": (
        "closest_point_on_mesh",
        "connected_components",
        "delaunay3d",
        "edge_collapse_checks",
        "mesh_bvh",
        "min_cut",
    ),
    "Pestle's attention reads q, k and v in their own precision, so there is nothing to quantise "
    "and keep: call int8_attention(q, k, v), or flash_attention_decode_gqa with a cache": (
        "Int8DecodeCache",
        "int8_attention_from_prequantized",
        "prequantize_int8_attention",
    ),
    "Pestle's attention does not go on from another call's result: give it all keys at once, as "
    "flash_attention_decode_gqa takes them": (
        "flash_attention_decode_step_merge",
        "flash_attention_decode_tree_merge",
    ),
    "Pestle has no block-sparse attention: int8_attention takes a mask": (
        "sol_attn",
        "sol_attn_chunked",
    ),
}

for _reason, _names in REASONS.items():
    registry.explain(_names, f"{_reason}. (registry.register adds a backend that has it.)")


def refused(name: str) -> FunctionNotServedError:
    """What a call raises that no backend has an op for."""
    return FunctionNotServedError(name, None, registry.reason(name))


def _is_served(name: str) -> bool:
    return any(
        registry.is_available(b) and name in status["capabilities"]
        for b, status in registry.list_backends().items()
    )


def _on_gpu(name: str, device: torch.device | int | None) -> bool:
    """Whether a GPU runs it, which is what these are asked for."""
    kind = "cuda" if device is None or isinstance(device, int) else torch.device(device).type
    return kind == "cuda" and torch.cuda.is_available() and _is_served(name)


def int8_attention_is_available(device: torch.device | None = None) -> bool:
    return _on_gpu("int8_attention", device)


def flash_attention_decode_gqa_is_available(
    device: torch.device | int | None = None, dtype: torch.dtype = torch.bfloat16
) -> bool:
    return _on_gpu("flash_attention_decode_gqa", device)


def gated_delta_decode_is_available(
    device: torch.device | None = None, key_head_dim: int = 128, value_head_dim: int = 128
) -> bool:
    return _is_served("gated_delta_decode_fused")


def gated_delta_deferred_is_available(
    device: torch.device | int | None = None, key_head_dim: int = 128, value_head_dim: int = 128
) -> bool:
    return _is_served("gated_delta_decode_deferred")


def flash_attention_decode_is_available(device: torch.device | None = None) -> bool:
    return _on_gpu("flash_attention_decode", device)


def sol_attn_is_available(device: torch.device | None = None) -> bool:
    return _is_served("sol_attn")


@public
def int8_attention_from_prequantized(quantized: PrequantizedInt8Attention) -> Tensor: ...


_from_prequantized = int8_attention_from_prequantized


@wraps(_from_prequantized)
def int8_attention_from_prequantized(quantized, **options):
    if quantized is not None and not quantized.q.is_cuda:
        place = quantized.q.device
        raise ValueError(f"quantized.q is on {place}: prequantised tensors lie on a CUDA device")
    return _from_prequantized(quantized, **options)


@public
def prequantize_int8_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, attn_mask: Tensor | None = None
) -> PrequantizedInt8Attention: ...


@public
def flash_attention_decode_step_merge(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, merged: Tensor
) -> Tensor: ...


@public
def flash_attention_decode_tree_merge(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, merged: Tensor
) -> Tensor: ...


@public
def gated_delta_decode_fused(
    mixed_qkv: Tensor,
    x: Tensor,
    w_a: Tensor,
    w_b: Tensor,
    dt_bias: Tensor,
    g_decay: Tensor,
    state: Tensor,
    key_dim: int,
    num_key_heads: int,
    scale: float,
    z: Tensor,
    norm_weight: Tensor,
    eps: float,
    snapshots: Tensor | None = None,
) -> Tensor: ...


@public
def deltanet_conv_step(
    proj: Tensor,
    conv_state: Tensor,
    conv_w: Tensor,
    conv_b: Tensor | None = None,
    snapshots: Tensor | None = None,
) -> Tensor: ...


@public
def gated_delta_deferred_buffers(
    batch: int,
    channels: int,
    heads: int,
    num_key_heads: int,
    dtype: torch.dtype,
    device: torch.device,
): ...


@public
def deltanet_conv_step_deferred(
    proj: Tensor,
    conv_state: Tensor,
    conv_w: Tensor,
    conv_b: Tensor | None,
    proj_buf: Tensor,
    qkv_buf: Tensor,
    ctl: Tensor,
) -> None: ...


@public
def gated_delta_decode_deferred(
    x: Tensor,
    w_a: Tensor,
    w_b: Tensor,
    dt_bias: Tensor,
    g_decay: Tensor,
    state: Tensor,
    key_dim: int,
    num_key_heads: int,
    scale: float,
    z: Tensor,
    norm_weight: Tensor,
    eps: float,
    qkv_buf: Tensor,
    gates_buf: Tensor,
    sumsq_buf: Tensor,
    ctl: Tensor,
) -> Tensor: ...


@public
def sol_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tau: float = 1.0,
    scale: float | None = None,
    sink_blocks: list[int] | None = None,
    sink_q: list[int] | None = None,
    key_bias: Tensor | None = None,
    topk_ratio: float = 0.0,
    tail: bool = True,
    block_len: Tensor | None = None,
    coarse_gate: Tensor | None = None,
    token_aug: int = 0,
) -> Tensor: ...


@public
def sol_attn_chunked(
    qkv_chunks,
    t: int,
    h: int,
    rope_freqs: Tensor,
    qk_norm_weights: tuple[Tensor, Tensor],
    kmean: Tensor | None = None,
    vscale: Tensor | None = None,
    tau: float = 1.0,
    topk_ratio: float = 0.0,
    scale: float | None = None,
    sink_blocks: list[int] | None = None,
    sink_q: list[int] | None = None,
    rope_eps: float = 1e-06,
    tail: bool = True,
    block_len: Tensor | None = None,
    coarse_gate: Tensor | None = None,
    token_aug: int = 0,
): ...


@public
def delaunay3d(points: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@public
def mesh_bvh(triangles: Tensor): ...


@public
def closest_point_on_mesh(
    bvh, points: Tensor, max_dist: float = float("inf")
) -> tuple[Tensor, Tensor, Tensor]: ...


@public
def connected_components(edges: Tensor, num_nodes: int) -> Tensor: ...


@public
def edge_collapse_checks(
    vertices: Tensor, faces: Tensor, edges: Tensor, positions: Tensor, cos_threshold: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]: ...


@public
def min_cut(nbr: Tensor, cap: Tensor, s_cap: Tensor, t_cap: Tensor) -> Tensor: ...
