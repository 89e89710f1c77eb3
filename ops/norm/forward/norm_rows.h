// What rms_norm, layer_norm, adaln and rms_adaln share: rows are summed (residual + gate * x),
// normalised in f32, scaled and shifted, stored or quantised. Notes: ops/norm/forward/norm_rows.md
//   s = residual + gate * x            y = (s - mean(s)) / sqrt(mean((s - mean(s))^2) + eps)
//   out = (y * weight + bias) * (1 + scale) + shift          rms: mean(s) is 0 in both places
#pragma once

#include "core/op.h"
#include "ops/quant/output/quantized_output.h"

namespace pestle::ops {

// ---- for contracts: symbols are *M (rows), K, *G (groups of neighbouring rows) ----

inline constexpr const char* kNormDtypes = "bf16|f16|f32";
inline constexpr const char* kNormParameterDtypes = "f32|bf16|f16";
inline constexpr Arg kNormX = input("x", kNormDtypes, "*M, K", "rows to normalise");
inline constexpr Arg kNormResidual =
    input("residual", "=x", "*M, K", "added to gate * x before the norm").optional();
inline constexpr Arg kNormGate =
    input("gate", "bf16|f16|f32", "*G, K",
          "multiplies x before the residual is added; M/G neighbouring rows share a row of it")
        .optional();
inline constexpr Arg kNormWeight =
    input("weight", kNormParameterDtypes, "K", "multiplies the normalised row").optional();
inline constexpr Arg kNormBias =
    input("bias", kNormParameterDtypes, "K", "added after weight").optional();
inline constexpr Arg kNormScale = input(
    "scale", "bf16|f16|f32", "*G, K",
    "modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it");
inline constexpr Arg kNormShift =
    input("shift", "bf16|f16|f32", "*G, K", "modulation: added at the end");
inline constexpr Arg kNormOut =
    kept_output(output("out", "=x", "*M, K", "the normalised rows").in_place_of("x"))
        .within(4, "K");
inline constexpr Arg kNormResidualOut =
    output("residual_out", "=x", "*M, K", "the sum that was normalised: residual + gate * x")
        .in_place_of("residual")
        .within(2, "1")
        .only_if("has(residual)");
inline constexpr const char* kNormGroupRule =
    "!has(gate) || M == 0 || (G > 0 && M % max(G,1) == 0)";
inline constexpr const char* kModulationGroupRule = "M == 0 || (G > 0 && M % max(G,1) == 0)";

inline constexpr const char* kNormGroupSentence =
    "M must be a multiple of G, the rows of gate, scale and shift";

// ---- for implementations ----

// Absent tensors have no data.
struct NormRows {
  TensorView x, residual, gate, weight, bias, scale, shift;
  TensorView out, residual_out;
  float eps = 0;
  bool subtract_mean = false;
  QuantizedOutput quant;

  int64_t rows() const { return row_count(x); }
  int64_t columns() const { return row_length(x); }
  // The row of gate, scale or shift that belongs to row `row` of x.
  int64_t group_of(const TensorView& t, int64_t row) const { return row / (rows() / row_count(t)); }
};

// A row of a tensor of any strides, as the references read and write it. Rows of absent tensors are
// not to be asked.
struct ReferenceTensorRow {
  char* data = nullptr;
  int64_t step = 0;
  DType dtype = DType::kNone;

  ReferenceTensorRow() = default;
  ReferenceTensorRow(const TensorView& t, int64_t row) {
    if (t.data == nullptr) return;
    data = row_address(t, row);
    step = last_stride_bytes(t);
    dtype = t.dtype;
  }
  double load(int64_t j) const { return load_f64(data + j * step, dtype); }
  void put(int64_t j, double v) const {
    if (data != nullptr) store_f64(data + j * step, dtype, v);
  }
};

consteval int norm_arg(const OpSpec& spec, std::string_view name) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (name == spec.args[i].name) return static_cast<int>(i);
  }
  return -1;
}

// Into a view that is empty: copying empty ones would be most of a small call's cost.
inline void take_view(const Call& call, int index, TensorView& to) {
  if (index >= 0 && call.has(index)) to = call.tensor(index);
}

template <const OpSpec& spec>
NormRows norm_rows(const Call& call, bool subtract_mean) {
  NormRows n;
  take_view(call, norm_arg(spec, "x"), n.x);
  take_view(call, norm_arg(spec, "residual"), n.residual);
  take_view(call, norm_arg(spec, "gate"), n.gate);
  take_view(call, norm_arg(spec, "weight"), n.weight);
  take_view(call, norm_arg(spec, "bias"), n.bias);
  take_view(call, norm_arg(spec, "scale"), n.scale);
  take_view(call, norm_arg(spec, "shift"), n.shift);
  take_view(call, norm_arg(spec, "out"), n.out);
  take_view(call, norm_arg(spec, "residual_out"), n.residual_out);
  n.eps = call.number(norm_arg(spec, "eps"));
  n.subtract_mean = subtract_mean;
  n.quant = quantized_output<spec>(call);
  return n;
}

Status norm_rows_reference(const Call& call, const NormRows& n);
Status norm_rows_cpu(const NormRows& n);
// Why the CPU's fast path does not take it; empty: it does.
std::string refuse_norm_rows_cpu(const NormRows& n);

// CUDA (norm_rows.cu). `name` is what an error calls the kernel.
Status norm_rows_cuda(const Call& call, const char* name, const NormRows& n);
Status norm_rows_cuda_any(const Call& call, const char* name, const NormRows& n);
std::string refuse_norm_rows_cuda(const NormRows& n, const Machine& machine);

}  // namespace pestle::ops
