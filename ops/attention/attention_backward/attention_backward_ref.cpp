// attention_backward, reference: float64, query by query.
#include "ops/attention/attention_backward/attention_backward_spec.h"
#include "ops/attention/attention_ref.h"

namespace pestle::ops::attention_backward {
namespace {

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kOut = arg_index(spec, "out");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kDQ = arg_index(spec, "d_q");
constexpr int kDK = arg_index(spec, "d_k");
constexpr int kDV = arg_index(spec, "d_v");
constexpr int kDMask = arg_index(spec, "d_mask");
constexpr int kDSinks = arg_index(spec, "d_sinks");

using Values = std::vector<double>;

// A sum of products, and the sum of their sizes.
struct Sum {
  double value = 0, size = 0;
  void add(double a, double b) {
    value += a * b;
    if (std::isfinite(a * b)) size += std::fabs(a * b);
  }
};

Sum dot(const double* a, const double* b, int64_t count) {
  Sum sum;
  for (int64_t i = 0; i < count; ++i) sum.add(a[i], b[i]);
  return sum;
}

// At most 1 where lse is what attention gave; of another one, a finite number.
double backward_weight(double logit) {
  const double p = std::exp(logit);
  return p > 0x1p127 ? 0x1p127 : p;
}

class Gradients {
 public:
  explicit Gradients(const Call& call)
      : call_(call),
        in_(attention_inputs<spec>(call)),
        depth_(in_.depth()),
        value_depth_(in_.value_depth()) {
    const int64_t fewest = std::min(in_.keys(), in_.queries() * in_.group());
    const double k_of_bound =
        in_.bound_terms() + static_cast<double>(depth_ + value_depth_ + fewest + 1);
    rounded_ = rounded_weight(in_.q.dtype, kBoundC, k_of_bound);
    if (call.has(kDMask)) d_mask_.resize(static_cast<size_t>(numel(in_.mask)));
  }

  void run() {
    if (call_.has(kDSinks)) d_sinks_.resize(static_cast<size_t>(in_.heads()));
    for (int64_t b = 0; b < in_.batches(); ++b) {
      for (int64_t h = 0; h < in_.k.shape[1]; ++h) key_head(b, h);
    }
    store_row(d_sinks_.data(), call_.tensor(kDSinks), call_.has(kDSinks));
    store_mask();
  }

 private:
  void key_head(int64_t b, int64_t key_head) {
    k_.load(in_.k, b, key_head);
    v_.load(in_.v, b, key_head);
    d_k_.assign(static_cast<size_t>(in_.keys() * depth_), 0);
    d_v_.assign(static_cast<size_t>(in_.keys() * value_depth_), 0);
    for (int64_t g = 0; g < in_.group(); ++g) {
      const int64_t h = key_head * in_.group() + g;
      q_.load(in_.q, b, h);
      out_.load(call_.tensor(kOut), b, h);
      d_out_.load(call_.tensor(kDOut), b, h);
      for (int64_t i = 0; i < in_.queries(); ++i) query(b, h, i);
    }
    for (int64_t j = 0; j < in_.keys(); ++j) {
      store(d_k_.data() + j * depth_, call_.tensor(kDK), b, key_head, j);
      store(d_v_.data() + j * value_depth_, call_.tensor(kDV), b, key_head, j);
    }
  }

  void query(int64_t b, int64_t h, int64_t i) {
    const TensorView& lses = call_.tensor(kLse);
    const double lse = load_f64(AttentionInputs::row(lses, b, h, i), lses.dtype);
    const Sum delta = dot(d_out_.row(i), out_.row(i), value_depth_);
    row_.load(in_, b, h, i, q_.row(i), k_);
    d_q_.assign(static_cast<size_t>(depth_), 0);
    if (!std::isinf(lse)) {
      for (const AttentionRow::Key& key : row_.keys) pair(b, h, i, key, lse, delta);
      if (!d_sinks_.empty()) sink(h, lse, delta);
    }
    store(d_q_.data(), call_.tensor(kDQ), b, h, i);
  }

