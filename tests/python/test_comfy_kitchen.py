"""The real comfy-kitchen (CPU, eager) reads what our ops write, and we read what it writes.

Its layouts are used as ComfyUI uses them on tensors of a file. Where its rule is ours, the values
are the same bit for bit; where docs/formats/README.md lists a difference, that one is checked.
"""

import comfy_kitchen
import numpy as np
import pytest
import torch
from comfy_kitchen.tensor import QuantizedTensor, get_layout_class
from oracles import (
    BF16,
    E4M3,
    E5M2,
    E8M0,
    F16,
    F32,
    FLOATS,
    assert_same_codes,
    assert_same_values,
    dequantize_fp8,
    dequantize_int4,
    dequantize_int8,
    dequantize_mxfp8,
    dequantize_nvfp4,
    dequantize_w4a8,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_mxfp8,
    quantize_nvfp4,
    quantize_w4a8,
    to_numpy,
    to_torch,
)

# A linear's weight: enough rows for two swizzle tiles, K a multiple of 256 for the rotation.
N, K = 160, 512


@pytest.fixture(autouse=True)
def eager():
    with comfy_kitchen.use_backend("eager"):
        yield


def weight(dtype=F32, n=N, k=K, seed=1) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, k)) * 0.02
    x[0] = 0
    x[1, 3] = 1.5
    return x.astype(np.float32).astype(dtype)


def by_layout(layout: str, data: np.ndarray, scale: np.ndarray, dtype, shape=None, **params):
    """The values that ComfyUI sees in `data`."""
    shape = shape or data.shape
    kind = to_torch(np.empty(0, dtype)).dtype
    made = get_layout_class(layout).Params(
        scale=to_torch(scale), orig_dtype=kind, orig_shape=tuple(shape),
        **{name: to_torch(v) if isinstance(v, np.ndarray) else v for name, v in params.items()},
    )  # fmt: skip
    return to_numpy(QuantizedTensor(to_torch(data), layout, made).dequantize().contiguous())


def scalar(value: np.ndarray) -> np.ndarray:
    return value.reshape(())


def assert_rotation_close(got: np.ndarray, want: np.ndarray, group: int) -> None:
    """Both rotate in f32, in another order of the same `group` terms."""
    size = np.abs(want).reshape(-1, group).astype(np.float64)
    # Sum of |terms| is at most the group's 1-norm of the unrotated values / sqrt(group), which is
    # at most the rotated ones' 2-norm.
    terms = np.sqrt((size**2).sum(1, keepdims=True))
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).reshape(-1, group)
    assert (error <= 4 * np.sqrt(group) * 2.0**-24 * terms).all()


# ---- FP8


@pytest.mark.parametrize("code", [E4M3, E5M2], ids=str)
def test_fp8(code):
    q, scale = quantize_fp8(weight(), code)
    theirs = by_layout("TensorCoreFP8Layout", q, scalar(scale), F32)
    assert_same_values(theirs, dequantize_fp8(q, scale))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_fp8_of_narrow_dtypes_rounds_the_scale_there(dtype):
    """The listed difference: they round scale and product to the output dtype, we round once."""
    q, scale = quantize_fp8(weight(dtype), E4M3)
    theirs = by_layout("TensorCoreFP8Layout", q, scalar(scale), dtype)
    rounded = scale.astype(dtype).astype(np.float32)
    assert_same_values(theirs, (q.astype(np.float32) * rounded).astype(dtype))
    assert_same_values(theirs, dequantize_fp8(q, rounded, dtype))
    # Under a scale that the dtype holds there is no difference.
    power = np.array([2.0**-8], np.float32)
    q, _ = quantize_fp8(weight(dtype), E4M3, power)
    theirs = by_layout("TensorCoreFP8Layout", q, scalar(power), dtype)
    assert_same_values(theirs, dequantize_fp8(q, power, dtype))


# ---- NVFP4, MXFP8


def nvfp4_by_layout(q, scale, g, dtype, shape):
    return by_layout("TensorCoreNVFP4Layout", q, scalar(g), dtype, shape, block_scale=scale)


