// A tile of keys against tiles of queries: everything is transposed as in attention_tile-inl.h, but
// with one lane a key, so that what is summed over queries stays in its lane.
#if defined(PESTLE_ATTENTION_BACKWARD_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_ATTENTION_BACKWARD_KEYS_INL_H_
#undef PESTLE_ATTENTION_BACKWARD_KEYS_INL_H_
#else
#define PESTLE_ATTENTION_BACKWARD_KEYS_INL_H_
#endif

#include "ops/attention/attention_backward/attention_backward_call.h"
#include "ops/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::attention_backward::HWY_NAMESPACE {
using namespace attention_tile::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

inline constexpr int64_t kLaneKeys = kQueries;  // of a tile
inline constexpr int64_t kRowQueries = kKeys;   // of a tile

// Of two rows of floats.
inline float dot_of(const float* a, const float* b, int64_t count) {
  VF sum = set(0);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    sum = hn::MulAdd(hn::LoadU(DF(), a + i), hn::LoadU(DF(), b + i), sum);
  float total = hn::GetLane(hn::SumOfLanes(DF(), sum));
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

// Exponentials of logits s over lse, both in units of ln 2; 0 where a key or the query does not
// count.
HWY_INLINE VF weights_of(VF s, VF lse) {
  const auto gone = hn::Or(hn::Eq(s, set(-kInf)), hn::Eq(lse, set(kInf)));
  return hn::IfThenZeroElse(gone, exp2_of<true>(hn::Sub(s, lse)));
}
HWY_INLINE VF logit_gradients(VF p, VF d_p, VF delta) {
  return hn::IfThenZeroElse(hn::Eq(p, set(0)), hn::Mul(p, hn::Sub(d_p, delta)));
}
// Times the soft cap's slope, which may be NaN where p is 0.
HWY_INLINE VF times_slope(VF p, VF gradient, VF slope) {
  return hn::IfThenZeroElse(hn::Eq(p, set(0)), hn::Mul(gradient, slope));
}

// Up to kRowQueries queries of one batch, as rows of floats padded with zeros.
struct RowQueries {
  int64_t count = 0;
  int64_t head[kRowQueries], query[kRowQueries];
  KeyRange range[kRowQueries];
  float lse[kRowQueries], delta[kRowQueries];
  alignas(64) float q[kRowQueries * kDepth];
  alignas(64) float d_out[kRowQueries * kDepth];

  void add(int64_t h, int64_t i) {
    head[count] = h;
    query[count++] = i;
  }
  // False where none of them sees one of the keys.
  bool find_ranges(const BackwardCall& call, int64_t batch, KeyRange keys) {
    bool any = false;
    for (int64_t i = 0; i < count; ++i) {
      range[i] = call.in.key_range(batch, query[i]);
      any |= std::max(range[i].begin, keys.begin) < std::min(range[i].end, keys.end);
    }
    return any;
  }
  void load(const BackwardCall& call, int64_t batch) {
    load_rows(call.in.q, batch, q);
    load_rows(call.d_out, batch, d_out);
    const int64_t columns = call.in.value_depth(), width = round_up(columns, kRows);
    alignas(64) float out[kDepth];
    for (int64_t i = 0; i < count; ++i) {
      lse[i] = call.lse_in_log2(batch, head[i], query[i]);
      load_run(AttentionInputs::row(call.out, batch, head[i], query[i]), call.out.dtype,
               call.out.strides[3], columns, out);
      delta[i] = dot_of(out, d_out + i * width, columns);
    }
  }

 private:
  void load_rows(const TensorView& t, int64_t batch, float* to) const {
    const int64_t columns = t.shape[3], width = round_up(columns, kRows);
    for (int64_t i = 0; i < round_up(count, kRows); ++i, to += width) {
      if (i < count) {
        load_run(AttentionInputs::row(t, batch, head[i], query[i]), t.dtype, t.strides[3], columns,
                 to);
      }
      std::fill(to + (i < count ? columns : 0), to + width, 0.0f);
    }
  }
};

// kLaneKeys keys of a head, and what queries have to do with them: exponentials and the gradients
// of logits, [query, key].
class LaneKeys {
 public:
  LaneKeys(const BackwardCall& call, int64_t batch, int64_t key_head, int64_t first)
      : call_(call), in_(call.in), batch_(batch), key_head_(key_head), first_(first) {
    count_ = std::min(kLaneKeys, in_.keys() - first);
    lanes_ = round_up(count_, kLanes);
    load(in_.k, k_);
    load(in_.v, v_);
  }

  int64_t count() const { return count_; }
  int64_t lanes() const { return lanes_; }
  KeyRange keys() const { return {first_, first_ + count_}; }
  char* row(const TensorView& t, int64_t j) const {
    return AttentionInputs::row(t, batch_, key_head_, first_ + j);
  }
  RowQueries& queries() { return queries_; }
  const float* weights() const { return weights_; }
  const float* gradients() const { return gradients_; }

  // Of queries(), which are loaded. `of_products`: times the slope of the soft cap.
  void meet(bool of_products) {
    const int64_t rows = round_up(queries_.count, kRows);
    product<Sums::kNew>({.a = queries_.q,
                         .a_row = round_up(in_.depth(), kRows),
                         .a_step = 1,
                         .b = k_,
                         .sums = weights_,
                         .m = rows,
                         .k = in_.depth(),
                         .n = lanes_,
                         .factor = Logits::factor(in_)});
    product<Sums::kNew>({.a = queries_.d_out,
                         .a_row = round_up(in_.value_depth(), kRows),
                         .a_step = 1,
                         .b = v_,
                         .sums = gradients_,
                         .m = rows,
                         .k = in_.value_depth(),
                         .n = lanes_});
    for (int64_t i = 0; i < queries_.count; ++i) finish_row(i, of_products);
  }

 private:
  void load(const TensorView& t, float* to) const {
    load_lanes(t, count_, lanes_, [&](int64_t j) { return row(t, j); }, to);
  }

  // What is added to the logits of a query, in units of ln 2.
  void load_mask(int64_t i, float* to) const {
    const int64_t step = in_.mask_step(3);
    const char* from = in_.mask_row(batch_, queries_.head[i], queries_.query[i]) +
                       first_ * step * dtype_bytes(in_.mask.dtype);
    std::fill(to + count_, to + lanes_, 0.0f);
    if (in_.mask.dtype == DType::kBool) {
      for (int64_t j = 0; j < count_; ++j) to[j] = from[j * step] != 0 ? 0 : -kInf;
      return;
    }
    load_run(from, in_.mask.dtype, step, count_, to);
    for (int64_t j = 0; j < count_; ++j) to[j] *= kLog2e;
  }

  void finish_row(int64_t i, bool of_products) {
    const simd::DI di;
    alignas(64) float mask[kLaneKeys];
    const bool is_bool = in_.mask.dtype == DType::kBool, has_cap = in_.softcap != 0;
    if (in_.has_mask()) load_mask(i, mask);
    const VF cap = set(static_cast<float>(in_.softcap * double{kLog2e}));
    const VF lse = set(queries_.lse[i]), delta = set(queries_.delta[i]);
    const auto within = [&](int64_t key) HWY_ATTR {
      return hn::Set(di, static_cast<int32_t>(std::clamp<int64_t>(key - first_, 0, count_)));
    };
    const auto begin = within(queries_.range[i].begin), end = within(queries_.range[i].end);
    for (int64_t n = 0; n < lanes_; n += kLanes) {
      float* at = weights_ + i * kLaneKeys + n;
      float* gradient = gradients_ + i * kLaneKeys + n;
      VF s = hn::Load(DF(), at), slope = set(1);
      if (has_cap) {
        const VF bent = tanh_of(s);
        slope = hn::NegMulAdd(bent, bent, set(1));
        s = hn::Mul(bent, cap);
      }
      if (in_.has_mask()) s = Logits::masked(s, hn::Load(DF(), mask + n), is_bool);
      const auto key = hn::Iota(di, static_cast<int32_t>(n));
      const auto seen = hn::AndNot(hn::Lt(key, begin), hn::Lt(key, end));
      s = hn::IfThenElse(hn::RebindMask(DF(), seen), s, set(-kInf));
      const VF p = weights_of(s, lse);
      VF d = logit_gradients(p, hn::Load(DF(), gradient), delta);
      if (has_cap && of_products) d = times_slope(p, d, slope);
      hn::Store(p, DF(), at);
      hn::Store(d, DF(), gradient);
    }
  }

  const BackwardCall& call_;
  const AttentionInputs& in_;
  int64_t batch_, key_head_, first_, count_, lanes_;
  RowQueries queries_;
  alignas(64) float k_[kDepth * kLaneKeys];  // transposed
  alignas(64) float v_[kDepth * kLaneKeys];  // transposed
  alignas(64) float weights_[kRowQueries * kLaneKeys];
  alignas(64) float gradients_[kRowQueries * kLaneKeys];
};

}  // namespace pestle::ops::attention_backward::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_ATTENTION_BACKWARD_KEYS_INL_H_
