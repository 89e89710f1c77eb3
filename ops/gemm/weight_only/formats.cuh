// The formats of many_rows.cuh. Each is a value that a kernel takes, with
//   kBits         of a code
//   kScaleBytes   of a row of the weight and 64 of k, in shared memory
//   kGroupSums    scales multiply sums over 32 of k, not codes
//   kColumnFactors  the epilogue's factors of columns multiply whole sums
//   kTableBytes   of shared memory that make_table() fills
//   start()       reads what is of the whole weight; true: every tile is odd
//   Row, row_at   where a row's scales lie
//   fetch, put    a row's scales for 64 of k: out of memory, and into shared memory as those of
//                 row `at` of the tile; put is true where the kernel's way would not be exact
//   decode        8 codes to 4 pairs of neighbours along k, from column 8t of a unit of 32 on; sets odd
//                 likewise
//   fragments     the same for wgmma: the first two pairs are of the unit's first 16 columns, the
//                 others of its last. Codes that are no numbers show in the sums
//   kPairTable    fragments() takes pairs out of a table by bytes, of which table_pair() is one
//   Kept          constants that fragments() holds in registers
//   Scales        of a row and 64 of k, which it takes: scales_of<kTileN>(memory, row)
//   kNans         may codes be no numbers?
//   kMostSums     rows of x of a tile, at most, where scales multiply sums
//   value         one weight, as the format's dequantising op has it in f32
//   factor()      of all sums, at the end
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "backends/cuda/device/numeric/e2m1_pairs.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/tensor_amax.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"

