// qkv_project_backward as calls of other ops, the same ones on the CPU and on a GPU: decoded
// weights, products by matmul that add up in f32, sums of rows by reduce.
#pragma once

#include "ops/gemm/linear/qkv_args.h"
#include "ops/gemm/qkv_project_backward/qkv_project_backward_spec.h"

namespace pestle::ops::qkv_project_backward {

inline constexpr int kX = arg_index(spec, "x");
inline constexpr int kDX = arg_index(spec, "d_x");

// One of the three products; `weight` as in qkv_project, whose `out` is the gradient that comes.
struct Part {
  QkvPart weight;
  int d_weight, d_bias;
};
inline constexpr Part kParts[3] = {
    {qkv_part(spec, "weight_q", "bias_q", "scale_q", "zero_q", "global_scale_q", "d_q"),
     arg_index(spec, "d_weight_q"), arg_index(spec, "d_bias_q")},
    {qkv_part(spec, "weight_k", "bias_k", "scale_k", "zero_k", "global_scale_k", "d_k"),
     arg_index(spec, "d_weight_k"), arg_index(spec, "d_bias_k")},
    {qkv_part(spec, "weight_v", "bias_v", "scale_v", "zero_v", "global_scale_v", "d_v"),
     arg_index(spec, "d_weight_v"), arg_index(spec, "d_bias_v")}};

// Bytes of the workspace beside what matmul and the dequantising op ask for: two matrices of sums,
// a decoded weight, a bias's sums.
#define PESTLE_QKV_WIDEST "max(max(NQ,NK),NV)"
#define PESTLE_QKV_BACKWARD_BYTES \
  "8*M*K + if(format == float, 0, 4*K*" PESTLE_QKV_WIDEST ") + 4*" PESTLE_QKV_WIDEST " + 2048"
// And of copies of x, of a gradient and of d_x where rows are not evenly spaced.
#define PESTLE_QKV_COPY_BYTES \
  "2*bytes(x)*M*K + 512 + M*(bytes(d_q)*NQ + bytes(d_k)*NK + bytes(d_v)*NV) + 1024"

std::string refuse_uneven(const Call& call, const Machine&);
Status run(const Call& call);
// The same where leading dimensions are not evenly spaced.
Status run_with_copies(const Call& call);

}  // namespace pestle::ops::qkv_project_backward
