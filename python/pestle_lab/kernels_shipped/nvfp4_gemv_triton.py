# kernel: nvfp4_gemv/triton
# language = "triton"
# entry = "run"
# constraints = ["memory contiguous"]
# notes = """
# A warp takes rows of one matrix, a lane 32 columns of them: codes become bytes by PRMT, a block's
# sum is exact by DP4A, and sums of blocks are f32. Loads of the next columns are under way."""
import torch
import triton
import triton.language as tl

LANES: tl.constexpr = tl.constexpr(32)

# Twice the size of each code without its sign, a byte for each: 0 1 2 3 4 6 8 12. As a selector of
# `prmt` a code with a sign gives 0; with all signs turned, the negative ones' sizes are left.
BYTES_OF = """{
    .reg .b32 turned, high, above, below;
    xor.b32 turned, $2, 0x88888888;
    prmt.b32 above, 0x03020100, 0x0C080604, $2;
    prmt.b32 below, 0x03020100, 0x0C080604, turned;
    or.b32 above, above, 0x80808080;
    sub.u32 above, above, below;
    xor.b32 $0, above, 0x80808080;
    shr.u32 high, $2, 16;
    shr.u32 turned, turned, 16;
    prmt.b32 above, 0x03020100, 0x0C080604, high;
    prmt.b32 below, 0x03020100, 0x0C080604, turned;
    or.b32 above, above, 0x80808080;
    sub.u32 above, above, below;
    xor.b32 $1, above, 0x80808080;
}"""
DOTS = (
    """{
    .reg .b16 two, low, high;
    .reg .b32 turned, codes, sizes, above, below;
    .reg .f32 first, second, sum, by;
    cvt.u16.u32 two, $20;
    cvt.rn.f16x2.e4m3x2 codes, two;
    mov.b32 {low, high}, codes;
    cvt.f32.f16 first, low;
    cvt.f32.f16 second, high;
"""
    + "".join(
        f"""
    xor.b32 turned, ${8 + i}, 0x88888888;
    prmt.b32 sizes, 0x03020100, 0x0C080604, ${8 + i};
    dp4a.s32.s32 above, sizes, ${12 + i}, 0;
    prmt.b32 sizes, 0x03020100, 0x0C080604, turned;
    dp4a.s32.s32 below, sizes, ${12 + i}, 0;
    shr.u32 codes, ${8 + i}, 16;
    prmt.b32 sizes, 0x03020100, 0x0C080604, codes;
    dp4a.s32.s32 above, sizes, ${16 + i}, above;
    shr.u32 codes, turned, 16;
    prmt.b32 sizes, 0x03020100, 0x0C080604, codes;
    dp4a.s32.s32 below, sizes, ${16 + i}, below;
    sub.s32 above, above, below;
    cvt.rn.f32.s32 sum, above;
    mul.f32 by, {("first", "second")[i // 2]}, ${(24, 28)[i // 2] + i};
    fma.rn.f32 ${i}, sum, by, ${4 + i};
"""
        for i in range(4)
    )
    + "}"
)
KINDS = ",".join(["=&f"] * 4 + ["f"] * 4 + ["r"] * 16 + ["f"] * 8)
SCALES_OF = """{
    .reg .b16 two, low, high;
    .reg .b32 both;
    cvt.u16.u32 two, $2;
    cvt.rn.f16x2.e4m3x2 both, two;
    mov.b32 {low, high}, both;
    cvt.f32.f16 $0, low;
    cvt.f32.f16 $1, high;
}"""
BYTES_OF, SCALES_OF = tl.constexpr(BYTES_OF), tl.constexpr(SCALES_OF)
DOTS, KINDS = tl.constexpr(DOTS), tl.constexpr(KINDS)


@triton.jit
def doubled(code):
    exponent, mantissa = (code >> 1) & 3, code & 1
    size = tl.where(exponent == 0, mantissa, (2 + mantissa) << tl.maximum(exponent - 1, 0))
    return tl.where((code & 8) != 0, -size, size)


