// quantize_fp8, reference: the rule of docs/formats/fp8.md as plain loops.
#include <vector>

#include "core/op.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"
#include "ops/quant/rowwise/quantize_fp8/quantize_fp8_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::quantize_fp8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kQT = arg_index(spec, "q_t");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

template <class F>
void compute_scales(const TensorView& x, const TensorView& scale, const Fp8ScaleGrid& grid) {
  std::vector<uint32_t> amax(static_cast<size_t>(grid.count()), 0);
  for (int64_t i = 0; i < row_count(x); ++i) {
    const char* row = row_address(x, i);
    for (int64_t j = 0; j < row_length(x); ++j) {
      const uint32_t bits = formats::abs_bits(load_f32(row + j * last_stride_bytes(x), x.dtype));
      uint32_t& largest = amax[static_cast<size_t>(grid.index(i, j))];
      largest = bits > largest ? bits : largest;
    }
  }
  for (int64_t s = 0; s < grid.count(); ++s) {
    store(fp8_scale_at(scale, grid, s), formats::fp8_scale<F>(amax[static_cast<size_t>(s)]));
  }
}

template <class F>
Status quantize(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const Fp8ScaleGrid grid(static_cast<Fp8Granularity>(call.integer(kGranularity)), row_count(x),
                          row_length(x));
  if (!call.has(kScale)) compute_scales<F>(x, call.tensor(kScaleOut), grid);
  const TensorView& scale = call.tensor(call.has(kScale) ? kScale : kScaleOut);
  const bool stochastic = call.integer(kRounding) == 1;
  const auto seed = static_cast<uint64_t>(call.integer(kSeed));
  for (int64_t i = 0; i < row_count(x); ++i) {
    const char* row = row_address(x, i);
    char* codes = row_address(q, i);
    for (int64_t j = 0; j < row_length(x); ++j) {
      const float value = load_f32(row + j * last_stride_bytes(x), x.dtype);
      const float s = load<float>(fp8_scale_at(scale, grid, grid.index(i, j)));
      const auto element = static_cast<uint64_t>(i * row_length(x) + j);
      const uint8_t code =
          stochastic ? formats::code_stochastic<F>(value / s, formats::philox_u16(seed, element))
                     : formats::fp8_quantize<F>(value, s);
      store(codes + j * last_stride_bytes(q), code);
      if (call.has(kQT)) {
        const TensorView& q_t = call.tensor(kQT);
        store(q_t.as<char>() + j * q_t.strides[0] + i * q_t.strides[1], code);
      }
    }
  }
  return {};
}

Status run(const Call& call) {
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) { return quantize<F>(call); });
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_fp8
