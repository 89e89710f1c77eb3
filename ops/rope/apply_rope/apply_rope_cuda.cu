// apply_rope on CUDA: ops/rope/rope_heads.cuh without a norm.
// Measured [1,24,4608,128], [1,24,32760,128], [1,12,32760,128] bf16 on an H200: 17.8, 112.5, 62.2
//          us, 101, 100, 100 % of the copy; the last with cos and sin, split: 59.3 us, 98 %.
#include "ops/rope/apply_rope/apply_rope_spec.h"
#include "ops/rope/rope_heads.cuh"

namespace pestle::ops::apply_rope {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");

template <class T>
Status start(const Call& call, const RopeJob& job, int64_t blocks) {
  if (job.table.split) return launch_rope<T, true, false>(call, "apply_rope", job, blocks);
  return launch_rope<T, false, false>(call, "apply_rope", job, blocks);
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  RopeJob job{};
  rope_shape(job, rotations_of<spec>(call), x.shape[3], false, kRopeBlockThreads);
  rope_share(job, x, 132 * 8);
  job.first_blocks = rope_blocks(job, 0, rope_operand(x, call.tensor(kOut), nullptr));
  int64_t blocks = job.first_blocks;
  if (call.has(kX2)) {
    blocks += rope_blocks(job, 1, rope_operand(call.tensor(kX2), call.tensor(kOut2), nullptr));
  }
  switch (x.dtype) {
    case DType::kBF16: return start<Bf16>(call, job, blocks);
    case DType::kF16: return start<F16>(call, job, blocks);
    default: return start<F32>(call, job, blocks);
  }
}

Status run_any(const Call& call) {
  const RopeTable table = rope_table(rotations_of<spec>(call));
  const auto rotate = [&](const TensorView& x, const TensorView& out) {
    const int64_t places = numel(x) == 0 ? 0 : row_count(x) * (x.shape[3] - table.rot / 2);
    return launch(call, "apply_rope_any",
                  {ceil_div(places, kRopeAnyThreads * kAnyPlaces), kRopeAnyThreads},
                  rope_any<kRopeAnyThreads>, AnyTensor(x), AnyTensor(out), table, places);
  };
  PESTLE_TRY(rotate(call.tensor(kX), call.tensor(kOut)));
  return call.has(kX2) ? rotate(call.tensor(kX2), call.tensor(kOut2)) : Status();
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (std::string why = refuse_rope(rotations_of<spec>(call), x.shape[3], kRopeBlockThreads);
      !why.empty()) {
    return why;
  }
  if (call.has(kX2) && call.tensor(kX2).dtype != x.dtype) return "x and x2 have different dtypes";
  for (int index : {kX, kX2, kOut, kOut2}) {
    if (!call.has(index)) continue;
    std::string why = refuse_rope_strides(call.spec->args[static_cast<size_t>(index)].name,
                                          call.tensor(index), 1);
    if (!why.empty()) return why;
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cuda/apply_rope",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/apply_rope_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::apply_rope
