// Block scales on the device: one byte a block, plain rows or the 128 x 4 tiles of
// formats/swizzle.h.
#pragma once

#include <cstdint>

#include "backends/cuda/device/any_tensor.cuh"
#include "formats/swizzle.h"

namespace pestle::cuda {

// Row-major without gaps if swizzled, else rows of any distance.
struct ScaleBytes {
  uint8_t* data = nullptr;
  int64_t columns = 0;    // of the matrix's scales
  int64_t row_bytes = 0;  // plain
  bool swizzled = false;
  bool wide = false;        // four neighbours may be stored at once
  int64_t padded_rows = 0;  // entries that exist, padding included
  int64_t padded_columns = 0;

  // From a tensor whose strides cuda_blocks.h has found fit.
  ScaleBytes(const TensorView& t, int64_t scale_columns, bool is_swizzled)
      : data(t.as<uint8_t>()),
        columns(scale_columns),
        row_bytes(t.strides[0]),
        swizzled(is_swizzled),
        padded_rows(t.shape[0]),
        padded_columns(t.shape[1]) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    wide = address % 4 == 0 && (swizzled || (row_bytes % 4 == 0 && padded_columns % 4 == 0));
  }

#ifdef __CUDACC__
  __device__ uint8_t* at(int64_t row, int64_t column) const {
    return data +
           (swizzled ? formats::swizzle_offset(row, column, columns) : row * row_bytes + column);
  }
  // Stores the codes of four lanes' neighbouring blocks; lane % 4 == column % 4. Called by whole
  // warps; lanes without an entry say so.
  __device__ void store(int64_t row, int64_t column, uint8_t code) const {
    const bool inside = row < padded_rows && column < padded_columns;
    if (!wide) {
      if (inside) *at(row, column) = code;
      return;
    }
    uint32_t word = static_cast<uint32_t>(inside ? code : 0) << (8 * (threadIdx.x & 3));
    word |= __shfl_xor_sync(0xFFFFFFFFu, word, 1);
    word |= __shfl_xor_sync(0xFFFFFFFFu, word, 2);
    if (inside && (threadIdx.x & 3) == 0) *reinterpret_cast<uint32_t*>(at(row, column)) = word;
  }
  // The same when four lanes share a block: the codes of 16 lanes' four blocks.
  __device__ void store_quads(int64_t row, int64_t column, uint8_t code) const {
    const bool inside = row < padded_rows && column < padded_columns;
    if (!wide) {
      if (inside && (threadIdx.x & 3) == 0) *at(row, column) = code;
      return;
    }
    const int place = threadIdx.x >> 2 & 3;
    uint32_t word = static_cast<uint32_t>(inside ? code : 0) << (8 * place);
    word |= __shfl_xor_sync(0xFFFFFFFFu, word, 4);
    word |= __shfl_xor_sync(0xFFFFFFFFu, word, 8);
    if (inside && (threadIdx.x & 15) == 0) *reinterpret_cast<uint32_t*>(at(row, column)) = word;
  }
#endif
};

// The same in a tensor of any strides.
struct AnyScales {
  AnyTensor tensor;
  int64_t columns = 0;
  bool swizzled = false;

#ifdef __CUDACC__
  __device__ char* at(int64_t row, int64_t column) const {
    if (!swizzled) return tensor.at(row, column);
    const int64_t offset = formats::swizzle_offset(row, column, columns);
    return tensor.at(offset / tensor.shape[1], offset % tensor.shape[1]);
  }
#endif
};

}  // namespace pestle::cuda
