// Pieces of contracts that attention and its backward share, and what they read of a call.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/op.h"
#include "ops/shared/element.h"

namespace pestle::ops {

inline constexpr const char* kAttentionFloats = "bf16|f16|f32";

inline constexpr Arg kAttentionQ =
    input("q", kAttentionFloats, "B, Hq, Sq, D", "queries, any strides");
inline constexpr Arg kAttentionK =
    input("k", "=q", "B, Hk, Sk, D", "keys; head h of q sees head h * Hk / Hq");
inline constexpr Arg kAttentionV = input("v", "=q", "B, Hk, Sk, Dv", "values");
inline constexpr Arg kAttentionMask =
    input(
        "mask", "bool|f32|bf16|f16", "Bm, Hm, Mq, Mk",
        "bool: true where a key counts; floats are added to the logits. Each dimension is that of "
        "the logits [B, Hq, Sq, Sk] or 1")
        .optional();
inline constexpr Arg kAttentionSinks =
    input("sinks", "f32|bf16|f16", "Hq",
          "the logit of a key of each head that every query sees and whose value is 0")
        .optional();
inline constexpr Arg kAttentionLengths =
    input("key_lengths", "i32|i64", "B",
          "keys of each batch that count, the first of them; beyond 0 and Sk the nearer one")
        .optional();
inline constexpr Arg kAttentionQOffsets =
    input("q_offsets", "i32|i64", "N",
          "sequences packed along Sq: sequence n has the queries from q_offsets[n] up to "
          "q_offsets[n + 1], ascending; other queries see no key")
        .optional();
inline constexpr Arg kAttentionKOffsets =
    input("k_offsets", "i32|i64", "N", "the same of the keys, along Sk").optional();

inline constexpr Arg kAttentionScale =
    float_attr("scale", 0, "factor of the products of q and k; 0: 1 / sqrt(D)");
inline constexpr Arg kAttentionSoftcap =
    float_attr("softcap", 0, "logits become softcap * tanh(logit / softcap); 0: as they are");
inline constexpr Arg kAttentionCausal =
    bool_attr("causal", false, "a query sees no key behind its own place");
inline constexpr Arg kAttentionLeft = int_attr(
    "window_left", -1, "how many keys before its place a query sees at most; -1: all of them");
inline constexpr Arg kAttentionRight = int_attr(
    "window_right", -1, "how many keys behind its place a query sees at most; -1: all of them");
inline constexpr Arg kAttentionAlign =
    choice("align", "top_left|bottom_right",
           "the place of a query among the keys: the first query's is the first key, or the last "
           "one's is the last key that counts");
inline constexpr Arg kAttentionPrecision =
    choice("precision", "highest|tf32",
           "of products of f32 values, the gradients' too: as exact as f32, or each value may be "
           "rounded to TF32's 11 bits");
inline constexpr Arg kAttentionDeterministic =
    bool_attr("deterministic", true,
              "gradients have the same bits in every run; false: they may be added up in any "
              "order, which some implementations do faster");

// What `precision` adds to the k of an error bound of 4 * sqrt(k) * 2^-24: with it the bound is 2^-10
// of the terms, as far as a product of two values rounded to 11 bits may be off.
#define PESTLE_TF32_TERMS "if(precision == tf32, 16777216, 0)"
inline constexpr double kTf32Terms = 16777216;

inline constexpr Constraint kAttentionConstraints[] = {
    {"Hk > 0 && Hq % max(Hk, 1) == 0", "q's heads must be a multiple of those of k and v"},
    {"!has(mask) || ((Bm == 1 || Bm == B) && (Hm == 1 || Hm == Hq) && (Mq == 1 || Mq == Sq) && "
     "(Mk == 1 || Mk == Sk))",
     "each dimension of mask must be that of the logits [B, Hq, Sq, Sk] or 1"},
    {"window_left >= -1 && window_right >= -1",
     "window_left and window_right must be -1, for no limit, or a number of keys"},
    {"has(q_offsets) == has(k_offsets)", "q_offsets and k_offsets come together"},
    {"!has(q_offsets) || (B == 1 && !has(key_lengths))",
     "packed sequences have a batch of 1, and no key_lengths: k_offsets say where keys end"},
    {"!has(q_offsets) || N > 0",
     "q_offsets and k_offsets begin with where the first sequence does"},
};

struct KeyRange {
  int64_t begin = 0, end = 0;  // empty where end <= begin
};

// The arguments by what they mean. Absent tensors have no dtype.
struct AttentionInputs {
  TensorView q, k, v, mask, sinks, key_lengths, q_offsets, k_offsets;
  double scale = 1, softcap = 0;
  bool causal = false, bottom_right = false;
  bool tf32 = false, deterministic = true;
  int64_t left = -1, right = -1;

