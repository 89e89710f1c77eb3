// Weights of linear layers as right operands of gemm_fallback_decoded.cuh: values in f32 as the
// format's dequantising op gives them.
#pragma once

#include "formats/fp8.h"
#include "formats/int4.h"
#include "ops/gemm/fallback/gemm_fallback_decoded.cuh"

namespace pestle::ops {

// F32 scales of a grid over the weight: of so many rows and of so many columns; 0: of all.
struct AnyGrid {
  AnyTensor t;
  int64_t rows = 0, columns = 0;
#ifdef __CUDACC__
  __device__ float at(int64_t row, int64_t k) const {
    return t.load(t.at(rows == 0 ? 0 : row / rows, columns == 0 ? 0 : k / columns));
  }
#endif
};

// Codes of FP8 or INT8.
struct AnyByteRows {
  AnyTensor codes;
  AnyGrid scale;
#ifdef __CUDACC__
  __device__ float start() const { return 1; }
  __device__ float value(int64_t row, int64_t k, float) const {
    const auto byte = static_cast<uint8_t>(*codes.at(row, k));
    const float s = scale.at(row, k);
    switch (codes.dtype) {
      case DType::kI8: return static_cast<float>(static_cast<int8_t>(byte)) * s;
      case DType::kE5M2: return formats::fp8_dequantize<formats::E5m2>(byte, s);
      default: return formats::fp8_dequantize<formats::E4m3>(byte, s);
    }
  }
#endif
};

struct AnyMxfp4Rows {
  AnyBlocks blocks;
  bool high_first = false;
#ifdef __CUDACC__
  __device__ float start() const { return 1; }
  __device__ float value(int64_t row, int64_t k, float) const {
    const uint8_t e = blocks.scale_at(row, k / formats::kMxBlock);
    const uint8_t code = formats::nibble_of(blocks.byte_at(row, k / 2), k % 2 == 1, high_first);
    return formats::mx_dequantize<formats::E2m1>(code, e);
  }
#endif
};

struct AnyInt4Rows {
  AnyTensor codes;
  AnyGrid scale;
  AnyTensor zero;  // data null: symmetric
#ifdef __CUDACC__
  __device__ float start() const { return 1; }
  __device__ float value(int64_t row, int64_t k, float) const {
    const auto byte = static_cast<uint8_t>(*codes.at(row, k / 2));
    const uint8_t code = formats::nibble_of(byte, k % 2 == 1, false);
    const float s = scale.at(row, k);
    if (zero.data == nullptr) return formats::int4_dequantize(formats::int4_from_nibble(code), s);
    const auto z = static_cast<uint8_t>(*zero.at(row, k / scale.columns));
    return formats::int4_asym_dequantize(code, {s, z});
  }
#endif
};

}  // namespace pestle::ops
