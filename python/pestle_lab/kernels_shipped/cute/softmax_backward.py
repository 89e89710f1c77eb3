# kernel: softmax_backward/cute_block
# language = "cute"
# constraints = ["memory contiguous", "rank(out) == 2", "dim == 1 || dim == -1", "numel(out) > 0"]
# notes = """
# The gradient: a block for a row; the sum of d_out * out by shuffles, then a second reading of
# both."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

THREADS = 256
WARPS = THREADS // 32


@cute.kernel
def softmax_gradient(
    d_x: cute.Tensor, d_out: cute.Tensor, out: cute.Tensor, scale: cutlass.Float32
):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    sums = memory.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    total = cutlass.Float32(0)
    for column in range(thread, out.shape[1], THREADS):
        total += d_out[row, column].to(cutlass.Float32) * out[row, column].to(cutlass.Float32)
    for step in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=16 >> step)
    if thread % 32 == 0:
        sums[thread // 32] = total
    cute.arch.sync_threads()
    total = cutlass.Float32(0)
    for warp in cutlass.range_constexpr(WARPS):
        total += sums[warp]
    for column in range(thread, out.shape[1], THREADS):
        y, dy = out[row, column].to(cutlass.Float32), d_out[row, column].to(cutlass.Float32)
        d_x[row, column] = (scale * y * (dy - total)).to(d_x.element_type)


@cute.jit
def gradient(
    d_x: cute.Tensor,
    d_out: cute.Tensor,
    out: cute.Tensor,
    scale: cutlass.Float32,
    stream: driver.CUstream,
):
    softmax_gradient(d_x, d_out, out, scale).launch(
        grid=(out.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def run(d_x, d_out, out, dim, scale):
    launch(gradient, [d_x, d_out, out], numbers=[scale])
