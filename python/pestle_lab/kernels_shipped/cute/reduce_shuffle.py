# kernel: reduce/cute_shuffle
# language = "cute"
# constraints = [
#   "memory contiguous", "rank(x) == 2", "dims == 2", "op == sum", "numel(x) > 0",
#   "out_type == as_x",
# ]
# notes = """
# Third rung: warps add up by shuffles, in registers; one value of each warp goes through shared
# memory, with a single barrier. Four loads are in flight for each thread."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

THREADS = 256
WARPS = THREADS // 32
AT_ONCE = 4  # loads that a thread has in flight


@cute.jit
def warp_sum(value):
    for step in cutlass.range_constexpr(5):
        value += cute.arch.shuffle_sync_bfly(value, offset=16 >> step)
    return value


@cute.kernel
def row_sums_shuffle(out: cute.Tensor, x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    sums = memory.allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    columns = x.shape[1]
    whole = columns // (THREADS * AT_ONCE) * (THREADS * AT_ONCE)
    total = cutlass.Float32(0)
    for start in range(thread, whole, THREADS * AT_ONCE):
        for i in cutlass.range_constexpr(AT_ONCE):
            total += x[row, start + i * THREADS].to(cutlass.Float32)
    for column in range(whole + thread, columns, THREADS):
        total += x[row, column].to(cutlass.Float32)
    total = warp_sum(total)
    if thread % 32 == 0:
        sums[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        whole_sum = cutlass.Float32(0)
        for warp in cutlass.range_constexpr(WARPS):
            whole_sum += sums[warp]
        out[row] = whole_sum.to(out.element_type)


@cute.jit
def shuffled(out: cute.Tensor, x: cute.Tensor, stream: driver.CUstream):
    row_sums_shuffle(out, x).launch(grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


def run(out, x, op, dims, keepdim, out_type):
    launch(shuffled, [out.reshape(-1), x])
