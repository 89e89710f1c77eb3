// Weights of 4 and 8 bits as formats of gemv_weight_mma.cuh. A lane has 16 bytes of codes of a row a
// step: four octets of 4 bits, two of 8. Each format is a value that the kernel takes, with
//   kBits       of a code
//   kSums       what scales multiply: codes, or sums at the end (kNone); an octet's sums (kOctets: lanes
//               exchange words, so that the codes of a product share a scale); or a step's (kSteps)
//   row_bytes   of the scales of a row of the weight, in shared memory
//   copy_scales  starts the CTA's copy of a tile's scales there, rows `to_row` bytes apart; rows past
//               `last` repeat it
//   copy_row    starts a lane's copy of one row's scales of some steps (few_rows.cuh)
//   Ready, ready  a row's scales for a step, as decode() and factor() take them; sets odd where sums or
//               products would not be exact
//   decode      the o-th octet of a lane to pairs: of 4 bits codes i and i + 4, of 8 bits neighbours; sets
//               odd likewise
//   factor      of the o-th octet's sums, or of a step's; without arguments of all sums; row_factor of a
//               row's, row_is_odd where that must not multiply sums
//   value       one weight, as the format's dequantising op has it in f32
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/gemm/weight_only/byte_formats.cuh"

namespace pestle::ops::gemv {

using cuda::many_rows::Int4;
using cuda::many_rows::MxWeight;
using cuda::many_rows::Nvfp4;

enum class SumsOf { kNone, kOctets, kSteps };

// Of k, for a warp.
template <int kBits>
constexpr int kStepOf = 512 / kBits;

constexpr int kTileRows = 16;

// Rows whose distance keeps the lanes of a warp apart.
constexpr int spread_row_bytes(int bytes) { return (bytes + 127) / 128 * 128 + 16; }

#ifdef __CUDACC__

// 8 codes times a scale, which comes twice and is of bf16 2^126, of f16 2^14 too large.
template <bool kBf16>
__device__ inline void scaled_pairs(uint32_t word, uint32_t scale, uint32_t (&p)[4]) {
  cuda::many_rows::e2m1_pairs<kBf16>(word, p);
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] = cuda::many_rows::multiply_pair<kBf16>(p[i], scale);
}

// The first `bytes` of 4 aligned ones, and zeros behind them.
__device__ inline void copy_word_async(char* to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(cuda::warp::shared_place(to)),
               "l"(from), "r"(bytes)
               : "memory");
}

// 16 rows of `bytes`, a multiple of 16, from multiples of 16.
__device__ inline void copy_even_rows(const char* from, int64_t stride, uint32_t bytes,
                                      int64_t first, int64_t last, char* to, int to_row) {
  const uint32_t chunks = bytes / 16;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < chunks * kTileRows; i += blockDim.x) {
    const uint32_t row = i / chunks, at = (i - row * chunks) * 16;
    cuda::copy_async(cuda::warp::shared_place(to + row * to_row + at),
                     from + min(first + row, last) * stride + at, 16);
  }
}

// Scales of one byte, and zeros behind them up to `bytes` a row, a multiple of 4.
__device__ inline void copy_scale_bytes(const cuda::many_rows::ScaleBytes& s, int64_t first,
                                        int64_t last, int bytes, char* to, int to_row) {
  const auto* data = reinterpret_cast<const char*>(s.data);
  const uint64_t places =
      reinterpret_cast<uint64_t>(data) | (s.swizzled ? 0 : static_cast<uint64_t>(s.row_bytes));
  if (!s.swizzled && (places | static_cast<uint64_t>(bytes)) % 16 == 0 && bytes == s.columns)
    return copy_even_rows(data, s.row_bytes, bytes, first, last, to, to_row);
  // A thread keeps its row; its neighbours of a row are 4 scales on.
  const int r = threadIdx.x % kTileRows, step = blockDim.x / kTileRows * 4;
  const int64_t row = min(first + r, last);
  to += r * to_row;
#pragma unroll 1
  for (int i = threadIdx.x / kTileRows * 4; i < bytes; i += step) {
    const int count = max(0, min(4, s.columns - i));
    if (places % 4 == 0) {
      copy_word_async(to + i, data + s.place(row, count > 0 ? i : 0), count);
    } else {
      for (int j = 0; j < 4; ++j) to[i + j] = static_cast<char>(j < count ? s.at(row, i + j) : 0);
    }
  }
}