  void pair(int64_t b, int64_t h, int64_t i, const AttentionRow::Key& key, double lse,
            const Sum& delta) {
    const double p = backward_weight(key.t - lse);
    if (p < kSmallestWeight) return;
    const double terms = 2 + key.terms + (std::isfinite(lse) ? std::fabs(lse) : 0);
    const Sum d_p = dot(d_out_.row(i), v_.row(key.key), value_depth_);
    double d_logit = p * (d_p.value - delta.value);
    double d_product = d_logit * key.slope * in_.scale;
    double p_of_v = p;
    if (call_.sum_magnitudes) {
      const bool may_overflow = row_.may_overflow || p > FLT_MAX / 4 ||
                                std::max(p, 1.0) * (d_p.size + delta.size) > FLT_MAX / 4;
      const double all = may_overflow ? std::numeric_limits<double>::infinity() : p;
      p_of_v = all * (terms + rounded_);
      d_logit = all * (d_p.size + delta.size) * terms;
      d_product = d_logit * std::fabs(in_.scale) +
                  all * std::fabs(d_p.value - delta.value) * std::fabs(in_.scale) * rounded_;
    }
    add(p_of_v, d_out_.row(i), d_v_.data() + key.key * value_depth_, value_depth_);
    add(d_product, k_.row(key.key), d_q_.data(), depth_);
    add(d_product, q_.row(i), d_k_.data() + key.key * depth_, depth_);
    if (!d_mask_.empty()) d_mask_[static_cast<size_t>(mask_place(b, h, i, key.key))] += d_logit;
  }

  // A factor of 0 adds nothing, to an infinity either.
  void add(double factor, const double* row, double* to, int64_t count) const {
    if (factor == 0) return;
    for (int64_t c = 0; c < count; ++c)
      to[c] += factor * (call_.sum_magnitudes ? std::fabs(row[c]) : row[c]);
  }

  void sink(int64_t h, double lse, const Sum& delta) {
    const double sink = in_.sink(h);
    const double p = backward_weight(sink - lse);
    double& to = d_sinks_[static_cast<size_t>(h)];
    if (p < kSmallestWeight) return;
    if (!call_.sum_magnitudes)
      to -= p * delta.value;
    else
      to += p * delta.size * (2 + std::fabs(sink) + std::fabs(lse));
  }

  int64_t mask_place(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t at[] = {b, h, i, j};
    int64_t place = 0;
    for (int d = 0; d < 4; ++d) place = place * in_.mask.shape[d] + at[d] % in_.mask.shape[d];
    return place;
  }

  static void store_row(const double* values, const TensorView& t, bool wanted) {
    for (int64_t i = 0; wanted && i < t.shape[0]; ++i)
      store_f64(t.as<char>() + i * last_stride_bytes(t), t.dtype, values[i]);
  }
  static void store(const double* values, const TensorView& t, int64_t b, int64_t h, int64_t i) {
    char* to = AttentionInputs::row(t, b, h, i);
    for (int64_t c = 0; c < t.shape[3]; ++c)
      store_f64(to + c * last_stride_bytes(t), t.dtype, values[c]);
  }
  void store_mask() const {
    if (!call_.has(kDMask)) return;
    const TensorView& t = call_.tensor(kDMask);
    const double* row = d_mask_.data();
    for (int64_t i = 0; i < row_count(t) && numel(t) > 0; ++i, row += t.shape[3]) {
      for (int64_t j = 0; j < t.shape[3]; ++j)
        store_f64(row_address(t, i) + j * last_stride_bytes(t), t.dtype, row[j]);
    }
  }

  const Call& call_;
  AttentionInputs in_;
  int64_t depth_, value_depth_;
  double rounded_ = 0;
  AttentionMatrix q_, k_, v_, out_, d_out_;
  AttentionRow row_;
  Values d_q_, d_k_, d_v_, d_mask_, d_sinks_;
};

Status run(const Call& call) {
  Gradients(call).run();
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::attention_backward
