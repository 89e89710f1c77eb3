// attention_backward on CUDA.
// Map      First lse in units of ln 2 and d_out . out of each query, a warp a query, into the
//          workspace. Then the first that takes the call: cuda/attention_backward_hopper, bf16 and
//          f16, up to 128 columns, masks of their dtype or boolean, packed sequences without one
//          (attention_backward_hopper.cuh);
//          cuda/attention_backward_parts, f32 up to 128 columns as exact as f32, by f16 parts
//          (attention_backward_parts.cu); cuda/attention_backward_tiles_f32, the same by tf32 parts or
//          with precision=tf32, and cuda/attention_backward_tiles, bf16 and f16 up to 256, all in steps of 8 columns, by
//          mma.sync (attention_backward_tiles.cuh); cuda/attention_backward_any, any dtype, depth,
//          stride and alignment (attention_backward_any.cuh), which also makes the tiles with
//          infinities or NaN of the others. d_mask and d_sinks: attention_backward_mask.cuh.
// Traffic  Keys' kernel: q and d_out once for each 64 keys, queries' kernel: k and v once for each 64
//          queries, from the L2 where it holds them; everything else once.
// Numerics f32 sums in a fixed order, no atomics: two runs give the same bits. So the tiles make
//          logits twice, seven products instead of five. Hopper's kernel makes five and adds d_q up
//          by turns, or with deterministic=false as it comes.
#include <cfloat>

#include "backends/cuda/device/row/block_sums.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/runtime.h"
#include "ops/attention/attention_backward/attention_backward_hopper.h"
#include "ops/attention/attention_backward/attention_backward_mask.cuh"
#include "ops/attention/attention_backward/attention_backward_tiles.h"
#include "ops/attention/sm80/f16_parts.cuh"
#include "ops/attention/sm90/attention_hopper.h"

