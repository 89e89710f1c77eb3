# kernel: reduce/cute_vectors
# language = "cute"
# constraints = [
#   "memory contiguous", "rank(x) == 2", "dims == 2", "op == sum", "numel(x) > 0",
#   "out_type == as_x",
# ]
# notes = """
# Fourth rung: 16 bytes a load, four of them under way for each thread; their elements are added up
# as a tree. A warp has a row of up to 8192 elements, which needs neither shared memory nor a
# barrier; a block has a longer one, with as many threads as find four loads."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import elements_at_once, launch_at

AT_ONCE = 4  # loads that a thread has in flight
WARPS = 4  # rows of a block, where a warp has a row
MOST = 1024  # threads of a block
OF_WARP = 8192  # elements of a row that a warp has, at most


@cute.jit
def sum_of_lanes(value):
    for step in cutlass.range_constexpr(5):
        value += cute.arch.shuffle_sync_bfly(value, offset=16 >> step)
    return value


@cute.jit
def sum_of(pieces: cute.Tensor):
    """Of values in registers."""
    values = pieces.load().to(cutlass.Float32)
    return values.reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0)


@cute.jit
def sum_of_thread(x: cute.Tensor, first, step):
    each = x.shape[1]
    raw = cute.make_rmem_tensor((each, AT_ONCE), x.element_type)
    total = cutlass.Float32(0)
    whole = x.shape[0] // (step * AT_ONCE) * (step * AT_ONCE)
    for start in range(first, whole, step * AT_ONCE):
        for i in cutlass.range_constexpr(AT_ONCE):
            cute.autovec_copy(x[start + i * step, None], raw[None, i])
        total += sum_of(raw)
    raw.fill(0)
    for i in cutlass.range_constexpr(AT_ONCE):
        at = whole + first + i * step
        if at < x.shape[0]:
            cute.autovec_copy(x[at, None], raw[None, i])
    return total + sum_of(raw)


@cute.jit
def of_block(total):
    thread, _, _ = cute.arch.thread_idx()
    threads, _, _ = cute.arch.block_dim()
    lane = thread % 32
    memory = cutlass.utils.SmemAllocator()
    sums = memory.allocate_tensor(cutlass.Float32, cute.make_layout(32), 16)
    if lane == 0:
        sums[thread // 32] = total
    cute.arch.sync_threads()
    total = cutlass.Float32(0)
    if lane < threads // 32:
        total = sums[lane]
    return sum_of_lanes(total)


@cute.kernel
def row_sums_vectors(out: cute.Tensor, x: cute.Tensor, wide: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    row, first, step = block, thread, threads
    if cutlass.const_expr(not wide):
        row, first, step = block * WARPS + thread // 32, thread % 32, 32
    if row < x.shape[0]:
        total = sum_of_lanes(sum_of_thread(x[row, None, None], first, step))
        if cutlass.const_expr(wide):
            total = of_block(total)
        if first == 0:
            out[row] = total.to(out.element_type)


@cute.jit
def vectors(
    out: cute.Pointer,
    x: cute.Pointer,
    rows: cutlass.Int32,
    columns: cutlass.Int32,
    each: cutlass.Constexpr,
    wide: cutlass.Constexpr,
    stream: driver.CUstream,
):
    stride = cute.assume(cutlass.Int64(columns), divby=each)
    layout = cute.make_layout((rows, columns // each, each), stride=(stride, each, 1))
    blocks, threads = rows, 32 * WARPS
    if cutlass.const_expr(wide):
        threads = cutlass.min(columns // (each * AT_ONCE * 32) * 32, MOST)
    else:
        blocks = cute.ceil_div(rows, WARPS)
    row_sums_vectors(
        cute.make_tensor(out, cute.make_layout(rows)), cute.make_tensor(x, layout), wide
    ).launch(
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        max_number_threads=(MOST if wide else 32 * WARPS, 1, 1),
        stream=stream,
    )


def run(out, x, op, dims, keepdim, out_type):
    rows, columns = x.shape
    each = elements_at_once([out, x], columns)
    launch_at(vectors, [out, x], rows, columns, each=each, options=(columns > OF_WARP,))
