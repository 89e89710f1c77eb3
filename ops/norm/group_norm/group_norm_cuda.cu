// group_norm on CUDA.
// Map      staged (group_norm_staged.cuh): groups of 16 KiB to 3.5 MiB (half as long with a
//          residual or a gate) in the shared memory of a block or a cluster, where that is 227 KiB.
//          interleaved (group_norm_interleaved.cuh): those of 128 to 256 KiB that fill the threads
//          of two blocks, without a residual or a gate.
//          packed (group_norm_packed.cuh): those that are whole pairs of pieces of its threads,
//          with a residual, a gate or in clusters of 4 blocks and more: in registers as they came.
//          registers (group_norm_registers.cuh): shorter ones in registers. long
//          (group_norm_long.cuh): longer ones in two kernels. All but packed make codes of a given
//          scale of the whole tensor, too. any: a block a group, any strides. codes: one of these,
//          then the quantiser, out of the L2 as far as it fits (ops/quant/output/quantize_after.h).
// Traffic  staged, registers: each tensor once. long: x and residual twice. Modulation is folded
//          into weight and bias of a sample's channel. codes: out written and read again.
// Numerics f32; means and squared differences from them, joined in a fixed order.
// Measured H200, share of the copy: interleaved 131,072 elements with silu 80 %, with modulation
//          77.5 %, to fp8 57 %; staged 409,600 elements 82 %; packed with a residual 79 %, 163,840
//          elements 77 %; long 87 %, with residual and gate 91 % (x and residual counted twice).
#include "backends/cuda/device/row/block_sums.cuh"
#include "backends/cuda/device/row/row_ring.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "backends/cuda/host/tensor_amax.h"
#include "core/machine.h"
#include "ops/norm/group_norm/group_norm_interleaved.cuh"
#include "ops/norm/group_norm/group_norm_job.cuh"
#include "ops/norm/group_norm/group_norm_long.cuh"
#include "ops/norm/group_norm/group_norm_packed.cuh"
#include "ops/norm/group_norm/group_norm_registers.cuh"
#include "ops/norm/group_norm/group_norm_staged.cuh"
#include "ops/quant/output/quantize_after.h"