namespace pestle::cuda::many_rows {

// Block scales of one byte, swizzled or in plain rows.
struct ScaleBytes {
  const uint8_t* data = nullptr;
  int64_t row_bytes = 0;  // plain
  int columns = 0;        // blocks of a row
  bool swizzled = false;
  bool words = false;  // those of a step of 64 columns may be read at once
  int tail = 0;        // the first step that has not all of its blocks; of it:
  uint32_t tail_mask = 0;

#ifdef __CUDACC__
  __device__ int64_t place(int64_t row, int64_t block) const {
    return swizzled ? formats::swizzle_offset(row, block, columns) : row * row_bytes + block;
  }
  __device__ uint8_t at(int64_t row, int64_t block) const { return data[place(row, block)]; }
  struct Row {
    const uint8_t* from;
  };
  __device__ Row row_at(int64_t row) const { return {data + place(row, 0)}; }
  __device__ uint8_t at(const Row& row, int block) const {
    return __ldg(row.from + (swizzled ? block / 4 * 512 + block % 4 : block));
  }
  // The kBlocks (2 or 4) of a step. Nothing here waits for them: what is past the row's end is
  // anything until inside() has made it 0.
  template <int kBlocks>
  __device__ uint32_t load(const Row& row, int step) const {
    constexpr int kSteps = 4 / kBlocks;  // of four blocks, which are neighbours in either layout
    const auto at = static_cast<uint32_t>(step);
    const uint8_t* from = row.from + uint64_t{at / kSteps} * (swizzled ? 512u : 4u);
    if constexpr (kSteps > 1) from += at % kSteps * kBlocks;
    if (words) {
      if constexpr (kBlocks == 4) return __ldg(reinterpret_cast<const uint32_t*>(from));
      return __ldg(reinterpret_cast<const unsigned short*>(from));
    }
    uint32_t v = 0;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      if (i < columns - step * kBlocks) v |= uint32_t{__ldg(from + i)} << (8 * i);
    return v;
  }
  __device__ uint32_t inside(uint32_t v, int step) const {
    return step < tail ? v : v & (step == tail ? tail_mask : 0);
  }
#endif
};

// `together`: as many scales as a step of 64 of k has.
inline ScaleBytes scale_bytes(const TensorView& scale, bool swizzled, int64_t columns,
                              int64_t together) {
  ScaleBytes s;
  s.data = scale.as<uint8_t>();
  s.row_bytes = row_distance(scale);
  s.columns = static_cast<int>(columns);
  s.swizzled = swizzled;
  s.words = reinterpret_cast<uintptr_t>(scale.data) % static_cast<uintptr_t>(together) == 0 &&
            (swizzled || (columns % together == 0 && s.row_bytes % together == 0));
  s.tail = static_cast<int>(columns / together);
  s.tail_mask = (1u << (8 * (columns % together))) - 1;
  return s;
}

struct FormatDefaults {
  static constexpr bool kColumnFactors = false;
  static constexpr bool kNans = false;
  static constexpr int kTableBytes = 0;
  static constexpr bool kPairTable = false;
  static constexpr int kMostSums = 192;
#ifdef __CUDACC__
  struct Kept {
    template <class Format>
    __device__ explicit Kept(const Format&) {}
  };
#endif
  struct Scales {};
};

#ifdef __CUDACC__

__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
  return d;
}
__device__ inline uint32_t multiply_f16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ inline uint32_t add_bf16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3F803F80u), "r"(b));
  return d;
}
__device__ inline uint32_t add_f16(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// Codes i and i + 4 of a word as bf16, times 2^-126.
template <int kCode>
__device__ inline uint32_t e2m1_pair_bf16(uint32_t word) {
  constexpr int kSize = 6 - 4 * kCode;   // from bits 4i to 4i + 2, to 6
  constexpr int kSign = 12 - 4 * kCode;  // from bit 4i + 3, to 15
  const uint32_t size = kSize >= 0 ? word << (kSize & 31) : word >> (-kSize & 31);
  return (size & 0x01C001C0u) | ((word << kSign) & 0x80008000u);
}
// Twice, as bf16 or f16.
constexpr uint32_t kBf16_2p126 = 0x7E807E80u;
constexpr uint32_t kBf16_2p120 = 0x7B807B80u;
constexpr uint32_t kBf16_2p112 = 0x77807780u;
constexpr uint32_t kF16_2p14 = 0x74007400u;

// Pairs (i, i + 4) of 8 values to pairs of neighbours; `swapped`: of each two the second is first.
__device__ inline void neighbours(const uint32_t (&p)[4], bool swapped, uint32_t (&b)[4]) {
  const uint32_t low = swapped ? 0x1054u : 0x5410u, high = swapped ? 0x3276u : 0x7632u;
  b[0] = __byte_perm(p[0], p[1], low);
  b[1] = __byte_perm(p[2], p[3], low);
  b[2] = __byte_perm(p[0], p[1], high);
  b[3] = __byte_perm(p[2], p[3], high);
}

// The pairs (i, i + 4) of 8 codes: as bf16 times 2^-126, as f16 times 2^-14.
template <bool kBf16>
__device__ inline void e2m1_pairs(uint32_t word, uint32_t (&p)[4]) {
  if constexpr (kBf16) {
    p[0] = e2m1_pair_bf16<0>(word), p[1] = e2m1_pair_bf16<1>(word);
    p[2] = e2m1_pair_bf16<2>(word), p[3] = e2m1_pair_bf16<3>(word);
  } else {
    p[0] = e2m1_pair_bits<0>(word), p[1] = e2m1_pair_bits<1>(word);
    p[2] = e2m1_pair_bits<2>(word), p[3] = e2m1_pair_bits<3>(word);
  }
}
template <bool kBf16>
__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  return kBf16 ? multiply_bf16(a, b) : multiply_f16(a, b);
}

// 8 codes times a scale, which comes twice: for bf16 itself, for f16 times 2^14 too many.
template <bool kBf16>
__device__ inline void scale_e2m1(uint32_t word, uint32_t scale, bool swapped, uint32_t (&b)[4]) {
  uint32_t p[4];
  e2m1_pairs<kBf16>(word, p);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    p[i] = multiply_pair<kBf16>(kBf16 ? multiply_bf16(p[i], kBf16_2p126) : p[i], scale);
  neighbours(p, swapped, b);
}

