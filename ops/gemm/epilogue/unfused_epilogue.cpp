#include "ops/gemm/epilogue/unfused_epilogue.h"

#include <array>

#include "backends/cpu/parallel.h"
#include "core/dispatch.h"
#include "ops/gemm/epilogue/epilogue_rows.h"

namespace pestle::ops {
namespace {

uintptr_t round_up(uintptr_t n) { return (n + 255) / 256 * 256; }

}  // namespace

int out_place(const Call& call) { return find_arg(*call.spec, "out"); }
int alpha_place(const Call& call) { return find_arg(*call.spec, "alpha"); }

bool wants_pairs(const Call& call) { return call.integer(alpha_place(call) + kGatedPlace) != 0; }
bool wants_extended(const Call& call) {
  const int first = alpha_place(call);
  return wants_pairs(call) || call.has(first + kBetaPlace) || call.has(first + kGatePlace);
}

std::string refuse_pairs(const Call& call) {
  return wants_pairs(call) ? "gated: makes the columns of a pair apart" : "";
}
std::string refuse_extended(const Call& call) {
  return wants_extended(call) ? "has no pairs, gate or beta in its epilogue" : "";
}
std::string refuse_without_pairs(const Call& call, const Machine&) {
  return wants_pairs(call) ? "" : "is for pairs of columns";
}
std::string refuse_without_extended(const Call& call, const Machine&) {
  return wants_extended(call) ? "" : "is for pairs, gate and beta";
}

Status run_gemm_alone(const Call& call, TensorView* sums) {
  const int first = alpha_place(call);
  const TensorView& out = call.tensor(out_place(call));
  const auto begin = reinterpret_cast<uintptr_t>(call.workspace);
  const uintptr_t at = round_up(begin);
  int64_t dims[kMaxRank];
  for (int d = 0; d < out.rank; ++d) dims[d] = out.shape[d];
  if (wants_pairs(call)) dims[out.rank - 1] *= 2;
  *sums = make_view(reinterpret_cast<void*>(at), DType::kF32, out.rank, dims);
  sums->device = out.device;

  std::array<Value, kMaxArgs> values{};
  for (size_t i = 0; i < call.args.size(); ++i) values[i] = call.args[i];
  for (const int place : {0, 1, 2, kBetaPlace, kGatePlace})
    values[static_cast<size_t>(first + place)] = {};
  for (const int place : {3, kGatedPlace}) values[static_cast<size_t>(first + place)].i = 0;
  values[static_cast<size_t>(out_place(call))].tensor = *sums;
  Call inner = call;
  inner.args = std::span<Value>(values.data(), call.args.size());
  const uintptr_t rest = round_up(at + static_cast<uintptr_t>(size_bytes(*sums)));
  inner.workspace = reinterpret_cast<void*>(rest);
  inner.workspace_bytes = call.workspace_bytes - static_cast<int64_t>(rest - begin);
  return run_within(*find_op(call.spec->name), inner);
}

Status run_with_pairs(const Call& call) {
  const TensorView& out = call.tensor(out_place(call));
  if (numel(out) == 0) return {};
  TensorView sums;
  PESTLE_TRY(run_gemm_alone(call, &sums));
  const Epilogue epilogue(call, alpha_place(call), out);
  cpu::parallel_for(row_count(out), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      finish_row(epilogue, out, row, sums.as<float>() + row * row_length(sums));
  });
  return {};
}

}  // namespace pestle::ops
