// W4A8 as a format of many_rows.cuh (docs/formats/w4a8.md): indices into a codebook, whose level
// times an E4M3 scale of 16 columns is rounded to an integer of -127 to 127; an f32 for each row.
// The integers are exact in bf16, so that the rows' factors multiply whole sums in the epilogue.
// A table of the 16 integers of every scale, as sign and magnitude, lies in shared memory, the
// levels behind it.
#pragma once

#include "formats/w4a8.h"
#include "ops/gemm/weight_only/formats.cuh"

namespace pestle::cuda::many_rows {

struct W4a8 : FormatDefaults {
  static constexpr int kBits = 4;
  static constexpr int kScaleBytes = 4;  // codes of four groups
  static constexpr bool kGroupSums = false;
  static constexpr bool kColumnFactors = true;
  static constexpr int kLevels = formats::kW4a8Levels;
  static constexpr int kEntries = 256 * kLevels;
  static constexpr int kTableBytes = kEntries + kLevels * 4;
  using Fetched = uint32_t;
  using Row = ScaleBytes::Row;

  ScaleBytes scale;
  const float* channel = nullptr;
  int64_t channel_step = 0;        // elements
  const char* codebook = nullptr;  // of any alignment; null: the fixed one
  int64_t codebook_step = 0;       // bytes
  const uint4* table = nullptr;    // in the kernel

#ifdef __CUDACC__
  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  __device__ static float fixed_level(int index) {
    float levels[kLevels];
    formats::w4a8_default_codebook(levels);
    float v = 0;
#pragma unroll
    for (int i = 0; i < kLevels; ++i) v = i == index ? levels[i] : v;
    return v;
  }
  __device__ void make_table(char* memory) {
    table = reinterpret_cast<const uint4*>(memory);
    const int index = threadIdx.x % kLevels;
    const float mine = codebook == nullptr
                           ? fixed_level(index)
                           : __uint_as_float(AnyTensor::bits(codebook + index * codebook_step, 4));
    reinterpret_cast<float*>(memory + kEntries)[index] = mine;
#pragma unroll 1
    for (int i = threadIdx.x; i < kEntries; i += blockDim.x) {
      const float rel = formats::f32_from_e4m3(static_cast<uint8_t>(i / kLevels));
      const int v = formats::w4a8_decode_int8(mine, rel);
      memory[i] = static_cast<char>(v < 0 ? 0x80 - v : v);
    }
  }
  __device__ Row row_at(int64_t row) const { return scale.row_at(row); }
  __device__ Fetched fetch(const Row& row, int step) const { return scale.load<4>(row, step); }
  // Rows whose decoded weights f32 does not hold as normal numbers are not scaled as a whole.
  template <bool kBf16, int kTileN>
  __device__ bool put(Fetched f, int row, int step, int at, char* scales) const {
    reinterpret_cast<uint32_t*>(scales)[at] = scale.inside(f, step);
    if (step > 0) return false;
    const float size = fabsf(__ldg(channel + row * channel_step));
    return size != 0 && !(size > 0x1p-100f && size < 0x1p100f);
  }
  // The bytes of 16 at `entry` that the lower four nibbles of `codes` name.
  __device__ static uint32_t pick(const uint4& entry, uint32_t codes) {
    const uint32_t low = __byte_perm(entry.x, entry.y, codes & 0x7777u);
    const uint32_t high = __byte_perm(entry.z, entry.w, codes & 0x7777u);
    const uint32_t upper = codes & 0x8888u;  // bits 3, 7, 11, 15 to the bytes' lowest
    const uint32_t ones = (upper >> 3 & 0x1u) | (upper << 1 & 0x100u) | (upper << 5 & 0x10000u) |
                          (upper << 9 & 0x1000000u);
    const uint32_t mask = ones * 0xFFu;
    return (low & ~mask) | (high & mask);
  }
  // A pair of signs and magnitudes in the upper bytes: 128 + magnitude is a bf16 number whose last
  // bits are the magnitude.
  __device__ static uint32_t widen_pair(uint32_t upper) {
    uint32_t v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(v)
        : "r"((upper >> 8 & 0x007F007Fu) | 0x43004300u), "r"(0x3F803F80u), "r"(0xC300C300u));
    return v | (upper & 0x80008000u);
  }
  template <bool kBf16, int kTileN>
  __device__ void decode(const uint32_t (&words)[1], const char* scales, int row, int unit, int t,
                         bool&, uint32_t (&b)[4]) const {
    static_assert(kBf16);
    const auto s = static_cast<uint8_t>(scales[row * 4 + 2 * unit + t / 2]);
    const uint4 entry = table[s];
    const uint32_t low = pick(entry, words[0] & 0xFFFFu), high = pick(entry, words[0] >> 16);
    b[0] = widen_pair(__byte_perm(low, 0, 0x1404));
    b[1] = widen_pair(__byte_perm(low, 0, 0x3424));
    b[2] = widen_pair(__byte_perm(high, 0, 0x1404));
    b[3] = widen_pair(__byte_perm(high, 0, 0x3424));
  }
  __device__ float value(const char* codes, int64_t row, int k) const {
    const auto byte = static_cast<uint8_t>(codes[k / 2]);
    const float rel = formats::f32_from_e4m3(scale.at(row, k / formats::kW4a8Group));
    const float* levels = reinterpret_cast<const float*>(table) + kEntries / 4;
    const float level = levels[formats::nibble_of(byte, k % 2 == 1, false)];
    const auto v = static_cast<float>(formats::w4a8_decode_int8(level, rel));
    return v * __ldg(channel + row * channel_step);
  }
#endif
};

}  // namespace pestle::cuda::many_rows
