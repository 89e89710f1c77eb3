// quantize_int8, reference: the rule of docs/formats/int8.md as plain loops.
#include <vector>

#include "core/op.h"
#include "formats/hadamard.h"
#include "formats/int8.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "ops/quant/rowwise/int8_scale_grid.h"
#include "ops/quant/rowwise/quantize_int8/quantize_int8_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::quantize_int8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kQT = arg_index(spec, "q_t");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

// Row i as floats, rotated if the call asks for it.
void load_row(const Call& call, int64_t i, std::vector<float>& row) {
  const TensorView& x = call.tensor(kX);
  const char* from = row_address(x, i);
  for (size_t j = 0; j < row.size(); ++j) {
    row[j] = load_f32(from + static_cast<int64_t>(j) * last_stride_bytes(x), x.dtype);
  }
  const int64_t n = call.integer(kHadamard);
  for (int64_t j = 0; n > 0 && j < row_length(x); j += n) {
    formats::hadamard_rotate(row.data() + j, n);
  }
}

void compute_scales(const Call& call, const Int8ScaleGrid& grid, std::vector<float>& row) {
  const TensorView& x = call.tensor(kX);
  const TensorView& scale = call.tensor(kScaleOut);
  std::vector<uint32_t> amax(static_cast<size_t>(grid.count()), 0);
  for (int64_t i = 0; i < row_count(x); ++i) {
    load_row(call, i, row);
    for (int64_t j = 0; j < row_length(x); ++j) {
      const uint32_t bits = formats::abs_bits(row[static_cast<size_t>(j)]);
      uint32_t& largest = amax[static_cast<size_t>(grid.index(i, j))];
      largest = bits > largest ? bits : largest;
    }
  }
  for (int64_t s = 0; s < grid.count(); ++s) {
    store(int8_scale_at(scale, grid, s), formats::int8_scale(amax[static_cast<size_t>(s)]));
  }
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const Int8ScaleGrid grid(static_cast<Int8Granularity>(call.integer(kGranularity)), row_count(x),
                           row_length(x), call.integer(kGroupSize));
  std::vector<float> row(static_cast<size_t>(row_length(x)));
  if (!call.has(kScale)) compute_scales(call, grid, row);
  const TensorView& scale = call.tensor(call.has(kScale) ? kScale : kScaleOut);
  const bool stochastic = call.integer(kRounding) == 1;
  const auto seed = static_cast<uint64_t>(call.integer(kSeed));
  for (int64_t i = 0; i < row_count(x); ++i) {
    load_row(call, i, row);
    char* codes = row_address(q, i);
    for (int64_t j = 0; j < row_length(x); ++j) {
      const float value = row[static_cast<size_t>(j)];
      const auto s = load<float>(int8_scale_at(scale, grid, grid.index(i, j)));
      const auto element = static_cast<uint64_t>(i * row_length(x) + j);
      const auto code = static_cast<int8_t>(
          stochastic
              ? formats::int_stochastic(value / s, formats::philox_u16(seed, element), -128, 127)
              : formats::int8_quantize(value, s));
      store(codes + j * last_stride_bytes(q), code);
      if (call.has(kQT)) {
        const TensorView& q_t = call.tensor(kQT);
        store(q_t.as<char>() + j * q_t.strides[0] + i * q_t.strides[1], code);
      }
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_int8
