// nvfp4 codes of bf16 values in few instructions, where the global scale lets no tie come near,
// neither of codes nor of scales. Rule: docs/formats/nvfp4.md.
//   scale   e4m3(amax / 6 / g): one product with 1 / (6 g) decides as the two quotients do unless a
//           bf16 number lies next to a tie of E4M3 times 6 g
//   codes   e2m1(x / factor), factor = scale * g: a product with a reciprocal that is two ulps off
//           decides unless a bf16 number lies next to a tie of E2M1 times a scale times g
// Both are asked once a warp: one global scale in eighty has such a number (and every power of two
// has). Its blocks, and those whose scale is NaN, 448 or under 5 * 2^-9, go by nvfp4_block.
#pragma once

#include "backends/cuda/device/tensor/tensor_unpack.cuh"
#include "ops/quant/output/quantized_output.cuh"

namespace pestle::ops::row_quantizer {

#ifdef __CUDACC__

// Is no bf16 number within 8 ulps of v, a normal f32?
__device__ inline bool is_clear_of_bf16(float v) {
  return ((__float_as_uint(v) + 8) & 0xFFF0u) != 0;
}

// bits of a where mask has ones, of b elsewhere
template <uint32_t kMask>
__device__ inline uint32_t bits_of(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "n"(kMask), "r"(a), "r"(b));
  return r;
}

struct QuickNvfp4 {
  float inverse;   // 1 / (6 g)
  float decode;    // g * 2^120: a scale's code as the upper bits of an f32 is it * 2^-120
  uint32_t codes;  // of scales from kLeastCode on that are quick; none
  uint32_t small;  // the diagonal matrix of 2^-14

  static constexpr uint32_t kLeastCode = 5, kMostCode = 0x7D;

  // By whole warps: of the 32 products of a scale's significand and a tie of codes one is a lane's,
  // and of the 16 ties of scales.
  __device__ explicit QuickNvfp4(float g) {
    const unsigned lane = threadIdx.x % 32;
    const float factor = static_cast<float>(8 + lane / 4) * g;
    const bool is_clear = is_clear_of_bf16(factor * static_cast<float>(2 * (lane % 4) + 1)) &&
                          is_clear_of_bf16(6.0f * g * static_cast<float>(2 * (lane % 16) + 1));
    const bool is_quick = __all_sync(~0u, is_clear) != 0 && g >= 0x1p-50f && g <= 0x1p6f;
    inverse = __fdiv_rn(1.0f, 6.0f * g);
    decode = g * 0x1p120f;
    codes = is_quick ? kMostCode - kLeastCode + 1 : 0;
    small = on_diagonal(0x38803880u);
    // Or the compiler makes them anew for each block.
    asm volatile("" : "+f"(inverse));
    asm volatile("" : "+f"(decode));
    asm volatile("" : "+r"(codes));
    asm volatile("" : "+r"(small));
  }
};

// A block of 16 values as pairs of every other one: 0 2, 4 6, 1 3, 5 7, and the same of the second
// eight. Bytes of codes then come together without a shuffle.
struct EveryOther {
  uint32_t w[8];

  __device__ explicit EveryOther(const float (&v)[kRun]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int first = i / 4 * 8 + i % 4 / 2 + i % 2 * 4;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(v[first + 2]), "f"(v[first]));
    }
  }
  // Neighbours side by side again.
  __device__ uint4 unit(int half) const {
    const uint32_t* of = w + half * 4;
    return make_uint4(__byte_perm(of[0], of[2], 0x5410), __byte_perm(of[0], of[2], 0x7632),
                      __byte_perm(of[1], of[3], 0x5410), __byte_perm(of[1], of[3], 0x7632));
  }
  // NaN above all.
  __device__ float amax() const {
    uint32_t m[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = larger_magnitudes<Bf16>(w[2 * i], w[2 * i + 1]);
    const uint32_t two = larger_magnitudes<Bf16>(larger_magnitudes<Bf16>(m[0], m[1]),
                                                 larger_magnitudes<Bf16>(m[2], m[3]));
    float r;
    asm("max.NaN.f32 %0, %1, %2;"
        : "=f"(r)
        : "f"(fabsf(__uint_as_float(two << 16))), "f"(fabsf(__uint_as_float(two & 0xFFFF0000u))));
    return r;
  }
};

// A word of codes of four pairs, the first one's upper; see e2m1_word. by: 1 / factor. Signs are
// the pairs' own: the tensor cores' zeros have none.
__device__ inline uint32_t quick_word(const uint32_t* w, uint32_t small, float by) {
  const float none[4] = {0, 0, 0, 0};
  const auto bytes = [&](uint32_t a0, uint32_t a1) {
    float v[4];
    bf16_product(v, a0, a1, small, none);
    return __byte_perm(truncated_pair(v[0] * by, v[1] * by), truncated_pair(v[2] * by, v[3] * by),
                       0x7531);
  };
  const uint32_t even = bytes(w[0], w[1]), odd = bytes(w[2], w[3]);
  const uint32_t even_signs = __byte_perm(w[0], w[1], 0x7531);
  const uint32_t odd_signs = __byte_perm(w[2], w[3], 0x7531);
  const uint32_t low = bits_of<0x07070707u>((odd + 0x01010101u) >> 1, odd_signs >> 4);
  const uint32_t high = bits_of<0x70707070u>(even * 8 + 0x08080808u, even_signs);
  return bits_of<0x0F0F0F0Fu>(low, high);
}

// What became of a block; is_quick: codes and scale are the rule's.
struct QuickBlock {
  uint2 words;
  uint32_t code;
  bool is_quick;
};
// A block, by whole warps. A value that is not finite spoils others of its own lane at least, which
// is not quick then.
__device__ inline QuickBlock quick_block(const EveryOther& pairs, const QuickNvfp4& global) {
  const float t = pairs.amax() * global.inverse;
  QuickBlock b;
  b.code = fp8_pair<formats::E4m3>(t, 0.0f);
  float by;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"(__uint_as_float(b.code << 20) * global.decode));
  b.words.x = quick_word(pairs.w, global.small, by);
  b.words.y = quick_word(pairs.w + 4, global.small, by);
  b.is_quick = b.code - QuickNvfp4::kLeastCode < global.codes;
  return b;
}
// The other blocks.
__device__ __noinline__ inline uint3 careful_nvfp4(uint4 low, uint4 high, float g) {
  Nvfp4Scale global{g, short_reciprocal(g), 0, false};
  if (g >= 0x1p-50f && g <= 0x1p50f) {
    global.plain = Nvfp4Scale::kLargest - Nvfp4Scale::kSmallest;
  }
  const Bf16::Raw first{low}, second{high};
  return nvfp4_block<Bf16>(first, second, largest_of<Bf16>(first, second), global, true);
}

#endif

}  // namespace pestle::ops::row_quantizer
