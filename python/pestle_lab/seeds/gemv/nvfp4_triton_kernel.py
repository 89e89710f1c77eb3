"""A Triton kernel to begin with: a program for ROWS rows of one matrix, sums in f32. Right on any
machine (on a CPU in Triton's interpreter, for checks only); its speed is yours to find."""

import torch
import triton
import triton.language as tl
from kernel_utils.backends import BACKENDS
from kernel_utils.task import input_t, output_t


@triton.jit
def value_of(code):
    """E2M1: a sign, two bits of exponent, one of mantissa."""
    exponent, half = (code >> 1) & 3, (code & 1).to(tl.float32) * 0.5
    power = tl.where(exponent == 3, 4.0, tl.where(exponent == 2, 2.0, 1.0))
    size = tl.where(exponent == 0, half, power * (1.0 + half))
    return tl.where((code & 8) != 0, -size, size)


@triton.jit
def gemv(c, a, b, scale_a, scale_b, M, HALF: tl.constexpr, ROWS: tl.constexpr, BYTES: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    row = batch * M + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, HALF, BYTES):
        at = start + tl.arange(0, BYTES)
        inside = at < HALF
        left = tl.load(a + row[:, None] * HALF + at[None, :], inside[None, :], 0).to(tl.int32)
        # b is padded to 128 rows, of which the first counts.
        right = tl.load(b + batch * 128 * HALF + at, inside, 0).to(tl.int32)
        scales = HALF // 8
        left_scale = tl.load(
            scale_a + row[:, None] * scales + at[None, :] // 8, inside[None, :], 0.0
        ).to(tl.float32)
        right_scale = tl.load(scale_b + batch * 128 * scales + at // 8, inside, 0.0).to(tl.float32)
        low = value_of(left & 15) * value_of(right & 15)[None, :]
        high = value_of(left >> 4) * value_of(right >> 4)[None, :]
        total += tl.sum((low + high) * (left_scale * right_scale[None, :]), 1)
    tl.store(c + row, total.to(tl.float16))


def triton_kernel(data: input_t) -> output_t:
    a, b, scale_a, scale_b, _, _, c = data
    m, half, batches = a.shape
    rows = 4 if a.is_cuda else 128
    gemv[(m // rows, batches)](
        c, a.view(torch.uint8), b.view(torch.uint8), scale_a, scale_b, m, half,
        ROWS=rows, BYTES=512,
    )  # fmt: skip
    return c


BACKENDS.register(
    name="triton",
    kernel_fn=triton_kernel,
    description="Triton, 4 rows a program",
    language="triton",
)