namespace pestle::ops::attention_backward {
namespace {

using cuda::Grid;

constexpr int kFactThreads = 256;

struct FactsJob {
  AttentionRows d_out, out, lse;
  RowFacts* facts;
  uint32_t* largest;  // of d_out, bits of the finite ones' sizes: [B, Hk], if wanted
  int64_t rows;
  int heads, key_heads, queries, columns;
  bool aligned;
};

// +infinity for a query that does not count; a finite lse stays finite: its query counts.
__device__ float lse_in_log2(float lse) {
  if (!(fabsf(lse) < kInfinity)) return fabsf(lse);
  return fminf(fmaxf(lse * kLog2E, -FLT_MAX), FLT_MAX);
}

// The bits of floats that are not negative ascend with them.
__device__ void note_largest(uint32_t* to, uint32_t bits) {
  bits = __reduce_max_sync(~0u, bits);
  if (threadIdx.x % 32 == 0 && bits > *static_cast<volatile uint32_t*>(to)) atomicMax(to, bits);
}

__global__ void __launch_bounds__(kFactThreads) facts_kernel(const __grid_constant__ FactsJob job) {
  const int64_t row = int64_t{blockIdx.x} * (kFactThreads / 32) + threadIdx.x / 32;
  if (row >= job.rows) return;
  const int query = static_cast<int>(row % job.queries);
  const int64_t head = row / job.queries;
  const int b = static_cast<int>(head / job.heads), h = static_cast<int>(head % job.heads);
  const char* d_out = job.d_out.at(b, h, query);
  const char* out = job.out.at(b, h, query);
  float sum = 0;
  uint32_t largest = 0;
  for (int c = threadIdx.x % 32; c < job.columns; c += 32) {
    const float d = load_element(d_out + c * job.d_out.column, job.d_out.dtype, job.aligned);
    sum = __fmaf_rn(d, load_element(out + c * job.out.column, job.out.dtype, job.aligned), sum);
    if (fabsf(d) < kInfinity) largest = max(largest, __float_as_uint(fabsf(d)));
  }
  if (job.largest != nullptr)
    note_largest(job.largest + int64_t{b} * job.key_heads + h / (job.heads / job.key_heads),
                 largest);
  sum = cuda::add_lanes(sum);
  if (threadIdx.x % 32 != 0) return;
  const float lse = cuda::load_float(job.lse.at(b, h, query), DType::kF32);
  job.facts[row] = {lse_in_log2(lse), sum};
}

__global__ void __launch_bounds__(kAnyThreads)
    keys_kernel(const __grid_constant__ BackwardJob job, bool only_redo) {
  __shared__ AnyShared shared;
  any_keys(job, only_redo, shared);
}
__global__ void __launch_bounds__(kAnyThreads)
    queries_kernel(const __grid_constant__ BackwardJob job, bool only_redo) {
  __shared__ AnyShared shared;
  any_queries(job, only_redo, shared);
}
__global__ void __launch_bounds__(kAnyThreads) mask_kernel(const __grid_constant__ MaskJob job) {
  __shared__ AnyShared shared;
  MaskTile(job, shared).run();
}
__global__ void __launch_bounds__(kAnyThreads)
    sinks_kernel(const __grid_constant__ BackwardJob job, cuda::AttentionList d_sinks) {
  sink_gradient(job, d_sinks, static_cast<int>(blockIdx.x));
}

// ---- host ----

bool lies_at_elements(const TensorView& t) {
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) == 0;
}

BackwardJob job_of(const Call& args, const BackwardCall& call) {
  constexpr double kLog2EOfDouble = 1.4426950408889634;
  const AttentionInputs& in = call.in;
  BackwardJob job;
  job.call = cuda::attention_call(in);
  job.d_out = cuda::attention_rows(call.d_out);
  job.d_q = cuda::attention_rows(call.d_q);
  job.d_k = cuda::attention_rows(call.d_k);
  job.d_v = cuda::attention_rows(call.d_v);
  job.facts = static_cast<RowFacts*>(args.workspace);
  job.factor =
      static_cast<float>(in.softcap != 0 ? in.scale / in.softcap : in.scale * kLog2EOfDouble);
  job.softcap_log2 = static_cast<float>(in.softcap * kLog2EOfDouble);
  job.aligned = true;
  for (const TensorView* t : {&in.q, &in.k, &in.v, &call.d_out, &call.out})
    job.aligned = job.aligned && lies_at_elements(*t);
  job.redo_k = reinterpret_cast<int*>(job.facts + in.batches() * in.heads() * in.queries());
  const int64_t key_tiles = in.batches() * in.k.shape[1] * job.key_tiles();
  job.redo_v = job.redo_k + key_tiles;
  job.redo_q = job.redo_v + key_tiles;
  return job;
}

Status start_facts(const Call& args, const BackwardCall& call, const BackwardJob& job,
                   uint32_t* largest = nullptr) {
  const AttentionCall& c = job.call;
  const int64_t rows = int64_t{c.batches} * c.heads * c.queries;
  const FactsJob facts{job.d_out,
                       cuda::attention_rows(call.out),
                       cuda::attention_rows(call.lse),
                       job.facts,
                       largest,
                       rows,
                       c.heads,
                       c.key_heads,
                       c.queries,
                       c.value_depth,
                       job.aligned};
  return cuda::launch(args, "attention_backward_facts",
                      {cuda::ceil_div(rows, kFactThreads / 32), kFactThreads}, facts_kernel, facts);
}

// d_k, d_v and d_q of all tiles, or of those that a fast kernel has left.
Status start_any(const Call& args, const BackwardJob& job, bool only_redo) {
  const AttentionCall& c = job.call;
  const int64_t of_depth = cuda::ceil_div(c.depth, kAnyColumns);
  const int64_t of_values = cuda::ceil_div(c.value_depth, kAnyColumns);
  const int64_t keys = int64_t{c.batches} * c.key_heads * job.key_tiles() * (of_depth + of_values);
  const int64_t queries = int64_t{c.batches} * c.heads * job.query_tiles() * of_depth;
  PESTLE_TRY(cuda::launch(args, "attention_backward_any_keys", {keys, kAnyThreads}, keys_kernel,
                          job, only_redo));
  return cuda::launch(args, "attention_backward_any_queries", {queries, kAnyThreads},
                      queries_kernel, job, only_redo);
}

Status start_mask_and_sinks(const Call& args, const BackwardCall& call, const BackwardJob& job) {
  if (call.d_mask.dtype != DType::kNone) {
    MaskJob mask{job, cuda::attention_rows(call.d_mask)};
    for (int d = 0; d < 4; ++d) mask.shape[d] = static_cast<int>(call.d_mask.shape[d]);
    PESTLE_TRY(cuda::launch(args, "attention_backward_mask", {mask.blocks(), kAnyThreads},
                            mask_kernel, mask));
  }
  if (call.d_sinks.dtype == DType::kNone) return {};
  return cuda::launch(args, "attention_backward_sinks", {job.call.heads, kAnyThreads}, sinks_kernel,
                      job, cuda::attention_list(call.d_sinks));
}

// Rows of neighbouring elements that begin at multiples of 16 bytes.
std::string refuse_rows(const char* name, const TensorView& t) {
  if (t.shape[3] > 1 && t.strides[3] != 1)
    return std::string("the last dimension of ") + name + " has a stride of " +
           std::to_string(t.strides[3]) + ", not 1";
  bool even = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int d = 0; d < 3; ++d)
    even = even && (t.shape[d] <= 1 || t.strides[d] * dtype_bytes(t.dtype) % 16 == 0);
  return even ? "" : std::string("rows of ") + name + " do not begin at multiples of 16 bytes";
}
std::string refuse_columns(const char* name, int64_t columns) {
  if (columns > 0 && columns <= 256 && columns % 8 == 0) return "";
  return std::string(name) + " is " + std::to_string(columns) +
         "; takes multiples of 8 from 8 to 256";
}

