"""The matmul contracts of a candle bridge (kaio-candle 0.2), each by one call of ours, exactly:

| theirs | ours |
|---|---|
| matmul_tc, matmul_tc_async (a f16 [M,K], b f16 [K,N]) -> f32 | matmul(a, b, out_dtype=f32) |
| matmul_tc_bf16, matmul_tc_bf16_async | the same of bf16 |
| their gradients: dA = grad @ b^T, dB = a^T @ grad | matmul of transposed views, no copies |
| matmul_int8 (bytes as i8, b [K,N], host scale) -> f32 | scaled_mm_int8(granularity="host") |
| matmul_int4 (a f16, words [K/8,N], by columns, scales f16 [K/128,N]) | linear_int4 of views |
| qkv_project_int8 (x f16, bytes [K,N], host scales) -> f16 | qkv_project(format="int8_tensor") |
| qkv_project_int4 (x f16, words and scales as above) -> f16 | qkv_project(format="int4") |

Values are small integers and powers of two, so that every sum is exact in f32 and results are
compared bit by bit.
"""

import pestle
import pytest
import torch

SHAPES = [(1, 1, 16), (64, 64, 64), (65, 130, 48), (7, 200, 160)]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
on_each_device = pytest.mark.parametrize("device", DEVICES)
of_each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def integers(low, high, *shape, dtype, device, seed):
    made = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))
    return made.to(device=device, dtype=dtype)


def operands(shape, dtype, device):
    m, n, k = shape
    a = integers(-8, 9, m, k, dtype=dtype, device=device, seed=1)
    b = integers(-8, 9, k, n, dtype=dtype, device=device, seed=2)
    return a, b


def exact(a, b):
    return (a.cpu().double() @ b.cpu().double()).float()


@on_each_device
@of_each_shape
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_matmul_tc(device, shape, dtype):
    a, b = operands(shape, dtype, device)
    out = pestle.matmul(a, b, out_dtype=torch.float32)
    assert out.dtype == torch.float32 and out.shape == (shape[0], shape[1])
    assert torch.equal(out.cpu(), exact(a, b))


@on_each_device
@of_each_shape
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_matmul_tc(device, shape, dtype):
    """Theirs round the gradient to the operands' dtype and multiply by transposed copies; ours take
    the same values by strides, and K, M or N of any size."""
    a, b = operands(shape, dtype, device)
    grad = integers(-2, 3, shape[0], shape[1], dtype=dtype, device=device, seed=3)
    d_a = pestle.matmul(grad, b.t(), out_dtype=dtype)
    d_b = pestle.matmul(a.t(), grad, out_dtype=dtype)
    assert torch.equal(d_a.cpu(), exact(grad, b.t()).to(dtype))
    assert torch.equal(d_b.cpu(), exact(a.t(), grad).to(dtype))
    a.requires_grad_()
    b.requires_grad_()
    pestle.matmul(a, b, out_dtype=torch.float32).backward(grad.float())
    assert torch.equal(a.grad, d_a) and torch.equal(b.grad, d_b)


@on_each_device
@of_each_shape
@pytest.mark.parametrize("scale", [1.0, 0.0078125, 0.3], ids=str)
def test_matmul_int8(device, shape, scale):
    """Bytes read as i8, all of them; out = f32(exact s32 sum) * scale, one rounding each."""
    m, n, k = shape
    a = integers(0, 256, m, k, dtype=torch.uint8, device=device, seed=4)
    b = integers(0, 256, k, n, dtype=torch.uint8, device=device, seed=5)
    out = pestle.scaled_mm_int8(
        a.view(torch.int8), b.view(torch.int8).t(), granularity="host", host_scale=scale,
        out_dtype=torch.float32,
    )  # fmt: skip
    sums = (a.view(torch.int8).cpu().double() @ b.view(torch.int8).cpu().double()).float()
    assert torch.equal(out.cpu(), sums * torch.tensor(scale))


@on_each_device
def test_scales_on_the_device_give_the_same(device):
    a = integers(-128, 128, 33, 96, dtype=torch.int8, device=device, seed=6)
    weight = integers(-128, 128, 40, 96, dtype=torch.int8, device=device, seed=7)
    scale, one = (torch.full((1,), v, device=device) for v in (0.3, 1.0))
    of_host = pestle.scaled_mm_int8(
        a, weight, granularity="host", host_scale=0.3, out_dtype=torch.float32
    )
    of_device = pestle.scaled_mm_int8(a, weight, scale, one, out_dtype=torch.float32)
    assert torch.equal(of_host, of_device)


