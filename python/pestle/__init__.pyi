# Made from the table by tools/python_stub.sh: do not edit.
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__version__: str
Progress = Callable[[str, int, int], object]

@dataclass(frozen=True)
class Verdict:
    implementation: str
    refusal: str
    plan: str = ...

@dataclass(frozen=True)
class Why:
    op: str
    verdicts: tuple[Verdict, ...]
    @property
    def chosen(self) -> str | None: ...

@dataclass(frozen=True)
class Backend:
    name: str
    available: bool
    disabled: bool
    reason: str
    ops: tuple[str, ...]

def why(op: str, /, *args, backend: str | tuple[str, ...] | None = None, **kwargs) -> Why: ...
def use_backend(*names: str) -> AbstractContextManager[None]: ...
def set_backend_priority(*names: str) -> None: ...
def enable_backend(name: str) -> None: ...
def disable_backend(name: str) -> None: ...
def list_backends() -> list[Backend]: ...
def implements(op: str, *, backend: str, refuses: Callable | None = None) -> Callable: ...
def load_tuned(path: str) -> None: ...
def list_ops() -> list[str]: ...
def overloads(op: str) -> list: ...

class DecodeWarning(UserWarning): ...

class QuantizedLayout:
    Params: type
    @classmethod
    def quantize(cls, tensor: Tensor, **options) -> tuple[Tensor, object]: ...
    @classmethod
    def dequantize(cls, qdata: Tensor, params) -> Tensor: ...

class QuantizedTensor(Tensor):
    def __init__(self, qdata: Tensor, layout_cls: str, params) -> None: ...
    @property
    def params(self): ...
    @property
    def layout_cls(self) -> type[QuantizedLayout]: ...
    @property
    def storage_shape(self) -> tuple[int, ...]: ...
    @property
    def storage_dtype(self) -> torch.dtype: ...
    @property
    def stored_bytes(self) -> int: ...
    @property
    def padded_shape(self) -> tuple[int, ...]: ...
    @property
    def is_padded(self) -> bool: ...
    @classmethod
    def from_float(
        cls, tensor: Tensor, layout_cls: str | type[QuantizedLayout], **options
    ) -> QuantizedTensor: ...
    def dequantize(self) -> Tensor: ...
    def requantize_from_float(self, tensor: Tensor, **options) -> QuantizedTensor: ...
    def state_dict(self, prefix: str = "") -> dict[str, Tensor]: ...

def get_layout_class(name: str) -> type[QuantizedLayout]: ...
def register_layout_class(name: str, cls: type[QuantizedLayout]) -> None: ...
def register_layout_op(
    torch_op: object, layout_cls: type[QuantizedLayout]
) -> Callable[[Callable], Callable]: ...
def strict() -> AbstractContextManager[None]: ...

@dataclass(frozen=True)
class Layer:
    name: str
    format: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    relative_error: float | None
    bytes_before: int
    bytes_after: int
    kept_because: str
    op: str
    kernel: str
    why: str

@dataclass(frozen=True)
class Report:
    layers: list[Layer]
    layout: str
    notes: tuple[str, ...]
    @property
    def quantised(self) -> list[Layer]: ...
    @property
    def bytes_before(self) -> int: ...
    @property
    def bytes_after(self) -> int: ...
    def to_dict(self) -> dict: ...

def report(model: torch.nn.Module, rows: int = 1) -> Report: ...


class PestleError(RuntimeError): ...
class InvalidArgumentError(PestleError, ValueError): ...
class UnsupportedError(PestleError, NotImplementedError): ...
class NotCompiledError(UnsupportedError): ...
class NoCapableBackendError(UnsupportedError): ...
class OutOfMemoryError(PestleError, MemoryError): ...
class DeviceError(PestleError): ...
class FileError(PestleError, OSError): ...
class CorruptFileError(PestleError, ValueError): ...
class InterruptedByCallerError(PestleError): ...
class NoGradientError(PestleError, NotImplementedError): ...

class DecodedError(UnsupportedError): ...

def quantize_file(input: str | os.PathLike, output: str | os.PathLike, format: str | None = None, *, layers: dict[str, str] | list[str] | None = None, keep: list[str] | None = None, default_keep: bool | None = None, target_error: float | None = None, scale_search: str | None = None, layout: str | None = None, recipe: str | os.PathLike | None = None, html: str | os.PathLike | None = None, dry_run: bool | None = None, force: bool | None = None, resume: bool | None = None, max_shard_bytes: int | None = None, progress: bool | Progress | None = None) -> dict:
    """Quantises a safetensors file, index or folder as `pestle quantize` does; returns its report.

    `layers` maps patterns to formats; the first that matches wins. `progress` is True for a bar, or
    f(stage, done_bytes, total_bytes), which stops the job by returning True."""

def dequantize_file(input: str | os.PathLike, output: str | os.PathLike, *, dtype: str | None = None, force: bool | None = None, max_shard_bytes: int | None = None, progress: bool | Progress | None = None) -> dict:
    """Writes the decoded weights of a quantised file; `dtype` is bf16, f16 or f32."""

def inspect(input: str | os.PathLike, *, progress: bool | Progress | None = None) -> dict:
    """What is in a file: container, formats, layers, bytes, metadata."""

def diff(a: str | os.PathLike, b: str | os.PathLike, *, progress: bool | Progress | None = None) -> dict:
    """The error of each layer of `b` against `a`, whatever their formats; the worst first."""

def save_file(tensors: dict[str, torch.Tensor], path: str | os.PathLike, metadata: dict[str, str] | None = None, *, force: bool = True, max_shard_bytes: int | None = None, progress: bool | Progress | None = None) -> None:
    """Writes tensors as a safetensors file, which appears complete or not at all.

    A file that is there is replaced, unless `force` is False. `max_shard_bytes` makes shards and
    their index. `progress` as in quantize_file."""

