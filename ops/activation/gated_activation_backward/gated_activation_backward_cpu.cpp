// gated_activation_backward on the CPU: pieces of rows as floats; threads over pieces.
// Map      pieces of rows over the threads, 2,048 elements at a time
// Traffic  everything once
// Numerics f32; functions as backends/cpu/simd/row_math.cpp has them
#include "backends/cpu/simd/row_math.h"
#include "ops/activation/gated_activation_backward/gated_activation_backward_spec.h"
#include "ops/activation/gated_views.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::gated_activation_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kGate = arg_index(spec, "gate");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kDgate = arg_index(spec, "d_gate");
constexpr int kAct = arg_index(spec, "act");
constexpr int kLayout = arg_index(spec, "layout");

void load(const TensorView& t, int64_t row, int64_t begin, int64_t count, float* v) {
  cpu::row_load(row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, v, count);
}
void store(const TensorView& t, int64_t row, int64_t begin, int64_t count, const float* v) {
  cpu::row_store(v, row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, count);
}

Status run(const Call& call) {
  const auto act = static_cast<Activation>(call.integer(kAct));
  const int64_t layout = call.integer(kLayout);
  const GatedViews in = gated_views(call.tensor(kX), call.tensor(kGate), layout);
  const GatedViews to = gated_views(call.tensor(kDx), call.tensor(kDgate), layout);
  const TensorView& grad = call.tensor(kGrad);
  parallel_pieces(FlatRows(row_count(grad), row_length(grad)),
                  [&](int64_t row, int64_t begin, int64_t count) {
                    for (const int64_t end = begin + count; begin < end; begin += cpu::kRowPiece) {
                      const int64_t n = std::min(cpu::kRowPiece, end - begin);
                      float g[cpu::kRowPiece];
                      float x[cpu::kRowPiece];
                      float v[cpu::kRowPiece];
                      load(grad, row, begin, n, g);
                      load(in.act, row, begin, n, x);
                      cpu::row_activation(act, x, v, n);
                      cpu::row_multiply(v, g, v, n);
                      cpu::row_activation_slope(act, x, x, n);
                      cpu::row_multiply(x, g, x, n);
                      load(in.gate, row, begin, n, g);
                      cpu::row_multiply(x, g, x, n);
                      store(to.gate, row, begin, n, v);
                      store(to.act, row, begin, n, x);
                    }
                  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kGrad, kX, kGate, kDx, kDgate});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/gated_activation_backward_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::gated_activation_backward
