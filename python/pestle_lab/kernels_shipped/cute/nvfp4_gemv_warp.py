# kernel: nvfp4_gemv/cute
# language = "cute"
# constraints = ["memory contiguous"]
# notes = """
# A warp keeps 1024 columns of the vector in registers and goes down rows, four at a
# time, a lane 16 bytes of each. Codes become bytes by a permutation, sums of a block are DP4A's."""
import cuda.bindings.driver as driver
import cutlass
import cutlass.cute as cute
import torch
from cutlass._mlir.dialects import llvm
from cutlass.cute.runtime import make_ptr
from cutlass.cutlass_dsl import T, dsl_user_op

ROWS = 4  # that a warp loads at a time
WARPS = 16  # of a block at most: 16384 columns
MOST = 64  # rows of a block
RESIDENT = 32  # warps of a multiprocessor

# Twice the size of each code without its sign, a byte for each: 0 1 2 3 4 6 8 12. As a selector of
# `prmt` a code with a sign gives 0; with all signs turned, the negative ones' sizes are left.
BYTES = """{
    .reg .b32 turned, above, below;
    xor.b32 turned, $1, 0x88888888;
    prmt.b32 above, 0x03020100, 0x0C080604, $1;
    prmt.b32 below, 0x03020100, 0x0C080604, turned;
    or.b32 above, above, 0x80808080;
    sub.u32 above, above, below;
    xor.b32 $0, above, 0x80808080;
}"""
DOT = """{
    .reg .b32 turned, codes, sizes, above, below;
    xor.b32 turned, $1, 0x88888888;
    prmt.b32 sizes, 0x03020100, 0x0C080604, $1;
    dp4a.s32.s32 above, sizes, $2, 0;
    prmt.b32 sizes, 0x03020100, 0x0C080604, turned;
    dp4a.s32.s32 below, sizes, $2, 0;
    shr.u32 codes, $1, 16;
    prmt.b32 sizes, 0x03020100, 0x0C080604, codes;
    dp4a.s32.s32 above, sizes, $3, above;
    shr.u32 codes, turned, 16;
    prmt.b32 sizes, 0x03020100, 0x0C080604, codes;
    dp4a.s32.s32 below, sizes, $3, below;
    sub.s32 $0, above, below;
}"""
HALVES = "{ .reg .b16 two; cvt.u16.u32 two, $1; cvt.rn.f16x2.e4m3x2 $0, two; }"
HALF = "{ .reg .b16 half; cvt.u16.u32 half, $1; cvt.f32.f16 $0, half; }"


@dsl_user_op
def ptx(kind, text, words, *, loc=None, ip=None):
    """One result of a kind, "r" or "f", from 32-bit words, without other effects."""
    given = [cutlass.Int32(word).ir_value(loc=loc, ip=ip) for word in words]
    result, of = {"r": (T.i32(), cutlass.Int32), "f": (T.f32(), cutlass.Float32)}[kind]
    places = ",".join(["=" + kind] + ["r"] * len(given))
    made = llvm.inline_asm(
        result, given, text, places, has_side_effects=False, is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
    )  # fmt: skip
    return of(made)


@cute.jit
def scales_of(two):
    """The lower two bytes as E4M3."""
    halves = ptx("r", HALVES, [two])
    return ptx("f", HALF, [halves]), ptx("f", HALF, [halves >> 16])


@cute.jit
def exchanged(low, high, upper, step: cutlass.Constexpr):
    """A lane keeps one of two values and hands over the other, which its partner keeps."""
    kept, given = low, high
    if upper:
        kept, given = high, low
    return kept + cute.arch.shuffle_sync_bfly(given, offset=step)


@cute.jit
def sums_of_lanes(four, lane):
    """The lanes' sums of four values, value i in lanes 8 i to 8 i + 7."""
    upper = (lane & 16) != 0
    even = exchanged(four[0], four[2], upper, 16)
    odd = exchanged(four[1], four[3], upper, 16)
    total = exchanged(even, odd, (lane & 8) != 0, 8)
    for step in cutlass.range_constexpr(3):
        total += cute.arch.shuffle_sync_bfly(total, offset=4 >> step)
    return total