def packed_int4(n, k, device, seed):
    """Codes [N,K], and their words as the bridge declares them, [K/8,N], stored by columns."""
    codes = integers(-8, 8, n, k, dtype=torch.int64, device="cpu", seed=seed)
    nibbles = (codes & 15) << (4 * (torch.arange(k) % 8))
    words = nibbles.reshape(n, k // 8, 8).sum(2).to(torch.uint32)
    return codes, words.to(device).t()


def scales_of_columns(n, k, device, seed):
    """Powers of two, another one in nearly every column and group: [K/128,N] of f16."""
    powers = integers(-6, 3, k // 128, n, dtype=torch.float32, device=device, seed=seed)
    return torch.exp2(powers).half()


def as_int4(words, scales):
    """The bridge's tensors as linear_int4 takes them; only the scales change their dtype."""
    return words.t().view(torch.uint8), scales.t().float()


def decoded_int4(codes, scales):
    return codes.double() * scales.cpu().double().t().repeat_interleave(128, 1)


INT4_SHAPES = [(1, 64, 128), (5, 200, 256), (17, 193, 384), (65, 257, 128)]  # n: tiles of 64, odd


@on_each_device
@pytest.mark.parametrize("shape", INT4_SHAPES, ids=str)
def test_int4_scales_of_every_column_tile(device, shape):
    """The bridge's kernel reads the first 64 columns' scales for every tile of 64 columns, which
    constant scales hide: here each column has its own, over several tiles and odd widths."""
    m, n, k = shape
    a = integers(-4, 5, m, k, dtype=torch.float16, device=device, seed=8)
    codes, words = packed_int4(n, k, device, seed=9)
    scales = scales_of_columns(n, k, device, seed=10)
    if n > 64:
        assert not torch.equal(scales[:, :64], scales[:, 64:128])
    out = pestle.linear_int4(a, *as_int4(words, scales), group_size=128, out_dtype=torch.float32)
    expected = exact(a, decoded_int4(codes, scales).t())
    assert torch.equal(out.cpu(), expected)
    if n > 64:  # what the fault would give differs
        of_first = scales[:, :64].repeat(1, n // 64 + 1)[:, :n]
        assert not torch.equal(exact(a, decoded_int4(codes, of_first).t()), expected)


@on_each_device
def test_qkv_project_int8(device):
    """Bytes [K,N] with one scale each, other widths of k and v; f16 results."""
    m, k, widths, scales = 9, 96, (70, 33, 17), (0.5, 0.25, 2.0)
    x = integers(-4, 5, m, k, dtype=torch.float16, device=device, seed=11)
    weights = [
        integers(-3, 4, k, n, dtype=torch.int8, device=device, seed=n).view(torch.uint8)
        for n in widths
    ]
    made = pestle.qkv_project(
        x, *(w.view(torch.int8).t() for w in weights), format="int8_tensor",
        **{f"scale_{i}": torch.full((1,), s, device=device)
           for i, s in zip("qkv", scales, strict=True)},
    )  # fmt: skip
    for out, weight, scale in zip(made, weights, scales, strict=True):
        assert out.dtype == torch.float16
        assert torch.equal(out.cpu(), (exact(x, weight.view(torch.int8)) * scale).half())


@on_each_device
def test_qkv_project_int4(device):
    m, k, widths = 5, 256, (200, 65, 31)
    x = integers(-2, 3, m, k, dtype=torch.float16, device=device, seed=12)
    packed = [packed_int4(n, k, device, seed=n) for n in widths]
    scales = [scales_of_columns(n, k, device, seed=n) for n in widths]
    taken = [as_int4(words, s) for (_, words), s in zip(packed, scales, strict=True)]
    made = pestle.qkv_project(
        x, *(weight for weight, _ in taken), format="int4", group_size=128,
        **{f"scale_{i}": scale for i, (_, scale) in zip("qkv", taken, strict=True)},
    )  # fmt: skip
    for out, (codes, _), s in zip(made, packed, scales, strict=True):
        assert torch.equal(out.cpu(), exact(x, decoded_int4(codes, s).t()).half())
