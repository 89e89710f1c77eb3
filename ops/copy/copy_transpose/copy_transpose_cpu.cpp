// copy_transpose on the CPU.
// Map      tiles of two cache lines square over the threads (ops/copy/strided_copy.h)
// Traffic  x and out once
// Numerics bits are copied
// Needs    nothing: any strides and dtypes
#include "core/op.h"
#include "ops/copy/copy_transpose/copy_transpose_spec.h"
#include "ops/copy/strided_copy.h"

namespace pestle::ops::copy_transpose {
namespace {

Status run(const Call& call) {
  strided_copy(
      CopyPlan(call.tensor(arg_index(spec, "x")), transposed(call.tensor(arg_index(spec, "out")))));
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/copy_transpose_tiles", .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::copy_transpose
