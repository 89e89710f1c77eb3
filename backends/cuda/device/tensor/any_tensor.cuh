// Any tensor on the device: every dtype, stride and byte offset, one element at a time. For the
// kernels that take what the fast ones refuse.
#pragma once

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
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];  // bytes

  AnyTensor() = default;
  explicit AnyTensor(const TensorView& t)
      : data(t.as<char>()), dtype(t.dtype), bytes(dtype_bytes(t.dtype)), rank(t.rank) {
    for (int d = 0; d < rank; ++d) {
      shape[d] = t.shape[d];
      strides[d] = t.strides[d] * bytes;
    }
  }

#ifdef __CUDACC__
  // Row `row` of the rows of the last dimension, in row-major order, and an element of it.
  __device__ char* row_at(int64_t row) const {
    int64_t offset = 0;
    for (int d = rank - 2; d >= 0; --d) {
      offset += row % shape[d] * strides[d];
      row /= shape[d];
    }
    return data + offset;
  }
  __device__ char* at(int64_t row, int64_t column) const {
    return row_at(row) + (rank == 0 ? 0 : column * strides[rank - 1]);
  }
  // An element by its number in row-major order.
  __device__ char* element_at(int64_t index) const {
    if (rank <= 1) return data + (rank == 0 ? 0 : index * strides[0]);
    return at(index / shape[rank - 1], index % shape[rank - 1]);
  }
  // Of i32 and i64.
  __device__ int64_t load_integer(const char* p) const {
    const uint32_t low = bits(p, 4);
    if (dtype == DType::kI32) return static_cast<int32_t>(low);
    return static_cast<int64_t>(static_cast<uint64_t>(bits(p + 4, 4)) << 32 | low);
  }
  __device__ float load(const char* p) const {
    switch (dtype) {
      case DType::kBF16: return formats::f32_from_bf16(static_cast<uint16_t>(bits(p, 2)));
      case DType::kF16: return formats::f32_from_f16(static_cast<uint16_t>(bits(p, 2)));
      default: return __uint_as_float(bits(p, 4));
    }
  }
  // One rounding to the dtype.
  __device__ void store(char* p, float v) const {
    switch (dtype) {
      case DType::kBF16: put(p, formats::bf16_from_f32(v), 2); break;
      case DType::kF16: put(p, formats::f16_from_f32(v), 2); break;
      default: put(p, v != v ? formats::kF32Nan : __float_as_uint(v), 4); break;
    }
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
#endif
};

}  // namespace pestle::cuda
