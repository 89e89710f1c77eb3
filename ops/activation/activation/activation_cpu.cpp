// activation on the CPU; ops/activation/activation_rows.cpp does the work.
// Map      plain: pieces over the threads, dense tensors as one row; codes: rows over the threads
// Traffic  everything once; a computed scale of a row beyond 4,096 elements reads it twice
// Numerics f32; functions as backends/cpu/simd/row_math.cpp has them
#include "ops/activation/activation/activation_call.h"

namespace pestle::ops::activation {
namespace {

Status run(const Call& call) { return activation_cpu(read(call)); }
std::string refuses(const Call& call, const Machine&) { return refuse_activation_cpu(read(call)); }

constexpr Impl kImpls[] = {
    {.id = "cpu/activation_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::activation
