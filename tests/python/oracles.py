"""What the Python tests share: all 16-bit inputs, views for PyTorch, ops with outputs allocated."""

import ml_dtypes
import numpy as np
import torch
from pestle_ctypes import PestleError, call, impls, set_isa

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
LARGEST = {E4M3: 448.0, E5M2: 57344.0, E2M1: 6.0}
TORCH = {
    BF16: torch.bfloat16,
    F16: torch.float16,
    F32: torch.float32,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
    E8M0: torch.float8_e8m0fnu,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int8): torch.int8,
}
FLOATS = (BF16, F16, F32)


def all_16_bit(dtype: np.dtype) -> np.ndarray:
    """All 65,536 values of bf16 or f16, every NaN included."""
    return np.arange(65536, dtype=np.uint16).view(dtype)


def to_torch(array: np.ndarray) -> torch.Tensor:
    dense = np.ascontiguousarray(array)
    same_size = {1: np.uint8, 2: np.int16, 4: np.int32}[dense.itemsize]
    return torch.from_numpy(dense.view(same_size).copy()).view(TORCH[array.dtype])


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    dtype = next(numpy for numpy, torch_dtype in TORCH.items() if torch_dtype == tensor.dtype)
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return tensor.contiguous().view(same_size).numpy().view(dtype)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.itemsize])


def assert_same_values(got: np.ndarray, want: np.ndarray) -> None:
    """Same bits, but any NaN equals any NaN."""
    assert got.shape == want.shape and got.dtype == want.dtype
    got_nan, want_nan = np.isnan(got.astype(np.float32)), np.isnan(want.astype(np.float32))
    wrong = np.where(got_nan | want_nan, got_nan != want_nan, bits(got) != bits(want))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise AssertionError(f"{wrong.sum()} differ, first at {at}: {got[at]} not {want[at]}")


