// attention on CUDA.
// Map      cuda/attention_tiles: bf16 and f16, heads of up to 256 columns in steps of 8, by mma.sync
//          (ops/attention/sm80/attention_tiles.cuh).
//          cuda/attention_any: a warp a query, any dtype, depth, stride and alignment
//          (ops/attention/sm80/attention_row.cuh).
// Traffic  q and out once; k and v once for each 128 (64) rows of a group of heads, from the L2 where
//          it holds them.
// Numerics f32 logits, exponentials and sums; exponentials of 16-bit inputs rounded to their dtype
//          before they multiply v. The same bits in every run.
#include "backends/cuda/host/launch.h"
#include "ops/attention/attention/attention_spec.h"
#include "ops/attention/sm80/attention_row.cuh"
#include "ops/attention/sm80/attention_tiles.h"

namespace pestle::ops::attention {
namespace {

using namespace pestle::cuda;

constexpr int kOut = arg_index(spec, "out");
constexpr int kLse = arg_index(spec, "lse");
constexpr int kRowWarps = 4;

__global__ void __launch_bounds__(32 * kRowWarps)
    attention_any_kernel(const __grid_constant__ AttentionJob job) {
  const AttentionCall& c = job.call;
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (row >= int64_t{c.batches} * c.heads * c.queries) return;
  const int64_t head = row / c.queries;
  attention_row(job, static_cast<int>(head / c.heads), static_cast<int>(head % c.heads),
                static_cast<int>(row % c.queries));
}

AttentionJob attention_job(const Call& call) {
  AttentionJob job;
  job.call = attention_call(attention_inputs<spec>(call));
  job.out = attention_rows(call.tensor(kOut));
  if (call.has(kLse)) job.lse = attention_rows(call.tensor(kLse));
  return job;
}

// Rows of neighbouring elements that begin at multiples of `bytes`.
std::string refuse_rows(const char* name, const TensorView& t, int64_t bytes) {
  if (t.shape[3] > 1 && t.strides[3] != 1)
    return std::string("the last dimension of ") + name + " has a stride of " +
           std::to_string(t.strides[3]) + ", not 1";
  bool even = reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0;
  for (int d = 0; d < 3; ++d)
    even = even && (t.shape[d] <= 1 || t.strides[d] * dtype_bytes(t.dtype) % bytes == 0);
  return even ? ""
              : std::string("rows of ") + name + " do not begin at multiples of " +
                    std::to_string(bytes) + " bytes";
}

std::string refuse_columns(const char* name, int64_t columns) {
  if (columns > 0 && columns <= 256 && columns % 8 == 0) return "";
  return std::string(name) + " is " + std::to_string(columns) +
         "; takes multiples of 8 from 8 to 256";
}

bool lies_at_elements(const TensorView& t) {
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) == 0;
}

std::string refuses_tiles(const Call& call, const Machine&) {
  const AttentionInputs in = attention_inputs<spec>(call);
  const TensorView& out = call.tensor(kOut);
  if (in.q.dtype == DType::kF32) return "q is f32; takes bf16 and f16";
  std::string why = refuse_attention_sizes(in);
  if (why.empty()) why = refuse_columns("D", in.depth());
  if (why.empty()) why = refuse_columns("Dv", in.value_depth());
  if (why.empty()) why = refuse_rows("q", in.q, 16);
  if (why.empty()) why = refuse_rows("k", in.k, 16);
  if (why.empty()) why = refuse_rows("v", in.v, 16);
  if (why.empty()) why = refuse_rows("out", out, 2 * dtype_bytes(out.dtype));
  if (!why.empty()) return why;
  if (in.has_mask() && !lies_at_elements(in.mask)) return "mask does not lie at whole elements";
  if (call.has(kLse) && !lies_at_elements(call.tensor(kLse)))
    return "lse does not lie at whole elements";
  const int64_t tiles = (in.group() * in.queries() + 63) / 64;
  if (in.batches() * in.k.shape[1] * tiles > INT_MAX) return "more than 2^31 tiles of queries";
  return "";
}

Status run_tiles(const Call& call) {
  const AttentionJob job = attention_job(call);
  return job.call.q.dtype == DType::kBF16 ? start_attention_tiles_bf16(call, job)
                                          : start_attention_tiles_f16(call, job);
}

std::string refuses_any(const Call& call, const Machine&) {
  return refuse_attention_sizes(attention_inputs<spec>(call));
}

Status run_any(const Call& call) {
  const AttentionJob job = attention_job(call);
  const int64_t rows = int64_t{job.call.batches} * job.call.heads * job.call.queries;
  const Grid grid{.blocks = ceil_div(rows, kRowWarps), .threads = 32 * kRowWarps};
  return launch(call, "attention_any", grid, attention_any_kernel, job);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/attention_tiles",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_tiles,
     .run = run_tiles},
    {.id = "cuda/attention_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_any,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::attention
