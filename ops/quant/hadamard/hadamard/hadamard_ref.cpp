// hadamard, reference: the butterfly of formats/hadamard.h, group by group.
#include "formats/hadamard.h"

#include "core/op.h"
#include "ops/quant/hadamard/hadamard/hadamard_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::hadamard {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kHadamard = arg_index(spec, "hadamard");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  const int64_t n = call.integer(kHadamard);
  float group[formats::kHadamardMax];
  for (int64_t i = 0; i < row_count(x); ++i) {
    const char* from = row_address(x, i);
    char* to = row_address(out, i);
    for (int64_t base = 0; base < row_length(x); base += n) {
      for (int64_t j = 0; j < n; ++j) {
        group[j] = load_f32(from + (base + j) * last_stride_bytes(x), x.dtype);
      }
      formats::hadamard_rotate(group, n);
      for (int64_t j = 0; j < n; ++j) {
        store_f32(to + (base + j) * last_stride_bytes(out), out.dtype, group[j]);
      }
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::hadamard
