// What the references of attention and its backward share: the logits of one query in float64, and
// the magnitudes that error bounds are made of.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/attention/attention_args.h"

namespace pestle::ops {

// Exponentials below this part of the largest may count as 0: they are below f32's normal numbers.
inline constexpr double kSmallestWeight = 0x1p-126;

// One head of one batch of a tensor [B, H, S, D], in float64.
struct AttentionMatrix {
  int64_t columns = 0;
  std::vector<double> values;

  void load(const TensorView& t, int64_t batch, int64_t head) {
    columns = t.shape[3];
    values.resize(static_cast<size_t>(t.shape[2] * columns));
    for (int64_t i = 0; i < t.shape[2]; ++i) {
      const char* from = AttentionInputs::row(t, batch, head, i);
      for (int64_t c = 0; c < columns; ++c) {
        values[static_cast<size_t>(i * columns + c)] =
            load_f64(from + c * last_stride_bytes(t), t.dtype);
      }
    }
  }
  const double* row(int64_t i) const { return values.data() + i * columns; }
};

// The keys that a query counts: t is the logit, `terms` the sizes of what it is made from (an
// exponential's relative error is its argument's absolute one), slope is d t / d (scaled product).
struct AttentionRow {
  struct Key {
    int64_t key;
    double t, terms, slope;
  };
  std::vector<Key> keys;
  double largest = -std::numeric_limits<double>::infinity();
  double sum = 0;     // of exp(t - largest), the sink's too
  double spread = 0;  // sum of p * terms: how errors of the others reach an element
  bool may_overflow = false;

  double base() const { return std::isinf(largest) && largest < 0 ? 0 : largest; }
  double weight(const Key& key) const { return std::exp(key.t - base()); }
  double p(const Key& key) const { return weight(key) / sum; }
  double lse() const { return base() + std::log(sum); }
  // A comparison takes larger ones than FLT_MAX / 2 for sums that may overflow: a row that a mask
  // hides by f32's lowest number has none.
  double lse_magnitude() const {
    if (may_overflow) return std::numeric_limits<double>::infinity();
    if (sum == 0) return 0;
    return std::min(std::fabs(base()) + std::fabs(std::log(sum)) + 2 + spread, double{FLT_MAX / 2});
  }

  void load(const AttentionInputs& in, int64_t batch, int64_t head, int64_t query, const double* q,
            const AttentionMatrix& k) {
    keys.clear();
    largest = -std::numeric_limits<double>::infinity();
    sum = spread = 0;
    may_overflow = false;
    const KeyRange range = in.key_range(batch, query);
    const char* mask = in.has_mask() ? in.mask_row(batch, head, query) : nullptr;
    for (int64_t j = range.begin; j < range.end; ++j) {
      double added = 0;
      if (mask != nullptr) {
        const char* at = mask + j * in.mask_step(3) * dtype_bytes(in.mask.dtype);
        if (in.mask.dtype == DType::kBool) {
          if (*at == 0) continue;
        } else {
          added = load_f64(at, in.mask.dtype);
        }
      }
      add(in, j, q, k.row(j), added);
    }
    finish(in, head);
  }

 private:
  void add(const AttentionInputs& in, int64_t j, const double* q, const double* k, double added) {
    double product = 0, sizes = 0;
    for (int64_t d = 0; d < in.depth(); ++d) {
      const double term = q[d] * k[d];
      product += term;
      if (std::isfinite(term)) sizes += std::fabs(term);
    }
    Key key{j, in.scale * product, std::fabs(in.scale) * sizes, 1};
    if (std::max(sizes, key.terms) > FLT_MAX / 2) may_overflow = true;
    if (in.softcap != 0) {
      const double bent = std::tanh(key.t / in.softcap);
      key.t = in.softcap * bent;
      key.slope = 1 - bent * bent;
      key.terms += std::fabs(key.t);
    }
    key.t += added;
    if (key.t == -std::numeric_limits<double>::infinity()) return;
    if (std::fabs(key.t) > FLT_MAX) may_overflow = true;
    if (std::isfinite(added)) key.terms += std::fabs(added);
    keys.push_back(key);
  }

  void finish(const AttentionInputs& in, int64_t head) {
    for (const Key& key : keys) largest = std::fmax(largest, key.t);  // NaN comes in by the sum
    if (in.has_sinks()) {
      const double sink = in.sink(head);
      largest = std::fmax(largest, sink);
      sum += std::exp(sink - base());
      if (sink == -std::numeric_limits<double>::infinity()) sum = 0;
    }
    for (Key& key : keys) {
      sum += weight(key);
      key.terms += std::isfinite(largest) ? std::fabs(largest) : 0;
    }
    for (const Key& key : keys) {
      if (p(key) > 0) spread += p(key) * key.terms;
    }
  }
};

// How far off an exponential may be that is rounded to q's dtype before it multiplies v, beside
// what `terms` allows, in units of a bound of c * sqrt(k) * 2^-24.
inline double rounded_weight(DType dtype, double c, double k) {
  const double rounding = dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0;
  return rounding / (c * std::sqrt(k) * 0x1p-24);
}

}  // namespace pestle::ops