// FP8 codes 2i and 2i + 1 of a word as bf16.
template <int kPair>
__device__ inline uint32_t widen_fp8_bf16(uint32_t word, bool e5m2) {
  const uint32_t upper = __byte_perm(word, 0, kPair == 0 ? 0x1404 : 0x3424);
  const uint32_t sign = upper & 0x80008000u;
  const uint32_t v = e5m2 ? (upper >> 3 & 0x0FE00FE0u) : (upper >> 4 & 0x07F007F0u);
  return multiply_bf16(v | sign, e5m2 ? kBf16_2p112 : kBf16_2p120);
}
// Is a code past the largest: infinite or NaN?
__device__ inline bool has_no_number(const uint32_t (&words)[2], bool e5m2) {
  const uint32_t size = e5m2 ? 0x7C7C7C7Cu : 0x7F7F7F7Fu;
  const uint32_t one = e5m2 ? 0x04040404u : 0x01010101u;
  const uint32_t past = ((words[0] & size) + one) | ((words[1] & size) + one);
  return (past & 0x80808080u) != 0;
}

// Scales of 16 columns each, as 16-bit numbers: four a row of a stage. The one that lane t of four
// needs in a unit of 32 k, twice.
__device__ inline uint32_t scale_twice(const char* scales, int row, int unit, int t) {
  const uint32_t s = reinterpret_cast<const unsigned short*>(scales)[row * 4 + 2 * unit + t / 2];
  return __byte_perm(s, 0, 0x1010);
}

// ---- fragments of wgmma: issue slots of decoding add to a product's time, so these take few ----

// A constant in a register: ptxas would make it again for each use.
__device__ inline uint32_t keep(uint32_t constant) {
  uint32_t v;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xFFFFFFFF;" : "=r"(v) : "r"(constant));
  return v;
}
// Bytes of a and b that the lower four nibbles of `by` name, each of 0 to 7.
__device__ inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t by) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(by));
  return d;
}
// One half of a word twice, which instructions of pairs take as an operand.
template <bool kUpper>
__device__ inline uint32_t half_twice(uint32_t v) {
  uint32_t d;
  if constexpr (kUpper)
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(v));
  else
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(v));
  return d;
}
// Two E2M1 codes of a byte as bf16, or as f16 times `f16_unit`.
template <bool kBf16>
__device__ inline uint32_t e2m1_neighbours(uint32_t byte, bool high_first, float f16_unit) {
  const float low = formats::f32_from_e2m1(static_cast<uint8_t>(high_first ? byte >> 4 : byte));
  const float high = formats::f32_from_e2m1(static_cast<uint8_t>(high_first ? byte : byte >> 4));
  if constexpr (kBf16) return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
  const __half2 both = __floats2half2_rn(low * f16_unit, high * f16_unit);
  return reinterpret_cast<const uint32_t&>(both);
}
// A pair of f16 as bf16, which holds it exactly. NaN stays one.
__device__ inline uint32_t bf16_of_f16(uint32_t pair) {
  const float2 v = __half22float2(reinterpret_cast<const __half2&>(pair));
  const __nv_bfloat162 both = __floats2bfloat162_rn(v.x, v.y);
  return reinterpret_cast<const uint32_t&>(both);
}
// 8 FP8 codes. Infinities and NaN stay such.
template <bool kBf16>
__device__ inline void fp8_neighbours(const uint32_t (&words)[2], bool e5m2, uint32_t (&b)[4]) {
  const uint2 low = warp::widen(words[0], e5m2), high = warp::widen(words[1], e5m2);
  b[0] = low.x, b[1] = low.y, b[2] = high.x, b[3] = high.y;
  if constexpr (kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = bf16_of_f16(b[i]);
  }
}

#endif  // __CUDACC__

// E2M1 codes with an E4M3 scale for 16 columns and an f32 for all.
struct Nvfp4 : FormatDefaults {
  static constexpr int kBits = 4;
  static constexpr int kScaleBytes = 8;
  static constexpr bool kGroupSums = false;
  using Fetched = uint32_t;
  using Row = ScaleBytes::Row;