// Some of k, whose scales are copied: every `turns`-th piece from `turn` on.
struct SomeSteps {
  int first, count, turn, turns;
};

// A row's scales of one byte from the `first` on: `bytes`, a multiple of 4, with zeros behind the last.
__device__ inline void copy_row_bytes(const cuda::many_rows::ScaleBytes& s, int64_t row, int first,
                                      int bytes, const SomeSteps& steps, char* to) {
  const auto* data = reinterpret_cast<const char*>(s.data);
  const uint64_t places = reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(first) |
                          (s.swizzled ? 0 : static_cast<uint64_t>(s.row_bytes));
  if (!s.swizzled && places % 16 == 0) {
    const char* from = data + row * s.row_bytes + first;
#pragma unroll 1
    for (int i = steps.turn * 16; i < bytes; i += steps.turns * 16) {
      const int count = max(0, min(16, s.columns - first - i));
      cuda::copy_async(cuda::warp::shared_place(to + i), count > 0 ? from + i : data, count);
    }
    return;
  }
#pragma unroll 1
  for (int i = steps.turn * 4; i < bytes; i += steps.turns * 4) {
    const int count = max(0, min(4, s.columns - first - i));
    if (places % 4 == 0) {
      copy_word_async(to + i, data + s.place(row, count > 0 ? first + i : 0), count);
    } else {
      for (int j = 0; j < 4; ++j)
        to[i + j] = static_cast<char>(j < count ? s.at(row, first + i + j) : 0);
    }
  }
}

#endif  // __CUDACC__

template <int kBits>
constexpr int steps_of(int64_t k) {
  return static_cast<int>((k + kStepOf<kBits> - 1) / kStepOf<kBits>);
}
// Scales of one byte for `block` columns each, in whole steps.
template <int kBits>
constexpr int scale_row_bytes(int64_t k, int block) {
  return spread_row_bytes(steps_of<kBits>(k) * (kStepOf<kBits> / block));
}

struct NoRowFactor {
#ifdef __CUDACC__
  __device__ float row_factor(int64_t) const { return 1.0f; }
  __device__ bool row_is_odd(int64_t) const { return false; }
#endif
};

struct GemvNvfp4 : Nvfp4, NoRowFactor {
  static constexpr SumsOf kSums = SumsOf::kNone;
  struct Ready {
    uint32_t by[2];  // a scale for two octets, twice
  };
  int row_bytes(int64_t k) const { return scale_row_bytes<4>(k, 16); }

#ifdef __CUDACC__
  // Of the global scale's exponent for bf16, what scales of blocks take: so much less than 1 that they
  // hold 2^126 more.
  static constexpr float kMostOfScales = 0x1p-8f;

  __device__ bool start() {
    const bool odd = Nvfp4::start();
    if (bf16) of_scales = fminf(of_scales, kMostOfScales) * 0x1p126f;
    return odd;
  }
  __device__ float factor() const {
    const float all = g(), power = __uint_as_float(__float_as_uint(all) & 0x7F800000u);
    return bf16 ? Nvfp4::factor() * fmaxf(power / kMostOfScales, 1.0f) : Nvfp4::factor();
  }
  __device__ void copy_scales(int64_t first, int64_t last, int steps, char* to, int to_row) const {
    copy_scale_bytes(scale, first, last, steps * 8, to, to_row);
  }
  __device__ void copy_row(int64_t row, const SomeSteps& steps, char* to) const {
    copy_row_bytes(scale, row, steps.first * 8, steps.count * 8, steps, to);
  }
  template <bool kBf16>
  __device__ Ready ready(const char* scales, const uint32_t (&)[4], int step, uint32_t&) const {
    const int t = threadIdx.x % 4;
    const auto bytes = reinterpret_cast<const unsigned short*>(scales)[step * 4 + t];
    const uint32_t two = cuda::warp::widen_e4m3(bytes).x;
    const __half2 v = *reinterpret_cast<const __half2*>(&two);
    if constexpr (kBf16) {
      return {{__byte_perm(__float_as_uint(__low2float(v) * of_scales), 0, 0x3232),
               __byte_perm(__float_as_uint(__high2float(v) * of_scales), 0, 0x3232)}};
    } else {
      const __half2 scaled = __hmul2(v, __float2half2_rn(of_scales));
      const uint32_t bits = *reinterpret_cast<const uint32_t*>(&scaled);
      return {{__byte_perm(bits, 0, 0x1010), __byte_perm(bits, 0, 0x3232)}};
    }
  }
  template <bool kBf16>
  __device__ void decode(const uint32_t (&words)[4], int o, const Ready& r, uint32_t&,
                         uint32_t (&p)[4]) const {
    scaled_pairs<kBf16>(words[o], r.by[o / 2], p);
  }
#endif
};