@triton.jit
def bytes_of(words, ASM: tl.constexpr):
    """Eight codes as signed bytes, four and four."""
    if ASM:
        return tl.inline_asm_elementwise(
            BYTES_OF, "=&r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        return words, words


@triton.jit
def e4m3(codes):
    return (codes & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def scales_of(pair, ASM: tl.constexpr):
    """Two scales, of which the lower byte is the first."""
    if ASM:
        return tl.inline_asm_elementwise(
            SCALES_OF, "=f,=f,r", [pair], dtype=(tl.float32, tl.float32), is_pure=True, pack=1
        )
    else:
        return e4m3(pair), e4m3(pair >> 8)


@triton.jit
def add_dots(total, left, low, high, scales, by_first, by_second, ASM: tl.constexpr):
    """Each word's dot product, four times, by its scale: the lower one of two for words 0 and 1 of
    four."""
    if ASM:
        return tl.inline_asm_elementwise(
            DOTS,
            KINDS,
            [total, left, low, high, scales, by_first, by_second],
            tl.float32,
            is_pure=True,
            pack=4,
        )
    else:
        sum = tl.zeros_like(left)
        for i in tl.static_range(8):
            sum += doubled((left >> (4 * i)) & 15) * doubled((low >> (4 * i)) & 15)
        first, second = scales_of(scales, False)
        lower = (tl.arange(0, LANES * 4) % 4 < 2)[None, :]
        return total + sum.to(tl.float32) * tl.where(lower, first * by_first, second * by_second)


@triton.jit
def to_words(x):
    """What a lane has of [rows, LANES], for each of its four words."""
    rows: tl.constexpr = x.shape[0]
    return tl.reshape(tl.broadcast_to(x[:, :, None], (rows, LANES, 4)), (rows, LANES * 4))


@triton.jit
def gemv(
    c,
    a,
    b,
    sfa,
    sfb,
    M,
    WORDS: tl.constexpr,
    a_batch,
    b_batch,
    sfa_batch,
    sfb_batch,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    ASM: tl.constexpr,
):
    """A word is 8 codes; two scales are of 4 words."""
    batch = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    word = tl.arange(0, LANES * 4)
    a += batch * a_batch
    b += batch * b_batch
    sfa += batch * sfa_batch
    sfb += batch * sfb_batch
    a_rows = a + (rows.to(tl.int64) * WORDS)[:, None]
    sfa_rows = sfa + (rows.to(tl.int64) * (WORDS // 4))[:, None]
    total = tl.zeros((ROWS, LANES * 4), tl.float32)
    EVEN: tl.constexpr = WORDS % 128 == 0
    for start in tl.range(0, WORDS, LANES * 4, num_stages=STAGES):
        at, scale_at = start + word, start // 4 + lane
        if EVEN:
            scales = tl.load(sfa_rows + scale_at[None, :])
            by = tl.load(sfb + start // 8 + lane // 2)
            right = tl.load(b + at)
            left = tl.load(a_rows + at[None, :])
        else:
            scales = tl.load(sfa_rows + scale_at[None, :], (scale_at < WORDS // 4)[None, :], 0)
            by = tl.load(sfb + start // 8 + lane // 2, scale_at < WORDS // 4, 0)
            right = tl.load(b + at, at < WORDS, 0)
            left = tl.load(a_rows + at[None, :], (at < WORDS)[None, :], 0)
        low, high = bytes_of(right, ASM)
        x, y = scales_of(by >> (lane % 2 * 16), ASM)
        total = add_dots(
            total,
            left,
            low[None, :],
            high[None, :],
            to_words(scales.to(tl.int32)),
            to_words(x[None, :]),
            to_words(y[None, :]),
            ASM,
        )
    tl.store(c + batch * M + rows, (tl.sum(total, 1) * 0.25).to(tl.float16))


def words_of(t, dtype):
    """[L, rows, words]"""
    return t.permute(2, 0, 1).view(torch.uint8).view(dtype)


# Rows of a warp, warps of a program, steps whose loads are under way or used.
ON_GPU, INTERPRETED = (8, 1, 3), (128, 1, 1)


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted, config=None):
    rows, _, batch = a.shape
    each, warps, stages = config or (ON_GPU if a.is_cuda else INTERPRETED)
    kinds = (torch.int32, torch.int32, torch.int16, torch.int32)
    words = [words_of(t, kind) for t, kind in zip((a, b, sfa, sfb), kinds, strict=True)]
    gemv[(rows // (each * warps), batch)](
        c,
        *words,
        rows,
        words[0].shape[2],
        *(t.stride(0) for t in words),
        ROWS=each * warps,
        STAGES=stages,
        ASM=a.is_cuda and torch.version.hip is None,
        num_warps=warps,
    )
