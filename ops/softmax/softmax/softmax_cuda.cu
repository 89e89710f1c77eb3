// softmax on CUDA; the kernels are ops/softmax/softmax_rows.cuh's.
// Map      cuda/softmax: without mask and scale a row of up to 2 MiB to lanes of a warp, a block
//          or a cluster of 2 to 16, in registers; else to the shared memory of a block or of a
//          cluster; else read twice. _teams: longer ones without mask and scale, to blocks that all
//          run at once and tell one another by the workspace.
//          _any: any strides; rows of neighbours by 16 bytes but for their ends, others by single
//          elements; up to 16k elements in registers; rows side by side go a thread a row.
// Traffic  x and out once; x twice beyond what 16 blocks hold (1.8M elements; f32: 900k; without
//          clusters a block's shared memory), and beyond 16k in _any.
// Numerics f32: t = fma(x, scale, mask); e^y as ex2.approx(y * log2 e), 2 ulp, without mask and
//          scale ex2.approx(fma(x, log2 e, -base)); sums as trees, the same order in every run.
// Measured H200, share of the tuned copy: bf16 1k 99 %, 4k to 64k 96-97 %, 256k 91 %; f32 1k 99 %,
//          4k to 64k 96-97 %, 256k 91 %, 1M 77 %; softmax.md has all.
#include "ops/softmax/softmax/softmax_spec.h"
#include "ops/softmax/softmax_rows.cuh"

namespace pestle::ops::softmax {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kMask = arg_index(spec, "mask");
constexpr int kOut = arg_index(spec, "out");
constexpr int kDim = arg_index(spec, "dim");
constexpr int kScale = arg_index(spec, "scale");

Status start(const Call& call, bool any) {
  const TensorView mask = call.has(kMask) ? call.tensor(kMask) : TensorView();
  SoftmaxJob job = softmax_job(call.tensor(kX), mask, call.tensor(kOut), call.integer(kDim),
                               call.number(kScale));
  return run_softmax<SoftmaxKind::kSoftmax>(call, any ? "softmax_any" : "softmax", job, any);
}
Status run(const Call& call) { return start(call, false); }
Status run_any(const Call& call) { return start(call, true); }

Status run_cooperative(const Call& call) {
  SoftmaxJob job =
      softmax_job(call.tensor(kX), TensorView(), call.tensor(kOut), call.integer(kDim), 1);
  return run_softmax_cooperative<SoftmaxKind::kSoftmax>(call, "softmax_teams", job);
}

std::string refuses(const Call& call, const Machine&) {
  const int64_t dim = call.integer(kDim);
  if (std::string why = refuse_rows_along("x", call.tensor(kX), dim); !why.empty()) return why;
  if (std::string why = refuse_rows_along("out", call.tensor(kOut), dim); !why.empty()) return why;
  return call.has(kMask) ? refuse_mask(call.tensor(kMask), call.tensor(kX), dim) : "";
}

std::string refuses_cooperative(const Call& call, const Machine& machine) {
  if (std::string why = refuses(call, machine); !why.empty()) return why;
  if (call.has(kMask) || call.number(kScale) != 1) return "there is a mask or a scale";
  return refuse_cooperative(call.tensor(kX), call.integer(kDim), 2 << 20, 128 << 10, machine);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/softmax_teams",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_cooperative,
     .run = run_cooperative,
     .workspace = kCooperativeWorkspace},
    {.id = "cuda/softmax",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/softmax_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::softmax
