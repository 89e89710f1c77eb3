# kernel: softmax_backward/cute_registers
# language = "cute"
# constraints = ["memory contiguous", "rank(out) == 2", "dim == 1 || dim == -1", "numel(out) > 0"]
# notes = """
# Second rung: both tensors are read a single time, 16 bytes a load, and stay in registers while
# the row's sum is made: a thread has 16 elements of each, whose loads are all under way at once.
# A row of up to 512 elements has a warp, a longer one a block; one of more than 16384 is read
# twice, as the rung before does."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import elements_at_once, launch_at

HELD = 16  # elements of a thread, of each tensor
WARPS = 4  # rows of a block, where a warp has a row
MOST = 1024  # threads of a block


@cute.jit
def sum_of_lanes(value):
    for step in cutlass.range_constexpr(5):
        value += cute.arch.shuffle_sync_bfly(value, offset=16 >> step)
    return value


@cute.jit
def load(x: cute.Tensor, first, step):
    """A thread's elements of a row: 0 past its end."""
    each = x.shape[1]
    raw = cute.make_rmem_tensor((each, HELD // each), x.element_type)
    raw.fill(0)
    for i in cutlass.range_constexpr(HELD // each):
        at = first + i * step
        if at < x.shape[0]:
            cute.autovec_copy(x[at, None], raw[None, i])
    return raw


@cute.jit
def dot(dy: cute.Tensor, y: cute.Tensor):
    total = cutlass.Float32(0)
    for i in cutlass.range_constexpr(cute.size(y, mode=[1])):
        left, right = (t[None, i].load().to(cutlass.Float32) for t in (dy, y))
        total += (left * right).reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0)
    return total


@cute.jit
def store(d_x: cute.Tensor, dy: cute.Tensor, y: cute.Tensor, total, scale, first, step):
    for i in cutlass.range_constexpr(cute.size(y, mode=[1])):
        left, right = (t[None, i].load().to(cutlass.Float32) for t in (dy, y))
        own = cute.make_rmem_tensor(y[None, i].shape, d_x.element_type)
        own.store((scale * (right * (left - total))).to(d_x.element_type))
        at = first + i * step
        if at < d_x.shape[0]:
            cute.autovec_copy(own, d_x[at, None])


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
def softmax_gradient_in_registers(
    d_x: cute.Tensor,
    d_out: cute.Tensor,
    out: cute.Tensor,
    scale: cutlass.Float32,
    wide: cutlass.Constexpr,
    turns: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    row, first, step = block, thread, threads
    if cutlass.const_expr(not wide):
        row, first, step = block * WARPS + thread // 32, thread % 32, 32
    if row < out.shape[0]:
        dx, dy, y = (t[row, None, None] for t in (d_x, d_out, out))
        if cutlass.const_expr(not turns):
            held_dy, held_y = load(dy, first, step), load(y, first, step)
            total = sum_of_lanes(dot(held_dy, held_y))
            if cutlass.const_expr(wide):
                total = of_block(total)
            store(dx, held_dy, held_y, total, scale, first, step)
        else:
            length = step * (HELD // out.shape[2])  # pieces of a turn
            total = cutlass.Float32(0)
            for start in range(first, out.shape[1], length):
                total += dot(load(dy, start, step), load(y, start, step))
            total = of_block(sum_of_lanes(total))
            for start in range(first, out.shape[1], length):
                held_dy, held_y = load(dy, start, step), load(y, start, step)
                store(dx, held_dy, held_y, total, scale, start, step)


@cute.jit
def in_registers(
    d_x: cute.Pointer,
    d_out: cute.Pointer,
    out: cute.Pointer,
    rows: cutlass.Int32,
    columns: cutlass.Int32,
    scale: cutlass.Float32,
    each: cutlass.Constexpr,
    wide: cutlass.Constexpr,
    turns: cutlass.Constexpr,
    stream: driver.CUstream,
):
    stride = cute.assume(cutlass.Int64(columns), divby=each)
    layout = cute.make_layout((rows, columns // each, each), stride=(stride, each, 1))
    blocks, threads = rows, 32 * WARPS
    if cutlass.const_expr(wide):
        threads = cutlass.min(cute.ceil_div(columns, 32 * HELD) * 32, MOST)
    else:
        blocks = cute.ceil_div(rows, WARPS)
    tensors = [cute.make_tensor(pointer, layout) for pointer in (d_x, d_out, out)]
    softmax_gradient_in_registers(*tensors, scale, wide, turns).launch(
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        max_number_threads=(MOST if wide else 32 * WARPS, 1, 1),
        stream=stream,
    )


def run(d_x, d_out, out, dim, scale):
    rows, columns = out.shape
    each = elements_at_once([d_x, d_out, out], columns)
    options = columns > 32 * HELD, columns > MOST * HELD
    tensors = [d_x, d_out, out]
    launch_at(in_registers, tensors, rows, columns, scale, each=each, options=options)