  int64_t batches() const { return q.shape[0]; }
  int64_t heads() const { return q.shape[1]; }
  int64_t queries() const { return q.shape[2]; }
  int64_t keys() const { return k.shape[2]; }
  int64_t depth() const { return q.shape[3]; }
  int64_t value_depth() const { return v.shape[3]; }
  int64_t group() const { return heads() / k.shape[1]; }  // heads of q that share one of k
  double bound_terms() const { return tf32 ? kTf32Terms : 0; }
  bool has_mask() const { return mask.dtype != DType::kNone; }
  bool has_sinks() const { return sinks.dtype != DType::kNone; }

  // Of a row [.., i, :] of q, k, v or what has their shape.
  static char* row(const TensorView& t, int64_t batch, int64_t head, int64_t i) {
    return t.as<char>() +
           (batch * t.strides[0] + head * t.strides[1] + i * t.strides[2]) * dtype_bytes(t.dtype);
  }
  // Element offsets into mask: a dimension of 1 stands still.
  int64_t mask_step(int dim) const { return mask.shape[dim] == 1 ? 0 : mask.strides[dim]; }
  const char* mask_row(int64_t batch, int64_t head, int64_t query) const {
    return mask.as<char>() + (batch * mask_step(0) + head * mask_step(1) + query * mask_step(2)) *
                                 dtype_bytes(mask.dtype);
  }
  double sink(int64_t head) const {
    return load_f64(sinks.as<char>() + head * sinks.strides[0] * dtype_bytes(sinks.dtype),
                    sinks.dtype);
  }

  // The keys that a query sees by lengths, packing, causality and window.
  KeyRange key_range(int64_t batch, int64_t query) const {
    int64_t first_query = 0, end_query = queries();
    KeyRange seen{0, keys()};
    if (q_offsets.dtype != DType::kNone) {
      const int64_t sequence = sequence_of(query);
      if (sequence < 0) return {};
      first_query = offset(q_offsets, sequence, queries());
      end_query = offset(q_offsets, sequence + 1, queries());
      seen.begin = offset(k_offsets, sequence, keys());
      seen.end = std::max(seen.begin, offset(k_offsets, sequence + 1, keys()));
    } else if (key_lengths.dtype != DType::kNone) {
      seen.end = offset(key_lengths, batch, keys());
    }
    int64_t place = seen.begin + query - first_query;
    if (bottom_right) place = seen.end - (end_query - query);
    const int64_t most = queries() + keys();  // as good as no limit, and no overflow
    if (left >= 0) seen.begin = std::max(seen.begin, place - std::min(left, most));
    if (right >= 0) seen.end = std::min(seen.end, place + std::min(right, most) + 1);
    if (causal) seen.end = std::min(seen.end, place + 1);
    return seen;
  }

 private:
  // An element within [0, most].
  static int64_t offset(const TensorView& t, int64_t i, int64_t most) {
    const char* p = t.as<char>() + i * t.strides[0] * dtype_bytes(t.dtype);
    const int64_t value = t.dtype == DType::kI32 ? load<int32_t>(p) : load<int64_t>(p);
    return std::clamp<int64_t>(value, 0, most);
  }
  // The last sequence that begins at the query or before it, or -1.
  int64_t sequence_of(int64_t query) const {
    int64_t low = 0, high = q_offsets.shape[0];  // how many begin there
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (offset(q_offsets, middle, queries()) <= query)
        low = middle + 1;
      else
        high = middle;
    }
    return low == 0 || low == q_offsets.shape[0] ? -1 : low - 1;
  }
};

template <const OpSpec& spec>
AttentionInputs attention_inputs(const Call& call) {
  const auto tensor = [&](int index) {
    return call.has(index) ? call.tensor(index) : TensorView{};
  };
  AttentionInputs in;
  in.q = call.tensor(arg_index(spec, "q"));
  in.k = call.tensor(arg_index(spec, "k"));
  in.v = call.tensor(arg_index(spec, "v"));
  in.mask = tensor(arg_index(spec, "mask"));
  in.sinks = tensor(arg_index(spec, "sinks"));
  in.key_lengths = tensor(arg_index(spec, "key_lengths"));
  in.q_offsets = tensor(arg_index(spec, "q_offsets"));
  in.k_offsets = tensor(arg_index(spec, "k_offsets"));
  in.scale = call.number(arg_index(spec, "scale"));
  if (in.scale == 0) {
    in.scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(in.depth(), 1)));
  }
  in.softcap = call.number(arg_index(spec, "softcap"));
  in.causal = call.integer(arg_index(spec, "causal")) != 0;
  in.left = call.integer(arg_index(spec, "window_left"));
  in.right = call.integer(arg_index(spec, "window_right"));
  in.bottom_right = call.integer(arg_index(spec, "align")) != 0;
  in.tf32 = call.integer(arg_index(spec, "precision")) != 0;
  in.deterministic = call.integer(arg_index(spec, "deterministic")) != 0;
  return in;
}

}  // namespace pestle::ops
