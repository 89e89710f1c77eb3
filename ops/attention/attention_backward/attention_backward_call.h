// The tensors of a call of attention_backward by what they mean.
#pragma once

#include <limits>

#include "ops/attention/attention_backward/attention_backward_spec.h"

namespace pestle::ops::attention_backward {

struct BackwardCall {
  AttentionInputs in;
  TensorView d_out, out, lse, d_q, d_k, d_v, d_mask, d_sinks;  // absent ones have no dtype

  explicit BackwardCall(const Call& call) : in(attention_inputs<spec>(call)) {
    const auto tensor = [&](int index) {
      return call.has(index) ? call.tensor(index) : TensorView{};
    };
    d_out = call.tensor(arg_index(spec, "d_out"));
    out = call.tensor(arg_index(spec, "out"));
    lse = call.tensor(arg_index(spec, "lse"));
    d_q = call.tensor(arg_index(spec, "d_q"));
    d_k = call.tensor(arg_index(spec, "d_k"));
    d_v = call.tensor(arg_index(spec, "d_v"));
    d_mask = tensor(arg_index(spec, "d_mask"));
    d_sinks = tensor(arg_index(spec, "d_sinks"));
  }

  // +infinity for a query that does not count: without a key it has -infinity.
  float lse_of(int64_t batch, int64_t head, int64_t query) const {
    const auto value = load<float>(AttentionInputs::row(lse, batch, head, query));
    return value == -std::numeric_limits<float>::infinity() ? -value : value;
  }
  // In units of ln 2. A finite one stays finite: its query counts.
  float lse_in_log2(int64_t batch, int64_t head, int64_t query) const {
    constexpr float kLog2 = 1.44269504088896341f, kLargest = std::numeric_limits<float>::max();
    const float value = lse_of(batch, head, query);
    return std::isfinite(value) ? std::clamp(value * kLog2, -kLargest, kLargest) : value;
  }
};

}  // namespace pestle::ops::attention_backward
