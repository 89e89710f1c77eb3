// rms_rope on CUDA: ops/rope/rope_heads.cuh with a norm.
// Measured bf16 on an H200, share of the copy: [1,24,4608,128] 21.1 us, 89 %; [1,24,32760,128]
//          115.3 us, 97 %; [1,12,32760,128] 64.4 us, 96 %; the last with cos and sin, split: 60.9
//          us, 95 %.
#include "ops/rope/rms_rope/rms_rope_spec.h"
#include "ops/rope/rope_heads.cuh"

namespace pestle::ops::rms_rope {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kWeight2 = arg_index(spec, "weight2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");
constexpr int kEps = arg_index(spec, "eps");

const TensorView& second_weight(const Call& call) {
  return call.tensor(call.has(kWeight2) ? kWeight2 : kWeight);
}

template <class T>
Status start(const Call& call, const RopeJob& job, int64_t blocks) {
  if (job.table.split) return launch_rope<T, true, true>(call, "rms_rope", job, blocks);
  return launch_rope<T, false, true>(call, "rms_rope", job, blocks);
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  RopeJob job{};
  rope_shape(job, rotations_of<spec>(call), x.shape[3], true, kRopeBlockThreads);
  rope_share(job, x, 132 * 4);
  job.eps = call.number(kEps);
  job.weight_dtype = call.tensor(kWeight).dtype;
  job.first_blocks = rope_blocks(job, 0, rope_operand(x, call.tensor(kOut), &call.tensor(kWeight)));
  int64_t blocks = job.first_blocks;
  if (call.has(kX2)) {
    blocks += rope_blocks(job, 1,
                          rope_operand(call.tensor(kX2), call.tensor(kOut2), &second_weight(call)));
  }
  switch (x.dtype) {
    case DType::kBF16: return start<Bf16>(call, job, blocks);
    case DType::kF16: return start<F16>(call, job, blocks);
    default: return start<F32>(call, job, blocks);
  }
}

Status run_any(const Call& call) {
  const RopeTable table = rope_table(rotations_of<spec>(call));
  const auto rotate = [&](const TensorView& x, const TensorView& weight, const TensorView& out) {
    const int64_t heads = numel(x) == 0 ? 0 : row_count(x);
    return launch(call, "rms_rope_any", {heads, kRopeAnyThreads}, rms_rope_any<kRopeAnyThreads>,
                  AnyTensor(x), AnyTensor(out), AnyTensor(weight), table, call.number(kEps));
  };
  PESTLE_TRY(rotate(call.tensor(kX), call.tensor(kWeight), call.tensor(kOut)));
  if (!call.has(kX2)) return {};
  return rotate(call.tensor(kX2), second_weight(call), call.tensor(kOut2));
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (std::string why = refuse_rope(rotations_of<spec>(call), x.shape[3], 32); !why.empty()) {
    return why;
  }
  for (int index : {kX, kX2, kOut, kOut2, kWeight, kWeight2}) {
    if (!call.has(index)) continue;
    std::string why = refuse_rope_strides(call.spec->args[static_cast<size_t>(index)].name,
                                          call.tensor(index), 1);
    if (!why.empty()) return why;
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cuda/rms_rope",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/rms_rope_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::rms_rope
