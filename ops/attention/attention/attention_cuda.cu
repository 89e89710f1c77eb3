// attention on CUDA.
// Map      cuda/attention_hopper: bf16 and f16 of up to 256 columns, 64 queries and more, by wgmma
//          (ops/attention/sm90/attention_hopper.cuh).
//          cuda/attention_parts: f32 as exact as f32, of up to 128 columns in steps of 8, by f16 parts and
//          mma.sync (ops/attention/sm80/attention_parts.cuh).
//          cuda/attention_tiles: heads of up to 256 columns in steps of 8, by mma.sync
//          (ops/attention/sm80/attention_tiles.cuh).
//          cuda/attention_any: a warp a query, any dtype, depth, stride and alignment
//          (ops/attention/sm80/attention_row.cuh).
// Traffic  q and out once; k and v once for each 128 (64) rows of a group of heads, from the L2 where
//          it holds them.
// Numerics f32 logits, exponentials and sums (f32 inputs in tf32 parts); exponentials of 16-bit inputs rounded to their dtype
//          before they multiply v. The same bits in every run.
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/runtime.h"
#include "ops/attention/attention/attention_spec.h"
#include "ops/attention/sm80/attention_parts.h"
#include "ops/attention/sm80/attention_row.cuh"
#include "ops/attention/sm80/attention_tiles.h"
#include "ops/attention/sm80/f16_parts.cuh"
#include "ops/attention/sm90/attention_hopper.h"

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

// Tiles of f32 heads of more than 128 columns want 130 KiB of shared memory.
bool has_large_blocks(const Machine& machine) {
  const int cc = machine.compute_capability;
  return cc == 80 || cc == 87 || (cc >= 90 && cc < 120);
}

std::string refuses_tiles(const Call& call, const Machine& machine) {
  const AttentionInputs in = attention_inputs<spec>(call);
  const TensorView& out = call.tensor(kOut);
  if (in.q.dtype == DType::kF32 && std::max(in.depth(), in.value_depth()) > 128 &&
      !has_large_blocks(machine))
    return "f32 heads of more than 128 columns need 130 KiB of shared memory a block";
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
  switch (job.call.q.dtype) {
    case DType::kBF16: return start_attention_tiles_bf16(call, job);
    case DType::kF16: return start_attention_tiles_f16(call, job);
    default:
      return attention_inputs<spec>(call).tf32 ? start_attention_tiles_tf32(call, job)
                                               : start_attention_tiles_f32(call, job);
  }
}

// Of f32 blocks of more than 64 columns want 128 KiB of shared memory.
std::string refuses_parts(const Call& call, const Machine& machine) {
  const AttentionInputs in = attention_inputs<spec>(call);
  if (in.q.dtype != DType::kF32 || in.tf32) return "is for f32 with precision=highest";
  const int64_t columns = std::max(in.depth(), in.value_depth());
  if (columns > 128) return "has heads of 128 columns at most, not of " + std::to_string(columns);
  if (columns > 64 && !has_large_blocks(machine))
    return "f32 heads of more than 64 columns need 128 KiB of shared memory a block";
  if (in.batches() * in.k.shape[1] * ((in.keys() + 31) / 32) > INT_MAX / 4)
    return "more than 2^29 tiles of keys";
  return refuses_tiles(call, machine);
}

// What has no parts is left to the tiles.
Status run_parts(const Call& call) {
  AttentionJob job = attention_job(call);
  PESTLE_TRY(start_attention_parts(call, job));
  return start_attention_tiles_f32(call, job);
}

// Few queries: rows of a tile are those of one head there, of a group of heads in attention_tiles.
constexpr int64_t kFewQueries = 64;
// On average. In attention_tiles small sequences share a tile; here each has a block of its own: of
// 128 queries slower.
constexpr int64_t kFewPackedQueries = 256;

std::string refuse_hopper_options(const AttentionInputs& in) {
  if (in.q.dtype == DType::kF32) return "is for bf16 and f16";
  if (!(in.scale > 0)) return "needs a positive scale";
  if (in.q_offsets.dtype != DType::kNone &&
      in.queries() / std::max<int64_t>(in.q_offsets.shape[0] - 1, 1) < kFewPackedQueries)
    return "is for packed sequences of 256 queries and more on average";
  return in.queries() < kFewQueries ? "is for 64 queries and more" : "";
}

std::string refuses_hopper(const Call& call, const Machine& machine) {
  if (machine.compute_capability != 90) return "needs compute capability 9.0 (Hopper)";
  if (portable()) return "needs code for sm_90a, this build has portable code only";
  const AttentionInputs in = attention_inputs<spec>(call);
  std::string why = refuse_hopper_options(in);
  if (why.empty()) why = refuses_tiles(call, machine);
  if (!why.empty()) return why;
  const int64_t sequences = in.q_offsets.dtype == DType::kNone ? 0 : in.q_offsets.shape[0] + 1;
  if (in.batches() * in.heads() * ((in.queries() + 127) / 128 + sequences) > INT_MAX / 2)
    return "more than 2^30 tiles of queries";
  const TensorView* const tensors[] = {&in.q, &in.k, &in.v};
  for (int i = 0; i < 3; ++i) {
    const char* refused = row_boxes(*tensors[i], 64).why;
    if (*refused) return std::string(1, "qkv"[i]) + " " + refused;
  }
  return "";
}

Status run_hopper(const Call& call) {
  const AttentionInputs in = attention_inputs<spec>(call);
  const AttentionJob job = attention_job(call);
  return in.q.dtype == DType::kBF16 ? start_attention_hopper_bf16(call, in, job)
                                    : start_attention_hopper_f16(call, in, job);
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
    {.id = "cuda/attention_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper},
    {.id = "cuda/attention_parts",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_parts,
     .run = run_parts,
     .workspace = PESTLE_ATTENTION_PARTS_BYTES},
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
