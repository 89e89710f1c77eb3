// activation_backward on the CPU: pieces of rows as floats; threads over pieces.
// Map      pieces of rows over the threads, 2,048 elements at a time
// Traffic  everything once
// Numerics f32; functions as backends/cpu/simd/row_math.cpp has them
#include "backends/cpu/simd/row_math.h"
#include "ops/activation/activation_backward/activation_backward_spec.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::activation_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kAct = arg_index(spec, "act");

void load(const TensorView& t, int64_t row, int64_t begin, int64_t count, float* v) {
  cpu::row_load(row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, v, count);
}
void store(const TensorView& t, int64_t row, int64_t begin, int64_t count, const float* v) {
  cpu::row_store(v, row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, count);
}

Status run(const Call& call) {
  const auto act = static_cast<Activation>(call.integer(kAct));
  const TensorView& grad = call.tensor(kGrad);
  const TensorView& x = call.tensor(kX);
  const TensorView& d_x = call.tensor(kDx);
  parallel_pieces(FlatRows(row_count(x), row_length(x)),
                  [&](int64_t row, int64_t begin, int64_t count) {
                    for (const int64_t end = begin + count; begin < end; begin += cpu::kRowPiece) {
                      const int64_t n = std::min(cpu::kRowPiece, end - begin);
                      float g[cpu::kRowPiece];
                      float slope[cpu::kRowPiece];
                      load(grad, row, begin, n, g);
                      load(x, row, begin, n, slope);
                      cpu::row_activation_slope(act, slope, slope, n);
                      cpu::row_multiply(g, slope, g, n);
                      store(d_x, row, begin, n, g);
                    }
                  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kGrad, kX, kDx});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/activation_backward_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::activation_backward
