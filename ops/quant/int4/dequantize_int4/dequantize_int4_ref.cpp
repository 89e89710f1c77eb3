// dequantize_int4, reference: the rule of docs/formats/int4.md as plain loops, rotated back in f64.
#include <vector>

#include "core/op.h"
#include "formats/int4.h"
#include "formats/packing.h"
#include "ops/quant/hadamard/rotated_ref.h"
#include "ops/quant/int4/dequantize_int4/dequantize_int4_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::dequantize_int4 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kZero = arg_index(spec, "zero");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const int64_t columns = out.shape[1];
  const int64_t group_size = int4_group(call.integer(kGroupSize), columns);
  const int64_t hadamard = call.integer(kHadamard);
  std::vector<double> row(static_cast<size_t>(columns));
  for (int64_t n = 0; n < out.shape[0]; ++n) {
    for (int64_t k = 0; k < columns; ++k) {
      const auto* byte = reinterpret_cast<const uint8_t*>(at(q, n, k / 2));
      const uint8_t code = formats::load_nibble(byte, k % 2);
      const float scale = load<float>(at(call.tensor(kScale), n, k / group_size));
      row[k] = call.has(kZero)
                   ? formats::int4_asym_dequantize(
                         code, {scale, load<uint8_t>(at(call.tensor(kZero), n, k / group_size))})
                   : formats::int4_dequantize(formats::int4_from_nibble(code), scale);
    }
    rotate_reference(row.data(), columns, hadamard, call.sum_magnitudes);
    for (int64_t k = 0; k < columns; ++k) store_f64(at(out, n, k), out.dtype, row[k]);
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::dequantize_int4
