# kernel: copy_transpose/cute_vectors
# language = "cute"
# dtypes = ["bf16", "f16", "f32"]
# constraints = ["memory contiguous", "rank(x) == 2", "numel(x) > 0"]
# notes = """
# Fourth rung: 16 bytes an access, of global memory and of shared. A thread reads squares of 8 x 8
# elements of 2 bytes (4 x 4 of 4) by their rows, eight loads at once, turns them in registers and
# puts their columns into shared memory, from where rows of out leave 256 bytes and more at a time.
# In place of padding, which would break up 16 bytes, the places of a row are exchanged (a swizzle),
# so that eight threads side by side meet all 32 banks. Blocks go down x's rows: those that run
# together write whole rows of out. The tile is the kernel's own; tile_size has no say."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import elements_at_once, launch_at

THREADS = 256
ACROSS = 16  # squares side by side of a tile
DOWN = 128  # rows of x of a tile


@cute.kernel
def transpose_vectors(out: cute.Tensor, x: cute.Tensor):
    """x's and out's modes: a square's columns, its rows, squares side by side, and rows of them."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    each = x.shape[0]
    down = DOWN // each  # squares of a column of the tile
    tiles = cute.ceil_div(x.shape[3], down)
    tile_row, tile_column = block % tiles, block // tiles
    memory = cutlass.utils.SmemAllocator()
    layout = cute.make_layout((each, ACROSS * each, down), stride=(1, DOWN, each))
    tile = memory.allocate_tensor(x.element_type, layout, 16)

    squares = ACROSS * down // THREADS  # of a thread
    over, first = thread % ACROSS, thread // ACROSS
    column = tile_column * ACROSS + over
    square = cute.make_rmem_tensor((each, each, squares), x.element_type)
    for s in cutlass.range_constexpr(squares):
        row = tile_row * down + first + s * (THREADS // ACROSS)
        if row < x.shape[3] and column < x.shape[2]:
            cute.autovec_copy(x[None, None, column, row], square[None, None, s])
    turned = cute.make_rmem_tensor(each, x.element_type)
    for s in cutlass.range_constexpr(squares):
        place = first + s * (THREADS // ACROSS)
        for j in cutlass.range_constexpr(each):
            for i in cutlass.range_constexpr(each):
                turned[i] = square[j, i, s]
            cute.autovec_copy(turned, tile[None, over * each + j, place ^ over % 8])
    cute.arch.sync_threads()

    piece = thread % down
    to = tile_row * down + piece
    count = ACROSS * each * down // THREADS  # pieces of a thread
    moved = cute.make_rmem_tensor((each, count), x.element_type)
    for k in cutlass.range_constexpr(count):
        own = thread // down + k * (THREADS // down)  # row of the tile, turned
        cute.autovec_copy(tile[None, own, piece ^ own // each % 8], moved[None, k])
    for k in cutlass.range_constexpr(count):
        own = thread // down + k * (THREADS // down)
        row = tile_column * ACROSS + own // each
        if row < out.shape[3] and to < out.shape[2]:
            cute.autovec_copy(moved[None, k], out[None, own % each, to, row])


@cute.jit
def squares_of(pointer, rows, columns, each: cutlass.Constexpr):
    row = cute.assume(cutlass.Int64(columns), divby=each)
    shape = (each, each, columns // each, rows // each)
    return cute.make_tensor(pointer, cute.make_layout(shape, stride=(1, row, each, each * row)))


@cute.jit
def vectors(
    out: cute.Pointer,
    x: cute.Pointer,
    rows: cutlass.Int32,
    columns: cutlass.Int32,
    each: cutlass.Constexpr,
    stream: driver.CUstream,
):
    blocks = cute.ceil_div(rows, DOWN) * cute.ceil_div(columns, ACROSS * each)
    to, given = squares_of(out, columns, rows, each), squares_of(x, rows, columns, each)
    transpose_vectors(to, given).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)


def run(out, x, tile_size):
    rows, columns = x.shape
    each = elements_at_once([out, x], rows, columns)
    launch_at(vectors, [out, x], rows, columns, each=each)