std::string refuses_any(const Call& args, const Machine&) {
  return cuda::refuse_attention_sizes(attention_inputs<spec>(args));
}

// Of any dtype.
std::string refuse_tensors(const Call& args, const Machine& machine) {
  if (std::string why = refuses_any(args, machine); !why.empty()) return why;
  const BackwardCall call(args);
  const AttentionInputs& in = call.in;
  if (call.d_out.dtype != in.q.dtype) return "d_out has not q's dtype";
  std::string why = refuse_columns("D", in.depth());
  if (why.empty()) why = refuse_columns("Dv", in.value_depth());
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"q", in.q},       {"k", in.k},       {"v", in.v},      {"d_out", call.d_out},
             {"d_q", call.d_q}, {"d_k", call.d_k}, {"d_v", call.d_v}};
  for (const auto& [name, tensor] : all)
    if (why.empty()) why = refuse_rows(name, tensor);
  return why;
}

std::string refuses_tiles(const Call& args, const Machine& machine) {
  const BackwardCall call(args);
  return call.in.q.dtype == DType::kF32 ? "q is f32; takes bf16 and f16"
                                        : refuse_tensors(args, machine);
}

std::string refuses_f32_tiles(const Call& args, const Machine& machine) {
  const BackwardCall call(args);
  if (call.in.q.dtype != DType::kF32) return "q is not f32";
  const int64_t columns = std::max(call.in.depth(), call.in.value_depth());
  if (columns > 128)
    return "takes f32 heads of up to 128 columns, not of " + std::to_string(columns);
  return refuse_tensors(args, machine);
}

std::string refuses_parts(const Call& args, const Machine& machine) {
  const BackwardCall call(args);
  if (call.in.tf32) return "is for precision=highest";
  const int cc = machine.compute_capability;
  if ((cc < 90 || cc >= 120) && std::max(call.in.depth(), call.in.value_depth()) > 64)
    return "f32 heads of more than 64 columns need 193 KiB of shared memory a block";
  if (call.in.batches() * call.in.heads() * (call.in.queries() / 32 + call.in.keys() / 32 + 2) >
      INT_MAX / 4)
    return "more than 2^29 tiles of queries or keys";
  return refuses_f32_tiles(args, machine);
}

Status run_any(const Call& args) {
  const BackwardCall call(args);
  const BackwardJob job = job_of(args, call);
  PESTLE_TRY(start_facts(args, call, job));
  PESTLE_TRY(start_any(args, job, false));
  return start_mask_and_sinks(args, call, job);
}

Status run_tiles(const Call& args) {
  const BackwardCall call(args);
  const BackwardJob job = job_of(args, call);
  PESTLE_TRY(start_facts(args, call, job));
  if (call.in.q.dtype == DType::kF32)
    PESTLE_TRY(call.in.tf32 ? start_tiles_tf32(args, job) : start_tiles_f32(args, job));
  else
    PESTLE_TRY(call.in.q.dtype == DType::kBF16 ? start_tiles_bf16(args, job)
                                               : start_tiles_f16(args, job));
  PESTLE_TRY(start_any(args, job, true));
  return start_mask_and_sinks(args, call, job);
}

