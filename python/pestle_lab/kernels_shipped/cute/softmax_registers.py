# kernel: softmax/cute_registers
# language = "cute"
# constraints = [
#   "memory contiguous", "rank(x) == 2", "dim == 1 || dim == -1", "has(mask) == 0",
#   "numel(x) > 0",
# ]
# notes = """
# Third rung: a thread has 32 elements in registers, loaded 16 bytes at a time and all at once, so
# that the row is read a single time and many loads are under way. Each warp makes its exponentials
# in units of its own largest element; one exchange of (largest, sum) gives the factor that makes
# them those of the row. A row of up to 1024 elements has a warp, a longer one a block; one of more
# than 32768 is read twice, as the rung before does."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
from pestle_lab.cute_launch import elements_at_once, launch_at

HELD = 32  # elements of a thread
WARPS = 4  # rows of a block, where a warp has a row
MOST = 1024  # threads of a block
LOG2_E = 1.4426950408889634
LOWEST = -3.4028234663852886e38  # so that a row of -inf gives 0 / 0


@cute.jit
def exp(value):
    """Of a value far below the row's largest it is subnormal, as its result then is, which the
    contract asks for: fastmath would flush both to zero."""
    return cute.math.exp2(value * LOG2_E)


@cute.jit
def largest_of_lanes(value):
    for step in cutlass.range_constexpr(5):
        value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, offset=16 >> step))
    return value


@cute.jit
def sum_of_lanes(value):
    for step in cutlass.range_constexpr(5):
        value += cute.arch.shuffle_sync_bfly(value, offset=16 >> step)
    return value


@cute.jit
def load(x: cute.Tensor, first, step):
    """A thread's elements of a row. Past its end the last piece comes once more: no largest element
    changes by that, and the sum leaves it out."""
    each = x.shape[1]
    raw = cute.make_rmem_tensor((each, HELD // each), x.element_type)
    for i in cutlass.range_constexpr(HELD // each):
        at = cutlass.min(first + i * step, x.shape[0] - 1)
        cute.autovec_copy(x[at, None], raw[None, i])
    return raw.load().to(cutlass.Float32)


@cute.jit
def largest_of(values, scale, falls: cutlass.Constexpr):
    """Of values * scale, with one multiplication; a scale below 0 has it fall."""
    if cutlass.const_expr(falls):
        top = values.reduce(cute.ReductionOp.MIN, cutlass.Float32.inf, 0)
    else:
        top = values.reduce(cute.ReductionOp.MAX, -cutlass.Float32.inf, 0)
    return cute.arch.fmax(LOWEST, top * scale)


@cute.jit
def exps(values, scale, most):
    return exp(cute.math.fma(values, cute.full_like(values, scale), cute.full_like(values, -most)))


@cute.jit
def sum_of(values: cute.Tensor, pieces, first, step):
    total = cutlass.Float32(0)
    for i in cutlass.range_constexpr(cute.size(values, mode=[1])):
        own = values[None, i].load().reduce(cute.ReductionOp.ADD, cutlass.Float32(0), 0)
        if first + i * step < pieces:
            total += own
    return total


@cute.jit
def store(out: cute.Tensor, values: cute.Tensor, first, step):
    rounded = cute.make_rmem_tensor(values.shape, out.element_type)
    rounded.store(values.load().to(out.element_type))
    for i in cutlass.range_constexpr(cute.size(values, mode=[1])):
        at = first + i * step
        if at < out.shape[0]:
            cute.autovec_copy(rounded[None, i], out[at, None])


@cute.jit
def of_block(most, total):
    """(largest, sum) of the row from those of its warps."""
    thread, _, _ = cute.arch.thread_idx()
    threads, _, _ = cute.arch.block_dim()
    lane = thread % 32
    memory = cutlass.utils.SmemAllocator()
    parts = memory.allocate_tensor(cutlass.Float32, cute.make_layout((32, 2)), 16)
    if lane == 0:
        parts[thread // 32, 0] = most
        parts[thread // 32, 1] = total
    cute.arch.sync_threads()
    most, total = cutlass.Float32(LOWEST), cutlass.Float32(0)
    if lane < threads // 32:
        most, total = parts[lane, 0], parts[lane, 1]
    all_most = largest_of_lanes(most)
    return all_most, sum_of_lanes(total * exp(most - all_most))


@cute.kernel
def softmax_in_registers(
    out: cute.Tensor,
    x: cute.Tensor,
    scale: cutlass.Float32,
    falls: cutlass.Constexpr,
    wide: cutlass.Constexpr,
    turns: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    row, first, step = block, thread, threads
    if cutlass.const_expr(not wide):
        row, first, step = block * WARPS + thread // 32, thread % 32, 32
    if row < x.shape[0]:
        from_row, to_row, pieces = x[row, None, None], out[row, None, None], x.shape[1]
        held = cute.make_rmem_tensor((x.shape[2], HELD // x.shape[2]), cutlass.Float32)
        own, total = cutlass.Float32(LOWEST), cutlass.Float32(0)
        if cutlass.const_expr(not turns):
            values = load(from_row, first, step)
            own = largest_of_lanes(largest_of(values, scale, falls))
            held.store(exps(values, scale, own))
            total = sum_of_lanes(sum_of(held, pieces, first, step))
            most = own
            if cutlass.const_expr(wide):
                most, total = of_block(own, total)
            held.store(held.load() * (exp(own - most) / total))
            store(to_row, held, first, step)
        else:
            length = step * (HELD // x.shape[2])  # pieces of a turn
            for start in range(0, pieces, length):
                values = load(from_row, start + first, step)
                new = cute.arch.fmax(own, largest_of(values, scale, falls))
                held.store(exps(values, scale, new))
                total = total * exp(own - new) + sum_of(held, pieces, start + first, step)
                own = new
            most = largest_of_lanes(own)
            most, total = of_block(most, sum_of_lanes(total * exp(own - most)))
            for start in range(0, pieces, length):
                values = load(from_row, start + first, step)
                held.store(exps(values, scale, most) * (1 / total))
                store(to_row, held, start + first, step)


@cute.jit
def in_registers(
    out: cute.Pointer,
    x: cute.Pointer,
    rows: cutlass.Int32,
    columns: cutlass.Int32,
    scale: cutlass.Float32,
    each: cutlass.Constexpr,
    falls: cutlass.Constexpr,
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
    softmax_in_registers(
        cute.make_tensor(out, layout), cute.make_tensor(x, layout), scale, falls, wide, turns
    ).launch(
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        max_number_threads=(MOST if wide else 32 * WARPS, 1, 1),
        stream=stream,
    )


def run(out, x, dim, scale):
    rows, columns = x.shape
    each = elements_at_once([out, x], columns)
    options = scale < 0, columns > 32 * HELD, columns > MOST * HELD
    launch_at(in_registers, [out, x], rows, columns, scale, each=each, options=options)