def assert_same_codes(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    wrong = bits(got) != bits(want)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise AssertionError(
            f"{wrong.sum()} codes differ, first at {at}: {bits(got)[at]:#x} not {bits(want)[at]:#x}"
        )


def saturated_codes(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The codes our rule asks for, of f32 values, by ml_dtypes.

    ml_dtypes turns what overflows into NaN (E4M3) or Inf (E5M2), so the values are clamped first;
    and it keeps a NaN's sign, where we write one code.
    """
    assert values.dtype == np.float32
    largest = np.float32(LARGEST[dtype])
    finite = np.where(np.isnan(values), np.float32(0), np.clip(values, -largest, largest))
    codes = finite.astype(dtype).view(np.uint8)
    return np.where(np.isnan(values), 0x07 if dtype == E2M1 else 0x7F, codes).astype(np.uint8)


def pack_nibbles(codes: np.ndarray, high_first: bool) -> np.ndarray:
    even, odd = codes[..., 0::2], codes[..., 1::2]
    return (even << 4 | odd if high_first else odd << 4 | even).astype(np.uint8)


def unswizzled(scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The 128 x 4 tiles of docs/formats/swizzle.md back to rows and columns, by reshaping."""
    tiles = scales.reshape(scales.shape[0] // 128, scales.shape[1] // 4, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(scales.shape)[:rows, :columns]


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# Ops with their outputs allocated. `impl` forces one implementation.


def fp8_scale_shape(x_shape: tuple[int, ...], granularity: str) -> tuple[int, ...]:
    rows, k = int(np.prod(x_shape[:-1])), x_shape[-1]
    return {
        "tensor": (1,),
        "row": (*x_shape[:-1], 1),
        "column": (1, k),
        "block_1x128": (*x_shape[:-1], -(-k // 128)),
        "block_128x128": (-(-rows // 128), -(-k // 128)),
    }[granularity]


def quantize_fp8(x, dtype=E4M3, scale=None, granularity="tensor", impl=None, **options):
    q = np.empty(x.shape, dtype)
    out = None
    if scale is None:
        out = np.empty(fp8_scale_shape(x.shape, granularity), np.float32)
    call("quantize_fp8", impl, x=x, q=q, scale=scale, scale_out=out, granularity=granularity,
         **options)  # fmt: skip
    return q, scale if out is None else out


def dequantize_fp8(q, scale, dtype=F32, granularity="tensor", impl=None):
    out = np.empty(q.shape, dtype)
    call("dequantize_fp8", impl, q=q, scale=scale, out=out, granularity=granularity)
    return out


def quantize_int8(x, scale=None, granularity="row", group_size=128, hadamard=0, impl=None, **more):
    q = np.empty(x.shape, np.int8)
    groups = -(-x.shape[-1] // group_size)
    shape = {"tensor": (1,), "row": (*x.shape[:-1], 1), "group": (*x.shape[:-1], groups)}
    out = np.empty(shape[granularity], np.float32) if scale is None else None
    call("quantize_int8", impl, x=x, q=q, scale=scale, scale_out=out, granularity=granularity,
         group_size=group_size, hadamard=hadamard, **more)  # fmt: skip
    return q, scale if out is None else out


def dequantize_int8(q, scale, dtype=F32, granularity="row", group_size=128, hadamard=0, impl=None):
    out = np.empty(q.shape, dtype)
    call("dequantize_int8", impl, q=q, scale=scale, out=out, granularity=granularity,
         group_size=group_size, hadamard=hadamard)  # fmt: skip
    return out


def block_shapes(x, block: int, scale_layout: str, pad: bool):
    """(rows, columns) of codes and of scales of a block format, whose padding is to `block`."""
    rows, k = x.shape
    if pad:
        rows, k = round_up(rows, block), round_up(k, block)
    scales = (rows, k // block)
    if scale_layout == "swizzled":
        scales = (round_up(rows, 128), round_up(k // block, 4))
    return (rows, k), scales


def quantize_nvfp4(x, global_scale=None, nibbles="high_first", scale_layout="swizzled", pad=False,
                   impl=None, **more):  # fmt: skip
    (rows, k), scales = block_shapes(x, 16, scale_layout, pad)
    q, scale = np.empty((rows, k // 2), np.uint8), np.empty(scales, E4M3)
    out = np.empty(1, np.float32) if global_scale is None else None
    call("quantize_nvfp4", impl, x=x, global_scale=global_scale, q=q, scale_out=scale,
         global_scale_out=out, nibbles=nibbles, scale_layout=scale_layout, pad=pad,
         **more)  # fmt: skip
    return q, scale, global_scale if out is None else out


def dequantize_nvfp4(q, scale, global_scale, dtype=F32, nibbles="high_first",
                     scale_layout="swizzled", impl=None):  # fmt: skip
    out = np.empty((q.shape[0], q.shape[1] * 2), dtype)
    call("dequantize_nvfp4", impl, q=q, scale=scale, global_scale=global_scale, out=out,
         nibbles=nibbles, scale_layout=scale_layout)  # fmt: skip
    return out


def quantize_mxfp8(x, dtype=E4M3, scale_layout="swizzled", pad=False, impl=None, **more):
    shape, scales = block_shapes(x, 32, scale_layout, pad)
    q, scale = np.empty(shape, dtype), np.empty(scales, E8M0)
    call("quantize_mxfp8", impl, x=x, q=q, scale_out=scale, scale_layout=scale_layout, pad=pad,
         **more)  # fmt: skip
    return q, scale


def dequantize_mxfp8(q, scale, dtype=F32, scale_layout="swizzled", impl=None):
    out = np.empty(q.shape, dtype)
    call("dequantize_mxfp8", impl, q=q, scale=scale, out=out, scale_layout=scale_layout)
    return out


def quantize_mxfp4(x, nibbles="low_first", scale_layout="plain", pad=False, impl=None, **more):
    (rows, k), scales = block_shapes(x, 32, scale_layout, pad)
    q, scale = np.empty((rows, k // 2), np.uint8), np.empty(scales, E8M0)
    call("quantize_mxfp4", impl, x=x, q=q, scale_out=scale, nibbles=nibbles,
         scale_layout=scale_layout, pad=pad, **more)  # fmt: skip
    return q, scale


def dequantize_mxfp4(q, scale, dtype=F32, nibbles="low_first", scale_layout="plain", impl=None):
    out = np.empty((q.shape[0], q.shape[1] * 2), dtype)
    call("dequantize_mxfp4", impl, q=q, scale=scale, out=out, nibbles=nibbles,
         scale_layout=scale_layout)  # fmt: skip
    return out


def quantize_int4(x, group_size=32, mode="symmetric", hadamard=0, impl=None, **more):
    n, k = x.shape
    groups = 1 if group_size == 0 else -(-k // group_size)
    q, scale = np.empty((n, k // 2), np.uint8), np.empty((n, groups), np.float32)
    zero = np.empty((n, groups), np.uint8) if mode == "asymmetric" else None
    call("quantize_int4", impl, x=x, q=q, scale_out=scale, zero_out=zero, group_size=group_size,
         mode=mode, hadamard=hadamard, **more)  # fmt: skip
    return q, scale, zero


def dequantize_int4(q, scale, zero=None, dtype=F32, group_size=32, hadamard=0, impl=None):
    out = np.empty((q.shape[0], q.shape[1] * 2), dtype)
    mode = "symmetric" if zero is None else "asymmetric"
    call("dequantize_int4", impl, q=q, scale=scale, zero=zero, out=out, group_size=group_size,
         mode=mode, hadamard=hadamard)  # fmt: skip
    return out


def quantize_w4a8(x, codebook=None, hadamard=0, impl=None):
    n, k = x.shape
    q, rel = np.empty((n, k // 2), np.uint8), np.empty((n, k // 16), E4M3)
    channel = np.empty(n, np.float32)
    call("quantize_w4a8", impl, x=x, codebook=codebook, q=q, scale_rel=rel, scale_channel=channel,
         hadamard=hadamard)  # fmt: skip
    return q, rel, channel


def dequantize_w4a8(q, rel, channel, codebook=None, dtype=F32, hadamard=0, impl=None):
    out = np.empty((q.shape[0], q.shape[1] * 2), dtype)
    call("dequantize_w4a8", impl, q=q, scale_rel=rel, scale_channel=channel, codebook=codebook,
         out=out, hadamard=hadamard)  # fmt: skip
    return out


def each_variant(op: str):
    """Ids of op's implementations, each under every instruction set that this CPU has."""
    try:
        for isa in ("scalar", "avx2", "avx512"):
            try:
                set_isa(isa)
            except PestleError as error:
                assert error.name == "unsupported", error
                continue
            yield from impls(op)
    finally:
        set_isa("best")
