// activation on the CPU: pieces of rows as floats; threads over pieces.
// Map      pieces of up to 65,536 elements over the threads, 2,048 at a time; a dense tensor is one
// row Traffic  everything once Numerics f32; functions as backends/cpu/simd/row_math.cpp has them
#include "backends/cpu/simd/row_math.h"
#include "ops/activation/activation_spec.h"
#include "ops/common/cpu_rows.h"

namespace pestle::ops::activation {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kAct = arg_index(spec, "act");

void load(const TensorView& t, int64_t row, int64_t begin, int64_t count, float* v) {
  cpu::row_load(row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, v, count);
}
void store(const TensorView& t, int64_t row, int64_t begin, int64_t count, const float* v) {
  cpu::row_store(v, row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, count);
}

Status run(const Call& call) {
  const auto act = static_cast<Activation>(call.integer(kAct));
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  parallel_pieces(FlatRows(x, out), [&](int64_t row, int64_t begin, int64_t count) {
    for (const int64_t end = begin + count; begin < end; begin += cpu::kRowPiece) {
      const int64_t n = std::min(cpu::kRowPiece, end - begin);
      float v[cpu::kRowPiece];
      load(x, row, begin, n, v);
      cpu::row_activation(act, v, v, n);
      store(out, row, begin, n, v);
    }
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kX, kOut});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/activation_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::activation