Status run_parts(const Call& args) {
  const BackwardCall call(args);
  BackwardJob job = job_of(args, call);
  const AttentionCall& c = job.call;
  const int64_t words = int64_t{c.batches} * c.heads * job.query_tiles();
  PESTLE_TRY(start_facts(args, call, job));
  const auto end = reinterpret_cast<uintptr_t>(job.redo_q + words);
  PESTLE_TRY(start_parts(args, job, reinterpret_cast<void*>((end + 15) / 16 * 16)));
  PESTLE_TRY(start_any(args, job, true));
  return start_mask_and_sinks(args, call, job);
}

std::string refuses_hopper(const Call& args, const Machine& machine) {
  if (machine.compute_capability != 90) return "needs compute capability 9.0 (Hopper)";
  if (cuda::portable()) return "needs code for sm_90a, this build has portable code only";
  const BackwardCall call(args);
  const AttentionInputs& in = call.in;
  if (in.q_offsets.dtype != DType::kNone && in.has_mask())
    return "has packed sequences without a mask only";
  if (std::max(in.depth(), in.value_depth()) > 128)
    return "has heads of 128 columns at most, not of " +
           std::to_string(std::max(in.depth(), in.value_depth()));
  if (std::string why = refuses_tiles(args, machine); !why.empty()) return why;
  if (in.has_mask()) {
    if (in.mask.dtype != DType::kBool && in.mask.dtype != in.q.dtype)
      return "has boolean masks and those of q's dtype";
    if (!lies_at_elements(in.mask)) return "mask does not lie at whole elements";
  }
  if (in.batches() * in.heads() * ((std::max(in.keys(), in.queries()) + 63) / 64) > INT_MAX / 4)
    return "more than 2^29 tiles of queries or keys";
  const struct {
    const char* name;
    const TensorView& tensor;
  } read[] = {{"q", in.q}, {"k", in.k}, {"v", in.v}, {"d_out", call.d_out}};
  for (const auto& [name, tensor] : read) {
    const char* why = cuda::row_boxes(tensor, 64).why;
    if (*why) return std::string(name) + " " + why;
  }
  return "";
}

Status run_hopper(const Call& args) {
  const BackwardCall call(args);
  const BackwardJob job = job_of(args, call);
  const auto facts = [&](uint32_t* largest) { return start_facts(args, call, job, largest); };
  PESTLE_TRY(call.in.q.dtype == DType::kBF16 ? start_hopper_bf16(args, call, job, facts)
                                             : start_hopper_f16(args, call, job, facts));
  PESTLE_TRY(start_any(args, job, true));
  return start_mask_and_sinks(args, call, job);
}

#define PESTLE_BACKWARD_TILES_BYTES "8*B*Hq*Sq + 4*B*(2*Hk*cdiv(Sk,64) + Hq*cdiv(Sq,64))"
constexpr const char* kTilesWorkspace = PESTLE_BACKWARD_TILES_BYTES;

constexpr Impl kImpls[] = {
    {.id = "cuda/attention_backward_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper,
     .workspace = PESTLE_BACKWARD_HOPPER_BYTES},
    {.id = "cuda/attention_backward_parts",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_parts,
     .run = run_parts,
     .workspace = PESTLE_BACKWARD_TILES_BYTES
     " + 16 + " PESTLE_F16_PARTS_BYTES("B*Hq", "Sq", "D") " + " PESTLE_F16_PARTS_BYTES(
         "B*Hq", "Sq",
         "Dv") " + " PESTLE_F16_PARTS_BYTES("B*Hk", "Sk",
                                            "D") " + " PESTLE_F16_PARTS_BYTES("B*Hk", "Sk", "Dv")},
    {.id = "cuda/attention_backward_tiles_f32",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_f32_tiles,
     .run = run_tiles,
     .workspace = kTilesWorkspace},
    {.id = "cuda/attention_backward_tiles",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_tiles,
     .run = run_tiles,
     .workspace = kTilesWorkspace},
    {.id = "cuda/attention_backward_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_any,
     .run = run_any,
     .workspace = "8*B*Hq*Sq"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::attention_backward
