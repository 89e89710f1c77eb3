// linear_int4 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/linear/linear_rows.h"
#include "ops/gemm/linear_int4/linear_int4_spec.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops::linear_int4 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kZero = arg_index(spec, "zero");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

cpu::QuantMatrix weight(const Call& call) {
  cpu::QuantMatrix q = matrix_of(call.tensor(kWeight), cpu::CodeKind::kNibble);
  set_scales(q, call.tensor(kScale), int4_group(call.integer(kGroupSize), q.columns));
  for (int i = 0; i < 16; ++i) {
    const auto code = static_cast<uint8_t>(i);
    q.table[i] = call.has(kZero) ? static_cast<float>(code)
                                 : static_cast<float>(formats::int4_from_nibble(code));
  }
  if (call.has(kZero)) {
    q.zeros = call.tensor(kZero).as<uint8_t>();
    even_rows(call.tensor(kZero), q.zero_row_stride);
  }
  return q;
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  const std::string rows = refuse_uneven_rows(call, {kX, kWeight, kScale, kZero});
  return rows.empty() ? refuse_group(weight(call)) : rows;
}

Status run(const Call& call) {
  return run_linear_after_input(call, {kX, kOut, kEpilogue}, weight(call), call.integer(kHadamard));
}

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_int4_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kCpuLinearInputWorkspace},
    {.id = "cpu/linear_int4_pairs",
     .refuses = refuse_without_pairs,
     .run = run_with_pairs,
     .workspace = kLinearPairsWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_int4
