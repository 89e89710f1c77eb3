// reduce_backward on CUDA.
// Map      amax, amin, prod: a block a set learns what its gradients depend on; then 1,024 elements
//          of a row of x a block, one at a time a thread. Any strides, dtypes and offsets.
// Traffic  x and d_x once; amax, amin and prod read x twice
// Numerics f32; quotients of norm and prod in float64; one rounding
// Measured not yet run on a GPU
#include "ops/common/reduce_layout.cuh"
#include "ops/common/reduce_sets.h"
#include "ops/reduce_backward/reduce_backward_rule.h"
#include "ops/reduce_backward/reduce_backward_spec.h"

namespace pestle::ops::reduce_backward {
namespace {

using namespace pestle::cuda;

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kY = arg_index(spec, "y");
constexpr int kDX = arg_index(spec, "d_x");
constexpr int kOpArg = arg_index(spec, "op");
constexpr int kDims = arg_index(spec, "dims");
constexpr int kKeepdim = arg_index(spec, "keepdim");

constexpr int kPiece = 1024;

__global__ void __launch_bounds__(kReduceThreads)
    learn(const __grid_constant__ Reduction r, AnyTensor x, Facts* facts) {
  __shared__ Facts shared[kReduceThreads];
  const int64_t set = blockIdx.x;
  const char* from = r.x + r.kept.x_offset(set);
  Facts all = no_facts(r.mode);
  for (int64_t i = threadIdx.x; i < r.count; i += kReduceThreads) {
    all = join(r.mode, all, facts_of(r.mode, x.load(from + r.gone.x_offset(i))));
  }
  shared[threadIdx.x] = all;
  for (int half = kReduceThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    shared[threadIdx.x] = join(r.mode, shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) facts[set] = shared[0];
}

struct Job {
  AnyTensor x, d_x, d_out, y;
  ReduceSets sets;
  const Facts* facts;
  int op;
  int64_t length;  // of x's rows
};

// Aligned elements; else byte by byte.
__device__ inline float load(const AnyTensor& t, const char* p) {
  if (reinterpret_cast<uintptr_t>(p) % t.bytes != 0) return t.load(p);
  switch (t.dtype) {
    case DType::kBF16: return formats::f32_from_bf16(*reinterpret_cast<const uint16_t*>(p));
    case DType::kF16: return formats::f32_from_f16(*reinterpret_cast<const uint16_t*>(p));
    default: return *reinterpret_cast<const float*>(p);
  }
}

__global__ void __launch_bounds__(kReduceThreads) apply(const __grid_constant__ Job job) {
  const int64_t pieces = (job.length + kPiece - 1) / kPiece;
  int64_t row = blockIdx.x / pieces;
  const int64_t begin = (blockIdx.x - row * pieces) * kPiece;
  const ReduceSets& sets = job.sets;
  const int last = sets.rank - 1;
  int64_t from = 0, to = 0, at_g = 0, at_y = 0, set = 0;
  for (int d = last - 1; d >= 0; --d) {
    const int64_t index = row % sets.shape[d];
    row /= sets.shape[d];
    from += index * sets.x[d];
    to += index * sets.d_x[d];
    at_g += index * sets.d_out[d];
    at_y += index * sets.y[d];
    set += index * sets.set[d];
  }
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < min(begin + kPiece, job.length); i += kReduceThreads) {
    const int64_t j = last >= 0 ? i : 0;
    const int d = max(last, 0);
    const float x = load(job.x, job.x.data + from + j * sets.x[d]);
    const float y = load(job.y, job.y.data + at_y + j * sets.y[d]);
    const float g = load(job.d_out, job.d_out.data + at_g + j * sets.d_out[d]);
    const Facts facts = needs_facts(job.op) ? job.facts[set + j * sets.set[d]] : Facts{};
    const float v =
        job.op == kLogsumexp ? g * expf(x - y) : gradient(job.op, x, y, g, facts, sets.count);
    char* p = job.d_x.data + to + j * sets.d_x[d];
    if (reinterpret_cast<uintptr_t>(p) % job.d_x.bytes == 0) {
      store_result(p, job.d_x.dtype, v);
    } else {
      job.d_x.store(p, v);
    }
  }
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  if (numel(x) == 0) return {};
  const bool keepdim = call.integer(kKeepdim) != 0;
  const auto op = static_cast<int>(call.integer(kOpArg));
  auto* facts = static_cast<Facts*>(call.workspace);
  if (needs_facts(op)) {
    Reduction r(ReducePlan(x, call.tensor(kY), call.integer(kDims), keepdim));
    r.mode = op;
    PESTLE_TRY(
        launch(call, "reduce_backward", {r.outs, kReduceThreads}, learn, r, AnyTensor(x), facts));
  }
  const Job job{AnyTensor(x),
                AnyTensor(call.tensor(kDX)),
                AnyTensor(call.tensor(kDOut)),
                AnyTensor(call.tensor(kY)),
                ReduceSets(x, call.tensor(kDX), call.tensor(kDOut), call.tensor(kY),
                           call.integer(kDims), keepdim),
                facts,
                op,
                x.rank == 0 ? 1 : x.shape[x.rank - 1]};
  const int64_t blocks = numel(x) / job.length * ceil_div(job.length, kPiece);
  return launch(call, "reduce_backward", {blocks, kReduceThreads}, apply, job);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/reduce_backward",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run,
     .workspace = "16 * numel(y)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::reduce_backward