@pytest.mark.parametrize("shape", [(N, K), (130, 272), (7, 33)])
def test_nvfp4(shape):
    """(7, 33) is padded to (16, 48), as ComfyUI pads."""
    x = weight(F32, *shape)
    q, scale, g = quantize_nvfp4(x, pad=True)
    ours = dequantize_nvfp4(q, scale, g)[: shape[0], : shape[1]]
    assert_same_values(nvfp4_by_layout(q, scale, g, F32, shape), np.ascontiguousarray(ours))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_nvfp4_of_narrow_dtypes_rounds_the_scales_there(dtype):
    q, scale, g = quantize_nvfp4(weight(dtype), np.array([2.0**-9], np.float32))
    # A power of two as global scale: nothing is rounded before the end, on either side.
    assert_same_values(
        nvfp4_by_layout(q, scale, g, dtype, (N, K)), dequantize_nvfp4(q, scale, g, dtype)
    )
    q, scale, g = quantize_nvfp4(weight(dtype))
    theirs = nvfp4_by_layout(q, scale, g, dtype, (N, K)).astype(np.float64)
    ours = dequantize_nvfp4(q, scale, g, dtype).astype(np.float64)
    # The listed difference: g, then g * s, then the product are rounded, we round once.
    half_ulp = 2.0**-9 if dtype == BF16 else 2.0**-12
    floor = 0 if dtype == BF16 else 8 * 2.0**-24
    assert (np.abs(theirs - ours) <= 4.1 * half_ulp * np.abs(ours) + floor).all()
    assert (theirs != ours).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(N, K), (130, 288), (7, 33)])
def test_mxfp8(shape, dtype):
    x = weight(dtype, *shape)
    q, scale = quantize_mxfp8(x, pad=True)
    ours = dequantize_mxfp8(q, scale, dtype)[: shape[0], : shape[1]]
    theirs = by_layout("TensorCoreMXFP8Layout", q, scale, dtype, shape)
    assert_same_values(theirs, np.ascontiguousarray(ours))


