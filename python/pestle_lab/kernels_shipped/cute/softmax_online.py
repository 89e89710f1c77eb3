# kernel: softmax/cute_online
# language = "cute"
# constraints = [
#   "memory contiguous", "rank(x) == 2", "dim == 1 || dim == -1", "has(mask) == 0",
#   "numel(x) > 0",
# ]
# notes = """
# Second rung, online: one pass keeps the largest element so far and the sum in its units, which
# is rescaled when a larger one comes; a block for a row, pairs meet by shuffles and shared
# memory. The row is read twice instead of three times."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

THREADS = 256
WARPS = THREADS // 32
LOWEST = -3.4028234663852886e38  # so that a row of -inf gives 0 / 0


@cute.kernel
def softmax_one_pass(out: cute.Tensor, x: cute.Tensor, scale: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    largest = memory.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    sums = memory.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    most, total = cutlass.Float32(LOWEST), cutlass.Float32(0)
    for column in range(thread, x.shape[1], THREADS):
        value = x[row, column].to(cutlass.Float32) * scale
        new = cute.arch.fmax(most, value)
        total = total * cute.math.exp(most - new) + cute.math.exp(value - new)
        most = new
    for step in cutlass.range_constexpr(5):
        other = cute.arch.shuffle_sync_bfly(most, offset=16 >> step)
        add = cute.arch.shuffle_sync_bfly(total, offset=16 >> step)
        new = cute.arch.fmax(most, other)
        total = total * cute.math.exp(most - new) + add * cute.math.exp(other - new)
        most = new
    if thread % 32 == 0:
        largest[thread // 32] = most
        sums[thread // 32] = total
    cute.arch.sync_threads()
    most, total = largest[0], sums[0]
    for warp in cutlass.range_constexpr(1, WARPS):
        new = cute.arch.fmax(most, largest[warp])
        total = total * cute.math.exp(most - new) + sums[warp] * cute.math.exp(largest[warp] - new)
        most = new
    for column in range(thread, x.shape[1], THREADS):
        value = cute.math.exp(x[row, column].to(cutlass.Float32) * scale - most) / total
        out[row, column] = value.to(out.element_type)


@cute.jit
def one_pass(out: cute.Tensor, x: cute.Tensor, scale: cutlass.Float32, stream: driver.CUstream):
    softmax_one_pass(out, x, scale).launch(
        grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def run(out, x, dim, scale):
    launch(one_pass, [out, x], numbers=[scale])
