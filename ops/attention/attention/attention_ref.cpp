// attention, reference: float64, query by query.
#include "ops/attention/attention_ref.h"
#include "ops/attention/attention/attention_spec.h"

namespace pestle::ops::attention {
namespace {

constexpr int kOut = arg_index(spec, "out");
constexpr int kLse = arg_index(spec, "lse");

// Column c of the output, or the sizes of its errors: of each exponential, of their sum, of the
// rounding of exponentials, of those that may count as 0.
double column(const AttentionRow& row, const AttentionMatrix& v, int64_t c, bool magnitudes,
              double rounded, double unit) {
  double sum = 0;
  for (const AttentionRow::Key& key : row.keys) {
    const double value = v.row(key.key)[c];
    const double weight = row.weight(key);
    if (!std::isfinite(value) && weight < kSmallestWeight) continue;
    if (!magnitudes) {
      sum += weight * value;
    } else if (std::isfinite(value) && weight > 0) {
      const double lost = weight < 2 * kSmallestWeight ? unit : 0;
      sum += weight * std::fabs(value) * (2 + key.terms + row.spread + rounded + lost);
      // Added up before the division.
      if (weight * std::fabs(value) > FLT_MAX / 4) return std::numeric_limits<double>::infinity();
    }
  }
  if (magnitudes && row.may_overflow) return std::numeric_limits<double>::infinity();
  return row.sum == 0 ? 0 : sum / row.sum;
}

Status run(const Call& call) {
  const AttentionInputs in = attention_inputs<spec>(call);
  const TensorView& out = call.tensor(kOut);
  const double k_of_bound = in.bound_terms() + static_cast<double>(in.depth() + in.keys() + 1);
  const double unit = 1 / (kBoundC * std::sqrt(k_of_bound) * 0x1p-24);
  const double rounded = rounded_weight(in.q.dtype, kBoundC, k_of_bound);
  AttentionMatrix q, k, v;
  AttentionRow row;
  for (int64_t b = 0; b < in.batches(); ++b) {
    for (int64_t h = 0; h < in.heads(); ++h) {
      q.load(in.q, b, h);
      k.load(in.k, b, h / in.group());
      v.load(in.v, b, h / in.group());
      for (int64_t i = 0; i < in.queries(); ++i) {
        row.load(in, b, h, i, q.row(i), k);
        char* to = AttentionInputs::row(out, b, h, i);
        for (int64_t c = 0; c < in.value_depth(); ++c) {
          store_f64(to + c * last_stride_bytes(out), out.dtype,
                    column(row, v, c, call.sum_magnitudes, rounded, unit));
        }
        if (!call.has(kLse)) continue;
        const TensorView& lse = call.tensor(kLse);
        char* at = lse.as<char>() + (b * lse.strides[0] + h * lse.strides[1] + i * lse.strides[2]) *
                                        dtype_bytes(lse.dtype);
        store_f64(at, lse.dtype, call.sum_magnitudes ? row.lse_magnitude() : row.lse());
      }
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::attention