  ScaleBytes scale;
  bool high_first = false;
  bool bf16 = true;                    // x
  const char* global_scale = nullptr;  // of any alignment
  float of_scales = 1;                 // in the kernel: what the codes' scales are multiplied by

#ifdef __CUDACC__
  __device__ float g() const { return __uint_as_float(AnyTensor::bits(global_scale, 4)); }
  // bf16: the power of two of the global scale goes to the codes, so that sums overflow where
  // those of the decoded weight do. f16: weights times 2^-7 are exact, and fit.
  __device__ bool start() {
    const float all = g(), size = fabsf(all);
    of_scales = bf16 ? __uint_as_float(__float_as_uint(all) & 0x7F800000u) : 0x1p7f;
    return !(size > 0x1p-100f && size < 0x1p100f);
  }
  __device__ Row row_at(int64_t row) const { return scale.row_at(row); }
  __device__ Fetched fetch(const Row& row, int step) const { return scale.load<4>(row, step); }
  template <bool kBf16, int kTileN>
  __device__ bool put(Fetched f, int, int step, int at, char* scales) const {
    f = scale.inside(f, step);
    const uint2 halves = warp::widen_e4m3(f);
    const auto scaled = [&](uint32_t pair) {  // exact, as f16 times 2^7 and as bf16
      if constexpr (!kBf16) return multiply_f16(pair, 0x58005800u);
      const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      return __byte_perm(__float_as_uint(v.x * of_scales), __float_as_uint(v.y * of_scales),
                         0x7632);
    };
    reinterpret_cast<uint2*>(scales)[at] = make_uint2(scaled(halves.x), scaled(halves.y));
    return false;
  }
  template <bool kBf16, int kTileN>
  __device__ void decode(const uint32_t (&words)[1], const char* scales, int row, int unit, int t,
                         bool&, uint32_t (&b)[4]) const {
    scale_e2m1<kBf16>(words[0], scale_twice(scales, row, unit, t), high_first, b);
  }
  static constexpr bool kPairTable = true;
  template <bool kBf16>
  __device__ uint32_t table_pair(uint32_t byte) const {
    return e2m1_neighbours<kBf16>(byte, high_first, 1 / kE2m1PairUnit);
  }
  using Scales = uint2;  // of a unit each
  template <int kTileN>
  __device__ Scales scales_of(const char* scales, int row) const {
    return reinterpret_cast<const uint2*>(scales)[row];
  }
  template <bool kBf16>
  __device__ void fragments(const Kept&, const uint32_t (&pairs)[4], const Scales& scales, int unit,
                            uint32_t (&b)[4]) const {
    const uint32_t by = unit == 0 ? scales.x : scales.y;
    b[0] = multiply_pair<kBf16>(pairs[0], half_twice<false>(by));
    b[1] = multiply_pair<kBf16>(pairs[1], half_twice<false>(by));
    b[2] = multiply_pair<kBf16>(pairs[2], half_twice<true>(by));
    b[3] = multiply_pair<kBf16>(pairs[3], half_twice<true>(by));
  }
  __device__ float value(const char* codes, int64_t row, int k) const {
    const auto byte = static_cast<uint8_t>(codes[k / 2]);
    const uint8_t code = formats::nibble_of(byte, k % 2 == 1, high_first);
    const uint8_t s = scale.at(row, k / formats::kNvfp4Block);
    return formats::nvfp4_dequantize(code, formats::nvfp4_factor(s, g()));
  }
  __device__ float factor() const {
    const float all = g();
    const uint32_t bits = __float_as_uint(all);
    return bf16 ? __uint_as_float((bits & 0x807FFFFFu) | 0x3F800000u) : all * 0x1p7f;
  }
#endif
};

struct MxWeight : FormatDefaults {
  ScaleBytes scale;
  bool high_first = false;  // of 4 bits
  bool e5m2 = false;        // of 8 bits
  const char* codes = nullptr;
  int64_t code_row = 0;  // bytes
};