namespace pestle::ops::group_norm {
namespace {

using namespace pestle::cuda;

// Of chunks 16 bytes; each group's last one may be short.
constexpr const char* kLongWorkspace = "16*(M*K*bytes(x)/16384 + size(x,0)*groups)";

constexpr int64_t kLeastStaged = 16 << 10;  // bytes of a group
// The same, in registers, of more than kStagedChannels.
constexpr int64_t kLongestOfMany = 256 << 10;

// ---- any ----

constexpr int kAnyBatch = 8;  // elements that a thread loads before it uses them

struct AnyJob {
  AnyTensor x, residual, out, residual_out;
  ChannelParameter gate;
  ChannelAffine affine;
  int64_t groups, channels, plane;
  float eps;
  bool silu;

#ifdef __CUDACC__
  // What is normalised: v[j] of element i + j * kThreads of a group of `size` that begins at
  // `start`, whose first channel is `first`. Returns how many there are.
  __device__ int sums(uint32_t sample, uint32_t first, int64_t start, int64_t i, int64_t size,
                      float (&v)[kAnyBatch]) const {
    const int count = static_cast<int>(
        min((size - i + kThreads - 1) / kThreads, static_cast<int64_t>(kAnyBatch)));
    x.load_elements(start + i, kThreads, count, v);
    if (residual.data == nullptr && gate.data == nullptr) return count;
    float r[kAnyBatch] = {};
    if (residual.data != nullptr) residual.load_elements(start + i, kThreads, count, r);
#pragma unroll
    for (int j = 0; j < kAnyBatch; ++j) {
      if (j >= count) break;
      const uint32_t channel = channel_of(first, i + j * kThreads);
      v[j] = __fmaf_rn(v[j], gate.load(sample, channel, 1.0f), r[j]);
    }
    return count;
  }
  __device__ uint32_t channel_of(uint32_t first, int64_t i) const {
    return first + static_cast<uint32_t>(AnyTensor::quotient(i, plane));
  }
#endif
};

__global__ void __launch_bounds__(kThreads) any_kernel(const __grid_constant__ AnyJob p) {
  const int64_t group = blockIdx.x;
  const auto sample = static_cast<uint32_t>(group / p.groups);
  const auto first = static_cast<uint32_t>(group % p.groups * p.channels);
  const int64_t size = p.channels * p.plane;
  const int64_t start = group * size;
  const auto number = static_cast<float>(size);
  constexpr int64_t kStep = kThreads * kAnyBatch;
  float v[kAnyBatch];
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < size; i += kStep) {
    const int count = p.sums(sample, first, start, i, size, v);
#pragma unroll
    for (int j = 0; j < kAnyBatch; ++j) sum += j < count ? v[j] : 0.0f;
  }
  const float mean = block_sum<kThreads>(sum) / number;
  for (int64_t i = threadIdx.x; i < size; i += kStep) {
    const int count = p.sums(sample, first, start, i, size, v);
#pragma unroll
    for (int j = 0; j < kAnyBatch; ++j) {
      const float d = j < count ? v[j] - mean : 0.0f;
      squares = __fmaf_rn(d, d, squares);
    }
  }
  const float rstd = __frsqrt_rn(block_sum<kThreads>(squares) / number + p.eps);
  uint32_t known = ~0u;  // the channel of wb
  float2 wb;
  for (int64_t i = threadIdx.x; i < size; i += kStep) {
    const int count = p.sums(sample, first, start, i, size, v);
#pragma unroll
    for (int j = 0; j < kAnyBatch; ++j) {
      if (j >= count) break;
      const int64_t element = start + i + j * kThreads;
      if (p.residual_out.data != nullptr) {
        p.residual_out.store(p.residual_out.element_at(element), v[j]);
      }
      const uint32_t channel = p.channel_of(first, i + j * kThreads);
      if (channel != known) wb = p.affine.load(sample, channel);
      known = channel;
      const float y = __fmaf_rn((v[j] - mean) * rstd, wb.x, wb.y);
      p.out.store(p.out.element_at(element), p.silu ? silu_of(y) : y);
    }
  }
}

// ---- host ----

// Clusters that run at once, at least: an H200's multiprocessors come in groups of 14 to 18.
int64_t resident_clusters(int device, int cluster, int blocks_each) {
  const int64_t all = multiprocessors(device);
  if (cluster == 1) return all * blocks_each;
  const int64_t h200 = cluster == 2 ? 66 : cluster == 4 ? 30 : cluster == 8 ? 15 : 7;
  return std::max<int64_t>(1, h200 * all / 132) * blocks_each;
}

template <class T, bool kSum>
Status start_staged(const Call& call, const StagedPlan& plan, const Groups& g, const Job& job) {
  const auto count = static_cast<uint32_t>(g.count());
  const auto pieces = static_cast<uint32_t>(g.plane * T::kBytes / 16);
  const auto kernel = plan.threads == kFewThreads ? staged_kernel<T, kFewThreads, kSum>
                                                  : staged_kernel<T, kStagedThreads, kSum>;
  PESTLE_TRY(allow_shared(call, kernel, plan.bytes()));
  const int each =
      std::min<int>(kStagedThreads / plan.threads, (216 << 10) / (plan.bytes() + 4096));
  const int64_t clusters = resident_clusters(device_index(call), plan.cluster, std::max(each, 1));
  const uint32_t delay = begin_apart(g.count(), clusters, int64_t{plan.bytes()} * plan.cluster);
  const StagedJob staged{plan, job, FastDivisor(pieces), count, g.size() * T::kBytes, delay};
  return launch(call, "group_norm",
                {std::min(g.count(), clusters) * plan.cluster, plan.threads,
                 static_cast<size_t>(plan.bytes()), plan.cluster},
                kernel, staged);
}

template <class T, bool kSum>
Status start_packed(const Call& call, const PackedPlan& plan, const Groups& g, const Job& job) {
  const auto count = static_cast<uint32_t>(g.count());
  const auto pieces = static_cast<uint32_t>(g.plane * T::kBytes / 16);
  const auto kernel = packed_kernel<T, kSum>;
  PESTLE_TRY(allow_shared(call, kernel, kPackedBytes));
  const int64_t clusters =
      std::min(g.count(), resident_clusters(device_index(call), plan.cluster, 1));
  const int64_t bytes = g.size() * T::kBytes;
  const uint32_t delay = begin_apart(g.count(), clusters, int64_t{kPackedBytes} * plan.cluster);
  const int64_t jump =
      clusters * bytes - int64_t{plan.turns} * (kSum ? 1 : 2) * kPackedThreads * 16;
  const PackedJob packed{
      plan, job, FastDivisor(pieces), count, static_cast<uint32_t>(clusters), bytes, jump, delay};
  return launch(
      call, "group_norm",
      {clusters * plan.cluster, kPackedThreads, static_cast<size_t>(kPackedBytes), plan.cluster},
      kernel, packed);
}

template <class T>
Status start_interleaved(const Call& call, const InterleavedPlan& plan, const Groups& g,
                         const Job& job) {
  const auto count = static_cast<uint32_t>(g.count());
  const auto pieces = static_cast<uint32_t>(g.plane * T::kBytes / 16);
  const auto kernel = interleaved_kernel<T>;
  PESTLE_TRY(allow_shared(call, kernel, kInterleavedBytes));
  const int64_t clusters =
      std::min(g.count(), resident_clusters(device_index(call), kInterleavedBlocks, 1));
  const int64_t bytes = g.size() * T::kBytes;
  const uint32_t delay =
      begin_apart(g.count(), clusters, int64_t{kInterleavedBytes} * kInterleavedBlocks);
  const int64_t jump = clusters * bytes - int64_t{plan.turns} * 2 * kInterleavedThreads * 16;
  const InterleavedJob interleaved{
      plan, job, FastDivisor(pieces), count, static_cast<uint32_t>(clusters), bytes, jump, delay};
  return launch(call, "group_norm",
                {clusters * kInterleavedBlocks, kInterleavedThreads,
                 static_cast<size_t>(kInterleavedBytes), kInterleavedBlocks},
                kernel, interleaved);
}

// How the interleaved kernel takes groups, if it does: where shared memory is 227 KiB.
InterleavedPlan interleaved_plan(const Groups& g, const Machine& machine) {
  const int cc = machine.compute_capability;
  if (cc < 90 || cc >= 120 || g.sums()) return {};
  const int64_t bytes = dtype_bytes(g.x.dtype);
  return {g.size() * bytes, g.plane * bytes, g.group_channels()};
}

// How the packed kernel takes groups, if it does: where shared memory is 227 KiB.
PackedPlan packed_plan(const Groups& g, const Job& job, const Machine& machine) {
  const int cc = machine.compute_capability;
  if (cc < 90 || cc >= 120 || job.q != nullptr || job.out == nullptr) return {};
  return {g.size() * dtype_bytes(g.x.dtype), g.group_channels(), g.sums() ? 1 : 2};
}

// How the staged kernel takes groups, if it does: from 64 KiB on, with shared memory of 227 KiB.
StagedPlan staged_plan(const Groups& g, const Machine& machine) {
  const int64_t bytes = g.size() * dtype_bytes(g.x.dtype);
  const int cc = machine.compute_capability;
  if (cc < 90 || cc >= 120 || bytes < kLeastStaged) return {};
  return {bytes, g.group_channels(), g.sums() ? 1 : 2};
}

template <class T, bool kSum>
Status start_registers(const Call& call, const Groups& g, Job& job) {
  using Map = RegisterMap<T>;
  ThreadGroupShape& s = job.shape;
  s = group_over<Map>(g.count(), g.size(), kMostGroupBlocks, kRegisterThreads);
  job.stages = T::kBytes == 2 ? 2 : 1;
  const int bytes = ring_bytes<Map>(s.threads, 1, job.stages);
  s.choose_walk(
      resident_blocks(device_index(call), s.threads, kRegisterThreads * kRegisterBlocks, bytes));
  const auto kernel = register_kernel<T, kSum>;
  PESTLE_TRY(allow_shared(call, kernel, bytes));
  return launch(call, "group_norm", {s.blocks(), s.threads, static_cast<size_t>(bytes), s.cluster},
                kernel, job);
}

template <class T, bool kSum>
Status start_long(const Call& call, const Groups& g, const Job& job) {
  constexpr int64_t kTileUnits = kThreads * kTile<T, kSum>;
  const int64_t tiles = ceil_div(job.units, kTileUnits);
  const int64_t tiles_each = ceil_div(tiles, kMostChunks), chunks = ceil_div(tiles, tiles_each);
  LongJob p{};
  p.job = job;
  p.chunks = FastDivisor(static_cast<uint32_t>(chunks));
  p.tiles = FastDivisor(static_cast<uint32_t>(tiles));
  p.chunk_units = tiles_each * kTileUnits;
  p.parts = static_cast<float4*>(call.workspace);
  PESTLE_TRY(launch(call, "group_norm", {g.count() * chunks, kThreads},
                    long_statistics_kernel<T, kSum>, p));
  return launch_early(call, "group_norm", {g.count() * tiles, kThreads},
                      long_results_kernel<T, kSum>, p);
}

// Does the kernel in registers take groups that the staged one does not? Long ones of many channels
// are faster in two passes.
bool fits_registers(const Groups& g, const Machine& machine) {
  if (machine.compute_capability < 90) return g.size() <= kLongestInRegisters / kMostGroupBlocks;
  const bool many = g.group_channels() > kStagedChannels;
  const int64_t bytes = g.size() * dtype_bytes(g.x.dtype);
  return g.size() <= kLongestInRegisters && (!many || bytes <= kLongestOfMany);
}

template <class T, bool kSum>
Status start(const Call& call, const Groups& g, Job& job) {
  const Machine machine = machine_for({DeviceType::kCuda, device_index(call)});
  if constexpr (!kSum) {
    const InterleavedPlan interleaved = interleaved_plan(g, machine);
    if (interleaved.turns > 0) return start_interleaved<T>(call, interleaved, g, job);
  }
  const PackedPlan packed = packed_plan(g, job, machine);
  if (packed.cluster > 0) return start_packed<T, kSum>(call, packed, g, job);
  const StagedPlan plan = staged_plan(g, machine);
  if (plan.cluster > 0) return start_staged<T, kSum>(call, plan, g, job);
  if (fits_registers(g, machine)) return start_registers<T, kSum>(call, g, job);
  return start_long<T, kSum>(call, g, job);
}

template <class T>
Status start(const Call& call, const Groups& g, Job& job) {
  return job.sums() ? start<T, true>(call, g, job) : start<T, false>(call, g, job);
}

Status run(const Call& call) {
  const Groups g(call);
  Job job{{},
          1,
          g.x.as<const char>(),
          g.residual.as<const char>(),
          g.out.as<char>(),
          g.residual_out.as<char>(),
          view_of(call, kQ).as<uint8_t>(),
          view_of(call, kQScale).as<const char>(),
          ChannelParameter(g.gate, g.samples_each()),
          ChannelAffine(g),
          FastDivisor(static_cast<uint32_t>(g.groups)),
          static_cast<uint32_t>(g.group_channels()),
          g.size() / kUnit,
          FastDivisor(static_cast<uint32_t>(g.plane / kUnit)),
          g.eps,
          1.0f / static_cast<float>(g.size()),
          g.silu};
  switch (g.x.dtype) {
    case DType::kBF16: return start<Bf16>(call, g, job);
    case DType::kF16: return start<F16>(call, g, job);
    default: return start<F32>(call, g, job);
  }
}

Status run_any(const Call& call) {
  const Groups g(call);
  const AnyJob job{AnyTensor::merged(g.x),
                   AnyTensor::merged(g.residual),
                   AnyTensor::merged(g.out),
                   AnyTensor::merged(g.residual_out),
                   ChannelParameter(g.gate, g.samples_each()),
                   ChannelAffine(g),
                   g.groups,
                   g.group_channels(),
                   g.plane,
                   g.eps,
                   g.silu};
  if (g.size() == 0) return {};
  return launch(call, "group_norm_any", {g.count(), kThreads}, any_kernel, job);
}

std::string refuses(const Call& call, const Machine&) {
  const auto format = static_cast<OutFormat>(call.integer(kOutFormat));
  if (format != OutFormat::kNone && format != OutFormat::kFp8Tensor) {
    return "makes codes of a given scale of the whole tensor only";
  }
  const Groups g(call);
  if (g.count() * g.size() == 0) return "the tensor is empty";
  if (g.plane % kUnit != 0) return "a channel's elements are no multiple of 8";
  if (g.count() >= int64_t{1} << 31) return "2^31 groups or more";
  if (g.size() / kUnit >= int64_t{1} << 31) return "groups of 2^34 elements or more";
  for (int index : {kX, kOut, kResidual, kResidualOut, kQ, kQScale}) {
    if (!call.has(index)) continue;
    const TensorView& t = call.tensor(index);
    const std::string name = spec.args[index].name;
    if (!is_contiguous(t)) return name + " has gaps";
    const uintptr_t align = index == kQ ? 8 : index == kQScale ? 4 : 16;
    if (reinterpret_cast<uintptr_t>(t.data) % align != 0) {
      return name + " is not aligned to " + std::to_string(align) + " bytes";
    }
  }
  return ChannelAffine::refuse(g);
}

std::string refuses_any(const Call& call, const Machine&) { return refuse_quantized_output(call); }

constexpr Impl kImpls[] = {
    {.id = "cuda/group_norm",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = kLongWorkspace},
    {.id = "cuda/group_norm_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_any,
     .run = run_any},
    {.id = "cuda/group_norm_codes",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kCodesWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::group_norm
