// What gemv_nvfp4's kernels that read whole words are given, and how a result is stored.
#pragma once

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"

namespace pestle::ops::gemv_nvfp4 {

inline constexpr int kBlock = formats::kNvfp4Block;

// Scales of all batches; a byte a block.
struct Scales {
  const uint8_t* data;
  int64_t batch_bytes;
  int64_t row_bytes;  // plain
  int64_t columns;
  bool swizzled;

  Scales(const TensorView& t, int64_t scale_columns, bool is_swizzled)
      : data(t.as<uint8_t>()),
        batch_bytes(t.strides[0]),
        row_bytes(t.strides[1]),
        columns(scale_columns),
        swizzled(is_swizzled) {}

  // Where the scales of a row's blocks begin; block + 1 lies behind an even block.
  __device__ const uint8_t* at(int64_t batch, int64_t row, int64_t block) const {
    const int64_t offset =
        swizzled ? formats::swizzle_offset(row, block, columns) : row * row_bytes + block;
    return data + batch * batch_bytes + offset;
  }
};

struct Job {
  const char* a;
  int64_t a_batch, a_row;  // bytes
  const char* b;
  int64_t b_batch;
  Scales scale_a, scale_b;
  const char* alpha;  // of any alignment; null: 1
  cuda::AnyTensor out;
  int64_t rows, k;
  int64_t row_groups = 0;  // CTAs of a batch
  int64_t quads = 0;       // of rows, of a CTA
};

__device__ inline void store_result(const cuda::AnyTensor& out, const char* alpha, int64_t batch,
                                    int64_t row, float sum) {
  const float by = alpha == nullptr ? 1 : __uint_as_float(cuda::AnyTensor::bits(alpha, 4));
  out.store(out.data + batch * out.strides[0] + row * out.strides[1], sum * by);
}

}  // namespace pestle::ops::gemv_nvfp4
