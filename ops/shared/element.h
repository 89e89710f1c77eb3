// Reading and writing single elements and rows of any dtype, stride and alignment, as the reference
// implementations do. Fast paths have loops of their own.
#pragma once

#include <cstring>

#include "core/tensor.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/float_bits.h"

namespace pestle::ops {

template <class T>
inline T load(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}
template <class T>
inline void store(void* address, T value) {
  std::memcpy(address, &value, sizeof(T));
}

// Floating dtypes of activations and weights; f64 is rounded to f32.
inline float load_f32(const void* address, DType dtype) {
  switch (dtype) {
    case DType::kF32: return load<float>(address);
    case DType::kBF16: return formats::f32_from_bf16(load<uint16_t>(address));
    case DType::kF16: return formats::f32_from_f16(load<uint16_t>(address));
    default: return static_cast<float>(load<double>(address));
  }
}
inline double load_f64(const void* address, DType dtype) {
  return dtype == DType::kF64 ? load<double>(address) : double{load_f32(address, dtype)};
}

// One rounding to the output's dtype.
inline void store_f32(void* address, DType dtype, float value) {
  switch (dtype) {
    case DType::kF32: store(address, value); break;
    case DType::kBF16: store(address, formats::bf16_from_f32(value)); break;
    case DType::kF16: store(address, formats::f16_from_f32(value)); break;
    default: store(address, double{value}); break;
  }
}
// For references that compute in float64. Narrow outputs are rounded through f32, which is within
// the one ulp that every bound allows.
inline void store_f64(void* address, DType dtype, double value) {
  if (dtype == DType::kF64)
    store(address, value);
  else
    store_f32(address, dtype, static_cast<float>(value));
}

// Scales come as f32; absent ones (null) read as 1.
inline float load_scale(const TensorView& scale, int64_t element = 0) {
  return scale.data ? load<float>(scale.as<char>() + element * 4) : 1.0f;
}

// Address of an element by its index in each dimension.
inline char* at(const TensorView& t, int64_t i) {
  return t.as<char>() + i * t.strides[0] * dtype_bytes(t.dtype);
}
inline char* at(const TensorView& t, int64_t i, int64_t j) {
  return t.as<char>() + (i * t.strides[0] + j * t.strides[1]) * dtype_bytes(t.dtype);
}

// A tensor of any rank as rows of its last dimension. `row` counts in row-major order.
inline int64_t row_count(const TensorView& t) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < t.rank; ++d) rows *= t.shape[d];
  return rows;
}
inline int64_t row_length(const TensorView& t) { return t.rank == 0 ? 1 : t.shape[t.rank - 1]; }
inline char* row_address(const TensorView& t, int64_t row) {
  int64_t offset = 0;
  for (int d = t.rank - 2; d >= 0; --d) {
    offset += row % t.shape[d] * t.strides[d];
    row /= t.shape[d];
  }
  return t.as<char>() + offset * dtype_bytes(t.dtype);
}
inline int64_t last_stride_bytes(const TensorView& t) {
  return t.rank == 0 ? 0 : t.strides[t.rank - 1] * dtype_bytes(t.dtype);
}

// Calls body(code_format) with the scalar format of an fp8 dtype.
template <class Body>
inline auto with_fp8(DType dtype, Body&& body) {
  return dtype == DType::kE4M3 ? body(formats::E4m3{}) : body(formats::E5m2{});
}

}  // namespace pestle::ops
