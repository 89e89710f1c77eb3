// hadamard on the CPU: pieces of rows as floats on the stack, SIMD butterflies, threads over rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/hadamard/hadamard/hadamard_cpu.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/hadamard-inl.h"
#include "core/op.h"
#include "ops/quant/hadamard/hadamard/hadamard_spec.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::hadamard::HWY_NAMESPACE {
namespace {
namespace simd = pestle::cpu::HWY_NAMESPACE;

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kHadamard = arg_index(spec, "hadamard");

constexpr int64_t kPiece = 4 * formats::kHadamardMax;

void rotate_rows(const Call& call, int64_t begin, int64_t end) {
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  const int64_t n = call.integer(kHadamard);
  const int64_t k = row_length(x);
  const int64_t x_bytes = dtype_bytes(x.dtype);
  const int64_t out_bytes = dtype_bytes(out.dtype);
  const bool stream = numel(out) * out_bytes >= simd::kStreamBytes;
  HWY_ALIGN float values[kPiece];
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < k; j += kPiece) {
      const int64_t count = std::min(kPiece, k - j);
      simd::with_element(x.dtype, [&]<class T>(T) {
        simd::load_floats<T>(row_address(x, i) + j * x_bytes, values, count);
      });
      simd::hadamard_run(values, count, n);
      simd::with_element(out.dtype, [&]<class T>(T) {
        simd::store_floats<T>(values, row_address(out, i) + j * out_bytes, count, stream);
      });
    }
  }
  hwy::FlushStream();
}

}  // namespace

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  parallel_rows(row_count(x), row_length(x),
                [&](int64_t begin, int64_t end) { rotate_rows(call, begin, end); });
  return {};
}

}  // namespace pestle::ops::hadamard::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::hadamard {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {arg_index(spec, "x"), arg_index(spec, "out")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/hadamard_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::hadamard
#endif  // HWY_ONCE
