# kernel: copy_transpose/cute_naive
# language = "cute"
# dtypes = ["bf16", "f16", "f32"]
# constraints = ["memory contiguous", "rank(x) == 2", "numel(x) > 0"]
# notes = """
# First rung: a thread for an element. Reads are along rows; writes are a column apart, so a
# warp's 32 writes touch 32 sectors of 32 bytes for 4 bytes each."""
import cuda.bindings.driver as driver
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

ROWS, COLUMNS = 8, 32


@cute.kernel
def transpose_naive(out: cute.Tensor, x: cute.Tensor):
    tx, ty, _ = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    row, column = by * ROWS + ty, bx * COLUMNS + tx
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]


@cute.jit
def naive(out: cute.Tensor, x: cute.Tensor, stream: driver.CUstream):
    grid = (cute.ceil_div(x.shape[1], COLUMNS), cute.ceil_div(x.shape[0], ROWS), 1)
    transpose_naive(out, x).launch(grid=grid, block=(COLUMNS, ROWS, 1), stream=stream)


def run(out, x, tile_size):
    launch(naive, [out, x])
