// Quantised output of row ops on CUDA for any strides, offsets and rotations: a block a row, whose
// values, already rounded to x's dtype and rotated, come in pieces of shared memory.
#pragma once

#include "backends/cuda/device/tensor/block_scales.cuh"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "ops/quant/output/quantized_output.h"
#include "ops/quant/rowwise/quantize_rows.cuh"

namespace pestle::ops {

struct AnyQuantized {
  cuda::AnyTensor q, q_scale, scale_out;
  const char* global_scale = nullptr;
  int64_t rows = 0, columns = 0;
  bool high_first = false, swizzled = false;
  OutFormat format = OutFormat::kNone;
  int hadamard = 0;

  AnyQuantized() = default;
  AnyQuantized(const QuantizedOutput& o, int64_t row_count, int64_t row_length)
      : q(o.q),
        q_scale(o.q_scale),
        scale_out(o.scale_out),
        global_scale(o.global_scale.as<const char>()),
        rows(row_count),
        columns(row_length),
        high_first(o.high_first),
        swizzled(o.swizzled),
        format(o.format),
        hadamard(o.hadamard) {}

#ifdef __CUDACC__
  __device__ int block() const {
    return format == OutFormat::kNvfp4 ? 16 : format == OutFormat::kMxfp8 ? 32 : 0;
  }
#endif
};

#ifdef __CUDACC__
namespace row_quantizer {

using namespace pestle::cuda;

template <class Code>
__device__ void any_bytes(const AnyQuantized& p, int64_t row, int64_t first, int count,
                          const float* v, float scale) {
  char* q = p.q.row_at(row);
  const int64_t step = p.q.strides[p.q.rank - 1];
  q += first * step;
  for (int i = threadIdx.x; i < count; i += kAnyThreads) {
    q[i * step] = static_cast<char>(Code::code(__fdiv_rn(v[i], scale)));
  }
}

__device__ inline void any_blocks(const AnyQuantized& p, int64_t row, int64_t first, int count,
                                  const float* v) {
  const int block = p.block();
  const AnyScales scales{p.scale_out, p.columns / block, p.swizzled};
  char* to = p.q.row_at(row);
  const int64_t step = p.q.strides[p.q.rank - 1];
  for (int b = threadIdx.x; b < count / block; b += kAnyThreads) {
    uint8_t codes[32];
    const int64_t column = first + b * block;
    char* scale = scales.at(row, column / block);
    if (p.format == OutFormat::kNvfp4) {
      const float g = __uint_as_float(AnyTensor::bits(p.global_scale, 4));
      *scale = static_cast<char>(formats::nvfp4_quantize_block(v + b * 16, g, codes));
      for (int i = 0; i < 16; i += 2) {
        to[(column + i) / 2 * step] =
            static_cast<char>(formats::pack_nibbles(codes[i], codes[i + 1], p.high_first));
      }
    } else {
      *scale = static_cast<char>(formats::mx_quantize_block<formats::E4m3>(v + b * 32, codes));
      for (int i = 0; i < 32; ++i) to[(column + i) * step] = static_cast<char>(codes[i]);
    }
  }
}

// Codes of elements [first, first + count) of a row, by all threads of the block.
__device__ inline void put_any_codes(const AnyQuantized& p, int64_t row, int64_t first, int count,
                                     const float* v, float scale) {
  switch (p.format) {
    case OutFormat::kNone: return;
    case OutFormat::kNvfp4:
    case OutFormat::kMxfp8: return any_blocks(p, row, first, count, v);
    case OutFormat::kInt8Row: return any_bytes<Int8Code>(p, row, first, count, v, scale);
    default: return any_bytes<Fp8Code<formats::E4m3>>(p, row, first, count, v, scale);
  }
}

// Swizzled scales: the row's own padding, and rows past the last.
__device__ inline void clear_any_padding(const AnyQuantized& p, int64_t row) {
  if (p.block() == 0 || !p.swizzled) return;
  const AnyTensor& t = p.scale_out;
  const int64_t blocks = p.columns / p.block();
  const AnyScales scales{t, blocks, true};
  for (int64_t b = blocks + threadIdx.x; b < t.shape[1]; b += kAnyThreads) *scales.at(row, b) = 0;
  for (int64_t r = p.rows + row; r < t.shape[0]; r += p.rows) {
    for (int64_t b = threadIdx.x; b < t.shape[1]; b += kAnyThreads) *scales.at(r, b) = 0;
  }
}

// The scale of a row: the given one, or that of the largest, which is stored. piece(first) fills v
// and says how many elements it has.
template <class Piece>
__device__ float any_row_scale(const AnyQuantized& p, int64_t row, const float* v, Piece&& piece) {
  if (p.format == OutFormat::kNone || p.block() != 0) return 0;
  if (p.q_scale.data != nullptr) {
    const bool one = p.format == OutFormat::kFp8Tensor;
    return __uint_as_float(AnyTensor::bits(one ? p.q_scale.data : p.q_scale.at(row, 0), 4));
  }
  uint32_t amax = 0;
  for (int64_t first = 0; first < p.columns; first += kAnyColumns) {
    const int count = piece(first);
    for (int i = threadIdx.x; i < count; i += kAnyThreads) {
      amax = max(amax, formats::abs_bits(v[i]));
    }
  }
  amax = block_max(amax);
  const float scale =
      p.format == OutFormat::kFp8Row ? Fp8Code<formats::E4m3>::scale(amax) : Int8Code::scale(amax);
  if (threadIdx.x == 0) AnyTensor::put(p.scale_out.at(row, 0), __float_as_uint(scale), 4);
  return scale;
}

}  // namespace row_quantizer
#endif

}  // namespace pestle::ops