// Scaled: for bf16. Of sums: for f16, which does not hold products with scales.
template <bool kSumsOfOctets>
struct GemvMxfp4 : MxWeight, NoRowFactor {
  static constexpr int kBits = 4;
  static constexpr SumsOf kSums = kSumsOfOctets ? SumsOf::kOctets : SumsOf::kNone;
  using Ready = uint32_t;  // the scale as bf16, twice, or of each octet a byte
  int row_bytes(int64_t k) const { return scale_row_bytes<4>(k, 32); }

#ifdef __CUDACC__
  __device__ bool start() { return false; }
  __device__ float factor() const { return kSumsOfOctets ? 1.0f : 0x1p8f; }
  __device__ void copy_scales(int64_t first, int64_t last, int steps, char* to, int to_row) const {
    copy_scale_bytes(scale, first, last, steps * 4, to, to_row);
  }
  __device__ void copy_row(int64_t row, const SomeSteps& steps, char* to) const {
    copy_row_bytes(scale, row, steps.first * 4, steps.count * 4, steps, to);
  }
  template <bool kBf16>
  __device__ Ready ready(const char* scales, const uint32_t (&words)[4], int step,
                         uint32_t& odd) const {
    if constexpr (kSumsOfOctets) {
      const uint32_t all = reinterpret_cast<const uint32_t*>(scales)[step];
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        const uint32_t e = all >> (8 * o) & 0xFF;
        odd |= e != 255 && e >= 253;
      }
      return all;
    }
    // Products are 2^8 too small, so that a scale holds 2^126 more. Past the largest it is infinite, and
    // so are sums; past the smallest, products are rounded.
    const uint32_t e = static_cast<uint8_t>(scales[step * 4 + threadIdx.x % 4]);
    const uint32_t codes = (words[0] | words[1] | words[2] | words[3]) & 0x77777777u;
    odd |= e < 4 && codes != 0;
    return (min(e + 118, 255u) << 7) * 0x10001u;
  }
  template <bool kBf16>
  __device__ void decode(const uint32_t (&words)[4], int o, Ready r, uint32_t&,
                         uint32_t (&p)[4]) const {
    scaled_pairs<kBf16>(words[o], kSumsOfOctets ? cuda::many_rows::kF16_2p14 : r, p);
  }
  __device__ float factor(Ready r, int o) const {
    return formats::f32_from_e8m0(static_cast<uint8_t>(r >> (8 * o)));
  }
  __device__ float value(const char* row_codes, int64_t row, int k) const {
    return cuda::many_rows::Mx<4, true>{*this}.value(row_codes, row, k);
  }
#endif
};