def load_file(path: str | os.PathLike, device: str | torch.device | None = None, *, names: list[str] | None = None, progress: bool | Progress | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, of shards with an index, or of a folder of these.

    They lie on the CPU unless `device` is another; `names` picks some of them. `progress` as in
    quantize_file."""

def quantize_(model: torch.nn.Module, recipe: str | os.PathLike | dict | None = None, *, format: str | None = None, layers: dict[str, str] | list[str] | None = None, keep: list[str] | None = None, default_keep: bool | None = None, target_error: float | None = None, scale_search: str | None = None, layout: str | None = None, activations: str = "float", progress: bool | Callable[[str, int, int], object] | None = None) -> Report:
    """Quantises the weights of a model in place, and returns the report.

    `recipe` is a format such as "nvfp4", the path of a recipe of `pestle quantize`, or a dict with
    its keys; the options are those of pestle.quantize_file, stand above it, and give the same
    bytes. `activations`: "row" multiplies FP8 and INT8 weights by activations that are quantised by
    rows on the way. `progress` as in quantize_file."""

def save_model(model: torch.nn.Module, path: str | os.PathLike, layout: str = "comfy", metadata: dict[str, str] | None = None, **options) -> None:
    """Writes a safetensors file that ComfyUI, `pestle` and load_model_ read; `options` are those of
    pestle.save_file."""

def load_quantized(path: str | os.PathLike, device: str | torch.device | None = None, *, dtype: torch.dtype | None = None, progress: bool | Callable[[str, int, int], object] | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name, quantised weights as QuantizedTensors.

    A safetensors file, an index or a folder: ComfyUI's layout (older scaled_fp8 files too), the
    plain layout, GPTQ and AWQ of 4 bits with their config.json. `dtype` is what weights stand for
    where the file does not say; bfloat16 unless given. `progress` as in quantize_file."""

def load_model_(model: torch.nn.Module, path: str | os.PathLike, *, prefix: str = "", strict: bool = True, device: str | torch.device | None = None, progress: bool | Callable[[str, int, int], object] | None = None) -> list[str]:
    """Loads a checkpoint into a model, quantised weights as they are, layer by layer; returns the
    names that only one of both has. `prefix` stands before the model's names in the file, such as
    "model.diffusion_model."; with `strict` such names are an error, raised before anything is done.

    ComfyUI's input_scale quantises a layer's input with that scale unless the file asks for
    full_precision_matrix_mult; pre_quant_scale multiplies it."""

def add_lora_(model: torch.nn.Module, lora: dict[str, torch.Tensor] | str | os.PathLike, strength: float = 1.0, *, name: str = "default", strict: bool = True) -> list[str]:
    """Puts a LoRA beside the model's linear layers, whose weights are not touched; returns their
    names. `lora` is a safetensors file or its tensors. Gradients go to its factors."""

def remove_lora_(model: torch.nn.Module, name: str = "default") -> list[str]:
    """Takes a LoRA away again; returns the layers that had it."""

def merge_lora_(model: torch.nn.Module, lora: dict[str, torch.Tensor] | str | os.PathLike, strength: float = 1.0, *, seed: int | None = None, strict: bool = True) -> list[str]:
    """Merges a LoRA into the weights: decoded, added to in f32, and quantised again in the same
    layout, weight by weight. With a seed the rounding is stochastic, by seed and layer, so that
    changes below a code's step are not lost. unmerge_lora_ gives the old codes back."""

def unmerge_lora_(model: torch.nn.Module) -> list[str]:
    """Puts the weights back that were there before the first merge_lora_; returns the layers."""

def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """softmax(query @ key.mT * scale + attn_mask) @ value, as torch's function of this name.

    query is [..., L, E], key [..., S, E], value [..., S, Ev]. attn_mask broadcasts to [..., L, S]:
    boolean ones are True where a key counts, others are added. is_causal counts places from the
    first query and key. Queries that see no key give 0. enable_gqa lets several heads of query
    share one of key and value. Jagged nested tensors [B, H, L*, E] are one packed call, which
    copies no rows of them. Under torch.autocast the tensors are cast as torch casts them.

    There is no dropout: another dropout_p than 0 is refused. What else attention can do, such as
    windows, soft caps and sinks, `pestle.attention` does."""

def quantize_fp8(
    x: Tensor, scale: Tensor | None = None, *, granularity: Literal["tensor", "row", "column", "block_1x128", "block_128x128"] = "tensor", rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, transposed: bool = False, q_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor] | Tensor | tuple[Tensor, Tensor, Tensor]:
    """Quantises to FP8 with a decode scale per tensor, row, column or block.

    Args:
        x (bf16|f16|f32 [*M, K]): values to quantise
        scale (f32 tensor: [1]; row: [*M, 1]; column: [1, K]; block_1x128: [*M, cdiv(K,128)]; block_128x128: [cdiv(M,128), cdiv(K,128)], optional): decode scale: a code stands for code * scale
        granularity (tensor|row|column|block_1x128|block_128x128): which elements share a scale
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits
        seed: Philox seed of stochastic rounding
        transposed: give q_t beside q, made in the same pass over x
        q_dtype: dtype of q
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: codes
        scale_out: the decode scale computed here, amax / largest code, when !has(scale)
        q_t: the codes transposed, when transposed

    Rules:
        transposed needs granularity tensor, column or block_128x128: scales along K would lie across the rows of q_t

    Defined in docs/formats/fp8.md
    """

def dequantize_fp8(
    q: Tensor, scale: Tensor, *, granularity: Literal["tensor", "row", "column", "block_1x128", "block_128x128"] = "tensor", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Decodes FP8 with a scale per tensor, row, column or block.

    Args:
        q (e4m3|e5m2 [*M, K]): codes
        scale (f32 tensor: [1]; row: [*M, 1]; column: [1, K]; block_1x128: [*M, cdiv(K,128)]; block_128x128: [cdiv(M,128), cdiv(K,128)]): decode scale: a code stands for code * scale
        granularity (tensor|row|column|block_1x128|block_128x128): which elements share a scale
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: code * scale: one f32 product, one rounding

    Defined in docs/formats/fp8.md
    """

def stochastic_round_fp8(
    x: Tensor, rng: Tensor, *, q_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rounds to FP8 stochastically by given random bytes, without a scale.

    Args:
        x (bf16|f16|f32 [*M, K]): values to round; taken to f16 first
        rng (u8 [*M, K]): one random byte an element
        q_dtype: dtype of q
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: codes

    Defined in docs/formats/stochastic.md
    """

def quantize_int8(
    x: Tensor, scale: Tensor | None = None, *, granularity: Literal["tensor", "row", "group"] = "tensor", group_size: int = 128, hadamard: int = 0, rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, transposed: bool = False, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor] | Tensor | tuple[Tensor, Tensor, Tensor]:
    """Quantises to INT8 with a decode scale per tensor, row or group, rotated first if asked.

    Args:
        x (bf16|f16|f32 [*M, K]): values to quantise
        scale (f32 tensor: [1]; row: [*M, 1]; group: [*M, cdiv(K,group_size)], optional): decode scale: a code stands for code * scale
        granularity (tensor|row|group): which elements share a scale
        group_size: elements along K that share a scale, granularity=group
        hadamard: elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits
        seed: Philox seed of stochastic rounding
        transposed: give q_t beside q, made in the same pass over x
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: codes, -128..127
        scale_out: the decode scale computed here, amax / 127, when !has(scale)
        q_t: the codes transposed, when transposed

    Rules:
        group_size must be at least 1
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together
        transposed needs granularity tensor: scales along K would lie across the rows of q_t

    Defined in docs/formats/int8.md, docs/formats/hadamard.md
    """

def dequantize_int8(
    q: Tensor, scale: Tensor, *, granularity: Literal["tensor", "row", "group"] = "tensor", group_size: int = 128, hadamard: int = 0, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Decodes INT8 with a scale per tensor, row or group, and undoes the rotation if asked.

    Args:
        q (i8 [*M, K]): codes
        scale (f32 tensor: [1]; row: [*M, 1]; group: [*M, cdiv(K,group_size)]): decode scale: a code stands for code * scale
        granularity (tensor|row|group): which elements share a scale
        group_size: elements along K that share a scale, granularity=group
        hadamard: elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: code * scale, one f32 product; rotated back if asked; one rounding

    Rules:
        group_size must be at least 1
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in docs/formats/int8.md, docs/formats/hadamard.md
    """

def quantize_list(
    x: Sequence[Tensor], scale: Sequence[Tensor] | None = None, *, granularity: Literal["tensor", "row"] = "tensor", rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, q_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> tuple[list[Tensor], list[Tensor]] | list[Tensor]:
    """Quantises several tensors at once to FP8 or INT8, each as quantize_fp8 or quantize_int8 would.

    Args:
        x (list of bf16|f16|f32 [*M, K]): tensors to quantise
        scale (list of f32 tensor: [1]; row: [*M, 1], optional): their decode scales: a code stands for code * scale
        granularity (tensor|row): which elements share a scale
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits
        seed: Philox seed of stochastic rounding, the same for each tensor
        q_dtype: dtype of q
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q (list): their codes, FP8 or INT8
        scale_out (list): the decode scales computed here, amax / largest code, when !has(scale)

    Defined in docs/formats/fp8.md, docs/formats/int8.md
    """

def hadamard(
    x: Tensor, *, hadamard: int = 256, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rotates groups along K by the regular Hadamard matrix; applied twice it is the identity.

    Args:
        x (bf16|f16|f32 [*M, K]): values to rotate along K
        hadamard: elements that are rotated together: 4, 16, 64, 256 or 1024
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rotated x: f32, one rounding

    Rules:
        hadamard must be 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in docs/formats/hadamard.md
    """

def scaled_mm_fp8(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, granularity: Literal["tensor", "row", "block"] = "tensor", accumulation: Literal["accurate", "fast", "f32"] = "accurate", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", out_format: Literal["none", "fp8_tensor", "fp8_row", "fp8_block", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, out_hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Product of two FP8 matrices with decode scales, f32 accumulation and an epilogue.

    Args:
        a (e4m3|e5m2 [*M, K]): left codes
        b (e4m3|e5m2 [N, K]): right codes, one row per output column (a weight)
        scale_a (f32 tensor: [1]; row: [*M, 1]; block: [*M, cdiv(K,128)]): decode scales of a
        scale_b (f32 tensor: [1]; row: [N, 1]; block: [cdiv(N,128), cdiv(K,128)]): decode scales of b
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        q_scale (f32 none: [1]; fp8_tensor: [1]; fp8_block: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        granularity (tensor|row|block): tensor, row: a scale of all or of each row, which multiplies sums; block: 1x128 of a with 128x128 of b, of terms
        accumulation (accurate|fast|f32): what sums along K may lose. accurate: sums of 128 products by tensor cores, whose 8-bit floats keep 13 bits behind the largest term, added in f32; fast: one such sum of all (blocks: as accurate); f32: nothing is lost before f32
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        out_format (none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8): none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
        keep_out: give out beside its codes
        out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(a_decoded @ b_decoded^T), when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns, when out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs out's columns to be a multiple of 16, its block
        mxfp8 needs out's columns to be a multiple of 32, its block
        nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all rows
        out_hadamard belongs to out_format=int8_row
        out_hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        out's columns must be a multiple of out_hadamard, the elements that are rotated together

    Defined in docs/formats/fp8.md
    """

def scaled_mm_int8(
    a: Tensor, b: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, granularity: Literal["tensor", "row", "host"] = "tensor", host_scale: float = 1.0, activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", out_format: Literal["none", "fp8_tensor", "fp8_row", "fp8_block", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, out_hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Product of two INT8 matrices with decode scales, exact integer sums and an epilogue.

    Args:
        a (i8 [*M, K]): left codes
        b (i8 [N, K]): right codes, one row per output column (a weight)
        scale_a (f32 tensor: [1]; host: [1]; row: [*M, 1], optional): decode scales of a
        scale_b (f32 tensor: [1]; host: [1]; row: [N, 1], optional): decode scales of b
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        q_scale (f32 none: [1]; fp8_tensor: [1]; fp8_block: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        granularity (tensor|row|host): row: one scale per row of a and of b; host: one for the product, host_scale
        host_scale: granularity=host: scale of a times scale of b, as f32
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        out_format (none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8): none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
        keep_out: give out beside its codes
        out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(a_decoded @ b_decoded^T), when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns, when out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs out's columns to be a multiple of 16, its block
        mxfp8 needs out's columns to be a multiple of 32, its block
        nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all rows
        out_hadamard belongs to out_format=int8_row
        out_hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        out's columns must be a multiple of out_hadamard, the elements that are rotated together

    Defined in docs/formats/int8.md
    """

def scaled_mm_nvfp4(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, global_scale_a: Tensor, global_scale_b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, *, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Product of two NVFP4 matrices with all their scales, f32 accumulation and an epilogue.

    Args:
        a (u8 [*M, K/2]): left rows, two E2M1 codes a byte
        b (u8 [N, K/2]): right rows, one per output column, two E2M1 codes a byte
        scale_a (e4m3 swizzled: [round_up(M,128), round_up(cdiv(K,16),4)]; plain: [*M, cdiv(K,16)]): decode scale of each 16 columns of a
        scale_b (e4m3 swizzled: [round_up(N,128), round_up(cdiv(K,16),4)]; plain: [N, cdiv(K,16)]): decode scale of each 16 columns of b
        global_scale_a (f32 [1]): decode scale of the whole of a
        global_scale_b (f32 [1]): decode scale of the whole of b
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(a_decoded @ b_decoded^T)

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        K must be a multiple of 16, the block; pad a and b with zeros

    Defined in docs/formats/nvfp4.md, docs/formats/swizzle.md
    """

def scaled_mm_mxfp8(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, *, scale_layout: Literal["swizzled", "plain"] = "swizzled", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Product of two MXFP8 matrices with their scales, f32 accumulation and an epilogue.

    Args:
        a (e4m3|e5m2 [*M, K]): left codes
        b (e4m3|e5m2 [N, K]): right codes, one row per output column (a weight)
        scale_a (e8m0 swizzled: [round_up(M,128), round_up(cdiv(K,32),4)]; plain: [*M, cdiv(K,32)]): decode scale of each 32 columns of a
        scale_b (e8m0 swizzled: [round_up(N,128), round_up(cdiv(K,32),4)]; plain: [N, cdiv(K,32)]): decode scale of each 32 columns of b
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(a_decoded @ b_decoded^T)

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        K must be a multiple of 32, the block; pad a and b with zeros

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def scaled_mm_mxfp4(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, *, a_format: Literal["mxfp8", "mxfp4"] = "mxfp8", nibbles: Literal["low_first", "high_first"] = "low_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Product of an MXFP8 or MXFP4 matrix and an MXFP4 weight with their scales, f32 accumulation and an epilogue.

    Args:
        a (mxfp8: e4m3|e5m2; mxfp4: u8 mxfp8: [*M, K]; mxfp4: [*M, K/2]): left codes; MXFP4 has two a byte
        b (u8 [N, K/2]): right codes, two a byte, one row per output column (a weight)
        scale_a (e8m0 swizzled: [round_up(M,128), round_up(cdiv(K,32),4)]; plain: [*M, cdiv(K,32)]): decode scale of each 32 columns of a
        scale_b (e8m0 swizzled: [round_up(N,128), round_up(cdiv(K,32),4)]; plain: [N, cdiv(K,32)]): decode scale of each 32 columns of b
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        a_format (mxfp8|mxfp4): format of a; b is MXFP4
        nibbles (low_first|high_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(a_decoded @ b_decoded^T)

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        K must be a multiple of 32, the block; pad a and b with zeros

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def linear_fp8(
    x: Tensor, weight: Tensor, scale: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, granularity: Literal["tensor", "row", "column", "block_1x128", "block_128x128"] = "tensor", activations: Literal["float", "row"] = "float", accumulation: Literal["accurate", "fast"] = "accurate", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "fp8_block", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, out_hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Linear layer with an FP8 weight: epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (e4m3|e5m2 [N, K]): codes, one row per output column
        scale (f32 tensor: [1]; row: [N, 1]; column: [1, K]; block_1x128: [N, cdiv(K,128)]; block_128x128: [cdiv(N,128), cdiv(K,128)]): decode scale: a code stands for code * scale
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        q_scale (f32 none: [1]; fp8_tensor: [1]; fp8_block: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        granularity (tensor|row|column|block_1x128|block_128x128): which elements of the weight share a scale
        activations (float|row): row: x becomes codes of the weight's dtype with a scale a row
        accumulation (accurate|fast): activations=row: what sums along K may lose, as scaled_mm_fp8's
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_format (none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8): none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
        keep_out: give out beside its codes
        out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight, when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns, when out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        norm_weight belongs to input_act=rms_norm
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        activations=row multiplies codes, so the weight's scales must be of rows or of all
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs out's columns to be a multiple of 16, its block
        mxfp8 needs out's columns to be a multiple of 32, its block
        nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all rows
        out_hadamard belongs to out_format=int8_row
        out_hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        out's columns must be a multiple of out_hadamard, the elements that are rotated together

    Defined in docs/formats/fp8.md
    """

def linear_nvfp4(
    x: Tensor, weight: Tensor, scale: Tensor, global_scale: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, *, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Linear layer with an NVFP4 weight: epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (u8 [N, K/2]): one row per output column, two E2M1 codes a byte
        scale (e4m3 swizzled: [round_up(N,128), round_up(cdiv(K,16),4)]; plain: [N, cdiv(K,16)]): decode scale of each 16 columns, in units of the global scale
        global_scale (f32 [1]): decode scale of the whole weight
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        norm_weight belongs to input_act=rms_norm
        K must be a multiple of 16, the block; pad x and the weight with zeros

    Defined in docs/formats/nvfp4.md, docs/formats/swizzle.md
    """

def linear_mxfp8(
    x: Tensor, weight: Tensor, scale: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, *, scale_layout: Literal["swizzled", "plain"] = "swizzled", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Linear layer with an MXFP8 weight: epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (e4m3|e5m2 [N, K]): codes, one row per output column
        scale (e8m0 swizzled: [round_up(N,128), round_up(cdiv(K,32),4)]; plain: [N, cdiv(K,32)]): decode scale of each 32 columns, a power of two
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        norm_weight belongs to input_act=rms_norm
        K must be a multiple of 32, the block; pad x and the weight with zeros

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def linear_mxfp4(
    x: Tensor, weight: Tensor, scale: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, *, nibbles: Literal["low_first", "high_first"] = "low_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Linear layer with an MXFP4 weight: epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (u8 [N, K/2]): one row per output column, two E2M1 codes a byte
        scale (e8m0 swizzled: [round_up(N,128), round_up(cdiv(K,32),4)]; plain: [N, cdiv(K,32)]): decode scale of each 32 columns, a power of two
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        nibbles (low_first|high_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        norm_weight belongs to input_act=rms_norm
        K must be a multiple of 32, the block; pad x and the weight with zeros

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def linear_int8(
    x: Tensor, weight: Tensor, scale: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, granularity: Literal["tensor", "row", "group"] = "tensor", group_size: int = 128, hadamard: int = 0, activations: Literal["float", "row"] = "float", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "fp8_block", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, out_hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Linear layer with an INT8 weight, rotated or not: epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (i8 [N, K]): codes, one row per output column
        scale (f32 tensor: [1]; row: [N, 1]; group: [N, cdiv(K,group_size)]): decode scale: a code stands for code * scale
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        q_scale (f32 none: [1]; fp8_tensor: [1]; fp8_block: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        granularity (tensor|row|group): which elements of the weight share a scale
        group_size: columns that share a scale, granularity=group
        hadamard: the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither
        activations (float|row): row: x, rotated if the weight is, becomes INT8 codes with a scale a row, and the product is one of integers
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_format (none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8): none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
        keep_out: give out beside its codes
        out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight, when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns, when out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        norm_weight belongs to input_act=rms_norm
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        group_size must be at least 1
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K
        activations=row multiplies integers, so the weight's scales must be of rows or of all
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs out's columns to be a multiple of 16, its block
        mxfp8 needs out's columns to be a multiple of 32, its block
        nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all rows
        out_hadamard belongs to out_format=int8_row
        out_hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        out's columns must be a multiple of out_hadamard, the elements that are rotated together

    Defined in docs/formats/int8.md, docs/formats/hadamard.md
    """

def linear_int4(
    x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, *, group_size: int = 0, mode: Literal["symmetric", "asymmetric"] = "symmetric", hadamard: int = 0, decoded: Literal["exact", "as_x"] = "exact", activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Linear layer with an INT4 weight in groups, rotated or not: epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (u8 [N, K/2]): codes, two a byte: the even column in the low nibble
        scale (f32 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]): decode scale of each group
        zero (u8 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        group_size: columns that share a scale; 0: the whole row
        mode (symmetric|asymmetric): symmetric: two's complement codes; asymmetric: codes 0..15 and zero
        hadamard: the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither
        decoded (exact|as_x): exact: the weight's values as f32 has them; as_x: they may be rounded to x's dtype, as dequantize_int4 rounds, an error of 2^-8 of each term at most
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        norm_weight belongs to input_act=rms_norm
        group_size must be even, or 0 for the whole row: 32, 64 and 128 are usual
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K

    Defined in docs/formats/int4.md, docs/formats/hadamard.md
    """

def linear_w4a8(
    x: Tensor, weight: Tensor, scale_rel: Tensor, scale_channel: Tensor, codebook: Tensor | None = None, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, norm_weight: Tensor | None = None, *, hadamard: int = 256, activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", input_act: Literal["none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh", "rms_norm"] = "none", input_layout: Literal["act_first", "act_last"] = "act_first", eps: float = 1e-06, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Linear layer with a W4A8 weight (codebook indices that decode to int8): epilogue(x @ W^T).

    Args:
        x (bf16|f16|f32 none: [*M, K]; silu: [*M, K]; gelu: [*M, K]; gelu_tanh: [*M, K]; rms_norm: [*M, K]; swiglu: [*M, 2*K]; geglu: [*M, 2*K]; geglu_tanh: [*M, 2*K]): activations; gated ones hold both factors side by side
        weight (u8 [N, K/2]): indices into the codebook, two a byte: the even column low
        scale_rel (e4m3 [N, K/16]): scale of 16 columns, relative to the row's
        scale_channel (f32 [N]): scale of the row
        codebook (f32 [16], optional): values of the indices; the fixed table when absent
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        norm_weight (f32|bf16|f16 [K], optional): multiplies the normalised row, input_act=rms_norm
        hadamard: the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        input_act (none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm): done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
        input_layout (act_first|act_last): swiglu, geglu: the half of x that the activation takes; the other half multiplies it
        eps: added to the mean square, input_act=rms_norm
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: epilogue(x @ W^T), W the decoded weight

    Rules:
        gated needs an even N: columns come in pairs
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share
        beta is a factor on residual, which is absent
        norm_weight belongs to input_act=rms_norm
        K must be a multiple of 16, the columns that share a relative scale
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K

    Defined in docs/formats/w4a8.md, docs/formats/hadamard.md
    """

def gemv_nvfp4(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, alpha: Tensor | None = None, *, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Batched products of an NVFP4 matrix with an NVFP4 vector, f32 accumulation.

    Args:
        a (u8 [L, M, K/2]): a matrix for each of L batches, two E2M1 codes a byte
        b (u8 [L, P, K/2]): a vector for each batch: the first of P rows, the others are padding and not read
        scale_a (e4m3 swizzled: [L, round_up(M,128), round_up(cdiv(K,16),4)]; plain: [L, M, cdiv(K,16)]): decode scale of each 16 columns of a
        scale_b (e4m3 swizzled: [L, round_up(P,128), round_up(cdiv(K,16),4)]; plain: [L, P, cdiv(K,16)]): decode scale of each 16 columns of b
        alpha (f32 [1], optional): factor on the product: both global scales; 1 when absent
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: alpha * a_decoded @ b_decoded

    Rules:
        b needs at least the row that is multiplied
        K must be a multiple of 16, the block; pad a and b with zeros

    Defined in docs/formats/nvfp4.md, docs/formats/swizzle.md; the nvfp4_gemv problem of gpu-mode (low nibble first, no global scale)
    """

def prepare_weight(
    weight: Tensor, *, direction: Literal["prepare", "restore"] = "prepare", nibbles: Literal["low_first", "high_first"] = "low_first", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Moves a weight's codes to the layout that tensor cores read, of the same size, or back.

    Args:
        weight (u8|i8|e4m3|e5m2 [N, W]): codes of a weight, W bytes a row: u8 holds two of 4 bits a byte, others one of 8 bits
        direction (prepare|restore): prepare: from the layout of files to the prepared one; restore: back
        nibbles (low_first|high_first): u8: which nibble of a byte holds the even column in the layout of files
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the same codes in the other layout

    Defined in docs/formats/prepared.md
    """

def apply_rope(
    x: Tensor, freqs: Tensor | None = None, x2: Tensor | None = None, cos: Tensor | None = None, sin: Tensor | None = None, *, pairs: Literal["interleaved", "split_half"] = "interleaved", rot_dim: int = 0, inverse: bool = False, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotary position embedding of one tensor, or of queries and keys together; or back.

    Args:
        x (bf16|f16|f32 [B, H, S, D]): queries, keys or any heads: BHSD, or BSHD
        freqs (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2], optional): rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
        x2 (bf16|f16|f32 [B2, H2, S2, D], optional): a second tensor for the same freqs, e.g. keys
        cos (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): cosines, one a pair, in place of freqs; dimensions as those of freqs
        sin (=cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): sines, one a pair, with cos
        pairs (interleaved|split_half): rotate (2i, 2i+1), or (i, i + rot_dim/2)
        rot_dim: elements of a head that are rotated, the first ones; 0: all of them
        inverse: rotate back: by the transposed rotations, as the gradient is
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rotated x; what rot_dim leaves is copied
        out2: rotated x2, when has(x2)

    Rules:
        D, the head size, and rot_dim must be even, rot_dim from 0 to D: elements are rotated in pairs
        freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)
        freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)

    Defined in y0 = f00*x0 + f01*x1, y1 = f10*x0 + f11*x1 over pairs; f32, one rounding to x's dtype
    """

def rms_rope(
    x: Tensor, weight: Tensor, freqs: Tensor | None = None, x2: Tensor | None = None, weight2: Tensor | None = None, cos: Tensor | None = None, sin: Tensor | None = None, *, eps: float = 1e-06, pairs: Literal["interleaved", "split_half"] = "interleaved", rot_dim: int = 0, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS norm of every head, then rotary position embedding; one tensor or two.

    Args:
        x (bf16|f16|f32 [B, H, S, D]): queries, keys or any heads: BHSD, or BSHD
        weight (bf16|f16|f32 [D]): what normalised elements are multiplied by
        freqs (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2], optional): rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
        x2 (=x [B2, H2, S2, D], optional): a second tensor for the same freqs, e.g. keys
        weight2 (=weight [D], optional): x2's weight; left out, weight serves both
        cos (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): cosines, one a pair, in place of freqs; dimensions as those of freqs
        sin (=cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): sines, one a pair, with cos
        eps: added to the mean of a head's squares
        pairs (interleaved|split_half): rotate (2i, 2i+1), or (i, i + rot_dim/2)
        rot_dim: elements of a head that are rotated, the first ones; 0: all of them
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rotated; what rot_dim leaves is only normalised
        out2: the same of x2, when has(x2)

    Rules:
        D, the head size, and rot_dim must be even, rot_dim from 0 to D: elements are rotated in pairs
        freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)
        freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)
        weight2 is x2's weight: it needs x2

    Defined in u = (x * r) * weight, r = 1/sqrt(mean(x^2) + eps); pairs of u rotate as in apply_rope; f32 up to one rounding to x's dtype
    """

def rms_rope_backward(
    d_out: Tensor, x: Tensor, weight: Tensor, freqs: Tensor | None = None, d_out2: Tensor | None = None, x2: Tensor | None = None, weight2: Tensor | None = None, cos: Tensor | None = None, sin: Tensor | None = None, *, eps: float = 1e-06, pairs: Literal["interleaved", "split_half"] = "interleaved", rot_dim: int = 0, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rms_rope to its tensors and weights.

    Args:
        d_out (bf16|f16|f32 [B, H, S, D]): gradient of rms_rope's out
        x (=d_out [B, H, S, D]): rms_rope's x
        weight (bf16|f16|f32 [D]): rms_rope's weight
        freqs (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2], optional): rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
        d_out2 (=d_out [B2, H2, S2, D], optional): gradient of out2
        x2 (=d_out [B2, H2, S2, D], optional): rms_rope's x2
        weight2 (=weight [D], optional): rms_rope's weight2
        cos (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): cosines, one a pair, in place of freqs; dimensions as those of freqs
        sin (=cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): sines, one a pair, with cos
        eps: added to the mean of a head's squares
        pairs (interleaved|split_half): rotate (2i, 2i+1), or (i, i + rot_dim/2)
        rot_dim: elements of a head that are rotated, the first ones; 0: all of them
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x
        d_weight: gradient of weight, summed over all heads and positions
        d_x2: gradient of x2, when has(x2)
        d_weight2: gradient of weight2, when has(weight2)

    Rules:
        D, the head size, and rot_dim must be even, rot_dim from 0 to D: elements are rotated in pairs
        freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)
        freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)
        weight2 is x2's weight: it needs x2

    Defined in u' = rotations^T d_out; d_weight = sum(u' * n), n = x * r; d_x = r * (u'*weight - n * mean(u'*weight*n)); f32
    """

def quantize_nvfp4(
    x: Tensor, global_scale: Tensor | None = None, *, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", pad: bool = False, rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor]:
    """Quantises to NVFP4: E2M1 codes, an E4M3 scale per 16 elements, one global scale.

    Args:
        x (bf16|f16|f32 [M, K]): values to quantise, blocks of 16 along K
        global_scale (f32 [1], optional): decode scale of the whole tensor
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        pad: pad rows and columns with zeros to multiples of 16
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q
        seed: Philox seed of stochastic rounding
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: E2M1 codes, two a byte
        scale_out: decode scale of each block, in units of the global scale
        global_scale_out: the global scale computed here, amax / 2688, when !has(global_scale)

    Rules:
        K must be a multiple of 16, the block; pad=true pads with zeros

    Defined in docs/formats/nvfp4.md, docs/formats/swizzle.md
    """

def dequantize_nvfp4(
    q: Tensor, scale: Tensor, global_scale: Tensor, *, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """NVFP4 back to floating point: code * (scale * global_scale).

    Args:
        q (u8 [M, K/2]): E2M1 codes, two a byte
        scale (e4m3|u8 swizzled: [round_up(M,128), round_up(K/16,4)]; plain: [M, K/16]): decode scale of each block of 16, E4M3 codes also when they come as bytes
        global_scale (f32 [1]): decode scale of the whole tensor
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: code * (scale * global_scale), rounded once

    Rules:
        K, twice the last dimension of q, must be a multiple of 16, the block

    Defined in docs/formats/nvfp4.md, docs/formats/swizzle.md
    """

def quantize_mxfp8(
    x: Tensor, *, scale_layout: Literal["swizzled", "plain"] = "swizzled", pad: bool = False, rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, q_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """Quantises to MXFP8: E4M3 or E5M2 codes and an E8M0 scale per 32 elements.

    Args:
        x (bf16|f16|f32 [M, K]): values to quantise, blocks of 32 along K
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        pad: pad rows and columns with zeros to multiples of 32
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q
        seed: Philox seed of stochastic rounding
        q_dtype: dtype of q
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: E4M3 or E5M2 codes
        scale_out: decode scale of each block, the power of two rounded up so that nothing saturates

    Rules:
        K must be a multiple of 32, the block; pad=true pads with zeros

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def dequantize_mxfp8(
    q: Tensor, scale: Tensor, *, scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """MXFP8 back to floating point: code * 2^(scale - 127).

    Args:
        q (e4m3|e5m2 [M, K]): E4M3 or E5M2 codes
        scale (e8m0|u8 swizzled: [round_up(M,128), round_up(K/32,4)]; plain: [M, K/32]): decode scale of each block of 32, E8M0 codes also when they come as bytes
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: code * 2^(scale - 127), rounded once

    Rules:
        K, the number of elements in a row, must be a multiple of 32, the block

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def quantize_mxfp4(
    x: Tensor, *, nibbles: Literal["low_first", "high_first"] = "low_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", pad: bool = False, rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """Quantises to MXFP4: E2M1 codes and an E8M0 scale per 32 elements.

    Args:
        x (bf16|f16|f32 [M, K]): values to quantise, blocks of 32 along K
        nibbles (low_first|high_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        pad: pad rows and columns with zeros to multiples of 32
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q
        seed: Philox seed of stochastic rounding
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: E2M1 codes, two a byte
        scale_out: decode scale of each block, the power of two rounded up so that nothing saturates

    Rules:
        K must be a multiple of 32, the block; pad=true pads with zeros

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def dequantize_mxfp4(
    q: Tensor, scale: Tensor, *, nibbles: Literal["low_first", "high_first"] = "low_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """MXFP4 back to floating point: code * 2^(scale - 127).

    Args:
        q (u8 [M, K/2]): E2M1 codes, two a byte
        scale (e8m0|u8 swizzled: [round_up(M,128), round_up(K/32,4)]; plain: [M, K/32]): decode scale of each block of 32, E8M0 codes also when they come as bytes
        nibbles (low_first|high_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: code * 2^(scale - 127), rounded once

    Rules:
        K, the number of elements in a row, must be a multiple of 32, the block

    Defined in docs/formats/mx.md, docs/formats/swizzle.md
    """

def copy_transpose(
    x: Tensor, *, tile_size: int = 16, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Copies matrices into their transposes.

    Args:
        x (bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32 [*B, M, N]): matrices, one or a batch
        tile_size: 16 or 32: a hint that other libraries take; neither result nor speed depend on it
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: their transposes, in memory of their own

    Rules:
        tile_size must be 16 or 32

    Defined in out[..., n, m] = x[..., m, n], bit for bit
    """

def copy(
    x: Tensor, *, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Copies a tensor: any strides on both sides, with or without a change of dtype.

    Args:
        x (bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32|i64|bool [*M]): what is copied: any strides, so also a permuted view
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the copy: any strides; of another dtype, each element rounded once

    Defined in ops/copy/copy/copy.md
    """

def stochastic_cast(
    x: Tensor, *, seed: int = 0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rounds f32 to bf16 stochastically, by a seed.

    Args:
        x (f32 [*M]): values to round
        seed: Philox seed; element i in row-major order uses 16 bits of block i / 8
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rounded up in magnitude with the probability of what is cut off

    Defined in ops/copy/stochastic_cast/stochastic_cast.md
    """

def reduce(
    x: Tensor, *, op: Literal["sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "logsumexp"] = "sum", dims: int = -1, keepdim: bool = False, out_type: Literal["as_x", "f32"] = "as_x", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Reduces a tensor over any set of its dimensions.

    Args:
        x (bf16|f16|f32 [*M]): any values
        op (sum|mean|amax|amin|max|min|prod|norm|logsumexp): what is made of the elements; max and min are amax and amin, norm is the Euclidean one
        dims: the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them
        keepdim: reduced dimensions stay, with size 1
        out_type (as_x|f32): dtype of out: x's, or f32
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: one value for each set

    Defined in ops/reduce/reduce/reduce.md
    """

def reduce_backward(
    d_out: Tensor, x: Tensor, y: Tensor, *, op: Literal["sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "logsumexp"] = "sum", dims: int = -1, keepdim: bool = False, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of reduce.

    Args:
        d_out (bf16|f16|f32 [reduced(*M, dims, keepdim)]): gradient of what reduce gave
        x (bf16|f16|f32 [*M]): what was reduced
        y (bf16|f16|f32 [reduced(*M, dims, keepdim)]): what reduce gave; norm and logsumexp use it
        op (sum|mean|amax|amin|max|min|prod|norm|logsumexp): as given to reduce
        dims: as given to reduce: a bit for each reduced dimension; -1: all
        keepdim: as given to reduce
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x

    Defined in ops/reduce/reduce_backward/reduce_backward.md
    """

def argmax(
    x: Tensor, *, dims: int = -1, keepdim: bool = False, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Place of the largest element over any set of dimensions.

    Args:
        x (bf16|f16|f32 [*M]): any values; NaN counts as the largest
        dims: the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them
        keepdim: reduced dimensions stay, with size 1
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: place of the largest among the reduced elements, in row-major order; the first of equal ones; -1 of none

    Defined in ops/reduce/argmax/argmax.md
    """

def argmin(
    x: Tensor, *, dims: int = -1, keepdim: bool = False, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Place of the smallest element over any set of dimensions.

    Args:
        x (bf16|f16|f32 [*M]): any values; NaN counts as the smallest
        dims: the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them
        keepdim: reduced dimensions stay, with size 1
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: place of the smallest among the reduced elements, in row-major order; the first of equal ones; -1 of none

    Defined in ops/reduce/argmin/argmin.md
    """

def swizzle_scales(
    scale: Tensor, *, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Block scales from row-major order to the 128 x 4 tile order that cuBLAS reads.

    Args:
        scale (e4m3|e8m0|u8 [M, C]): block scales in row-major order
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the scales in 128 x 4 tiles; padding entries are 0

    Defined in docs/formats/swizzle.md
    """

def unswizzle_scales(
    scale: Tensor, *, rows: int = 0, columns: int = 0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Block scales from the 128 x 4 tile order of cuBLAS back to row-major order.

    Args:
        scale (e4m3|e8m0|u8 [round_up(rows,128), round_up(columns,4)]): block scales in 128 x 4 tiles
        rows: rows of the matrix of scales
        columns: scales in a row, K / block size
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the scales in row-major order, padding dropped

    Rules:
        rows and columns are sizes of the matrix: give both

    Defined in docs/formats/swizzle.md
    """

def swap_nibbles(
    q: Tensor, *, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Exchanges the nibbles of every byte: high-first packing to low-first and back.

    Args:
        q (u8 [*M, K]): bytes of two 4-bit codes
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the same with the nibbles of each byte exchanged

    Defined in docs/formats/nvfp4.md
    """

def quantize_int4(
    x: Tensor, *, group_size: int = 0, mode: Literal["symmetric", "asymmetric"] = "symmetric", hadamard: int = 0, rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Quantises rows to INT4 with a decode scale (and a zero point) per group of columns.

    Args:
        x (bf16|f16|f32 [N, K]): values to quantise, one row per output of a linear
        group_size: columns that share a scale; 0: the whole row
        mode (symmetric|asymmetric): symmetric: two's complement codes times scale; asymmetric: (code - zero) * scale
        hadamard: rotate groups of this many columns first; 0: no rotation
        rounding (nearest|stochastic): nearest: ties to even; stochastic: by Philox bits
        seed: Philox seed of stochastic rounding
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: codes, two a byte: the even column in the low nibble
        scale_out: decode scale of each group
        zero_out: zero point of each group, 0..15, when mode == asymmetric

    Rules:
        K must be even: two codes share a byte; pad x by a column of zeros
        group_size must be even, or 0 for the whole row: 32, 64 and 128 are usual
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K

    Defined in docs/formats/int4.md
    """

def dequantize_int4(
    q: Tensor, scale: Tensor, zero: Tensor | None = None, *, group_size: int = 0, mode: Literal["symmetric", "asymmetric"] = "symmetric", hadamard: int = 0, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Turns INT4 codes with a scale (and a zero point) per group of columns into values.

    Args:
        q (u8 [N, K/2]): codes, two a byte: the even column in the low nibble
        scale (f32 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]): decode scale of each group
        zero (u8 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        group_size: columns that share a scale; 0: the whole row
        mode (symmetric|asymmetric): symmetric: two's complement codes; asymmetric: codes 0..15 and zero
        hadamard: columns were rotated in groups of this many; 0: no rotation
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: code * scale, or (code - zero) * scale, rotated back

    Rules:
        group_size must be even, or 0 for the whole row: 32, 64 and 128 are usual
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K

    Defined in docs/formats/int4.md
    """

def repack_int4(
    q: Tensor, *, from_packing: Literal["plain", "plain_unsigned", "kaio", "gptq", "awq"] = "plain", to_packing: Literal["plain", "plain_unsigned", "kaio", "gptq", "awq"] = "plain", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rewrites INT4 codes from one packing to another; zero points go by repack_zeros.

    Args:
        q (plain: u8; plain_unsigned: u8; kaio: u32; gptq: i32; awq: i32 plain: [N, K/2]; plain_unsigned: [N, K/2]; kaio: [N, K/8]; gptq: [K/8, N]; awq: [K, N/8]): codes of an N x K weight
        from_packing (plain|plain_unsigned|kaio|gptq|awq): plain: u8, even column low, two's complement; plain_unsigned: the same places, codes 0..15; kaio: u32 along K, two's complement; gptq: i32 along K, transposed, 0..15; awq: i32 along N in the order 0 2 4 6 1 3 5 7, transposed, 0..15
        to_packing (plain|plain_unsigned|kaio|gptq|awq): from signed to unsigned codes every code moves up by 8, which is then the zero point
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the same codes in the other packing

    Rules:
        K must be even: two codes share a byte
        K must be a multiple of 8 for to_packing=kaio and gptq: a word holds 8 codes along K
        N must be a multiple of 8 for to_packing=awq: a word holds 8 codes along N

    Defined in docs/formats/packing.md
    """

def repack_zeros(
    zero: Tensor, *, from_packing: Literal["plain", "gptq", "gptq_v2", "awq"] = "plain", to_packing: Literal["plain", "gptq", "gptq_v2", "awq"] = "plain", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rewrites the zero points that belong to INT4 codes from one packing to another.

    Args:
        zero (plain: u8; gptq: i32; gptq_v2: i32; awq: i32 plain: [N, G]; gptq: [G, N/8]; gptq_v2: [G, N/8]; awq: [G, N/8]): zero points, 0..15, of N rows of G groups
        from_packing (plain|gptq|gptq_v2|awq): plain: a byte each; gptq: zero - 1, eight a word, transposed; gptq_v2: the same without the -1; awq: words in the order 0 2 4 6 1 3 5 7
        to_packing (plain|gptq|gptq_v2|awq): likewise; only the low four bits of a zero point are kept
        backend: the only one to use, or several in order; None: as selected

    Returns:
        zero_out: the same zero points in the other packing

    Rules:
        N must be a multiple of 8 for gptq, gptq_v2 and awq: a word holds 8 zero points

    Defined in docs/formats/packing.md
    """

def quantize_w4a8(
    x: Tensor, codebook: Tensor | None = None, *, hadamard: int = 256, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantises a rotated weight to codebook indices with a scale per 16 columns and row.

    Args:
        x (bf16|f16|f32 [N, K]): weight to quantise, one row per output of the linear
        codebook (f32 [16], optional): ascending values; the fixed table of the format when absent
        hadamard: rotate groups of this many columns first; 0: no rotation
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: indices into the codebook, two a byte: the even column low
        scale_rel: scale of 16 columns, relative to the row's
        scale_channel: scale of the row: values decode to int8 times this

    Rules:
        K must be a multiple of 16, the columns that share a relative scale
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K

    Defined in docs/formats/w4a8.md
    """

def dequantize_w4a8(
    q: Tensor, scale_rel: Tensor, scale_channel: Tensor, codebook: Tensor | None = None, *, hadamard: int = 256, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Turns codebook indices with a scale per 16 columns and row into values.

    Args:
        q (u8 [N, K/2]): indices into the codebook, two a byte: the even column low
        scale_rel (e4m3 [N, K/16]): scale of 16 columns, relative to the row's
        scale_channel (f32 [N]): scale of the row
        codebook (f32 [16], optional): values of the indices; the fixed table when absent
        hadamard: columns were rotated in groups of this many; 0: no rotation
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: int8(codebook[q] * scale_rel) * scale_channel, rotated back

    Rules:
        K must be a multiple of 16, the columns that share a relative scale
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K

    Defined in docs/formats/w4a8.md
    """

def dequantize_gguf(
    q: Tensor, *, type: Literal["q8_0", "q4_0", "q4_k", "q6_k"] = "q8_0", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Turns GGUF blocks Q8_0, Q4_0, Q4_K and Q6_K into values.

    Args:
        q (u8 [N, B]): rows of whole blocks, as the bytes lie in the file
        type (q8_0|q4_0|q4_k|q6_k): which blocks
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the values: what llama.cpp computes in f32, rounded once

    Rules:
        a row must be whole blocks: 34 bytes in q8_0, 18 in q4_0, 144 in q4_k, 210 in q6_k

    Defined in docs/formats/gguf.md
    """

def softmax(
    x: Tensor, mask: Tensor | None = None, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Softmax along one dimension, with scale and additive mask (softmax_online).

    Args:
        x (bf16|f16|f32 [*S]): logits of any shape
        mask (f32|bf16|f16 [*B], optional): added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1
        dim: the dimension whose elements add up to 1
        scale: what x is multiplied by first, e.g. 1 / temperature
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: probabilities along dim; NaN where all of a row is -inf

    Rules:
        dim must be one of x's dimensions, which are counted from 0 or, from the last, from -1
        each dimension of mask, counted from the last, must be x's or 1

    Defined in out = exp(t - max t) / sum of exp(t - max t), t = scale * x + mask; f32, one rounding to x's dtype
    """

def softmax_backward(
    d_out: Tensor, out: Tensor, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of softmax from its result.

    Args:
        d_out (bf16|f16|f32 [*S]): gradient of softmax's result
        out (=d_out [*S]): softmax's result
        dim: the dimension that softmax went along
        scale: what softmax multiplied x by
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of softmax's x

    Rules:
        dim must be one of out's dimensions, which are counted from 0 or, from the last, from -1

    Defined in d_x = scale * out * (d_out - sum of d_out * out along dim)
    """

def log_softmax(
    x: Tensor, mask: Tensor | None = None, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Logarithm of softmax along one dimension, with scale and additive mask.

    Args:
        x (bf16|f16|f32 [*S]): logits of any shape
        mask (f32|bf16|f16 [*B], optional): added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1
        dim: the dimension whose probabilities add up to 1
        scale: what x is multiplied by first, e.g. 1 / temperature
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: logarithms of the probabilities along dim

    Rules:
        dim must be one of x's dimensions, which are counted from 0 or, from the last, from -1
        each dimension of mask, counted from the last, must be x's or 1

    Defined in out = (t - max t) - log(sum of exp(t - max t)), t = scale * x + mask; f32, one rounding to x's dtype
    """

def log_softmax_backward(
    d_out: Tensor, out: Tensor, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of log_softmax from its result.

    Args:
        d_out (bf16|f16|f32 [*S]): gradient of log_softmax's result
        out (=d_out [*S]): log_softmax's result
        dim: the dimension that log_softmax went along
        scale: what log_softmax multiplied x by
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of log_softmax's x

    Rules:
        dim must be one of out's dimensions, which are counted from 0 or, from the last, from -1

    Defined in d_x = scale * (d_out - exp(out) * sum of d_out along dim)
    """

def cross_entropy(
    logits: Tensor, target: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """Cross entropy of each row of logits with its target class, without averaging.

    Args:
        logits (bf16|f16|f32 [*M, N]): M rows of N classes
        target (i64|i32 [*M]): the class of each row, or ignore_index
        ignore_index: target of rows that do not count
        label_smoothing: part of the target that all classes share evenly
        backend: the only one to use, or several in order; None: as selected

    Returns:
        loss: -log of the target's probability; 0 for ignored rows, NaN for a target that is no class
        lse: log of the sum of exp(logits), kept for the backward op: f64, since f32 would lose of large logits what the gradient is made of

    Rules:
        there must be at least one class

    Defined in loss = lse - ((1 - label_smoothing) * logits[target] + label_smoothing * mean(logits)), lse = log(sum of exp(logits)); f32 beside the largest logit
    """

def cross_entropy_backward(
    d_loss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of cross_entropy's logits from its lse.

    Args:
        d_loss (f32 [*M]): gradient of each row's loss
        logits (bf16|f16|f32 [*M, N]): cross_entropy's logits
        target (i64|i32 [*M]): the class of each row, or ignore_index
        lse (f64 [*M]): cross_entropy's lse
        ignore_index: target of rows that do not count
        label_smoothing: part of the target that all classes share evenly
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_logits: gradient of logits; 0 in ignored rows, NaN in those with a target that is no class

    Rules:
        there must be at least one class

    Defined in d_logits = d_loss * (exp(logits - lse) - (1 - label_smoothing) * [class is the target] - label_smoothing / N); f32, logits - lse as if exact, one rounding to logits' dtype
    """

def rms_norm(
    x: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Divides each row by the root of its mean square (plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        bias (f32|bf16|f16 [K], optional): added after weight
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean square
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:1910.07467; ops/norm/rms_norm/rms_norm.md
    """

def layer_norm(
    x: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-05, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Subtracts each row's mean and divides by its standard deviation (variance plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        bias (f32|bf16|f16 [K], optional): added after weight
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean squared difference, the variance
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:1607.06450; ops/norm/layer_norm/layer_norm.md
    """

def adaln(
    x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Layer norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        scale (bf16|f16|f32 [*G, K]): modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
        shift (bf16|f16|f32 [*G, K]): modulation: added at the end
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean squared difference, the variance
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:2212.09748; ops/norm/adaln/adaln.md
    """

def rms_adaln(
    x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """RMS norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        scale (bf16|f16|f32 [*G, K]): modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
        shift (bf16|f16|f32 [*G, K]): modulation: added at the end
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean square
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:2212.09748; ops/norm/rms_adaln/rms_adaln.md
    """

def rms_norm_backward(
    x: Tensor, d_out: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, d_residual_out: Tensor | None = None, *, eps: float = 1e-06, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rms_norm: of x, residual, gate and all parameters, from x and the gradient of out.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        d_out (=x [*M, K]): gradient of out
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        bias (f32|bf16|f16 [K], optional): added after weight
        d_residual_out (=x [*M, K], optional): gradient of residual_out
        eps: as in the forward call
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x
        d_residual: gradient of residual, when has(residual)
        d_weight: gradient of weight, when has(weight)
        d_gate: gradient of gate, when has(gate)
        d_bias: gradient of bias, when has(bias)

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        d_residual_out belongs to calls with a residual

    Defined in ops/norm/rms_norm/rms_norm.md
    """

def layer_norm_backward(
    x: Tensor, d_out: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, d_residual_out: Tensor | None = None, *, eps: float = 1e-05, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of layer_norm: of x, residual, gate and all parameters, from x and the gradient of out.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        d_out (=x [*M, K]): gradient of out
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        bias (f32|bf16|f16 [K], optional): added after weight
        d_residual_out (=x [*M, K], optional): gradient of residual_out
        eps: as in the forward call
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x
        d_residual: gradient of residual, when has(residual)
        d_weight: gradient of weight, when has(weight)
        d_gate: gradient of gate, when has(gate)
        d_bias: gradient of bias, when has(bias)

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        d_residual_out belongs to calls with a residual

    Defined in ops/norm/layer_norm/layer_norm.md
    """

def adaln_backward(
    x: Tensor, d_out: Tensor, scale: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, d_residual_out: Tensor | None = None, *, eps: float = 1e-06, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of adaln: of x, residual, gate and all parameters, from x and the gradient of out.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        d_out (=x [*M, K]): gradient of out
        scale (bf16|f16|f32 [*G, K]): modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        d_residual_out (=x [*M, K], optional): gradient of residual_out
        eps: as in the forward call
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x
        d_residual: gradient of residual, when has(residual)
        d_weight: gradient of weight, when has(weight)
        d_gate: gradient of gate, when has(gate)
        d_scale: gradient of scale
        d_shift: gradient of shift

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        d_residual_out belongs to calls with a residual

    Defined in ops/norm/adaln/adaln.md
    """

def rms_adaln_backward(
    x: Tensor, d_out: Tensor, scale: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, d_residual_out: Tensor | None = None, *, eps: float = 1e-06, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rms_adaln: of x, residual, gate and all parameters, from x and the gradient of out.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        d_out (=x [*M, K]): gradient of out
        scale (bf16|f16|f32 [*G, K]): modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        d_residual_out (=x [*M, K], optional): gradient of residual_out
        eps: as in the forward call
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x
        d_residual: gradient of residual, when has(residual)
        d_weight: gradient of weight, when has(weight)
        d_gate: gradient of gate, when has(gate)
        d_scale: gradient of scale
        d_shift: gradient of shift

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        d_residual_out belongs to calls with a residual

    Defined in ops/norm/rms_adaln/rms_adaln.md
    """

def activation(
    x: Tensor, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, act: Literal["silu", "gelu", "gelu_tanh"] = "silu", out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """SiLU (swish) or GELU, exact or by tanh, of every element.

    Args:
        x (bf16|f16|f32 [*M, K]): any values
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        act (silu|gelu|gelu_tanh): x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: act(x), when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in silu = x / (1 + e^-x); gelu = x * Phi(x); gelu_tanh = x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2; f32, one rounding to x's dtype
    """

def activation_backward(
    d_out: Tensor, x: Tensor, *, act: Literal["silu", "gelu", "gelu_tanh"] = "silu", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of activation's x.

    Args:
        d_out (bf16|f16|f32 [*M, K]): gradient of activation's result
        x (=d_out [*M, K]): activation's x
        act (silu|gelu|gelu_tanh): x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x

    Defined in d_x = d_out * act'(x); f32, one rounding
    """

def gated_activation(
    x: Tensor, gate: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, act: Literal["silu", "gelu", "gelu_tanh"] = "silu", layout: Literal["pair", "act_first", "act_last"] = "pair", out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """silu_mul, gelu_mul, swiglu, geglu: an activation times a gate, in two tensors or the halves of one.

    Args:
        x (bf16|f16|f32 pair: [*M, K]; act_first: [*M, 2*K]; act_last: [*M, 2*K]): what act takes; or both factors side by side
        gate (=x [*M, K], optional): the other factor
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        act (silu|gelu|gelu_tanh): x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
        layout (pair|act_first|act_last): act(x) * gate; x holds both in its last dimension, the half that act takes first (swiglu) or last (geglu)
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: act(x) * gate, when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in out = act(x) * gate, act as in activation; f32, one rounding to x's dtype
    """

def gated_activation_backward(
    d_out: Tensor, x: Tensor, gate: Tensor | None = None, *, act: Literal["silu", "gelu", "gelu_tanh"] = "silu", layout: Literal["pair", "act_first", "act_last"] = "pair", backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor] | Tensor:
    """Gradients of gated_activation (silu_mul, gelu_mul, swiglu, geglu).

    Args:
        d_out (bf16|f16|f32 [*M, K]): gradient of gated_activation's result
        x (=d_out pair: [*M, K]; act_first: [*M, 2*K]; act_last: [*M, 2*K]): gated_activation's x
        gate (=d_out [*M, K], optional): gated_activation's gate
        act (silu|gelu|gelu_tanh): x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
        layout (pair|act_first|act_last): act(x) * gate; x holds both in its last dimension, the half that act takes first (swiglu) or last (geglu)
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x, of both halves where x holds both
        d_gate: gradient of gate, when layout == pair

    Defined in d_x = (d_out * gate) * act'(x), d_gate = d_out * act(x); f32, one rounding
    """

def group_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, gate: Tensor | None = None, scale: Tensor | None = None, shift: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, groups: int = 32, eps: float = 1e-05, activation: Literal["none", "silu"] = "none", out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalises groups of neighbouring channels of each sample to mean 0 and variance 1, then weight and bias a channel, modulation a sample and channel, and silu if asked; what is normalised may be a sum with a residual, the result quantised.

    Args:
        x (bf16|f16|f32 [*M, K]): batch, channels, and any dimensions behind them
        weight (f32|bf16|f16 [C], optional): multiplies each channel
        bias (f32|bf16|f16 [C], optional): added to each channel after weight
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [G, C], optional): multiplies x before the residual is added; batch/G neighbouring samples share a row
        scale (bf16|f16|f32 [G, C], optional): modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it
        shift (bf16|f16|f32 [G, C], optional): modulation: added before the activation
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        groups: neighbouring channels are normalised together: channels / groups each
        eps: added to the variance
        activation (none|silu): what is applied to the result
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised groups, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        x must have at least two dimensions, batch and channels
        groups must divide the channels, x's second dimension
        weight must have an element a channel
        bias must have an element a channel
        gate must have a column a channel
        scale must have a column a channel
        shift must have a column a channel
        the batch must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:1803.08494; ops/norm/group_norm/group_norm.md
    """

def group_norm_backward(
    x: Tensor, d_out: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, gate: Tensor | None = None, scale: Tensor | None = None, shift: Tensor | None = None, d_residual_out: Tensor | None = None, *, groups: int = 32, eps: float = 1e-05, activation: Literal["none", "silu"] = "none", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of group_norm: of x, weight, bias, residual, gate, scale and shift, from the inputs and the gradients of out and residual_out.

    Args:
        x (bf16|f16|f32 [*M, K]): batch, channels, and any dimensions behind them
        d_out (=x [*M, K]): gradient of out
        weight (f32|bf16|f16 [C], optional): multiplies each channel
        bias (f32|bf16|f16 [C], optional): added to each channel after weight
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [G, C], optional): multiplies x before the residual is added; batch/G neighbouring samples share a row
        scale (bf16|f16|f32 [G, C], optional): modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it
        shift (bf16|f16|f32 [G, C], optional): modulation: added before the activation
        d_residual_out (=x [*M, K], optional): gradient of residual_out
        groups: as in the forward call
        eps: as in the forward call
        activation (none|silu): as in the forward call
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x
        d_weight: gradient of weight, when has(weight)
        d_bias: gradient of bias, when has(bias)
        d_residual: gradient of residual, when has(residual)
        d_gate: gradient of gate, when has(gate)
        d_scale: gradient of scale, when has(scale)
        d_shift: gradient of shift, when has(shift)

    Rules:
        x must have at least two dimensions, batch and channels
        groups must divide the channels, x's second dimension
        weight must have an element a channel
        bias must have an element a channel
        gate must have a column a channel
        scale must have a column a channel
        shift must have a column a channel
        the batch must be a multiple of G, the rows of gate, scale and shift
        d_residual_out belongs to calls with a residual

    Defined in ops/norm/group_norm_backward/group_norm_backward.md
    """

def matmul(
    a: Tensor, b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, beta: Tensor | None = None, gate: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", gated: Literal["none", "act_first", "act_last"] = "none", precision: Literal["highest", "tf32"] = "highest", out_format: Literal["none", "fp8_tensor", "fp8_row", "fp8_block", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, out_hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
    """Product of two matrices of floats of any strides, f32 accumulation, with an epilogue.

    Args:
        a (bf16|f16|f32|e4m3|e5m2 [*B, M, K]): left matrices, any strides
        b (bf16|f16|f32|e4m3|e5m2 [*B, K, N]): right matrices, any strides: a weight [N, K] is passed transposed, one matrix for all by strides of 0
        alpha (f32 [1], optional): factor on the product; 1 when absent
        bias (f32|bf16|f16 [N], optional): added to every row of the product
        residual (f32|bf16|f16 [*B, M, if(gated == none, N, N/2)], optional): added at the end
        beta (f32 [1], optional): factor on the residual; 1 when absent
        gate (f32|bf16|f16 [*G, if(gated == none, N, N/2)], optional): multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
        q_scale (f32 none: [1]; fp8_tensor: [1]; fp8_block: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*B, M, 1]; int8_row: [*B, M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        activation (none|gelu|gelu_tanh|silu): applied after the bias
        gated (none|act_first|act_last): out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
        precision (highest|tf32): of products of two f32 matrices: as exact as f32, or each value may be rounded to TF32's 11 bits
        out_format (none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8): none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
        keep_out: give out beside its codes
        out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: residual * beta + gate * activation(a @ b * alpha + bias), when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of N, when out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs out's columns to be a multiple of 16, its block
        mxfp8 needs out's columns to be a multiple of 32, its block
        nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all rows
        out_hadamard belongs to out_format=int8_row
        out_hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        out's columns must be a multiple of out_hadamard, the elements that are rotated together
        gated needs an even N: columns come in pairs
        beta is a factor on residual, which is absent
        the rows of out must be a multiple of gate's rows, each of which neighbouring rows share

    Defined in y = activation(sum_k a[m,k] * b[k,n] * alpha + bias[n]), of pairs of columns activation(one) * the other; out = residual[m,n] * beta + gate * y
    """

def matmul_backward(
    d_out: Tensor, a: Tensor, b: Tensor, alpha: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, *, activation: Literal["none", "gelu", "gelu_tanh", "silu"] = "none", backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of matmul: of a, b, bias and residual; the product is made again where an activation followed it.

    Args:
        d_out (bf16|f16|f32 [*B, M, N]): gradient of matmul's out
        a (bf16|f16|f32 [*B, M, K]): matmul's a
        b (bf16|f16|f32 [*B, K, N]): matmul's b
        alpha (f32 [1], optional): matmul's alpha
        bias (f32|bf16|f16 [N], optional): matmul's bias
        residual (f32|bf16|f16 [*B, M, N], optional): matmul's residual; its values are not read
        activation (none|gelu|gelu_tanh|silu): matmul's activation
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_a: gradient of a
        d_b: gradient of b
        d_bias: gradient of bias, when has(bias)
        d_residual: d_out in residual's dtype, when has(residual)

    Defined in d_pre = d_out * activation'(a @ b * alpha + bias); d_a = d_pre @ b^T * alpha; d_b = a^T @ d_pre * alpha; d_bias = sum of d_pre over rows; d_residual = d_out
    """

def qkv_project(
    x: Tensor, weight_q: Tensor, weight_k: Tensor, weight_v: Tensor, bias_q: Tensor | None = None, bias_k: Tensor | None = None, bias_v: Tensor | None = None, scale_q: Tensor | None = None, scale_k: Tensor | None = None, scale_v: Tensor | None = None, zero_q: Tensor | None = None, zero_k: Tensor | None = None, zero_v: Tensor | None = None, global_scale_q: Tensor | None = None, global_scale_k: Tensor | None = None, global_scale_v: Tensor | None = None, *, format: Literal["float", "int8_tensor", "int8_row", "int4", "nvfp4"] = "float", group_size: int = 0, mode: Literal["symmetric", "asymmetric"] = "symmetric", hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", k_dtype: torch.dtype | None = None, q_dtype: torch.dtype | None = None, v_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The projections of attention's queries, keys and values by three weights of one x, of floats or quantised.

    Args:
        x (bf16|f16|f32 [*M, K]): activations
        weight_q (float: =x; int8_tensor: i8; int8_row: i8; int4: u8; nvfp4: u8 float: [NQ, K]; int8_tensor: [NQ, K]; int8_row: [NQ, K]; int4: [NQ, K/2]; nvfp4: [NQ, K/2]): weight of the queries, a row for each column of q
        weight_k (float: =x; int8_tensor: i8; int8_row: i8; int4: u8; nvfp4: u8 float: [NK, K]; int8_tensor: [NK, K]; int8_row: [NK, K]; int4: [NK, K/2]; nvfp4: [NK, K/2]): weight of the keys
        weight_v (float: =x; int8_tensor: i8; int8_row: i8; int4: u8; nvfp4: u8 float: [NV, K]; int8_tensor: [NV, K]; int8_row: [NV, K]; int4: [NV, K/2]; nvfp4: [NV, K/2]): weight of the values
        bias_q (f32|bf16|f16 [NQ], optional): added to every row of q
        bias_k (f32|bf16|f16 [NK], optional): added to every row of k
        bias_v (f32|bf16|f16 [NV], optional): added to every row of v
        scale_q (float: f32; int8_tensor: f32; int8_row: f32; int4: f32; nvfp4: e4m3 float: [1]; int8_tensor: [1]; int8_row: [NQ, 1]; int4: [NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))]; nvfp4: [if(scale_layout == swizzled, round_up(NQ,128), NQ), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))], optional): decode scales of the weight's codes
        scale_k (float: f32; int8_tensor: f32; int8_row: f32; int4: f32; nvfp4: e4m3 float: [1]; int8_tensor: [1]; int8_row: [NK, 1]; int4: [NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))]; nvfp4: [if(scale_layout == swizzled, round_up(NK,128), NK), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))], optional): decode scales of the weight's codes
        scale_v (float: f32; int8_tensor: f32; int8_row: f32; int4: f32; nvfp4: e4m3 float: [1]; int8_tensor: [1]; int8_row: [NV, 1]; int4: [NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))]; nvfp4: [if(scale_layout == swizzled, round_up(NV,128), NV), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))], optional): decode scales of the weight's codes
        zero_q (u8 [NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        zero_k (u8 [NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        zero_v (u8 [NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        global_scale_q (f32 [1], optional): decode scale of the whole weight
        global_scale_k (f32 [1], optional): decode scale of the whole weight
        global_scale_v (f32 [1], optional): decode scale of the whole weight
        format (float|int8_tensor|int8_row|int4|nvfp4): how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each row), quantize_int4 or quantize_nvfp4
        group_size: format=int4: columns that share a scale; 0: the whole row
        mode (symmetric|asymmetric): format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros
        hadamard: the weights were rotated in groups of this many columns, so x is too, in f32; 0: neither
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        q_dtype: dtype of q
        k_dtype: dtype of k
        v_dtype: dtype of v
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: x @ weight_q^T + bias_q
        k: x @ weight_k^T + bias_k
        v: x @ weight_v^T + bias_v

    Rules:
        group_size must be even, or 0 for the whole row: 32, 64 and 128 are usual
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K
        hadamard belongs to weights of INT8 and INT4
        K must be even: two codes share a byte
        K must be a multiple of 16, the block; pad x and the weights with zeros

    Defined in three products as matmul's or as the format's linear op, f32 sums, one rounding
    """

def qkv_project_backward(
    d_q: Tensor, d_k: Tensor, d_v: Tensor, x: Tensor, weight_q: Tensor, weight_k: Tensor, weight_v: Tensor, bias_q: Tensor | None = None, bias_k: Tensor | None = None, bias_v: Tensor | None = None, scale_q: Tensor | None = None, scale_k: Tensor | None = None, scale_v: Tensor | None = None, zero_q: Tensor | None = None, zero_k: Tensor | None = None, zero_v: Tensor | None = None, global_scale_q: Tensor | None = None, global_scale_k: Tensor | None = None, global_scale_v: Tensor | None = None, *, format: Literal["float", "int8_tensor", "int8_row", "int4", "nvfp4"] = "float", group_size: int = 0, mode: Literal["symmetric", "asymmetric"] = "symmetric", hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor] | Tensor | tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of qkv_project: of x, of weights that are floats, of the biases.

    Args:
        d_q (bf16|f16|f32 [*M, NQ]): gradient of qkv_project's q
        d_k (bf16|f16|f32 [*M, NK]): gradient of k
        d_v (bf16|f16|f32 [*M, NV]): gradient of v
        x (bf16|f16|f32 [*M, K]): qkv_project's x
        weight_q (float: =x; int8_tensor: i8; int8_row: i8; int4: u8; nvfp4: u8 float: [NQ, K]; int8_tensor: [NQ, K]; int8_row: [NQ, K]; int4: [NQ, K/2]; nvfp4: [NQ, K/2]): qkv_project's weight_q
        weight_k (float: =x; int8_tensor: i8; int8_row: i8; int4: u8; nvfp4: u8 float: [NK, K]; int8_tensor: [NK, K]; int8_row: [NK, K]; int4: [NK, K/2]; nvfp4: [NK, K/2]): qkv_project's weight_k
        weight_v (float: =x; int8_tensor: i8; int8_row: i8; int4: u8; nvfp4: u8 float: [NV, K]; int8_tensor: [NV, K]; int8_row: [NV, K]; int4: [NV, K/2]; nvfp4: [NV, K/2]): qkv_project's weight_v
        bias_q (f32|bf16|f16 [NQ], optional): qkv_project's; its values are not read
        bias_k (f32|bf16|f16 [NK], optional): likewise
        bias_v (f32|bf16|f16 [NV], optional): likewise
        scale_q (float: f32; int8_tensor: f32; int8_row: f32; int4: f32; nvfp4: e4m3 float: [1]; int8_tensor: [1]; int8_row: [NQ, 1]; int4: [NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))]; nvfp4: [if(scale_layout == swizzled, round_up(NQ,128), NQ), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))], optional): decode scales of the weight's codes
        scale_k (float: f32; int8_tensor: f32; int8_row: f32; int4: f32; nvfp4: e4m3 float: [1]; int8_tensor: [1]; int8_row: [NK, 1]; int4: [NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))]; nvfp4: [if(scale_layout == swizzled, round_up(NK,128), NK), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))], optional): decode scales of the weight's codes
        scale_v (float: f32; int8_tensor: f32; int8_row: f32; int4: f32; nvfp4: e4m3 float: [1]; int8_tensor: [1]; int8_row: [NV, 1]; int4: [NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))]; nvfp4: [if(scale_layout == swizzled, round_up(NV,128), NV), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))], optional): decode scales of the weight's codes
        zero_q (u8 [NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        zero_k (u8 [NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        zero_v (u8 [NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))], optional): zero point of each group
        global_scale_q (f32 [1], optional): decode scale of the whole weight
        global_scale_k (f32 [1], optional): decode scale of the whole weight
        global_scale_v (f32 [1], optional): decode scale of the whole weight
        format (float|int8_tensor|int8_row|int4|nvfp4): how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each row), quantize_int4 or quantize_nvfp4
        group_size: format=int4: columns that share a scale; 0: the whole row
        mode (symmetric|asymmetric): format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros
        hadamard: the weights were rotated in groups of this many columns, so x is too, in f32; 0: neither
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x: the sum of three products, rounded once
        d_weight_q: gradient of weight_q, when format == float
        d_weight_k: gradient of weight_k, when format == float
        d_weight_v: gradient of weight_v, when format == float
        d_bias_q: gradient of bias_q, when has(bias_q)
        d_bias_k: gradient of bias_k, when has(bias_k)
        d_bias_v: gradient of bias_v, when has(bias_v)

    Rules:
        group_size must be even, or 0 for the whole row: 32, 64 and 128 are usual
        hadamard must be 0, 4, 16, 64, 256 or 1024 and divide K
        hadamard belongs to weights of INT8 and INT4
        K must be even: two codes share a byte
        K must be a multiple of 16, the block; pad x and the weights with zeros

    Defined in d_x = d_q @ W_q + d_k @ W_k + d_v @ W_v, a weight of codes decoded in the dtype of its d; d_weight_q = d_q^T @ x; d_bias_q = sum of d_q over rows
    """

def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None, key_lengths: Tensor | None = None, q_offsets: Tensor | None = None, k_offsets: Tensor | None = None, *, scale: float = 0.0, softcap: float = 0.0, causal: bool = False, window_left: int = -1, window_right: int = -1, align: Literal["top_left", "bottom_right"] = "top_left", precision: Literal["highest", "tf32"] = "highest", deterministic: bool = True, out_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention of queries over keys and values, with every usual mask.

    Args:
        q (bf16|f16|f32 [B, Hq, Sq, D]): queries, any strides
        k (=q [B, Hk, Sk, D]): keys; head h of q sees head h * Hk / Hq
        v (=q [B, Hk, Sk, Dv]): values
        mask (bool|f32|bf16|f16 [Bm, Hm, Mq, Mk], optional): bool: true where a key counts; floats are added to the logits. Each dimension is that of the logits [B, Hq, Sq, Sk] or 1
        sinks (f32|bf16|f16 [Hq], optional): the logit of a key of each head that every query sees and whose value is 0
        key_lengths (i32|i64 [B], optional): keys of each batch that count, the first of them; beyond 0 and Sk the nearer one
        q_offsets (i32|i64 [N], optional): sequences packed along Sq: sequence n has the queries from q_offsets[n] up to q_offsets[n + 1], ascending; other queries see no key
        k_offsets (i32|i64 [N], optional): the same of the keys, along Sk
        scale: factor of the products of q and k; 0: 1 / sqrt(D)
        softcap: logits become softcap * tanh(logit / softcap); 0: as they are
        causal: a query sees no key behind its own place
        window_left: how many keys before its place a query sees at most; -1: all of them
        window_right: how many keys behind its place a query sees at most; -1: all of them
        align (top_left|bottom_right): the place of a query among the keys: the first query's is the first key, or the last one's is the last key that counts
        precision (highest|tf32): of products of f32 values, the gradients' too: as exact as f32, or each value may be rounded to TF32's 11 bits
        deterministic: gradients have the same bits in every run; false: they may be added up in any order, which some implementations do faster
        out_dtype: dtype of out
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: softmax(logits) @ v; 0 for a query that sees no key
        lse: log of the sum of exp(logits), with the sink's; -inf for a query that sees no key. Kept for the backward op

    Rules:
        q's heads must be a multiple of those of k and v
        each dimension of mask must be that of the logits [B, Hq, Sq, Sk] or 1
        window_left and window_right must be -1, for no limit, or a number of keys
        q_offsets and k_offsets come together
        packed sequences have a batch of 1, and no key_lengths: k_offsets say where keys end
        q_offsets and k_offsets begin with where the first sequence does

    Defined in logit = softcap(scale * q.k) + mask over the keys that a query sees; out = sum of exp(logit - lse) * v, lse = log(sum of exp(logit)); f32, exponentials of 16-bit inputs may be rounded to their dtype
    """

def attention_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None, key_lengths: Tensor | None = None, q_offsets: Tensor | None = None, k_offsets: Tensor | None = None, *, scale: float = 0.0, softcap: float = 0.0, causal: bool = False, window_left: int = -1, window_right: int = -1, align: Literal["top_left", "bottom_right"] = "top_left", mask_gradient: bool = False, precision: Literal["highest", "tf32"] = "highest", deterministic: bool = True, backend: str | tuple[str, ...] | None = None
) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of attention from its out and lse.

    Args:
        d_out (bf16|f16|f32 [B, Hq, Sq, Dv]): gradient of attention's out
        q (bf16|f16|f32 [B, Hq, Sq, D]): queries, any strides
        k (=q [B, Hk, Sk, D]): keys; head h of q sees head h * Hk / Hq
        v (=q [B, Hk, Sk, Dv]): values
        out (bf16|f16|f32 [B, Hq, Sq, Dv]): what attention gave
        lse (f32 [B, Hq, Sq]): what attention gave; queries where it is infinite give 0
        mask (bool|f32|bf16|f16 [Bm, Hm, Mq, Mk], optional): bool: true where a key counts; floats are added to the logits. Each dimension is that of the logits [B, Hq, Sq, Sk] or 1
        sinks (f32|bf16|f16 [Hq], optional): the logit of a key of each head that every query sees and whose value is 0
        key_lengths (i32|i64 [B], optional): keys of each batch that count, the first of them; beyond 0 and Sk the nearer one
        q_offsets (i32|i64 [N], optional): sequences packed along Sq: sequence n has the queries from q_offsets[n] up to q_offsets[n + 1], ascending; other queries see no key
        k_offsets (i32|i64 [N], optional): the same of the keys, along Sk
        scale: factor of the products of q and k; 0: 1 / sqrt(D)
        softcap: logits become softcap * tanh(logit / softcap); 0: as they are
        causal: a query sees no key behind its own place
        window_left: how many keys before its place a query sees at most; -1: all of them
        window_right: how many keys behind its place a query sees at most; -1: all of them
        align (top_left|bottom_right): the place of a query among the keys: the first query's is the first key, or the last one's is the last key that counts
        mask_gradient: give d_mask, which may be as large as all logits
        precision (highest|tf32): of products of f32 values, the gradients' too: as exact as f32, or each value may be rounded to TF32's 11 bits
        deterministic: gradients have the same bits in every run; false: they may be added up in any order, which some implementations do faster
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_q: gradient of q
        d_k: gradient of k
        d_v: gradient of v
        d_mask: gradient of mask, summed over what it is shared by, when mask_gradient
        d_sinks: gradient of sinks, when has(sinks)

    Rules:
        q's heads must be a multiple of those of k and v
        each dimension of mask must be that of the logits [B, Hq, Sq, Sk] or 1
        window_left and window_right must be -1, for no limit, or a number of keys
        q_offsets and k_offsets come together
        packed sequences have a batch of 1, and no key_lengths: k_offsets say where keys end
        q_offsets and k_offsets begin with where the first sequence does
        mask_gradient needs a mask of floats: a boolean one has no gradient

    Defined in p = exp(logit - lse); d_v = sum of p * d_out; d_logit = p * (d_out.v - d_out.out); d_mask = d_logit; d_q, d_k = sums of d_logit * d logit / d q, / d k; d_sinks = -sum of exp(sink - lse) * (d_out.out)
    """

def stochastic_round_fp8_(
    x: Tensor, rng: Tensor, *, q_dtype: torch.dtype | None = None, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rounds to FP8 stochastically by given random bytes, without a scale.

    Writes into rng and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): values to round; taken to f16 first
        rng (u8 [*M, K]): one random byte an element
        q_dtype: dtype of q
        backend: the only one to use, or several in order; None: as selected

    Returns:
        q: codes

    Defined in docs/formats/stochastic.md
    """

def hadamard_(
    x: Tensor, *, hadamard: int = 256, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Rotates groups along K by the regular Hadamard matrix; applied twice it is the identity.

    Writes into x and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): values to rotate along K
        hadamard: elements that are rotated together: 4, 16, 64, 256 or 1024
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rotated x: f32, one rounding

    Rules:
        hadamard must be 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in docs/formats/hadamard.md
    """

def apply_rope_(
    x: Tensor, freqs: Tensor | None = None, x2: Tensor | None = None, cos: Tensor | None = None, sin: Tensor | None = None, *, pairs: Literal["interleaved", "split_half"] = "interleaved", rot_dim: int = 0, inverse: bool = False, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotary position embedding of one tensor, or of queries and keys together; or back.

    Writes into x and x2 and returns it.

    Args:
        x (bf16|f16|f32 [B, H, S, D]): queries, keys or any heads: BHSD, or BSHD
        freqs (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2], optional): rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
        x2 (bf16|f16|f32 [B2, H2, S2, D], optional): a second tensor for the same freqs, e.g. keys
        cos (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): cosines, one a pair, in place of freqs; dimensions as those of freqs
        sin (=cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): sines, one a pair, with cos
        pairs (interleaved|split_half): rotate (2i, 2i+1), or (i, i + rot_dim/2)
        rot_dim: elements of a head that are rotated, the first ones; 0: all of them
        inverse: rotate back: by the transposed rotations, as the gradient is
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rotated x; what rot_dim leaves is copied
        out2: rotated x2, when has(x2)

    Rules:
        D, the head size, and rot_dim must be even, rot_dim from 0 to D: elements are rotated in pairs
        freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)
        freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)

    Defined in y0 = f00*x0 + f01*x1, y1 = f10*x0 + f11*x1 over pairs; f32, one rounding to x's dtype
    """

def rms_rope_(
    x: Tensor, weight: Tensor, freqs: Tensor | None = None, x2: Tensor | None = None, weight2: Tensor | None = None, cos: Tensor | None = None, sin: Tensor | None = None, *, eps: float = 1e-06, pairs: Literal["interleaved", "split_half"] = "interleaved", rot_dim: int = 0, backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS norm of every head, then rotary position embedding; one tensor or two.

    Writes into x and x2 and returns it.

    Args:
        x (bf16|f16|f32 [B, H, S, D]): queries, keys or any heads: BHSD, or BSHD
        weight (bf16|f16|f32 [D]): what normalised elements are multiplied by
        freqs (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2], optional): rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
        x2 (=x [B2, H2, S2, D], optional): a second tensor for the same freqs, e.g. keys
        weight2 (=weight [D], optional): x2's weight; left out, weight serves both
        cos (f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): cosines, one a pair, in place of freqs; dimensions as those of freqs
        sin (=cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2], optional): sines, one a pair, with cos
        eps: added to the mean of a head's squares
        pairs (interleaved|split_half): rotate (2i, 2i+1), or (i, i + rot_dim/2)
        rot_dim: elements of a head that are rotated, the first ones; 0: all of them
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: rotated; what rot_dim leaves is only normalised
        out2: the same of x2, when has(x2)

    Rules:
        D, the head size, and rot_dim must be even, rot_dim from 0 to D: elements are rotated in pairs
        freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)
        freqs' leading dimensions must each be 1 or x2's (the third may be longer: it is trimmed)
        weight2 is x2's weight: it needs x2

    Defined in u = (x * r) * weight, r = 1/sqrt(mean(x^2) + eps); pairs of u rotate as in apply_rope; f32 up to one rounding to x's dtype
    """

def swap_nibbles_(
    q: Tensor, *, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Exchanges the nibbles of every byte: high-first packing to low-first and back.

    Writes into q and returns it.

    Args:
        q (u8 [*M, K]): bytes of two 4-bit codes
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the same with the nibbles of each byte exchanged

    Defined in docs/formats/nvfp4.md
    """

def softmax_(
    x: Tensor, mask: Tensor | None = None, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Softmax along one dimension, with scale and additive mask (softmax_online).

    Writes into x and returns it.

    Args:
        x (bf16|f16|f32 [*S]): logits of any shape
        mask (f32|bf16|f16 [*B], optional): added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1
        dim: the dimension whose elements add up to 1
        scale: what x is multiplied by first, e.g. 1 / temperature
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: probabilities along dim; NaN where all of a row is -inf

    Rules:
        dim must be one of x's dimensions, which are counted from 0 or, from the last, from -1
        each dimension of mask, counted from the last, must be x's or 1

    Defined in out = exp(t - max t) / sum of exp(t - max t), t = scale * x + mask; f32, one rounding to x's dtype
    """

def softmax_backward_(
    d_out: Tensor, out: Tensor, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of softmax from its result.

    Writes into d_out and returns it.

    Args:
        d_out (bf16|f16|f32 [*S]): gradient of softmax's result
        out (=d_out [*S]): softmax's result
        dim: the dimension that softmax went along
        scale: what softmax multiplied x by
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of softmax's x

    Rules:
        dim must be one of out's dimensions, which are counted from 0 or, from the last, from -1

    Defined in d_x = scale * out * (d_out - sum of d_out * out along dim)
    """

def log_softmax_(
    x: Tensor, mask: Tensor | None = None, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Logarithm of softmax along one dimension, with scale and additive mask.

    Writes into x and returns it.

    Args:
        x (bf16|f16|f32 [*S]): logits of any shape
        mask (f32|bf16|f16 [*B], optional): added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1
        dim: the dimension whose probabilities add up to 1
        scale: what x is multiplied by first, e.g. 1 / temperature
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: logarithms of the probabilities along dim

    Rules:
        dim must be one of x's dimensions, which are counted from 0 or, from the last, from -1
        each dimension of mask, counted from the last, must be x's or 1

    Defined in out = (t - max t) - log(sum of exp(t - max t)), t = scale * x + mask; f32, one rounding to x's dtype
    """

def log_softmax_backward_(
    d_out: Tensor, out: Tensor, *, dim: int = -1, scale: float = 1.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of log_softmax from its result.

    Writes into d_out and returns it.

    Args:
        d_out (bf16|f16|f32 [*S]): gradient of log_softmax's result
        out (=d_out [*S]): log_softmax's result
        dim: the dimension that log_softmax went along
        scale: what log_softmax multiplied x by
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of log_softmax's x

    Rules:
        dim must be one of out's dimensions, which are counted from 0 or, from the last, from -1

    Defined in d_x = scale * (d_out - exp(out) * sum of d_out along dim)
    """

def cross_entropy_backward_(
    d_loss: Tensor, logits: Tensor, target: Tensor, lse: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of cross_entropy's logits from its lse.

    Writes into logits and returns it.

    Args:
        d_loss (f32 [*M]): gradient of each row's loss
        logits (bf16|f16|f32 [*M, N]): cross_entropy's logits
        target (i64|i32 [*M]): the class of each row, or ignore_index
        lse (f64 [*M]): cross_entropy's lse
        ignore_index: target of rows that do not count
        label_smoothing: part of the target that all classes share evenly
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_logits: gradient of logits; 0 in ignored rows, NaN in those with a target that is no class

    Rules:
        there must be at least one class

    Defined in d_logits = d_loss * (exp(logits - lse) - (1 - label_smoothing) * [class is the target] - label_smoothing / N); f32, logits - lse as if exact, one rounding to logits' dtype
    """

def rms_norm_(
    x: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Divides each row by the root of its mean square (plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised.

    Writes into residual and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        bias (f32|bf16|f16 [K], optional): added after weight
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean square
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:1910.07467; ops/norm/rms_norm/rms_norm.md
    """

def layer_norm_(
    x: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-05, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Subtracts each row's mean and divides by its standard deviation (variance plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised.

    Writes into residual and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        bias (f32|bf16|f16 [K], optional): added after weight
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean squared difference, the variance
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:1607.06450; ops/norm/layer_norm/layer_norm.md
    """

def adaln_(
    x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Layer norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift.

    Writes into residual and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        scale (bf16|f16|f32 [*G, K]): modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
        shift (bf16|f16|f32 [*G, K]): modulation: added at the end
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean squared difference, the variance
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:2212.09748; ops/norm/adaln/adaln.md
    """

def rms_adaln_(
    x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor | None = None, gate: Tensor | None = None, weight: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, eps: float = 1e-06, out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift.

    Writes into residual and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): rows to normalise
        scale (bf16|f16|f32 [*G, K]): modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
        shift (bf16|f16|f32 [*G, K]): modulation: added at the end
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [*G, K], optional): multiplies x before the residual is added; M/G neighbouring rows share a row of it
        weight (f32|bf16|f16 [K], optional): multiplies the normalised row
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        eps: added to the mean square
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised rows, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        M must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:2212.09748; ops/norm/rms_adaln/rms_adaln.md
    """

def activation_(
    x: Tensor, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, act: Literal["silu", "gelu", "gelu_tanh"] = "silu", out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """SiLU (swish) or GELU, exact or by tanh, of every element.

    Writes into x and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): any values
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        act (silu|gelu|gelu_tanh): x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: act(x), when out_format == none || keep_out
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in silu = x / (1 + e^-x); gelu = x * Phi(x); gelu_tanh = x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2; f32, one rounding to x's dtype
    """

def activation_backward_(
    d_out: Tensor, x: Tensor, *, act: Literal["silu", "gelu", "gelu_tanh"] = "silu", backend: str | tuple[str, ...] | None = None
) -> Tensor:
    """Gradient of activation's x.

    Writes into d_out and returns it.

    Args:
        d_out (bf16|f16|f32 [*M, K]): gradient of activation's result
        x (=d_out [*M, K]): activation's x
        act (silu|gelu|gelu_tanh): x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
        backend: the only one to use, or several in order; None: as selected

    Returns:
        d_x: gradient of x

    Defined in d_x = d_out * act'(x); f32, one rounding
    """

def group_norm_(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, gate: Tensor | None = None, scale: Tensor | None = None, shift: Tensor | None = None, q_scale: Tensor | None = None, global_scale: Tensor | None = None, *, groups: int = 32, eps: float = 1e-05, activation: Literal["none", "silu"] = "none", out_format: Literal["none", "fp8_tensor", "fp8_row", "int8_row", "nvfp4", "mxfp8"] = "none", keep_out: bool = False, hadamard: int = 0, nibbles: Literal["high_first", "low_first"] = "high_first", scale_layout: Literal["swizzled", "plain"] = "swizzled", backend: str | tuple[str, ...] | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Normalises groups of neighbouring channels of each sample to mean 0 and variance 1, then weight and bias a channel, modulation a sample and channel, and silu if asked; what is normalised may be a sum with a residual, the result quantised.

    Writes into residual and returns it.

    Args:
        x (bf16|f16|f32 [*M, K]): batch, channels, and any dimensions behind them
        weight (f32|bf16|f16 [C], optional): multiplies each channel
        bias (f32|bf16|f16 [C], optional): added to each channel after weight
        residual (=x [*M, K], optional): added to gate * x before the norm
        gate (bf16|f16|f32 [G, C], optional): multiplies x before the residual is added; batch/G neighbouring samples share a row
        scale (bf16|f16|f32 [G, C], optional): modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it
        shift (bf16|f16|f32 [G, C], optional): modulation: added before the activation
        q_scale (f32 none: [1]; fp8_tensor: [1]; nvfp4: [1]; mxfp8: [1]; fp8_row: [*M, 1]; int8_row: [*M, 1], optional): decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
        global_scale (f32 [1], optional): decode scale of the whole tensor, out_format=nvfp4
        groups: neighbouring channels are normalised together: channels / groups each
        eps: added to the variance
        activation (none|silu): what is applied to the result
        out_format (none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8): none: out; else q holds out's codes, and out is given only with keep_out
        keep_out: give out beside its codes, rounded to x's dtype
        hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
        nibbles (high_first|low_first): which nibble of a byte holds the even element
        scale_layout (swizzled|plain): swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
        backend: the only one to use, or several in order; None: as selected

    Returns:
        out: the normalised groups, when out_format == none || keep_out
        residual_out: the sum that was normalised: residual + gate * x, when has(residual)
        q: codes of out; nvfp4: two a byte, when out_format != none
        scale_out: decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K, when out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))

    Rules:
        x must have at least two dimensions, batch and channels
        groups must divide the channels, x's second dimension
        weight must have an element a channel
        bias must have an element a channel
        gate must have a column a channel
        scale must have a column a channel
        shift must have a column a channel
        the batch must be a multiple of G, the rows of gate, scale and shift
        out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass
        q_scale belongs to out_format fp8_tensor, fp8_row and int8_row
        nvfp4 needs K to be a multiple of 16, its block
        mxfp8 needs K to be a multiple of 32, its block
        hadamard belongs to out_format=int8_row
        hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024
        K must be a multiple of hadamard, the elements that are rotated together

    Defined in arXiv:1803.08494; ops/norm/group_norm/group_norm.md
    """