def test_mxfp8_scale_codes_0_and_255_are_read_otherwise():
    """The listed difference: they read code 0 as 0.0 and 255 as Inf; OCP's text and we as 2^-127
    and NaN."""
    q = np.full((128, 128), 1, np.float32).astype(E4M3)
    scale = np.full((128, 4), 127, np.uint8)
    scale[0, 0], scale[0, 4 // 4] = 0, 255
    ours = dequantize_mxfp8(q, scale.view(E8M0))
    theirs = by_layout("TensorCoreMXFP8Layout", q, scale.view(E8M0), F32)
    assert ours[0, 0] == np.float32(2.0**-127) and np.isnan(ours[0, 32])
    assert theirs[0, 0] == 0 and np.isinf(theirs[0, 32])
    assert_same_values(theirs[1:], ours[1:])


# ---- INT8, INT4, W4A8


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_int8(dtype, granularity):
    q, scale = quantize_int8(weight(dtype), granularity=granularity)
    stored = scalar(scale) if granularity == "tensor" else scale
    theirs = by_layout("TensorWiseINT8Layout", q, stored, dtype)
    assert_same_values(theirs, dequantize_int8(q, scale, dtype, granularity))


@pytest.mark.parametrize("group", [4, 16, 64, 256])
def test_int8_convrot(group):
    q, scale = quantize_int8(weight(), hadamard=group)
    theirs = by_layout("TensorWiseINT8Layout", q, scale, F32, convrot=True, convrot_groupsize=group)
    assert_rotation_close(theirs, dequantize_int8(q, scale, hadamard=group), group)


@pytest.mark.parametrize("group", [16, 256])
def test_w4a4_convrot(group):
    q, scale, _ = quantize_int4(weight(), 0, hadamard=group)
    theirs = by_layout("TensorCoreConvRotW4A4Layout", q.view(np.int8), scale.reshape(-1), F32,
                       (N, K), convrot_groupsize=group)  # fmt: skip
    assert_rotation_close(theirs, dequantize_int4(q, scale, group_size=0, hadamard=group), group)


def test_w4a8():
    x = weight()
    q, rel, channel = quantize_w4a8(x, hadamard=256)
    codebook = comfy_kitchen.tensor.w4a8_packed.default_w4a8_codebook().numpy()
    theirs = by_layout("AsymW4A8Int8Layout", q.view(np.int8), rel, F32, (N, K), s_channel=channel,
                       codebook=codebook)  # fmt: skip
    assert_rotation_close(theirs, dequantize_w4a8(q, rel, channel, codebook, hadamard=256), 256)
    # Our table is theirs, value for value.
    assert_same_values(dequantize_w4a8(q, rel, channel, codebook), dequantize_w4a8(q, rel, channel))


def test_w4a8_int8_grid_is_the_same():
    """Before the rotation: the int8 weights that a matmul would use."""
    q, rel, channel = quantize_w4a8(weight())
    codebook = comfy_kitchen.tensor.w4a8_packed.default_w4a8_codebook()
    grid = comfy_kitchen.backends.eager.w4a8_int8._dequant_int4_grouped_to_int8(
        to_torch(q.view(np.int8)), to_torch(rel), codebook, 16
    )
    values = grid.numpy().astype(np.float32) * channel[:, None]
    assert_same_values(dequantize_w4a8(q, rel, channel), values)


# ---- what they write


def test_their_nvfp4_is_ours():
    x = weight()
    g = np.abs(x).max(keepdims=True).reshape(1) / np.float32(2688)
    q, scale = comfy_kitchen.quantize_nvfp4(to_torch(x), to_torch(g), pad_16x=True)
    ours_q, ours_scale, _ = quantize_nvfp4(x, g)
    assert_same_codes(to_numpy(scale), ours_scale)
    assert_same_codes(to_numpy(q), ours_q)


def test_their_mxfp8_is_ours():
    """Random weights stay clear of the powers of two where their logarithm is off by one."""
    x = weight()
    q, scale = comfy_kitchen.quantize_mxfp8(to_torch(x))
    ours_q, ours_scale = quantize_mxfp8(x)
    assert_same_codes(to_numpy(scale), ours_scale)
    assert_same_codes(to_numpy(q), ours_q)


def test_their_int8_rows_are_ours():
    x = weight()
    q, scale = comfy_kitchen.quantize_int8_rowwise(to_torch(x))
    ours_q, ours_scale = quantize_int8(x)
    assert_same_codes(to_numpy(scale), ours_scale)
    assert_same_codes(to_numpy(q), ours_q)


def test_their_fp8_is_ours_under_a_power_of_two():
    """Otherwise their reciprocal moves codes near ties, as listed."""
    x = weight()
    power = np.array([2.0**-8], np.float32)
    q = comfy_kitchen.quantize_per_tensor_fp8(to_torch(x), to_torch(power))
    assert_same_codes(to_numpy(q), quantize_fp8(x, E4M3, power)[0])


def test_their_w4a8_decodes_alike():
    x = weight()
    q, rel, channel, correction, codebook = (
        comfy_kitchen.tensor.w4a8_int8.quantize_w4a8_int8_weight(to_torch(x))
    )
    assert correction is None
    theirs = comfy_kitchen.tensor.w4a8_int8.dequantize_w4a8_int8_weight(
        q, rel, channel, codebook=codebook, output_dtype=torch.float32
    )
    ours = dequantize_w4a8(to_numpy(q).view(np.uint8), to_numpy(rel), to_numpy(channel),
                           to_numpy(codebook), hadamard=256)  # fmt: skip
    assert_rotation_close(to_numpy(theirs), ours, 256)
    # And our quantiser leaves no larger error than theirs.
    mine = dequantize_w4a8(*quantize_w4a8(x, hadamard=256), hadamard=256)
    assert np.linalg.norm(mine - x) <= 1.01 * np.linalg.norm(to_numpy(theirs) - x)
