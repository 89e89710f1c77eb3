// Where many_rows.cuh has its left operand from. Each is a value that the kernel takes, with
//   kDecoded     rows in the ring are not what is multiplied: every stage is decoded to bf16 first
//   kParts       matrices of 16 bits that a decoded stage has, which are added
//   kRowBytes    of a row and 64 of k in the ring; kScaleBytes: of its scales
//   place        of 16 bytes of a row in the ring; bytes: of so many columns
//   start()      true: every tile is odd
//   value        one element in f32
//   factor()     of all sums, at the end
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace pestle::cuda::many_rows {

constexpr int kThreads = 256;
constexpr int kStepK = 64;  // of k, a stage
constexpr int kXRow = kStepK * 2;

#ifdef __CUDACC__
// Where 16 bytes of a row lie, so that neither copies nor fragments meet in a bank.
__device__ inline int x_place(int row, int chunk) {
  return row * kXRow + (chunk ^ (row % 2 * 4)) * 16;
}
template <int kBits>
__device__ inline int code_place(int row, int chunk) {
  if constexpr (kBits == 4)
    return row * 32 + (chunk ^ (row / 4 % 2)) * 16;
  else
    return row * 64 + (chunk ^ (row / 2 % 2 * 2)) * 16;
}
#endif

// Bf16 or f16, multiplied as they are.
struct PlainRows {
  static constexpr bool kDecoded = false;
  static constexpr int kParts = 1;
  static constexpr int kRowBytes = kXRow;
  static constexpr int kScaleBytes = 0;
  struct Fetched {};

#ifdef __CUDACC__
  __device__ static int place(int row, int chunk) { return x_place(row, chunk); }
  __device__ static int bytes(int k) { return k * 2; }
  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  template <bool kBf16>
  __device__ float value(const char* x, int64_t, int k) const {
    const unsigned short v = reinterpret_cast<const unsigned short*>(x)[k];
    return kBf16 ? __uint_as_float(uint32_t{v} << 16) : __half2float(__ushort_as_half(v));
  }
#endif
};

// Codes of a format of formats.cuh that bf16 holds times their scales.
template <class Format>
struct DecodedRows {
  static constexpr bool kDecoded = true;
  static constexpr int kParts = 1;
  static constexpr int kBits = Format::kBits;
  static constexpr int kRowBytes = kStepK * kBits / 8;
  static constexpr int kScaleBytes = Format::kScaleBytes;
  static_assert(!Format::kGroupSums);
  using Fetched = typename Format::Fetched;

  Format format;

#ifdef __CUDACC__
  __device__ static int place(int row, int chunk) { return code_place<kBits>(row, chunk); }
  __device__ static int bytes(int k) { return k * kBits / 8; }
  __device__ bool start() { return format.start(); }
  __device__ float factor() const { return format.factor(); }
  template <bool kBf16>
  __device__ float value(const char* x, int64_t row, int k) const {
    return format.value(x, row, k);
  }
  __device__ Fetched fetch(int64_t row, int step) const {
    return format.fetch(format.row_at(row), step);
  }
  template <int kRows>
  __device__ bool put(const Fetched& f, int row, int step, char* scales) const {
    return format.template put<true, kRows>(f, row, step, threadIdx.x, scales);
  }
  // kRows rows of a stage: 8 codes of one a thread and time.
  template <int kRows>
  __device__ void decode(const char* codes, const char* scales, char* to, bool& odd) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * 8; i += kThreads) {
      const int row = i / 8, chunk = i % 8, unit = chunk / 4, t = chunk % 4;
      uint32_t words[kBits / 4];
      if constexpr (kBits == 4) {
        words[0] = *reinterpret_cast<const uint32_t*>(codes + code_place<4>(row, unit) + t * 4);
      } else {
        const char* at = codes + code_place<8>(row, 2 * unit + t / 2) + t % 2 * 8;
        const uint2 two = *reinterpret_cast<const uint2*>(at);
        words[0] = two.x, words[1] = two.y;
      }
      uint32_t b[4];
      format.template decode<true, kRows>(words, scales, row, unit, t, odd, b);
      *reinterpret_cast<uint4*>(to + x_place(row, chunk)) = make_uint4(b[0], b[1], b[2], b[3]);
    }
  }
#endif
};

// F32 as three parts of bf16 whose sum it is, exactly: each takes the upper 8 bits of what the
// parts before it left. Elements whose last part bf16 may not hold, and those that are no numbers,
// make their tile odd.
struct SplitRows {
  static constexpr bool kDecoded = true;
  static constexpr int kParts = 3;
  static constexpr int kRowBytes = kStepK * 4;
  static constexpr int kScaleBytes = 0;
  struct Fetched {};

#ifdef __CUDACC__
  // Lanes read two neighbouring chunks each: the eight of a row meet in no bank.
  __device__ static int place(int row, int chunk) {
    return row * kRowBytes + (chunk ^ (chunk / 8)) * 16;
  }
  __device__ static int bytes(int k) { return k * 4; }
  __device__ bool start() { return false; }
  __device__ float factor() const { return 1.0f; }
  template <bool kBf16>
  __device__ float value(const char* x, int64_t, int k) const {
    return reinterpret_cast<const float*>(x)[k];
  }
  __device__ static bool is_odd(float v) {
    const float size = fabsf(v);
    return size != 0 && !(size >= 0x1p-100f && size <= 0x1.fffffep127f);
  }
  // The upper halves of two, of which what is below remains.
  __device__ static uint32_t take_part(float& a, float& b) {
    const uint32_t x = __float_as_uint(a), y = __float_as_uint(b);
    a -= __uint_as_float(x & 0xFFFF0000u);
    b -= __uint_as_float(y & 0xFFFF0000u);
    return __byte_perm(x, y, 0x7632);
  }
  template <int kRows>
  __device__ void decode(const char* x, const char*, char* to, bool& odd) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < kRows * 8; i += kThreads) {
      const int row = i / 8, chunk = i % 8;
      float v[8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 four = *reinterpret_cast<const float4*>(x + place(row, 2 * chunk + h));
        v[4 * h] = four.x, v[4 * h + 1] = four.y, v[4 * h + 2] = four.z, v[4 * h + 3] = four.w;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) odd |= is_odd(v[j]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t b[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) b[j] = take_part(v[2 * j], v[2 * j + 1]);
        *reinterpret_cast<uint4*>(to + part * kRows * kXRow + x_place(row, chunk)) =
            make_uint4(b[0], b[1], b[2], b[3]);
      }
    }
  }
#endif
};

}  // namespace pestle::cuda::many_rows