@cute.kernel
def gemv_nvfp4_rows(
    c: cute.Tensor,
    a: cute.Tensor,
    b: cute.Tensor,
    scales: cute.Tensor,
    scales_b: cute.Tensor,
    each: cutlass.Int32,
):
    """Pieces: 32 columns, four words, two scales."""
    thread, _, _ = cute.arch.thread_idx()
    threads, _, _ = cute.arch.block_dim()
    block, batch, _ = cute.arch.block_idx()
    lane, warp, warps = thread % 32, thread // 32, threads // 32
    memory = cutlass.utils.SmemAllocator()
    sums = memory.allocate_tensor(cutlass.Float32, cute.make_layout((WARPS, MOST + ROWS)), 16)
    first, pieces = block * each, a.shape[2]
    count = cutlass.min(each, a.shape[1] - first)
    codes = cute.make_rmem_tensor((4, ROWS), cutlass.Int32)
    own = cute.make_rmem_tensor((ROWS,), cutlass.Int32)
    totals = cute.make_rmem_tensor((ROWS,), cutlass.Float32)
    vector = cute.make_rmem_tensor((8,), cutlass.Int32)
    for slice in range(warp, cute.ceil_div(pieces, 32), warps):
        piece = cutlass.min(slice * 32 + lane, pieces - 1)
        cute.autovec_copy(b[batch, 0, piece, None], codes[None, 0])
        for i in cutlass.range_constexpr(4):
            word = codes[i, 0]
            vector[2 * i] = ptx("r", BYTES, [word])
            vector[2 * i + 1] = ptx("r", BYTES, [word >> 16])
        # A quarter for the doubled codes; nothing for a lane beyond the last column.
        x, y = scales_of(cutlass.Int32(scales_b[batch, 0, piece]))
        inside = cutlass.Float32(slice * 32 + lane < pieces) * 0.25
        x *= inside
        y *= inside
        for row in range(0, count, ROWS):
            for i in cutlass.range_constexpr(ROWS):
                at = first + cutlass.min(row + i, count - 1)
                cute.autovec_copy(a[batch, at, piece, None], codes[None, i])
                own[i] = cutlass.Int32(scales[batch, at, piece])
            for i in cutlass.range_constexpr(ROWS):
                dots = [
                    ptx("r", DOT, [codes[w, i], vector[2 * w], vector[2 * w + 1]]) for w in range(4)
                ]
                u, v = scales_of(own[i])
                totals[i] = cutlass.Float32(dots[0] + dots[1]) * (u * x)
                totals[i] += cutlass.Float32(dots[2] + dots[3]) * (v * y)
            total = sums_of_lanes(totals, lane)
            if lane % 8 == 0:
                if slice >= warps:
                    total += sums[warp, row + lane // 8]
                sums[warp, row + lane // 8] = total
    cute.arch.sync_threads()
    for row in range(thread, count, threads):
        total = cutlass.Float32(0)
        for i in range(warps):
            total += sums[i, row]
        c[batch, first + row] = total.to(cutlass.Float16)


@cute.jit
def slices(
    c: cute.Pointer,
    a: cute.Pointer,
    b: cute.Pointer,
    scales: cute.Pointer,
    scales_b: cute.Pointer,
    rows: cutlass.Int32,
    pieces: cutlass.Int32,
    batches: cutlass.Int32,
    each: cutlass.Int32,
    warps: cutlass.Int32,
    stream: driver.CUstream,
):
    line = cute.assume(cutlass.Int64(pieces) * 4, divby=4)

    def codes(pointer, count):
        return cute.make_tensor(
            pointer,
            cute.make_layout((batches, count, pieces, 4), stride=(line * count, line, 4, 1)),
        )

    def scales_at(pointer, count):
        return cute.make_tensor(
            pointer,
            cute.make_layout(
                (batches, count, pieces),
                stride=(cutlass.Int64(pieces) * count, cutlass.Int64(pieces), 1),
            ),
        )

    gemv_nvfp4_rows(
        cute.make_tensor(c, cute.make_layout((batches, rows), stride=(rows, 1))),
        codes(a, rows),
        codes(b, 128),
        scales_at(scales, rows),
        scales_at(scales_b, 128),
        each,
    ).launch(
        grid=(cute.ceil_div(rows, each), batches, 1),
        block=(32 * warps, 1, 1),
        max_number_threads=(32 * WARPS, 1, 1),
        min_blocks_per_mp=RESIDENT // WARPS,
        # Of shared memory, in percent. CuTe would leave room for RESIDENT // WARPS blocks, however
        # small: three of two warps, where sixteen are meant to be there.
        preferred_smem_carveout=50,
        stream=stream,
    )


_compiled = []
_TYPES = [(cutlass.Float16, 2), (cutlass.Int32, 16), (cutlass.Uint16, 2)]  # and alignments


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted):
    rows, half, batches = a.shape
    pieces = half // 16
    warps = min(WARPS, -(-pieces // 32))
    # Rows of a block such that all blocks are there at once.
    multiprocessors = torch.cuda.get_device_properties(a.device).multi_processor_count
    each = -(-rows * batches // (multiprocessors * min(32, RESIDENT // warps)))
    if each > MOST:
        each = -(-rows // -(-rows // MOST))
    given = [
        make_ptr(_TYPES[kind][0], t.data_ptr(), cute.AddressSpace.gmem, _TYPES[kind][1])
        for t, kind in ((c, 0), (a, 1), (b, 1), (sfa, 2), (sfb, 2))
    ]
    given += [rows, pieces, batches, each, warps]
    stream = driver.CUstream(torch.cuda.current_stream(a.device).cuda_stream)
    if not _compiled:
        _compiled.append(cute.compile(slices, *given, stream))
    _compiled[0](*given, stream)