// Codes of 4 bits (E2M1) or 8 (E4M3, E5M2) with an E8M0 scale for 32 columns. Bf16 holds their
// products with scales; f16 only the codes, so for x of f16 scales multiply sums.
template <int kBitsOf, bool kGroupSumsOf>
struct Mx : MxWeight {
  static constexpr int kBits = kBitsOf;
  static constexpr int kScaleBytes = 8;
  static constexpr bool kGroupSums = kGroupSumsOf;
  static constexpr bool kNans = kBits == 8;
  using Fetched = uint32_t;
  using Row = ScaleBytes::Row;

#ifdef __CUDACC__
  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  __device__ Row row_at(int64_t row) const { return scale.row_at(row); }
  __device__ Fetched fetch(const Row& row, int step) const { return scale.load<2>(row, step); }

  // Are the block's codes other than 0?
  __device__ bool holds_codes(int64_t row, int block) const {
    const char* from = codes + row * code_row + int64_t{block} * 4 * kBits;
    bool any = false;
    for (int i = 0; i < 4 * kBits; ++i) any |= (from[i] & (kBits == 4 ? 0x77 : 0x7F)) != 0;
    return any;
  }
  // The least scale whose products with codes of 8 bits bf16 holds.
  __device__ uint32_t first_exact() const { return e5m2 ? 10 : 3; }
  // Scaled: the smallest products would be rounded, unless all are 0. Sums: a weight that is
  // infinite in f32 would not be.
  __device__ bool is_odd(uint32_t e, int64_t row, int block) const {
    if constexpr (kGroupSums) return e != 255 && e >= (kBits == 4 ? 253 : e5m2 ? 240 : 247);
    if constexpr (kBits == 4) return false;
    return e < first_exact() && block < scale.columns && holds_codes(row, block);
  }
  template <bool kBf16, int kTileN>
  __device__ bool put(Fetched f, int row, int step, int at, char* scales) const {
    f = scale.inside(f, step);
    const uint32_t e[2] = {f & 0xFF, f >> 8};
    const float v[2] = {formats::f32_from_e8m0(static_cast<uint8_t>(e[0])),
                        formats::f32_from_e8m0(static_cast<uint8_t>(e[1]))};
    if constexpr (kGroupSums) {
      reinterpret_cast<float*>(scales)[at] = v[0];
      reinterpret_cast<float*>(scales)[kTileN + at] = v[1];
    } else {
      reinterpret_cast<uint2*>(scales)[at] =
          make_uint2(__byte_perm(__float_as_uint(v[0]), 0, 0x3232),
                     __byte_perm(__float_as_uint(v[1]), 0, 0x3232));
    }
    return is_odd(e[0], row, step * 2) || is_odd(e[1], row, step * 2 + 1);
  }
  template <bool kBf16, int kTileN>
  __device__ void decode(const uint32_t (&words)[kBits / 4], const char* scales, int row, int unit,
                         int t, bool& odd, uint32_t (&b)[4]) const {
    static_assert(kBf16 != kGroupSums);
    if constexpr (kBits == 4) {
      const uint32_t by = kGroupSums ? kF16_2p14 : scale_twice(scales, row, unit, t);
      scale_e2m1<kBf16>(words[0], by, high_first, b);
    } else if constexpr (kGroupSums) {
      const uint2 low = warp::widen(words[0], e5m2), high = warp::widen(words[1], e5m2);
      b[0] = low.x, b[1] = low.y, b[2] = high.x, b[3] = high.y;
    } else {
      const uint32_t by = scale_twice(scales, row, unit, t);
      odd |= has_no_number(words, e5m2);
      b[0] = multiply_bf16(widen_fp8_bf16<0>(words[0], e5m2), by);
      b[1] = multiply_bf16(widen_fp8_bf16<1>(words[0], e5m2), by);
      b[2] = multiply_bf16(widen_fp8_bf16<0>(words[1], e5m2), by);
      b[3] = multiply_bf16(widen_fp8_bf16<1>(words[1], e5m2), by);
    }
  }
  static constexpr bool kPairTable = kBits == 4;
  template <bool kBf16>
  __device__ uint32_t table_pair(uint32_t byte) const {
    return e2m1_neighbours<kBf16>(byte, high_first, 1.0f);
  }
  using Scales = std::conditional_t<kGroupSums, FormatDefaults::Scales, uint2>;  // of a unit each
  template <int kTileN>
  __device__ Scales scales_of([[maybe_unused]] const char* scales, [[maybe_unused]] int row) const {
    if constexpr (kGroupSums)
      return {};
    else
      return reinterpret_cast<const uint2*>(scales)[row];
  }
  // Codes of 4 bits come as pairs.
  template <bool kBf16, int kWords>
  __device__ void fragments(const Kept&, const uint32_t (&words)[kWords],
                            [[maybe_unused]] const Scales& scales, int unit,
                            uint32_t (&b)[4]) const {
    static_assert(kBf16 != kGroupSums);
    if constexpr (kBits == 8)
      fp8_neighbours<kBf16>(words, e5m2, b);
    else
      for (int i = 0; i < 4; ++i) b[i] = words[i];
    if constexpr (!kGroupSums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = multiply_bf16(b[i], unit == 0 ? scales.x : scales.y);
    }
  }
  __device__ float value(const char* row_codes, int64_t row, int k) const {
    const uint8_t e = scale.at(row, k / formats::kMxBlock);
    if constexpr (kBits == 4) {
      const auto byte = static_cast<uint8_t>(row_codes[k / 2]);
      return formats::mx_dequantize<formats::E2m1>(formats::nibble_of(byte, k % 2 == 1, high_first),
                                                   e);
    } else {
      const auto code = static_cast<uint8_t>(row_codes[k]);
      return e5m2 ? formats::mx_dequantize<formats::E5m2>(code, e)
                  : formats::mx_dequantize<formats::E4m3>(code, e);
    }
  }
#endif
};

