# kernel: nvfp4_gemv/cute
# language = "cute"
# constraints = ["memory contiguous"]
# notes = """
# A warp takes a row, a lane a block of 16: 8 bytes of codes, whose doubled values are whole
# numbers, so that a block's sum is exact; scales by whole numbers, too."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import torch
from pestle_lab.cute_launch import launch

WARPS = 4
# Twice the size of each code without its sign, a byte for each: 0 1 2 3 4 6 8 12.
SIZES = 0x0C08060403020100


@cute.jit
def doubled(code):
    size = cutlass.Int32((cutlass.Int64(SIZES) >> cutlass.Int64((code & 7) * 8)) & 255)
    return size - 2 * size * ((code >> 3) & 1)


@cute.jit
def scale_of(code):
    """E4M3 times 2^9: a whole number."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = cutlass.Int32(exponent != 0)
    size = (mantissa + 8 * normal) << (exponent - normal)
    return cutlass.Float32(size - 2 * size * (code >> 7))


@cute.kernel
def gemv_nvfp4_rows(
    c: cute.Tensor, a: cute.Tensor, b: cute.Tensor, scales: cute.Tensor, scales_b: cute.Tensor
):
    thread, _, _ = cute.arch.thread_idx()
    block, batch, _ = cute.arch.block_idx()
    lane, row = thread % 32, block * WARPS + thread // 32
    total = cutlass.Float32(0)
    for at in range(lane, scales.shape[2], 32):
        dot = cutlass.Int32(0)
        for word in cutlass.range_constexpr(2):
            left, right = a[batch, row, 2 * at + word], b[batch, 0, 2 * at + word]
            for i in cutlass.range_constexpr(8):
                dot += doubled((left >> (4 * i)) & 15) * doubled((right >> (4 * i)) & 15)
        scale = scale_of(cutlass.Int32(scales[batch, row, at]))
        scale_b = scale_of(cutlass.Int32(scales_b[batch, 0, at]))
        # A quarter for the doubled codes, and 2^-9 for each scale.
        total += cutlass.Float32(dot) * (scale * 0.001953125) * (scale_b * 0.00048828125)
    for step in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=16 >> step)
    if lane == 0:
        c[batch, row] = total.to(cutlass.Float16)


@cute.jit
def rows(
    c: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    scales: cute.Tensor,
    scales_b: cute.Tensor,
    stream: driver.CUstream,
):
    grid = (a.shape[1] // WARPS, a.shape[0], 1)
    gemv_nvfp4_rows(c, a, b, scales, scales_b).launch(
        grid=grid, block=(32 * WARPS, 1, 1), stream=stream
    )


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted):
    codes = [t.permute(2, 0, 1).view(torch.int32) for t in (a, b)]
    scales = [t.permute(2, 0, 1).view(torch.uint8) for t in (sfa, sfb)]
    launch(rows, [c[:, 0].permute(1, 0), *codes, *scales])
