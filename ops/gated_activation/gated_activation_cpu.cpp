// gated_activation on the CPU: pieces of rows as floats; threads over pieces.
// Map      pieces of rows over the threads, 2,048 elements at a time
// Traffic  everything once
// Numerics f32; functions as backends/cpu/simd/row_math.cpp has them
#include "backends/cpu/simd/row_math.h"
#include "ops/common/cpu_rows.h"
#include "ops/common/gated_views.h"
#include "ops/gated_activation/gated_activation_spec.h"

namespace pestle::ops::gated_activation {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kGate = arg_index(spec, "gate");
constexpr int kOut = arg_index(spec, "out");
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
  const GatedViews in = gated_views(call.tensor(kX), call.tensor(kGate), call.integer(kLayout));
  const TensorView& out = call.tensor(kOut);
  parallel_pieces(FlatRows(row_count(out), row_length(out)),
                  [&](int64_t row, int64_t begin, int64_t count) {
                    for (const int64_t end = begin + count; begin < end; begin += cpu::kRowPiece) {
                      const int64_t n = std::min(cpu::kRowPiece, end - begin);
                      float v[cpu::kRowPiece];
                      float gate[cpu::kRowPiece];
                      load(in.act, row, begin, n, v);
                      load(in.gate, row, begin, n, gate);
                      cpu::row_activation(act, v, v, n);
                      cpu::row_multiply(v, gate, v, n);
                      store(out, row, begin, n, v);
                    }
                  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kX, kGate, kOut});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/gated_activation_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::gated_activation