// kSteps: groups of a multiple of 128 columns, or one group.
template <SumsOf kSumsOf>
struct GemvInt4 : Int4, NoRowFactor {
  static constexpr SumsOf kSums = kSumsOf;
  static constexpr bool high_first = false;
  static constexpr int kScales = kSumsOf == SumsOf::kSteps ? 1 : 4;  // a step
  struct Ready {
    float scale[kScales];
    uint32_t less[kScales];  // what is taken off every code, twice
  };
  // f32, and behind them bytes of zero points.
  int row_bytes(int64_t k) const { return spread_row_bytes(steps_of<4>(k) * kScales * 5); }

#ifdef __CUDACC__
  // Codes stand behind 128 in bf16, behind 1024 in f16.
  template <bool kBf16>
  __device__ static uint32_t less_of(uint32_t zero_point) {
    const float offset = -static_cast<float>((kBf16 ? 128 : 1024) + zero_point);
    if constexpr (kBf16) return __byte_perm(__float_as_uint(offset), 0, 0x3232);
    return __byte_perm(uint32_t{__half_as_ushort(__float2half_rn(offset))}, 0, 0x1010);
  }
  __device__ void copy_scales(int64_t first, int64_t last, int steps, char* to, int to_row) const {
    const int count = steps * kScales;
    const uint64_t places = reinterpret_cast<uint64_t>(scale) | static_cast<uint64_t>(scale_row);
    const bool even = zero == nullptr && scale_column == 4 && group * kScales == kStepOf<4> &&
                      count * group == k && (places | static_cast<uint64_t>(count * 4)) % 16 == 0;
    if (even) return copy_even_rows(scale, scale_row, count * 4, first, last, to, to_row);
    const int r = threadIdx.x % kTileRows;
    const int64_t row = min(first + r, last);
    to += r * to_row;
#pragma unroll 1
    for (int i = threadIdx.x / kTileRows; i < count; i += blockDim.x / kTileRows) {
      const int column = i * (kStepOf<4> / kScales);
      const int64_t g = column < k ? column / group : 0;
      copy_word_async(to + i * 4, scale + row * scale_row + g * scale_column, column < k ? 4 : 0);
      if (zero != nullptr)
        to[count * 4 + i] = static_cast<char>(__ldg(zero + row * zero_row + g * zero_column));
    }
  }
  __device__ void copy_row(int64_t row, const SomeSteps& steps, char* to) const {
    const int count = steps.count * kScales, first = steps.first * kScales;
    const char* from = scale + row * scale_row;
    const uint64_t places = reinterpret_cast<uint64_t>(scale) | static_cast<uint64_t>(scale_row);
    const bool even = zero == nullptr && scale_column == 4 && group * kScales == kStepOf<4> &&
                      (places | static_cast<uint64_t>(first * 4)) % 16 == 0;
    if (even) {
#pragma unroll 1
      for (int i = steps.turn * 4; i < count; i += steps.turns * 4) {
        const int left = max(0, min(4, (k + group - 1) / group - first - i));
        cuda::copy_async(cuda::warp::shared_place(to + i * 4),
                         left > 0 ? from + (first + i) * 4 : scale, left * 4);
      }
      return;
    }
#pragma unroll 1
    for (int i = steps.turn; i < count; i += steps.turns) {
      const int column = (first + i) * (kStepOf<4> / kScales);
      const int64_t g = column < k ? column / group : 0;
      copy_word_async(to + i * 4, from + g * scale_column, column < k ? 4 : 0);
      if (zero != nullptr)
        to[count * 4 + i] = static_cast<char>(__ldg(zero + row * zero_row + g * zero_column));
    }
  }
  // The format whose scales in shared memory are of so many steps alone.
  __device__ GemvInt4 of_steps(int steps) const {
    GemvInt4 format = *this;
    format.k = steps * kStepOf<4>;
    return format;
  }
  template <bool kBf16>
  __device__ Ready ready(const char* scales, const uint32_t (&)[4], int step, uint32_t& odd) const {
    Ready r;
    if constexpr (kScales == 4) {
      const auto all = reinterpret_cast<const float4*>(scales)[step];
      r.scale[0] = all.x, r.scale[1] = all.y, r.scale[2] = all.z, r.scale[3] = all.w;
    } else {
      r.scale[0] = reinterpret_cast<const float*>(scales)[step];
    }
    const char* zeros = scales + (k + kStepOf<4> - 1) / kStepOf<4> * kScales * 4;
#pragma unroll
    for (int o = 0; o < kScales; ++o) {
      uint32_t zero_point = 8;
      r.less[o] = kBf16 ? 0xC308C308u : 0xE408E408u;
      if (zero != nullptr) {
        zero_point = static_cast<uint8_t>(zeros[step * kScales + o]);
        r.less[o] = less_of<kBf16>(zero_point);
      }
      odd |= Int4::is_odd<kBf16>(r.scale[o], zero_point);
    }
    return r;
  }
  template <bool kBf16>
  __device__ void decode(const uint32_t (&words)[4], int o, const Ready& r, uint32_t&,
                         uint32_t (&p)[4]) const {
    // Two's complement codes with their sign bit turned are codes 0 to 15 less 8.
    const uint32_t turn = zero == nullptr ? 0x00080008u : 0;
    const uint32_t behind = (kBf16 ? 0x43004300u : 0x64006400u) | turn;
    const uint32_t less = r.less[o % kScales];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = (words[o] >> (4 * i) & 0x000F000Fu) ^ behind;
      p[i] = kBf16 ? cuda::many_rows::add_bf16(bits, less) : cuda::many_rows::add_f16(bits, less);
    }
  }
  __device__ float factor(const Ready& r, int o) const { return r.scale[o % kScales]; }
  __device__ float factor() const { return 1.0f; }
