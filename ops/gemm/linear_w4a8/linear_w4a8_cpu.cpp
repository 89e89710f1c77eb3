// linear_w4a8 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include "formats/w4a8.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/linear/linear_rows.h"
#include "ops/gemm/linear_w4a8/linear_w4a8_spec.h"
#include "ops/quant/int4/w4a8_codebook.h"

namespace pestle::ops::linear_w4a8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kHadamard = arg_index(spec, "hadamard");

cpu::QuantMatrix weight(const Call& call) {
  cpu::QuantMatrix q = matrix_of(call.tensor(kWeight), cpu::CodeKind::kNibble);
  set_scales(q, call.tensor(kScaleRel), formats::kW4a8Group);
  q.row_scale = call.tensor(kScaleChannel).data;
  q.round_to_int8 = true;
  load_codebook(call, kCodebook, q.table);
  return q;
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  return refuse_uneven_rows(call, {kX, kWeight, kScaleRel, kScaleChannel});
}

Status run(const Call& call) {
  return run_linear_after_input(call, {kX, kOut, kEpilogue}, weight(call), call.integer(kHadamard));
}

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_w4a8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kLinearInputTablesWorkspace},
    {.id = "cpu/linear_w4a8_pairs",
     .refuses = refuse_without_pairs,
     .run = run_with_pairs,
     .workspace = kLinearPairsWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_w4a8
