# kernel: copy_transpose/cute_padded
# language = "cute"
# dtypes = ["bf16", "f16", "f32"]
# constraints = ["memory contiguous", "rank(x) == 2", "numel(x) > 0"]
# notes = """
# Third rung: one element of padding a row of the tile, so that a column lies in 32 banks; four
# threads' work for each, so that several loads are in flight."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import launch

EACH = 4  # rows of the tile that a thread copies


@cute.kernel
def transpose_padded(out: cute.Tensor, x: cute.Tensor, tile: cutlass.Constexpr):
    tx, ty, _ = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    memory = cutlass.utils.SmemAllocator()
    layout = cute.make_layout((tile, tile), stride=(tile + 1, 1))
    held = memory.allocate_tensor(x.element_type, layout, 16)
    for i in cutlass.range_constexpr(EACH):
        at = ty + i * (tile // EACH)
        row, column = by * tile + at, bx * tile + tx
        if row < x.shape[0] and column < x.shape[1]:
            held[at, tx] = x[row, column]
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(EACH):
        at = ty + i * (tile // EACH)
        row, column = bx * tile + at, by * tile + tx
        if row < out.shape[0] and column < out.shape[1]:
            out[row, column] = held[tx, at]


@cute.jit
def padded(out: cute.Tensor, x: cute.Tensor, tile: cutlass.Constexpr, stream: driver.CUstream):
    grid = (cute.ceil_div(x.shape[1], tile), cute.ceil_div(x.shape[0], tile), 1)
    block = (tile, tile // EACH, 1)
    transpose_padded(out, x, tile).launch(grid=grid, block=block, stream=stream)


def run(out, x, tile_size):
    launch(padded, [out, x], tile_size)
