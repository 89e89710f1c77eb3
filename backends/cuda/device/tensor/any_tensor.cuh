// Any tensor on the device: every dtype, stride and byte offset. For the kernels that take what the
// fast ones refuse. A thread asks for several elements at a time (load_each), since what it has
// under way, not what it computes, bounds such a kernel.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/tensor.h"
#include "formats/float_bits.h"
#include "formats/swizzle.h"

namespace pestle::cuda {

struct AnyTensor {
  char* data = nullptr;
  DType dtype = DType::kNone;
  int bytes = 1;  // of an element
  int rank = 0;
  bool is_aligned = true;  // every element lies at a multiple of its bytes
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];  // bytes

  AnyTensor() = default;
  explicit AnyTensor(const TensorView& t)
      : data(t.as<char>()), dtype(t.dtype), bytes(dtype_bytes(t.dtype)), rank(t.rank) {
    // An absent tensor has elements of 0 bytes.
    is_aligned =
        bytes == 0 || reinterpret_cast<uintptr_t>(data) % static_cast<unsigned>(bytes) == 0;
    for (int d = 0; d < rank; ++d) {
      shape[d] = t.shape[d];
      strides[d] = t.strides[d] * bytes;
    }
  }

  // Of the same elements in the same order, in the fewest dimensions: a dense tensor has one. For
  // element_at, which divides by all but the first.
  static AnyTensor merged(const TensorView& t) {
    AnyTensor all(t);
    all.rank = 0;
    for (int d = 0; d < t.rank; ++d) {
      if (t.shape[d] == 1) continue;
      const int64_t stride = t.strides[d] * all.bytes;
      const int last = all.rank - 1;
      if (last >= 0 && all.strides[last] == stride * t.shape[d]) {
        all.shape[last] *= t.shape[d];
        all.strides[last] = stride;
      } else {
        all.shape[all.rank] = t.shape[d];
        all.strides[all.rank++] = stride;
      }
    }
    return all;
  }

#ifdef __CUDACC__
  // v[i]: element first + i * distance in row-major order, for i < count.
  template <int kN>
  __device__ void load_elements(int64_t first, int64_t distance, int count, float (&v)[kN]) const {
    const char* p[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) p[i] = i < count ? element_at(first + i * distance) : data;
    load_all(p, count, v);
  }
  // Row `row` of the rows of the last dimension, in row-major order, and an element of it.
  __device__ char* row_at(int64_t row) const {
    if (rank < 2) return data;
    int64_t offset = 0;
    for (int d = rank - 2; d > 0; --d) {
      const int64_t rest = quotient(row, shape[d]);
      offset += (row - rest * shape[d]) * strides[d];
      row = rest;
    }
    return data + offset + row * strides[0];
  }
  // From an element of a row to the next one.
  __device__ int64_t step() const { return rank == 0 ? 0 : strides[rank - 1]; }
  __device__ char* at(int64_t row, int64_t column) const { return row_at(row) + column * step(); }
  // An element by its number in row-major order.
  __device__ char* element_at(int64_t index) const {
    if (rank <= 1) return data + (rank == 0 ? 0 : index * strides[0]);
    const int64_t row = quotient(index, shape[rank - 1]);
    return at(row, index - row * shape[rank - 1]);
  }
  // Of i32 and i64.
  __device__ int64_t load_integer(const char* p) const {
    const uint32_t low = bits(p, 4);
    if (dtype == DType::kI32) return static_cast<int32_t>(low);
    return static_cast<int64_t>(static_cast<uint64_t>(bits(p + 4, 4)) << 32 | low);
  }
  __device__ float load(const char* p) const {
    if (is_wide()) return value(is_aligned ? word(p, 4) : bits(p, 4));
    return value(is_aligned ? word(p, 2) : bits(p, 2));
  }
  // v[i]: the element at p[i] for i < count, and 0 for the others. All are on their way before the
  // first is needed.
  template <int kN>
  __device__ void load_all(const char* const (&p)[kN], int count, float (&v)[kN]) const {
    uint32_t w[kN];
    if (!is_aligned) {
      const int size = is_wide() ? 4 : 2;
#pragma unroll
      for (int i = 0; i < kN; ++i) w[i] = i < count ? bits(p[i], size) : 0u;
    } else if (is_wide()) {
#pragma unroll
      for (int i = 0; i < kN; ++i) w[i] = i < count ? word(p[i], 4) : 0u;
    } else {
#pragma unroll
      for (int i = 0; i < kN; ++i) w[i] = i < count ? word(p[i], 2) : 0u;
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if (is_wide())
        v[i] = __uint_as_float(w[i]);
      else if (dtype == DType::kBF16)
        v[i] = __uint_as_float(w[i] << 16);
      else
        v[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(w[i])));
    }
  }
  // The same of elements at `distance` bytes from one another.
  template <int kN>
  __device__ void load_each(const char* first, int64_t distance, int count, float (&v)[kN]) const {
    const char* p[kN];
#pragma unroll
    for (int i = 0; i < kN; ++i) p[i] = first + i * distance;
    load_all(p, count, v);
  }
  // One rounding to the dtype.
  __device__ void store(char* p, float v) const {
    uint32_t w;
    switch (dtype) {
      case DType::kBF16: w = formats::bf16_from_f32(v); break;
      case DType::kF16: w = formats::f16_from_f32(v); break;
      default: w = v != v ? formats::kF32Nan : __float_as_uint(v); break;
    }
    if (!is_aligned) {
      put(p, w, is_wide() ? 4 : 2);
    } else if (is_wide()) {
      *reinterpret_cast<uint32_t*>(p) = w;
    } else {
      *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(w);
    }
  }
  // A quotient of numbers that are not negative: divisions of 64 bits are long.
  __device__ static int64_t quotient(int64_t a, int64_t b) {
    if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    return a / b;
  }
  // Byte by byte: addresses need no alignment.
  __device__ static uint32_t bits(const char* p, int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      value |= static_cast<uint32_t>(static_cast<uint8_t>(p[i])) << (8 * i);
    }
    return value;
  }
  __device__ static void put(char* p, uint32_t value, int count) {
    for (int i = 0; i < count; ++i) p[i] = static_cast<char>(value >> (8 * i));
  }

 private:
  __device__ bool is_wide() const { return dtype != DType::kBF16 && dtype != DType::kF16; }
  __device__ static uint32_t word(const char* p, int count) {
    if (count == 4) return *reinterpret_cast<const uint32_t*>(p);
    return *reinterpret_cast<const uint16_t*>(p);
  }
  __device__ float value(uint32_t w) const {
    switch (dtype) {
      case DType::kBF16: return formats::f32_from_bf16(static_cast<uint16_t>(w));
      case DType::kF16: return formats::f32_from_f16(static_cast<uint16_t>(w));
      default: return __uint_as_float(w);
    }
  }
#endif
};

#ifdef __CUDACC__
// A row of a tensor, or of none.
struct AnyRow {
  const AnyTensor* tensor = nullptr;
  char* data = nullptr;
  int64_t step = 0;

  __device__ AnyRow(const AnyTensor& t, int64_t row) {
    if (t.data == nullptr) return;
    tensor = &t;
    data = t.row_at(row);
    step = t.step();
  }
  __device__ bool present() const { return tensor != nullptr; }
  // v[i]: element first + i * distance, for i < count.
  template <int kN>
  __device__ void load_each(int64_t first, int distance, int count, float (&v)[kN]) const {
    tensor->load_each(data + first * step, distance * step, count, v);
  }
  // Neighbours from `first` on, and 0 past the row's end, or where the tensor has no such row.
  template <int kN>
  __device__ void load_padded(int64_t row, int64_t first, float (&v)[kN]) const {
    const int64_t left = row < tensor->shape[0] ? tensor->shape[1] - first : 0;
    load_each(first, 1, static_cast<int>(min(left, int64_t{kN})), v);
  }
  __device__ void store(int64_t j, float v) const { tensor->store(data + j * step, v); }
};
#endif

}  // namespace pestle::cuda
