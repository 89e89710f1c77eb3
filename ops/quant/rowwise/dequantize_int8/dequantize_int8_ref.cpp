// dequantize_int8, reference.
#include <vector>

#include "core/op.h"
#include "formats/hadamard.h"
#include "formats/int8.h"
#include "ops/quant/rowwise/dequantize_int8/dequantize_int8_spec.h"
#include "ops/quant/rowwise/int8_scale_grid.h"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_int8 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const TensorView& scale = call.tensor(kScale);
  const int64_t n = call.integer(kHadamard);
  const Int8ScaleGrid grid(static_cast<Int8Granularity>(call.integer(kGranularity)), row_count(q),
                           row_length(q), call.integer(kGroupSize));
  std::vector<float> row(static_cast<size_t>(row_length(q)));
  for (int64_t i = 0; i < row_count(q); ++i) {
    const char* codes = row_address(q, i);
    for (int64_t j = 0; j < row_length(q); ++j) {
      row[static_cast<size_t>(j)] =
          formats::int8_dequantize(load<int8_t>(codes + j * last_stride_bytes(q)),
                                   load<float>(int8_scale_at(scale, grid, grid.index(i, j))));
    }
    for (int64_t j = 0; n > 0 && j < row_length(q); j += n) {
      formats::hadamard_rotate(row.data() + j, n);
    }
    char* values = row_address(out, i);
    for (int64_t j = 0; j < row_length(q); ++j) {
      store_f32(values + j * last_stride_bytes(out), out.dtype, row[static_cast<size_t>(j)]);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_int8
