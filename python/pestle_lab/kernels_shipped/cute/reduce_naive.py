# kernel: reduce/cute_naive
# language = "cute"
# constraints = [
#   "memory contiguous", "rank(x) == 2", "dims == 2", "op == sum", "numel(x) > 0",
#   "out_type == as_x",
# ]
# notes = """
# First rung: a thread adds up a row. Neighbouring threads read addresses a row apart, so each
# of a warp's 32 loads is a transaction of its own."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

THREADS = 128


@cute.kernel
def row_sums_naive(out: cute.Tensor, x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = block * THREADS + thread
    if row < x.shape[0]:
        total = cutlass.Float32(0)
        for column in range(x.shape[1]):
            total += x[row, column].to(cutlass.Float32)
        out[row] = total.to(out.element_type)


@cute.jit
def naive(out: cute.Tensor, x: cute.Tensor, stream: driver.CUstream):
    row_sums_naive(out, x).launch(
        grid=(cute.ceil_div(x.shape[0], THREADS), 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def run(out, x, op, dims, keepdim, out_type):
    launch(naive, [out.reshape(-1), x])
