"""Pieces of kernels: the rules of docs/formats in Triton, f32 operation by operation.

16-bit floats are loaded and stored as integers (_launch.py passes such views), because the
interpreter rounds bf16 toward zero and the NaN codes are ours to choose. Kernels are launched
without contraction (enable_fp_fusion=False); where a fused multiply-add is meant, tl.fma says so.

HW says what may be used: 0 nothing (the interpreter, GPUs without PTX), 1 PTX of sm_80, 2 the FP8
conversions of sm_89.
"""

import os

import triton
import triton.language as tl

# The interpreter has no fused multiply-add and its own idea of NaN in minima.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "on"))


def _mend_interpreter() -> None:
    """Triton 3.6's interpreter makes loop bounds of arrays of one element by int(), which numpy 2.4
    refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def mended(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = mended


if INTERPRETED.value:
    _mend_interpreter()

F32_INF = tl.constexpr(0x7F800000)
F32_NAN = tl.constexpr(0x7FC00000)
# Element types as kernels are told them.
F32 = tl.constexpr(0)
BF16 = tl.constexpr(1)
F16 = tl.constexpr(2)
E4M3 = tl.constexpr(3)
E5M2 = tl.constexpr(4)
# 0x4A800000 + (0x4B000000 + 2) + (0x4B800000 + 2) modulo 2^32, signed.
E2M1_BASE = tl.constexpr(
    ((0x4A800000 + 0x4B000002 + 0x4B800002 + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
)


@triton.jit
def bits_of(x):
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def f32_of(bits):
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def abs_bits(x):
    """|x| as an integer: a maximum over these keeps NaN and knows no order of operands."""
    return (bits_of(x) & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def widen(raw, KIND: tl.constexpr):
    """Loaded bits (f32, or 16-bit floats as integers) to f32, exactly."""
    if KIND == BF16:
        return ((raw.to(tl.int32) & 0xFFFF) << 16).to(tl.float32, bitcast=True)
    elif KIND == F16:
        return raw.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return raw


@triton.jit
def narrow(x, KIND: tl.constexpr):
    """f32 to the bits to store: one rounding to nearest even, NaN as the canonical code
    (in f32 as it is)."""
    if KIND == BF16:
        if INTERPRETED:
            bits = bits_of(x)
            code = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int32)
        else:
            code = x.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
        return tl.where(x == x, code, 0x7FC0).to(tl.int16)
    elif KIND == F16:
        code = x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        return tl.where(x == x, code, 0x7E00).to(tl.int16)
    else:
        return x


# --- 8-bit floats ---------------------------------------------------------------------------------


@triton.jit
def fp8_largest(KIND: tl.constexpr):
    return 448.0 if KIND == E4M3 else 57344.0


@triton.jit
def fp8_code(v, KIND: tl.constexpr, HW: tl.constexpr):
    """Nearest code, ties to even; overflow saturates; NaN is 0x7F."""
    if HW >= 2:
        if KIND == E4M3:
            return v.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            code = v.to(tl.float8e5).to(tl.uint8, bitcast=True)
            return code
    else:
        bits = bits_of(v)
        magnitude = (bits & 0x7FFFFFFF).to(tl.int32)
        if KIND == E4M3:
            a = tl.minimum(magnitude, 0x43E00000)  # 448
            normal = ((a + 0x7FFFF + ((a >> 20) & 1)) >> 20) - (120 << 3)
            # Steps of 2^-9: the sum with 2^14 rounds to them.
            subnormal = bits_of(a.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32) - 0x46800000
            code = tl.where(a < 0x3C800000, subnormal, normal)
        else:
            a = tl.minimum(magnitude, 0x47600000)  # 57344
            normal = ((a + 0xFFFFF + ((a >> 21) & 1)) >> 21) - (112 << 2)
            subnormal = bits_of(a.to(tl.float32, bitcast=True) + 128.0).to(tl.int32) - 0x43000000
            code = tl.where(a < 0x38800000, subnormal, normal)
        code = code | (bits >> 24).to(tl.int32) & 0x80
        return tl.where(magnitude > 0x7F800000, 0x7F, code).to(tl.uint8)


@triton.jit
def fp8_value(code, KIND: tl.constexpr):
    """Exact; NaN codes give a NaN."""
    c = code.to(tl.int32)
    if KIND == E4M3:
        bits = ((c & 0x7F) << 20) | ((c & 0x80) << 24)
        v = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
        return tl.where((c & 0x7F) == 0x7F, float("nan"), v)
    else:
        return (c << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e2m1_magnitude(a, HW: tl.constexpr):
    """Nearest E2M1 code of an a >= 0 that is no NaN, ties to even; overflow saturates.

    Counts halves up to 2, ones from there to 4 and twos from there to 6; each sum with a power of
    two rounds its count, ties to even, as the code's are: 4 and 6, where counts begin, are even.
    PTX has counts that saturate for free; only the low three bits of its result are the code.
    """
    if HW >= 1:
        return tl.inline_asm_elementwise(
            """{
            .reg .f32 t, c;
            mul.rn.sat.f32 t, $1, 0f3F000000;
            fma.rn.f32 c, t, 0f40800000, 0f4B400000;
            fma.rn.sat.f32 t, $1, 0f3F000000, 0fBF800000;
            fma.rn.f32 c, t, 0f40000000, c;
            fma.rn.sat.f32 t, $1, 0f3F000000, 0fC0000000;
            add.rn.f32 c, c, t;
            mov.b32 $0, c;
            }""",
            "=r,f", [a], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        a = tl.minimum(a, 6.0)
        halves = bits_of(tl.minimum(a, 2.0) + 4194304.0)
        ones = bits_of(tl.minimum(tl.maximum(a, 2.0), 4.0) + 8388608.0)
        twos = bits_of(tl.maximum(a, 4.0) + 16777216.0)
        # Sums' own bits, and 2 and 4 as counts of ones and twos where these begin.
        return (halves + ones + twos).to(tl.int32) - E2M1_BASE


@triton.jit
def with_sign_bit(code, x):
    """The low three bits of `code` and the sign of x at bit 3."""
    return (code & 7) | ((bits_of(x) >> 28).to(tl.int32) & ~7)


@triton.jit
def e2m1_code(v, HW: tl.constexpr):
    """Nearest code of v; the sign of NaN and what it becomes are the caller's matter."""
    a = (bits_of(v) & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    return with_sign_bit(e2m1_magnitude(a, HW), v)


@triton.jit
def e2m1_quotient_code(x, d, HW: tl.constexpr):
    """Nearest code of the IEEE quotient x / d, for d > 0 of every size (one for many x). Where
    x / d is NaN though d is none (Inf / Inf) the code is 7; for a NaN d it is any."""
    if INTERPRETED:
        v = tl.div_rn(x, d)
        code = e2m1_code(tl.where(v == v, v, 0.0), HW)
        return tl.where(v == v, code, 7)
    else:
        k, dk, r = divisor_parts(d)
        xk = x * k
        # NaN, which Inf * 0 gave, and Inf become large: no step overflows, and the code is 7.
        a = tl.minimum((bits_of(xk) & 0x7FFFFFFF).to(tl.float32, bitcast=True), 1.2676506e30)
        q = a * r
        q = tl.fma(tl.fma(-q, dk, a), r, q)
        return with_sign_bit(e2m1_magnitude(q, HW), xk)


@triton.jit
def e2m1_value(nibble):
    bits = ((nibble & 7) << 22) | ((nibble & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def e8m0_of(amax, KIND: tl.constexpr):
    """Smallest e with amax (as bits) <= largest * 2^(e - 127); 255 for NaN. KIND 0: E2M1."""
    if KIND == E4M3:
        e = (amax >> 23) - 8 + ((amax & 0x7FFFFF) > 0x600000).to(tl.int32)
    elif KIND == E5M2:
        e = (amax >> 23) - 15 + ((amax & 0x7FFFFF) > 0x600000).to(tl.int32)
    else:
        e = (amax >> 23) - 2 + ((amax & 0x7FFFFF) > 0x400000).to(tl.int32)
    return tl.where(amax > 0x7F800000, 255, tl.maximum(e, 0))


@triton.jit
def e8m0_value(e):
    bits = tl.where(e == 0, 0x400000, e << 23)
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def e8m0_inverse(e):
    """2^(127 - e): what an element is multiplied by."""
    bits = tl.where(e == 254, 0x400000, (254 - e) << 23)
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


# --- integers -------------------------------------------------------------------------------------


@triton.jit
def int8_code(v):
    """clamp(round half even(v), -128, 127), NaN 0."""
    v = tl.where(v == v, v, 0.0)
    c = tl.minimum(tl.maximum(v, -128.0), 127.0) + 12582912.0
    return bits_of(c).to(tl.int32).to(tl.int8)


# --- quotients ------------------------------------------------------------------------------------


@triton.jit
def scale_or_nan(amax, largest, least):
    """max(amax / largest, least), the canonical NaN for a NaN amax; amax as bits."""
    s = tl.div_rn(amax.to(tl.float32, bitcast=True), largest)
    bits = tl.where(s > least, s, least).to(tl.int32, bitcast=True)
    return tl.where(amax > 0x7F800000, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def divisor_parts(d):
    """(k, d * k, 1 / (d * k)): a power of two k brings d to where no step of quotient() leaves
    f32's range. An infinite d has k = 0: x * k is x / d then; a NaN stays one."""
    a = abs_bits(d)
    k = tl.where(a < 0x21800000, 1.8446744073709552e19, 1.0)  # below 2^-60: 2^64
    k = tl.where(a > 0x5D800000, 5.421010862427522e-20, k)  # above 2^60: 2^-64
    k = tl.where(a == 0x7F800000, 0.0, k)
    dk = tl.where(a == 0x7F800000, 1.0, d * k)
    return k, dk, tl.div_rn(tl.full(d.shape, 1.0, tl.float32), dk)


@triton.jit
def quotient(x, d, k, dk, r):
    """x / d in IEEE f32 for every code that is made of it by nearest rounding: by the rounded
    reciprocal and one fused correction (Markstein). NaN where |x / d| overflows or x is infinite;
    the sign of a zero may be lost; below 2^-39 it may be off by a rounding."""
    if INTERPRETED:
        return tl.div_rn(x, d)
    else:
        xk = x * k
        q = xk * r
        return tl.fma(tl.fma(-q, dk, xk), r, q)


@triton.jit
def quotient_by_one(x, d):
    """x / d for a scalar d of any value, in IEEE f32 for every code that is made of it by nearest
    rounding: what saturates may be another large number."""
    bits = abs_bits(d)
    if INTERPRETED:  # noqa: SIM114  (decided before the kernel runs)
        v = tl.div_rn(x, d)
    elif (bits == 0) | (bits >= 0x7F800000):
        v = tl.div_rn(x, d)
    else:
        # d becomes a number of [1, 2), or below where it is subnormal; its sign goes to x.
        k = e8m0_inverse(tl.maximum(bits >> 23, 1))
        dk = bits.to(tl.float32, bitcast=True) * k
        r = tl.div_rn(1.0, dk)
        xk = x * tl.where(d < 0, -k, k)
        a = (bits_of(xk) & 0x7FFFFFFF).to(tl.float32, bitcast=True)
        a = tl.minimum(a, 1.152921504606847e18, propagate_nan=tl.PropagateNan.ALL)
        q = a * r
        v = with_sign_of(tl.fma(tl.fma(-q, dk, a), r, q), xk)
    return v


@triton.jit
def with_sign_of(v, x):
    return f32_of((bits_of(v) & 0x7FFFFFFF) | (bits_of(x) & 0x80000000))


# --- stochastic rounding --------------------------------------------------------------------------


@triton.jit
def philox_u16(seed_low, seed_high, index):
    """The 16 random bits of elements by their int64 row-major index. docs/formats/stochastic.md"""
    block = index >> 3
    lane = (index & 7).to(tl.int32)
    c0 = (block & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((block >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = c0 * 0
    # A word that is 1 is a constant here, which has no .to.
    low, high = tl.cast(seed_low, tl.uint32), tl.cast(seed_high, tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(c0, c1, zero, zero, zero + low, zero + high, 10)
    word = lane >> 1
    w = tl.where(word == 0, w0, tl.where(word == 1, w1, tl.where(word == 2, w2, w3)))
    return ((w >> ((lane & 1) * 16).to(tl.uint32)) & 0xFFFF).to(tl.int32)


@triton.jit
def minifloat_stochastic(v, u, MAN: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr,
                         NAN: tl.constexpr, SIGN: tl.constexpr):  # fmt: skip
    """Codes by 16 random bits u: (m + (u << (shift - 16))) >> shift, without 64-bit numbers."""
    bits = bits_of(v)
    magnitude = (bits & 0x7FFFFFFF).to(tl.int32)
    field = magnitude >> 23
    fraction = magnitude & 0x7FFFFF
    m = tl.where(field != 0, fraction | 0x800000, fraction)
    rel = tl.maximum(field, 1) - (128 - BIAS)
    extra = 7 - MAN + tl.maximum(-rel, 0)  # shift - 16
    q = ((m >> tl.minimum(extra, 31)) + u) >> 16
    q = tl.minimum((tl.maximum(rel, 0) << MAN) + q, LARGEST)
    code = q | ((bits >> 31).to(tl.int32) << SIGN)
    return tl.where(magnitude > 0x7F800000, NAN, code)


@triton.jit
def fp8_code_stochastic(v, u, KIND: tl.constexpr):
    if KIND == E4M3:
        return minifloat_stochastic(v, u, 3, 7, 0x7E, 0x7F, 7).to(tl.uint8)
    else:
        return minifloat_stochastic(v, u, 2, 15, 0x7B, 0x7F, 7).to(tl.uint8)


@triton.jit
def int8_code_stochastic(v, u):
    t = tl.where(v == v, v, 0.0)
    t = tl.minimum(tl.maximum(t, -128.0), 127.0)
    down = tl.floor(t)
    part = (t - down) * 65536.0
    q = down.to(tl.int32) + (u.to(tl.float32) < part).to(tl.int32)
    return q.to(tl.int8)
