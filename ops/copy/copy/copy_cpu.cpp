// copy on the CPU.
// Map      without a change of dtype: ops/copy/strided_copy.h. With one: pieces of 2,048 elements
//          of the rows that both tensors have, over the threads
// Traffic  x and out once
// Numerics exact: each element rounded once
// Needs    for a change of dtype a dimension in which the elements of both tensors are neighbours
#include <cstring>

#include "backends/cpu/simd/row_math.h"
#include "core/op.h"
#include "ops/copy/copy/copy_spec.h"
#include "ops/copy/strided_copy.h"
#include "ops/shared/cast.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::copy {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");

bool is_wide_float(DType d) { return d == DType::kF32 || d == DType::kBF16 || d == DType::kF16; }

void cast_run(const char* from, DType x, char* to, DType out, int64_t count) {
  if (is_wide_float(x) && is_wide_float(out)) {
    float v[cpu::kRowPiece];
    cpu::row_load(from, x, v, count);
    cpu::row_store(v, to, out, count);
    return;
  }
  const auto x_bytes = static_cast<size_t>(dtype_bytes(x));
  const auto out_bytes = static_cast<size_t>(dtype_bytes(out));
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, from + static_cast<size_t>(i) * x_bytes, x_bytes);
    bits = cast_bits(out, cast_value(x, bits));
    std::memcpy(to + static_cast<size_t>(i) * out_bytes, &bits, out_bytes);
  }
}

CopyPlan plan_of(const Call& call) { return {call.tensor(kX), call.tensor(kOut)}; }

void cast_rows(const Call& call, const CopyPlan& plan) {
  const int last = plan.rank - 1;
  const FlatRows rows(plan.rank == 0 ? 1 : plan.elements / plan.shape[last],
                      plan.rank == 0 ? 1 : plan.shape[last]);
  parallel_pieces(rows, [&](int64_t row, int64_t begin, int64_t count) {
    const char* from = plan.from + begin * plan.from_bytes;
    char* to = plan.to + begin * plan.to_bytes;
    for (int d = last - 1; d >= 0; --d) {
      from += row % plan.shape[d] * plan.from_stride[d];
      to += row % plan.shape[d] * plan.to_stride[d];
      row /= plan.shape[d];
    }
    for (int64_t i = 0; i < count; i += cpu::kRowPiece) {
      cast_run(from + i * plan.from_bytes, call.tensor(kX).dtype, to + i * plan.to_bytes,
               call.tensor(kOut).dtype, std::min(cpu::kRowPiece, count - i));
    }
  });
}

Status run(const Call& call) {
  const CopyPlan plan = plan_of(call);
  if (plan.elements == 0) return {};
  if (call.tensor(kX).dtype == call.tensor(kOut).dtype)
    strided_copy(plan);
  else
    cast_rows(call, plan);
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  if (call.tensor(kX).dtype == call.tensor(kOut).dtype) return "";
  const CopyPlan plan = plan_of(call);
  return plan.elements == 0 || plan.is_dense_row()
             ? ""
             : "the dtype changes and x and out have no rows of neighbours in common";
}

constexpr Impl kImpls[] = {
    {.id = "cpu/copy_rows", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::copy
