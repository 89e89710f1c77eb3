# kernel: copy_transpose/cute_tiled
# language = "cute"
# dtypes = ["bf16", "f16", "f32"]
# constraints = ["memory contiguous", "rank(x) == 2", "numel(x) > 0"]
# notes = """
# Second rung: a tile goes through shared memory and is read there across, so reads and writes
# of global memory are both along rows. Reading a column of the tile meets one bank 32 times."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch


@cute.kernel
def transpose_tiled(out: cute.Tensor, x: cute.Tensor, tile: cutlass.Constexpr):
    tx, ty, _ = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    held = memory.allocate_tensor(x.element_type, cute.make_layout((tile, tile)), 16)
    row, column = by * tile + ty, bx * tile + tx
    if row < x.shape[0] and column < x.shape[1]:
        held[tx, ty] = x[row, column]
    cute.arch.sync_threads()
    row, column = bx * tile + ty, by * tile + tx
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = held[ty, tx]


@cute.jit
def tiled(out: cute.Tensor, x: cute.Tensor, tile: cutlass.Constexpr, stream: driver.CUstream):
    grid = (cute.ceil_div(x.shape[1], tile), cute.ceil_div(x.shape[0], tile), 1)
    transpose_tiled(out, x, tile).launch(grid=grid, block=(tile, tile, 1), stream=stream)


def run(out, x, tile_size):
    launch(tiled, [out, x], tile_size)
