"""report: of each layer its error, its size, and which kernel will run and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

import torch
from torch import nn

from ._stored import format_of
from .tensor import QuantizedTensor

_REMEMBERED = "_pestle_layers"


@dataclass(frozen=True)
class Layer:
    """One weight of a model."""

    name: str
    format: str | None = None  # None: not quantised
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    relative_error: float | None = None  # None: not known, as of a loaded model
    bytes_before: int = 0
    bytes_after: int = 0
    kept_because: str = ""
    op: str = ""
    kernel: str = ""  # "" where no implementation takes the call
    why: str = ""

    @classmethod
    def kept(cls, name: str, reason: str) -> Layer:
        return cls(name=name, kept_because=reason)

    def named(self, name: str) -> Layer:
        return replace(self, name=name)


@dataclass(frozen=True)
class Report:
    """Layers of a model; print it for a table."""

    layers: list[Layer]
    layout: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def quantised(self) -> list[Layer]:
        return [layer for layer in self.layers if layer.format]

    @property
    def bytes_before(self) -> int:
        return sum(layer.bytes_before for layer in self.quantised)

    @property
    def bytes_after(self) -> int:
        return sum(layer.bytes_after for layer in self.quantised)

    def to_dict(self) -> dict:
        """Plain values, for JSON."""
        layers = [{**asdict(layer), "dtype": str(layer.dtype or "")} for layer in self.layers]
        return {"layout": self.layout, "notes": list(self.notes), "layers": layers}

    def __str__(self) -> str:
        head = ("layer", "format", "shape", "error", "MB", "kernel")
        rows = [head, *(_row(layer) for layer in self.layers if layer.format or layer.why)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        before, after = self.bytes_before, self.bytes_after
        if before:
            part = f"{after / before:.0%}"
            lines.append(f"{len(self.quantised)} weights: {before:,} bytes, now {after:,} ({part})")
        return "\n".join(lines)


def _row(layer: Layer) -> tuple[str, ...]:
    error = "" if layer.relative_error is None else f"{layer.relative_error:.5f}"
    shape = "x".join(map(str, layer.shape))
    kernel = layer.kernel or layer.why
    size = f"{layer.bytes_after / 1e6:.2f}"
    return (layer.name, layer.format or "kept", shape, error, size, kernel)


def remember(module: nn.Module, attribute: str, layer: Layer) -> None:
    """Keeps with a module what is known of a weight only while it is quantised."""
    if not hasattr(module, _REMEMBERED):
        setattr(module, _REMEMBERED, {})
    getattr(module, _REMEMBERED)[attribute] = layer


def report(model: nn.Module, rows: int = 1) -> Report:
    """What became of a model's weights. Kernels are those for `rows` rows of activations of the
    weight's dtype; `why` has what each implementation says to such a call."""
    layers = []
    for path, module in model.named_modules():
        for attribute, weight in module._parameters.items():
            if weight is None or weight.ndim < 2:
                continue
            name = f"{path}.{attribute}" if path else attribute
            known = getattr(module, _REMEMBERED, {}).get(attribute)
            if isinstance(weight, QuantizedTensor):
                layers.append(_quantised(name.removesuffix(".weight"), weight, known, rows))
            else:
                layers.append(_plain(name.removesuffix(".weight"), weight))
    return Report(layers)


def _plain(name: str, weight: torch.Tensor) -> Layer:
    return Layer(
        name=name, shape=tuple(weight.shape), dtype=weight.dtype, bytes_before=weight.nbytes,
        bytes_after=weight.nbytes, why="torch's own: not quantised",
    )  # fmt: skip


def _quantised(name: str, weight: QuantizedTensor, known: Layer | None, rows: int) -> Layer:
    op, kernel, why = kernel_of(weight, rows)
    shape = tuple(weight.shape)
    return Layer(
        name=name,
        format=format_of(weight) or weight._layout_cls,
        shape=shape,
        dtype=weight.dtype,
        relative_error=known.relative_error if known and known.shape == shape else None,
        bytes_before=weight.numel() * weight.dtype.itemsize,
        bytes_after=weight.stored_bytes,
        op=op,
        kernel=kernel,
        why=why,
    )


def kernel_of(weight: QuantizedTensor, rows: int) -> tuple[str, str, str]:
    """The op that multiplies by a weight, the implementation that takes it, and why."""
    import pestle

    if weight.ndim != 2:
        return "", "", f"a batch of {weight.shape[0]} weights: each by itself"
    x = torch.empty(rows, weight.shape[-1], dtype=weight.dtype, device=weight.device)
    call = weight._layout.kernel_call(x, weight._qdata, weight._params)
    if call is None:
        return "", "", f"{weight._layout_cls} has no kernel: it is decoded in each call"
    op, tensors, options = call
    found = pestle.why(op, *tensors, **options, out_dtype=x.dtype)
    return op, found.chosen or "", str(found)
