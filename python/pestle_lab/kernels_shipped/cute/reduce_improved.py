# kernel: reduce/cute_improved
# language = "cute"
# constraints = [
#   "memory contiguous", "rank(x) == 2", "dims == 2", "op == sum", "numel(x) > 0",
#   "out_type == as_x",
# ]
# notes = """
# Second rung: a block for a row, whose threads read neighbouring elements; partial sums meet in
# shared memory, in eight steps with a barrier each."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

THREADS = 256


@cute.kernel
def row_sums_improved(out: cute.Tensor, x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    sums = memory.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS), 16)
    total = cutlass.Float32(0)
    for column in range(thread, x.shape[1], THREADS):
        total += x[row, column].to(cutlass.Float32)
    sums[thread] = total
    cute.arch.sync_threads()
    for step in cutlass.range_constexpr(8):
        half = THREADS >> (step + 1)
        if thread < half:
            sums[thread] = sums[thread] + sums[thread + half]
        cute.arch.sync_threads()
    if thread == 0:
        out[row] = sums[0].to(out.element_type)


@cute.jit
def improved(out: cute.Tensor, x: cute.Tensor, stream: driver.CUstream):
    row_sums_improved(out, x).launch(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


def run(out, x, op, dims, keepdim, out_type):
    launch(improved, [out.reshape(-1), x])
