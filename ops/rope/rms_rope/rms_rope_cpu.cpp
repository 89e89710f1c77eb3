// rms_rope on the CPU: ops/rope/rope_cpu.h.
#include "ops/rope/rms_rope/rms_rope_spec.h"
#include "ops/rope/rope_cpu.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::rms_rope {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kWeight2 = arg_index(spec, "weight2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");
constexpr int kEps = arg_index(spec, "eps");

Status run(const Call& call) {
  const Rotations rotations = rotations_of<spec>(call);
  const float eps = call.number(kEps);
  rope_on_cpu(rotations, {call.tensor(kX), call.tensor(kOut), &call.tensor(kWeight), eps});
  if (!call.has(kX2)) return {};
  rope_on_cpu(rotations, {call.tensor(kX2), call.tensor(kOut2),
                          &call.tensor(call.has(kWeight2) ? kWeight2 : kWeight), eps});
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_long_heads(call.tensor(kX).shape[3]); !why.empty()) return why;
  return refuse_strided_rows(call, {kX, kOut, kX2, kOut2});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/rms_rope_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::rms_rope
