#include "ops/quant/output/quantized_output.h"

#include "formats/fp8.h"
#include "formats/hadamard.h"
#include "formats/int8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

namespace pestle::ops {
namespace {

void rotate(const QuantizedOutput& o, float* values, int64_t count) {
  if (o.hadamard == 0) return;
  for (int64_t base = 0; base < count; base += o.hadamard) {
    formats::hadamard_rotate(values + base, o.hadamard);
  }
}

char* code_at(const QuantizedOutput& o, int64_t row, int64_t column) {
  return row_address(o.q, row) + column * last_stride_bytes(o.q);
}

void put_nvfp4(const QuantizedOutput& o, int64_t row, int64_t column, const float* values,
               int64_t count) {
  constexpr int64_t kBlock = formats::kNvfp4Block;
  const BlockScales scales{o.scale_out, o.q.shape[o.q.rank - 1] * 2 / kBlock, o.swizzled};
  const float g = load<float>(o.global_scale.data);
  uint8_t codes[kBlock];
  for (int64_t j = 0; j < count; j += kBlock) {
    scales.store_code(row, (column + j) / kBlock,
                      formats::nvfp4_quantize_block(values + j, g, codes));
    for (int64_t i = 0; i < kBlock; i += 2) {
      store(code_at(o, row, (column + j + i) / 2),
            formats::pack_nibbles(codes[i], codes[i + 1], o.high_first));
    }
  }
}

void put_mxfp8(const QuantizedOutput& o, int64_t row, int64_t column, const float* values,
               int64_t count) {
  constexpr int64_t kBlock = formats::kMxBlock;
  const BlockScales scales{o.scale_out, o.q.shape[o.q.rank - 1] / kBlock, o.swizzled};
  uint8_t codes[kBlock];
  for (int64_t j = 0; j < count; j += kBlock) {
    scales.store_code(row, (column + j) / kBlock,
                      formats::mx_quantize_block<formats::E4m3>(values + j, codes));
    for (int64_t i = 0; i < kBlock; ++i) store(code_at(o, row, column + j + i), codes[i]);
  }
}

}  // namespace

void clear_scale_padding(const QuantizedOutput& o) {
  if (!o.block_scales()) return;
  BlockScales{o.scale_out, 0, o.swizzled}.clear();
}

uint32_t quantized_amax(const QuantizedOutput& o, float* values, int64_t count) {
  rotate(o, values, count);
  return formats::amax_bits(values, count);
}

float quantized_row_scale(const QuantizedOutput& o, int64_t row, uint32_t amax) {
  if (!o.row_scale()) return o.format == OutFormat::kFp8Tensor ? load<float>(o.q_scale.data) : 0;
  if (o.q_scale.data != nullptr) return load<float>(row_address(o.q_scale, row));
  const float scale = o.format == OutFormat::kFp8Row ? formats::fp8_scale<formats::E4m3>(amax)
                                                     : formats::int8_scale(amax);
  store(row_address(o.scale_out, row), scale);
  return scale;
}

void quantize_piece(const QuantizedOutput& o, int64_t row, int64_t column, float* values,
                    int64_t count, float row_scale, bool rotated) {
  if (o.format == OutFormat::kNvfp4) return put_nvfp4(o, row, column, values, count);
  if (o.format == OutFormat::kMxfp8) return put_mxfp8(o, row, column, values, count);
  if (!rotated) rotate(o, values, count);
  const int64_t step = last_stride_bytes(o.q);
  char* to = code_at(o, row, column);
  if (o.format == OutFormat::kInt8Row) {
    for (int64_t j = 0; j < count; ++j) {
      store(to + j * step, formats::int8_quantize(values[j], row_scale));
    }
    return;
  }
  for (int64_t j = 0; j < count; ++j) {
    store(to + j * step, formats::fp8_quantize<formats::E4m3>(values[j], row_scale));
  }
}

}  // namespace pestle::ops
