// The three products of qkv_project.
#pragma once

#include "ops/gemm/linear/qkv_args.h"
#include "ops/gemm/qkv_project/qkv_project_spec.h"

namespace pestle::ops::qkv_project {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr QkvPart kParts[3] = {
    qkv_part(spec, "weight_q", "bias_q", "scale_q", "zero_q", "global_scale_q", "q"),
    qkv_part(spec, "weight_k", "bias_k", "scale_k", "zero_k", "global_scale_k", "k"),
    qkv_part(spec, "weight_v", "bias_v", "scale_v", "zero_v", "global_scale_v", "v")};

// What the implementations of floats and of codes say of each other's calls.
inline std::string refuse_codes(const Call& call, const Machine&) {
  return qkv_format(call) == QkvFormat::kFloat ? "" : "the weights are codes";
}
inline std::string refuse_floats(const Call& call, const Machine&) {
  return qkv_format(call) != QkvFormat::kFloat ? "" : "the weights are floats";
}

inline Status run_by_linear(const Call& call) {
  for (const QkvPart& part : kParts) PESTLE_TRY(run_qkv_linear(call, part));
  return {};
}

}  // namespace pestle::ops::qkv_project