// Codes 0 to 15 less a zero point, or two's complement, with an f32 for each group of a multiple of
// 32 columns. Two's complement codes with their sign bit turned are codes 0 to 15 less 8.
struct Int4 : FormatDefaults {
  static constexpr int kBits = 4;
  static constexpr int kScaleBytes = 12;  // f32 of two groups; 16-bit zero points of two groups
  static constexpr bool kGroupSums = true;
  static constexpr int kMostSums = 128;  // beside zero points: 192 would not stay in registers

  const char* scale = nullptr;
  int64_t scale_row = 0, scale_column = 0;  // bytes
  const uint8_t* zero = nullptr;            // null: symmetric
  int64_t zero_row = 0, zero_column = 0;
  int group = 0, k = 0;
  FastDivisor groups;  // of `group` columns

  struct Fetched {
    float scale[2];
    uint8_t zeros[2];
  };
  struct Row {
    const char* scale;
    const uint8_t* zero;
  };

#ifdef __CUDACC__
  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  __device__ float scale_at(int64_t row, int64_t g) const {
    return __ldg(reinterpret_cast<const float*>(scale + row * scale_row + g * scale_column));
  }
  __device__ Row row_at(int64_t row) const {
    return {scale + row * scale_row, zero + row * zero_row};
  }
  __device__ Fetched fetch(const Row& row, int step) const {
    Fetched f{{0, 0}, {8, 8}};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = step * 64 + h * 32;
      if (column >= k) continue;
      const auto g = static_cast<int64_t>(groups.divide(column));
      f.scale[h] = __ldg(reinterpret_cast<const float*>(row.scale + g * scale_column));
      if (zero != nullptr) f.zeros[h] = __ldg(row.zero + g * zero_column);
    }
    return f;
  }
  // Where weights are subnormal, infinite or all but that, sums are not scaled as a whole.
  template <bool kBf16>
  __device__ static bool is_odd(float scale, uint32_t zero) {
    const float size = fabsf(scale);
    if (kBf16 && zero > 128) return true;  // 128 and more: no bf16 number
    return size != 0 && !(size > 0x1p-100f && size < 0x1p20f);
  }
  template <bool kBf16, int kTileN>
  __device__ bool put(const Fetched& f, int, int, int at, char* scales) const {
    uint32_t less[2];
    bool odd = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      reinterpret_cast<float*>(scales)[h * kTileN + at] = f.scale[h];
      const uint32_t less_code = f.zeros[h];
      odd |= is_odd<kBf16>(f.scale[h], less_code);
      const float offset = -static_cast<float>((kBf16 ? 128 : 1024) + less_code);
      less[h] = kBf16 ? __float_as_uint(offset) >> 16 : __half_as_ushort(__float2half_rn(offset));
    }
    reinterpret_cast<uint32_t*>(scales + 8 * kTileN)[at] = less[0] | less[1] << 16;
    return odd;
  }
  template <bool kBf16, int kTileN>
  __device__ void decode(const uint32_t (&words)[1], const char* scales, int row, int unit, int,
                         bool&, uint32_t (&b)[4]) const {
    const uint32_t less = __byte_perm(
        reinterpret_cast<const unsigned short*>(scales + 8 * kTileN)[row * 2 + unit], 0, 0x1010);
    const uint32_t word = zero == nullptr ? words[0] ^ 0x88888888u : words[0];
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t code = word >> (4 * i) & 0x000F000Fu;
      p[i] = kBf16 ? add_bf16(code | 0x43004300u, less) : add_f16(code | 0x64006400u, less);
    }
    neighbours(p, false, b);
  }
  using Scales = uint32_t;  // 16-bit zero points of two groups
  template <int kTileN>
  __device__ Scales scales_of(const char* scales, int row) const {
    return reinterpret_cast<const uint32_t*>(scales + 8 * kTileN)[row];
  }
  // 128 or 1024 and a code, whose first bit two's complement turns.
  static constexpr bool kPairTable = true;
  template <bool kBf16>
  __device__ uint32_t table_pair(uint32_t byte) const {
    const uint32_t codes = (byte & 0xFu) | (byte & 0xF0u) << 12;
    return codes ^ ((kBf16 ? 0x43004300u : 0x64006400u) | (zero == nullptr ? 0x00080008u : 0));
  }
  // Those of a unit less their zero point.
  template <bool kBf16>
  __device__ void fragments(const Kept&, const uint32_t (&pairs)[4], const Scales& zeros, int unit,
                            uint32_t (&b)[4]) const {
    const uint32_t less = unit == 0 ? half_twice<false>(zeros) : half_twice<true>(zeros);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = kBf16 ? add_bf16(pairs[i], less) : add_f16(pairs[i], less);
  }
  __device__ float value(const char* codes, int64_t row, int column) const {
    const int g = column / group;
    const auto byte = static_cast<uint8_t>(codes[column / 2]);
    const uint8_t code = formats::nibble_of(byte, column % 2 == 1, false);
    const float s = scale_at(row, g);
    if (zero == nullptr) return formats::int4_dequantize(formats::int4_from_nibble(code), s);
    return formats::int4_asym_dequantize(code, {s, zero[row * zero_row + g * zero_column]});
  }
#endif
};

// The same with weights rounded to bf16, as dequantize_int4 rounds them, so that scales multiply codes.
struct Int4AsX : Int4 {
  static constexpr bool kGroupSums = false;

#ifdef __CUDACC__
  struct Scales {
    float by[2];
    uint32_t zeros;
  };
  template <int kTileN>
  __device__ Scales scales_of(const char* scales, int row) const {
    const float* by = reinterpret_cast<const float*>(scales) + row;
    return {{by[0], by[kTileN]}, Int4::scales_of<kTileN>(scales, row)};
  }
  template <bool kBf16>
  __device__ void fragments(const Kept& kept, const uint32_t (&pairs)[4], const Scales& scales,
                            int unit, uint32_t (&b)[4]) const {
    static_assert(kBf16);
    Int4::fragments<kBf16>(kept, pairs, scales.zeros, unit, b);
    const float by = scales.by[unit];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(__uint_as_float(b[i] << 16) * by,
                                                        __uint_as_float(b[i] & 0xFFFF0000u) * by);
      b[i] = reinterpret_cast<const uint32_t&>(both);
    }
  }
#endif
};

}  // namespace pestle::cuda::many_rows
