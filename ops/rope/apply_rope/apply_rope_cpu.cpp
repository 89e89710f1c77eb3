// apply_rope on the CPU: ops/rope/rope_cpu.h.
#include "ops/rope/apply_rope/apply_rope_spec.h"
#include "ops/rope/rope_cpu.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::apply_rope {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");

Status run(const Call& call) {
  const Rotations rotations = rotations_of<spec>(call);
  rope_on_cpu(rotations, {call.tensor(kX), call.tensor(kOut)});
  if (call.has(kX2)) rope_on_cpu(rotations, {call.tensor(kX2), call.tensor(kOut2)});
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_long_heads(call.tensor(kX).shape[3]); !why.empty()) return why;
  return refuse_strided_rows(call, {kX, kOut, kX2, kOut2});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/apply_rope_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::apply_rope
