// Block scales on the device: one byte a block, plain rows or the 128 x 4 tiles of
// formats/swizzle.h.
#pragma once

#include <cstdint>

#include "backends/cuda/device/tensor/any_tensor.cuh"
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
  // From a scale to the one below it, within 32 rows that begin at a multiple of 32.
  __device__ int64_t row_step() const { return swizzled ? 16 : row_bytes; }
  // Stores the codes of kRows rows from `to` on: `rows` of them have an entry in this column, and
  // codes[r] is row r's. kLanes neighbouring threads share a column and all hold its codes; columns
  // are neighbours across threads, the first of a warp a multiple of 4. Called by whole warps.
  template <int kLanes, int kRows>
  __device__ void store(uint8_t* to, int rows, const uint8_t (&codes)[kRows]) const {
    static_assert(kLanes == 1 || kLanes == kRows || (kLanes == 2 && kRows == 4));
    const int lane = threadIdx.x % (4 * kLanes);
    if (!wide) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < rows && lane % kLanes == r % kLanes) to[r * row_step()] = codes[r];
      }
      return;
    }
    if constexpr (kLanes <= 2 && kRows == 4) {
      // Four columns' words of four rows to four rows' words of four columns, one a lane.
      const unsigned column = threadIdx.x / kLanes % 4;
      uint32_t word = static_cast<uint32_t>(codes[0]) | static_cast<uint32_t>(codes[1]) << 8 |
                      static_cast<uint32_t>(codes[2]) << 16 | static_cast<uint32_t>(codes[3]) << 24;
      const uint32_t beside = __shfl_xor_sync(0xFFFFFFFFu, word, kLanes);
      word = __byte_perm(word, beside, column % 2 == 0 ? 0x6240 : 0x3715);
      const uint32_t across = __shfl_xor_sync(0xFFFFFFFFu, word, 2 * kLanes);
      word = __byte_perm(word, across, column < 2 ? 0x5410 : 0x3276);
      if (static_cast<int>(column) < rows && threadIdx.x % kLanes == 0) {
        *reinterpret_cast<uint32_t*>(to + column * row_step() - column) = word;
      }
    } else if constexpr (kLanes == 1) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) store_four<1>(to + r * row_step(), r < rows, codes[r]);
    } else {
      const int mine = lane % kLanes;
      uint8_t code = codes[0];
#pragma unroll
      for (int r = 1; r < kRows; ++r) code = mine == r ? codes[r] : code;
      store_four<kLanes>(to + mine * row_step(), mine < rows, code);
    }
  }

 private:
  // One word of four columns' codes, by the first of them.
  template <int kLanes>
  __device__ static void store_four(uint8_t* to, bool inside, uint8_t code) {
    const unsigned column = threadIdx.x / kLanes % 4;
    uint32_t word = static_cast<uint32_t>(inside ? code : 0) << (8 * column);
    word |= __shfl_xor_sync(0xFFFFFFFFu, word, kLanes);
    word |= __shfl_xor_sync(0xFFFFFFFFu, word, 2 * kLanes);
    if (inside && column == 0) *reinterpret_cast<uint32_t*>(to) = word;
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