#endif
};

using cuda::many_rows::ByteCode;

#ifdef __CUDACC__

// FP8 codes 2i and 2i + 1 of a word as bf16, of either kind by the same instructions.
template <int kPair>
__device__ inline uint32_t any_fp8_as_bf16(uint32_t word, bool e5m2) {
  const int shift = e5m2 ? 3 : 4;
  const uint32_t size = e5m2 ? 0x0FE00FE0u : 0x07F007F0u;
  const uint32_t unit = e5m2 ? cuda::many_rows::kBf16_2p112 : cuda::many_rows::kBf16_2p120;
  const uint32_t upper = __byte_perm(word, 0, kPair == 0 ? 0x1404 : 0x3424);
  return cuda::many_rows::multiply_bf16((upper & 0x80008000u) | (upper >> shift & size), unit);
}

// Octet o; kCode kE4m3: FP8 of either kind.
template <ByteCode kCode, bool kBf16>
__device__ inline void decode_bytes(const uint32_t (&words)[4], int o, bool e5m2, uint32_t& odd,
                                    uint32_t (&p)[4]) {
  using namespace cuda::many_rows;
  const uint32_t two[2] = {words[2 * o], words[2 * o + 1]};
  if constexpr (kCode == ByteCode::kInt8) {
    bool none;
    widen_codes<kCode, kBf16>(two, none, p);
    return;
  }
  odd |= has_no_number(two, e5m2);
  if constexpr (kBf16) {
    p[0] = any_fp8_as_bf16<0>(two[0], e5m2), p[1] = any_fp8_as_bf16<1>(two[0], e5m2);
    p[2] = any_fp8_as_bf16<0>(two[1], e5m2), p[3] = any_fp8_as_bf16<1>(two[1], e5m2);
  } else {
    const uint2 low = cuda::warp::widen(two[0], e5m2), high = cuda::warp::widen(two[1], e5m2);
    p[0] = low.x, p[1] = low.y, p[2] = high.x, p[3] = high.y;
  }
}

template <ByteCode kCode>
__device__ inline float any_byte_value(char byte, bool e5m2, float scale) {
  return e5m2 ? cuda::many_rows::byte_value<ByteCode::kE5m2>(byte, scale)
              : cuda::many_rows::byte_value<kCode>(byte, scale);
}

#endif  // __CUDACC__

// What codes of a byte (kInt8; kE4m3: FP8 of either kind) have in common, whatever their scales.
template <ByteCode kCode, class Scales>
struct GemvBytes : Scales {
  static constexpr bool high_first = false;
  bool e5m2 = false;

#ifdef __CUDACC__
  template <bool kBf16, class Ready>
  __device__ void decode(const uint32_t (&words)[4], int o, Ready, uint32_t& odd,
                         uint32_t (&p)[4]) const {
    decode_bytes<kCode, kBf16>(words, o, e5m2, odd, p);
  }
  __device__ float value(const char* codes, int64_t row, int k) const {
    return any_byte_value<kCode>(codes[k], e5m2, this->scale.at(row, k));
  }
  __device__ float factor() const { return 1.0f; }
#endif
};

// With a scale of all or one a row, which multiplies sums at the end.
template <ByteCode kCode>
struct GemvRowBytes : GemvBytes<kCode, cuda::many_rows::RowBytes<kCode>> {
  static constexpr SumsOf kSums = SumsOf::kNone;
  struct Ready {};
  int row_bytes(int64_t) const { return 0; }

#ifdef __CUDACC__
  using GemvBytes<kCode, cuda::many_rows::RowBytes<kCode>>::factor;

  __device__ void copy_scales(int64_t, int64_t, int, char*, int) const {}
  __device__ void copy_row(int64_t, const SomeSteps&, char*) const {}
  template <bool kBf16>
  __device__ Ready ready(const char*, const uint32_t (&)[4], int, uint32_t&) const {
    return {};
  }
  __device__ float factor(Ready, int) const { return 1.0f; }
  __device__ float row_factor(int64_t row) const { return this->scale.at(row, 0); }
  __device__ bool row_is_odd(int64_t row) const {
    return cuda::many_rows::ScaleGrid::is_odd(row_factor(row));
  }
#endif
};

