// Gradients of rms_norm, layer_norm, adaln and rms_adaln (norm_rows.h has the forward maths).
//   h = y * weight + bias,  g1 = d_out * (1 + scale),  g2 = g1 * weight
//   d_s = rstd * (g2 - mean(g2) - y * mean(g2 * y)) + d_residual_out    rms: mean(g2) is left out
//   d_x = d_s * gate, d_residual = d_s; over all rows: d_weight = sum(g1 * y), d_bias = sum(g1);
//   over the rows of a group: d_gate = sum(d_s * x), d_scale = sum(d_out * h), d_shift = sum(d_out)
// Sums over rows are made of fixed runs of rows, added up in a fixed order. Kernels make a row's
// mean(g2 * y) in one pass, out of f32 sums of g2 and its products with distances from one of the
// row's elements: where those overflow, so does d_x, and the reference leaves it out.
#pragma once

#include "formats/host_device.h"
#include "ops/norm/forward/norm_rows.h"

namespace pestle::ops {

// ---- for contracts ----

inline constexpr Arg kNormDOut = input("d_out", "=x", "*M, K", "gradient of out");
inline constexpr Arg kNormDResidualOut =
    input("d_residual_out", "=x", "*M, K", "gradient of residual_out").optional();
inline constexpr Arg kNormDX = output("d_x", "=x", "*M, K", "gradient of x").within(4, "K");
inline constexpr Arg kNormDResidual = output("d_residual", "=x", "*M, K", "gradient of residual")
                                          .only_if("has(residual)")
                                          .within(4, "K");
inline constexpr Arg kNormDWeight = output("d_weight", "=weight", "K", "gradient of weight")
                                        .only_if("has(weight)")
                                        .within(4, "M+K");
inline constexpr Arg kNormDBias =
    output("d_bias", "=bias", "K", "gradient of bias").only_if("has(bias)").within(4, "M+K");
inline constexpr Arg kNormDGate =
    output("d_gate", "=gate", "*G, K", "gradient of gate").only_if("has(gate)").within(4, "M+K");
inline constexpr Arg kNormDScale =
    output("d_scale", "=scale", "*G, K", "gradient of scale").within(4, "M+K");
inline constexpr Arg kNormDShift =
    output("d_shift", "=scale", "*G, K", "gradient of shift").within(4, "M+K");

inline constexpr const char* kNormDResidualRule = "!has(d_residual_out) || has(residual)";
inline constexpr const char* kNormDResidualSentence =
    "d_residual_out belongs to calls with a residual";

// Partial sums of runs of rows: four arrays of K floats a run (kMostRuns of them on the CPU).
inline constexpr const char* kNormBackwardCpuWorkspace = "4*4*16*K";
inline constexpr const char* kNormBackwardCudaWorkspace =
    "4*4*K*max(8, min(2112, 2162688/max(K,1))) + 16*M*max(1, cdiv(K, 1024))";
// _any: four numbers a row, and three sums a column of each run of rows (kAnyRuns at most, where rows
// are no longer than kAnyLongest).
inline constexpr const char* kNormBackwardAnyWorkspace = "16*M + if(K > 65536, 0, 4*3*32*K)";
inline constexpr int64_t kAnyRuns = 32;
inline constexpr int64_t kAnyLongest = 65536;

// ---- for implementations ----

// Runs of rows that one worker sums up: each lies within a group of rows, or holds whole groups.
struct RowRuns {
  int64_t group_rows = 0;
  int64_t groups = 0;
  int64_t run_rows = 0;
  int64_t runs = 0;
  int64_t runs_of_group = 0;  // 0: a run holds whole groups

  static RowRuns over(int64_t rows, int64_t groups, int64_t most, int64_t least_rows);
  PESTLE_HD bool splits_groups() const { return runs_of_group > 1; }
  PESTLE_HD int64_t begin(int64_t run) const {
    if (runs_of_group == 0) return run * run_rows;
    return run / runs_of_group * group_rows + run % runs_of_group * run_rows;
  }
  PESTLE_HD int64_t end(int64_t run) const {
    const int64_t last = begin(run) + run_rows;
    const int64_t most =
        runs_of_group == 0 ? group_rows * groups : (run / runs_of_group + 1) * group_rows;
    return last < most ? last : most;
  }
};

// Absent tensors have no data.
struct NormBackward {
  NormRows forward;  // x, residual, gate, weight, bias, scale; no outputs
  TensorView d_out, d_residual_out;
  TensorView d_x, d_residual, d_weight, d_bias, d_gate, d_scale, d_shift;

  int64_t groups() const {
    for (const TensorView* t : {&d_gate, &d_scale}) {
      if (t->data != nullptr) return row_count(*t);
    }
    return 1;
  }
};

template <const OpSpec& spec>
NormBackward norm_backward(const Call& call, bool subtract_mean) {
  NormBackward b;
  take_view(call, norm_arg(spec, "x"), b.forward.x);
  take_view(call, norm_arg(spec, "residual"), b.forward.residual);
  take_view(call, norm_arg(spec, "gate"), b.forward.gate);
  take_view(call, norm_arg(spec, "weight"), b.forward.weight);
  take_view(call, norm_arg(spec, "bias"), b.forward.bias);
  take_view(call, norm_arg(spec, "scale"), b.forward.scale);
  b.forward.eps = call.number(norm_arg(spec, "eps"));
  b.forward.subtract_mean = subtract_mean;
  take_view(call, norm_arg(spec, "d_out"), b.d_out);
  take_view(call, norm_arg(spec, "d_residual_out"), b.d_residual_out);
  take_view(call, norm_arg(spec, "d_x"), b.d_x);
  take_view(call, norm_arg(spec, "d_residual"), b.d_residual);
  take_view(call, norm_arg(spec, "d_weight"), b.d_weight);
  take_view(call, norm_arg(spec, "d_bias"), b.d_bias);
  take_view(call, norm_arg(spec, "d_gate"), b.d_gate);
  take_view(call, norm_arg(spec, "d_scale"), b.d_scale);
  take_view(call, norm_arg(spec, "d_shift"), b.d_shift);
  return b;
}

Status norm_backward_reference(const Call& call, const NormBackward& b);
Status norm_backward_cpu(const Call& call, const NormBackward& b);
std::string refuse_norm_backward_cpu(const NormBackward& b);
Status norm_backward_cuda(const Call& call, const char* name, const NormBackward& b);
Status norm_backward_cuda_any(const Call& call, const char* name, const NormBackward& b);
std::string refuse_norm_backward_cuda(const NormBackward& b);

}  // namespace pestle::ops
