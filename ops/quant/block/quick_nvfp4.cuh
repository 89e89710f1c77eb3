// nvfp4 codes of bf16 values in few instructions, where the global scale lets no tie come near,
// neither of codes nor of scales. Rule: docs/formats/nvfp4.md.
//   scale   e4m3(amax / 6 / g): one product with 1 / (6 g) decides as the two quotients do unless a
//           bf16 number lies next to a tie of E4M3 times 6 g; there it is tried, once a warp, and the
//           reciprocal moved to where all such products come to the quotients' codes
//   codes   e2m1(x / factor), factor = scale * g: a product with a reciprocal that is two ulps off,
//           moved for ties (e2m1_ties.h)
// Blocks that this does not decide, and those whose scale is NaN, 448 or under 2^-6, go by
// nvfp4_block.
#pragma once

#include "backends/cuda/device/tensor/tensor_unpack.cuh"
#include "ops/quant/block/e2m1_ties.cuh"
#include "ops/quant/output/quantized_output.cuh"

namespace pestle::ops::row_quantizer {

#ifdef __CUDACC__

// bits of a where mask has ones, of b elsewhere
template <uint32_t kMask>
__device__ inline uint32_t bits_of(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "n"(kMask), "r"(a), "r"(b));
  return r;
}

// 1 / (6 g) so that its products with bf16 numbers come to the codes of both quotients; 0 where no
// move of it does. By whole warps: of 8 ties of normal E4M3 one is a lane's.
__device__ inline float inverse_for_scales(float g) {
  const float inverse = __fdiv_rn(1.0f, 6.0f * g);
  const float tie = 6.0f * g * static_cast<float>(17 + 2 * (threadIdx.x % 8));
  const uint32_t bits = __float_as_uint(tie) + kTieUlps;
  const uint32_t above = bits & 0xFFFFu;
  const float x = __uint_as_float(bits - above);
  const uint32_t wanted = formats::e4m3_from_f32(__fdiv_rn(__fdiv_rn(x, 6.0f), g));
  constexpr int kMove = 6;
  for (int move : {0, kMove, -kMove}) {
    const float moved = E2m1Moves::moved(inverse, move);
    const bool right = fp8_pair<formats::E4m3>(x * moved, 0.0f) == wanted;
    if (__all_sync(~0u, right || above >= 2 * kTieUlps)) return moved;
  }
  return 0.0f;
}

struct QuickNvfp4 {
  float inverse;      // 1 / (6 g)
  float decode;       // g * 2^120: a scale's code as the upper bits of an f32 is it * 2^-120
  uint32_t codes;     // of scales from kLeastCode on that are quick; none
  uint32_t nibbles;   // of E2m1Moves
  uint32_t promoted;  // likewise
  uint32_t small;     // the diagonal matrix of 2^-14

  static constexpr uint32_t kLeastCode = 8, kMostCode = 0x7D;

  // By whole warps.
  __device__ explicit QuickNvfp4(float g) {
    const bool in_range = g >= 0x1p-50f && g <= 0x1p6f;
    const E2m1Moves moves = e2m1_moves<Bf16>(g);
    inverse = inverse_for_scales(g);
    decode = g * 0x1p120f;
    codes = in_range && inverse != 0.0f ? kMostCode - kLeastCode + 1 : 0;
    nibbles = moves.nibbles;
    promoted = moves.promoted;
    small = on_diagonal(0x38803880u);
    // Or the compiler makes them anew for each block.
    asm volatile("" : "+f"(inverse));
    asm volatile("" : "+f"(decode));
    asm volatile("" : "+r"(codes));
    asm volatile("" : "+r"(nibbles));
    asm volatile("" : "+r"(promoted));
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
template <bool kPromotes>
__device__ inline uint32_t quick_word(const uint32_t* w, uint32_t small, float by,
                                      uint32_t promotion) {
  const float none[4] = {0, 0, 0, 0};
  const auto bytes = [&](uint32_t a0, uint32_t a1) {
    float v[4];
    bf16_product(v, a0, a1, small, none);
    return __byte_perm(ops::promoted<kPromotes>(truncated_pair(v[0] * by, v[1] * by), promotion),
                       ops::promoted<kPromotes>(truncated_pair(v[2] * by, v[3] * by), promotion),
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
template <bool kPromotes>
__device__ inline QuickBlock quick_block_as(const EveryOther& pairs, const QuickNvfp4& global) {
  const float t = pairs.amax() * global.inverse;
  QuickBlock b;
  b.code = fp8_pair<formats::E4m3>(t, 0.0f);
  const uint32_t place = (b.code & 7) * 4;
  const E2m1Moves moves{global.nibbles, global.promoted};
  const int move = moves.at(place);
  float by;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"(__uint_as_float(b.code << 20) * global.decode));
  by = E2m1Moves::moved(by, move);
  const uint32_t promotion = kPromotes && moves.promotes(place) ? kPromotion : 0;
  b.words.x = quick_word<kPromotes>(pairs.w, global.small, by, promotion);
  b.words.y = quick_word<kPromotes>(pairs.w + 4, global.small, by, promotion);
  b.is_quick = b.code - QuickNvfp4::kLeastCode < global.codes && move != E2m1Moves::kUndecided;
  return b;
}
__device__ inline QuickBlock quick_block(const EveryOther& pairs, const QuickNvfp4& global) {
  return global.promoted == 0 ? quick_block_as<false>(pairs, global)
                              : quick_block_as<true>(pairs, global);
}
// The other blocks.
__device__ __noinline__ inline uint3 careful_nvfp4(uint4 low, uint4 high, float g) {
  Nvfp4Scale global{g, short_reciprocal(g), 0, {E2m1Moves::kFirst * E2m1Moves::kUndecided, 0}};
  if (g >= 0x1p-50f && g <= 0x1p50f) {
    global.plain = Nvfp4Scale::kLargest - Nvfp4Scale::kSmallest;
  }
  const Bf16::Raw first{low}, second{high};
  return nvfp4_block<Bf16>(first, second, largest_of<Bf16>(first, second), global, true);
}

#endif

}  // namespace pestle::ops::row_quantizer
