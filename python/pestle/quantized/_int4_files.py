"""GPTQ's and AWQ's files (AutoGPTQ, AutoAWQ, and what Transformers writes): every code, scale and
zero point is moved into INT4Layout's order, none is changed."""

from __future__ import annotations

import torch

from ..errors import CorruptFileError, UnsupportedError
from . import layouts
from ._listing import Source
from .tensor import QuantizedTensor

PARTS = ("qweight", "qzeros", "scales", "g_idx")


def layers_of(source: Source) -> list[str]:
    """Layers that are stored so."""
    ends = ".qweight"
    return [name.removesuffix(ends) for name in source.tensors if name.endswith(ends)]


def _packing(source: Source) -> str:
    config = source.config.get("quantization_config", {})
    method = str(config.get("quant_method", "")).lower()
    bits = config.get("bits", config.get("w_bit", 4))
    if bits != 4:
        raise UnsupportedError(
            f"{source.path}: {method or 'GPTQ'} with {bits} bits: Pestle reads 4"
        )
    if method == "awq":
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise UnsupportedError(f"{source.path}: AWQ of version {version}: Pestle reads gemm")
        return "awq"
    if method == "gptq":
        return "gptq_v2" if config.get("checkpoint_format") == "gptq_v2" else "gptq"
    raise UnsupportedError(
        f"{source.path}: {PARTS[0]} without a config.json whose quantization_config names gptq or "
        "awq: their packings differ, so give the folder that holds it"
    )


def load(source: Source, layer: str, device=None) -> QuantizedTensor:
    """The weight [N, K] of a layer."""
    import pestle

    packing = _packing(source)
    names = {part: f"{layer}.{part}" for part in PARTS if f"{layer}.{part}" in source.tensors}
    for part in PARTS[:3]:
        if part not in names:
            raise CorruptFileError(f"{layer}: {layer}.{part} is missing")
    read = source.read(list(names.values()), device)
    found = {part: read[name] for part, name in names.items()}
    qweight, scales = found["qweight"], found["scales"]
    base = "awq" if packing == "awq" else "gptq"
    codes = pestle.repack_int4(qweight, from_packing=base, to_packing="plain_unsigned")
    zeros = pestle.repack_zeros(found["qzeros"], from_packing=packing, to_packing="plain")
    (n, half), (groups, columns) = codes.shape, scales.shape
    if columns != n or (2 * half) % groups or tuple(zeros.shape) != (n, groups):
        given = f"scales {list(scales.shape)} and zeros {list(zeros.shape)}"
        raise CorruptFileError(f"{layer}: {given} don't fit {n} rows and {2 * half} columns")
    group = 2 * half // groups
    if "g_idx" in found:
        _check_order(layer, found["g_idx"], group)
    params = layouts.INT4Layout.Params(
        scales.float().t().contiguous(), scales.dtype, (n, 2 * half), zeros, group
    )
    return QuantizedTensor(codes, "INT4Layout", params)


def _check_order(layer: str, index: torch.Tensor, group: int) -> None:
    plain = torch.arange(index.numel(), device=index.device) // group
    if not torch.equal(index.long(), plain):
        raise UnsupportedError(
            f"{layer}: its columns are in the order of their activations (desc_act), which the "
            "weight's groups do not follow: Pestle reads files without it"
        )
