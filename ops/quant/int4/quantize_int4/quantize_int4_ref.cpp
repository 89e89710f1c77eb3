// quantize_int4, reference: the rule of docs/formats/int4.md as plain loops.
#include <algorithm>
#include <vector>

#include "core/op.h"
#include "formats/hadamard.h"
#include "formats/int4.h"
#include "formats/packing.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "ops/quant/int4/quantize_int4/quantize_int4_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::quantize_int4 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kZeroOut = arg_index(spec, "zero_out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

struct Rounding {
  bool stochastic;
  uint64_t seed;
};

uint8_t code(float x, const formats::Int4Zero& group, bool asymmetric, const Rounding& rounding,
             uint64_t element) {
  if (rounding.stochastic) {
    const uint16_t bits = formats::philox_u16(rounding.seed, element);
    const int32_t lo = asymmetric ? -group.zero : -8;
    return static_cast<uint8_t>(formats::int_stochastic(x / group.scale, bits, lo, lo + 15) +
                                (asymmetric ? group.zero : 0));
  }
  return asymmetric ? formats::int4_asym_quantize(x, group)
                    : formats::nibble_from_int4(formats::int4_quantize(x, group.scale));
}

void load_row(const TensorView& x, int64_t n, int64_t hadamard, std::vector<float>& row) {
  for (size_t k = 0; k < row.size(); ++k) {
    row[k] = load_f32(at(x, n, static_cast<int64_t>(k)), x.dtype);
  }
  if (hadamard == 0) return;
  for (size_t k = 0; k < row.size(); k += static_cast<size_t>(hadamard)) {
    formats::hadamard_rotate(&row[k], hadamard);
  }
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const bool asymmetric = call.has(kZeroOut);
  const Rounding rounding{call.integer(kRounding) == 1, static_cast<uint64_t>(call.integer(kSeed))};
  const int64_t columns = x.shape[1];
  const int64_t group_size = int4_group(call.integer(kGroupSize), columns);
  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t n = 0; n < x.shape[0]; ++n) {
    load_row(x, n, call.integer(kHadamard), row);
    for (int64_t begin = 0; begin < columns; begin += group_size) {
      const int64_t end = std::min(begin + group_size, columns);
      const formats::Int4Zero group =
          asymmetric ? formats::int4_asym_scale(&row[begin], end - begin)
                     : formats::Int4Zero{
                           formats::int4_scale(formats::amax_bits(&row[begin], end - begin)), 0};
      store(at(call.tensor(kScaleOut), n, begin / group_size), group.scale);
      if (asymmetric) {
        store(at(call.tensor(kZeroOut), n, begin / group_size), static_cast<uint8_t>(group.zero));
      }
      for (int64_t k = begin; k < end; ++k) {
        const auto element = static_cast<uint64_t>(n * columns + k);
        auto* byte = reinterpret_cast<uint8_t*>(at(q, n, k / 2));
        formats::store_nibble(byte, k % 2, code(row[k], group, asymmetric, rounding, element));
      }
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_int4
