"""The matmul contracts of a candle bridge (kaio-candle 0.2), each by one call of ours, exactly:

| theirs | ours |
|---|---|
| matmul_tc, matmul_tc_async (a f16 [M,K], b f16 [K,N]) -> f32 | matmul(a, b, out_dtype=f32) |
| matmul_tc_bf16, matmul_tc_bf16_async | the same of bf16 |
| their gradients: dA = grad @ b^T, dB = a^T @ grad | matmul of transposed views, no copies |
| matmul_int8 (bytes as i8, b [K,N], host scale) -> f32 | scaled_mm_int8(granularity="host") |

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
