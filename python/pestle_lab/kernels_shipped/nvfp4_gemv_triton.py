# kernel: nvfp4_gemv/triton
# language = "triton"
# entry = "run"
# notes = "A program takes ROWS rows of one matrix; codes become values by selecting, sums in f32."
import triton
import triton.language as tl


@triton.jit
def value_of(code):
    """E2M1: sign, two bits of exponent, one of mantissa."""
    exponent, mantissa = (code >> 1) & 3, (code & 1).to(tl.float32)
    small = mantissa * 0.5
    power = tl.where(exponent == 3, 4.0, tl.where(exponent == 2, 2.0, 1.0))
    size = tl.where(exponent == 0, small, power * (1.0 + 0.5 * mantissa))
    return tl.where((code & 8) != 0, -size, size)


@triton.jit
def gemv(
    c,
    a,
    b,
    sfa,
    sfb,
    M,
    HALF: tl.constexpr,
    a_batch,
    b_batch,
    sfa_batch,
    sfb_batch,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, HALF, BYTES):
        at = start + tl.arange(0, BYTES)
        inside = at < HALF
        left = tl.load(
            a + batch * a_batch + rows[:, None] * HALF + at[None, :], inside[None, :], 0
        ).to(tl.int32)
        right = tl.load(b + batch * b_batch + at, inside, 0).to(tl.int32)
        left_scale = tl.load(
            sfa + batch * sfa_batch + rows[:, None] * (HALF // 8) + at[None, :] // 8,
            inside[None, :],
            0.0,
        ).to(tl.float32)
        right_scale = tl.load(sfb + batch * sfb_batch + at // 8, inside, 0.0).to(tl.float32)
        low = value_of(left & 15) * value_of(right & 15)[None, :]
        high = value_of(left >> 4) * value_of(right >> 4)[None, :]
        total += tl.sum((low + high) * (left_scale * right_scale[None, :]), 1)
    tl.store(c + batch * M + rows, total.to(tl.float16))


def run(c, a, b, sfa, sfb, sfa_permuted, sfb_permuted):
    rows, half, batch = a.shape
    per_program = 4 if a.is_cuda else 128
    gemv[(rows // per_program, batch)](
        c,
        a,
        b,
        sfa,
        sfb,
        rows,
        half,
        a.stride(2),
        b.stride(2),
        sfa.stride(2),
        sfb.stride(2),
        ROWS=per_program,
        BYTES=512 if a.is_cuda else 1024,
        num_warps=4,
    )