// With scales of groups of a multiple of 64 columns, or of one group.
template <ByteCode kCode>
struct GemvGroupBytes : GemvBytes<kCode, cuda::many_rows::GroupBytes<kCode>>, NoRowFactor {
  static constexpr SumsOf kSums = SumsOf::kSteps;
  using Ready = float;
  int row_bytes(int64_t k) const { return spread_row_bytes(steps_of<8>(k) * 4); }

#ifdef __CUDACC__
  using GemvBytes<kCode, cuda::many_rows::GroupBytes<kCode>>::factor;

  __device__ void copy_scales(int64_t first, int64_t last, int steps, char* to, int to_row) const {
    const int r = threadIdx.x % kTileRows;
    const int64_t row = min(first + r, last);
#pragma unroll 1
    for (int i = threadIdx.x / kTileRows; i < steps; i += blockDim.x / kTileRows)
      copy_word_async(to + r * to_row + i * 4, this->scale.place(row, i * kStepOf<8>), 4);
  }
  __device__ void copy_row(int64_t row, const SomeSteps& steps, char* to) const {
#pragma unroll 1
    for (int i = steps.turn; i < steps.count; i += steps.turns) {
      const int column = (steps.first + i) * kStepOf<8>;
      const bool inside = column < this->k;
      copy_word_async(to + i * 4, this->scale.place(row, inside ? column : 0), inside ? 4 : 0);
    }
  }
  template <bool kBf16>
  __device__ Ready ready(const char* scales, const uint32_t (&)[4], int step, uint32_t& odd) const {
    const float of = reinterpret_cast<const float*>(scales)[step];
    odd |= cuda::many_rows::ScaleGrid::is_odd(of);
    return of;
  }
  __device__ float factor(Ready r, int) const { return r; }
#endif
};

// Codes times an E8M0 scale for 32 columns: for x of bf16, which holds all but the smallest.
struct GemvMxfp8 : cuda::many_rows::Mx<8, false>, NoRowFactor {
  static constexpr SumsOf kSums = SumsOf::kNone;
  using Ready = uint32_t;  // the scale as bf16, twice
  int row_bytes(int64_t k) const { return scale_row_bytes<8>(k, 32); }

#ifdef __CUDACC__
  __device__ void copy_scales(int64_t first, int64_t last, int steps, char* to, int to_row) const {
    copy_scale_bytes(scale, first, last, (steps * 2 + 3) / 4 * 4, to, to_row);
  }
  __device__ void copy_row(int64_t row, const SomeSteps& steps, char* to) const {
    copy_row_bytes(scale, row, steps.first * 2, (steps.count * 2 + 3) / 4 * 4, steps, to);
  }
  // A scale so small that products with it would be rounded is odd where codes are not 0.
  template <bool kBf16>
  __device__ Ready ready(const char* scales, const uint32_t (&)[4], int step, uint32_t&) const {
    const auto e = static_cast<uint8_t>(scales[step * 2 + threadIdx.x % 4 / 2]);
    return __byte_perm(__float_as_uint(formats::f32_from_e8m0(e)), 0, 0x3232);
  }
  template <bool kBf16>
  __device__ void decode(const uint32_t (&words)[4], int o, Ready by, uint32_t& odd,
                         uint32_t (&p)[4]) const {
    using namespace cuda::many_rows;
    const uint32_t two[2] = {words[2 * o], words[2 * o + 1]};
    const bool holds = ((two[0] | two[1]) & 0x7F7F7F7Fu) != 0;
    odd |= has_no_number(two, e5m2) || ((by & 0xFFFF) < (e5m2 ? 10u << 7 : 3u << 7) && holds);
    p[0] = multiply_bf16(widen_fp8_bf16<0>(two[0], e5m2), by);
    p[1] = multiply_bf16(widen_fp8_bf16<1>(two[0], e5m2), by);
    p[2] = multiply_bf16(widen_fp8_bf16<0>(two[1], e5m2), by);
    p[3] = multiply_bf16(widen_fp8_bf16<1>(two[1], e5m2), by);
  }
  __device__ float factor(Ready, int) const { return 1.0f; }
  __device__ float factor() const { return 1.0f; }
#endif
};

}  // namespace pestle::ops::gemv
