// group_norm on CUDA.
// Map      staged (group_norm_staged.cuh): groups of 16 KiB to 3.5 MiB in the shared memory of a
//          block or a cluster, where that is 227 KiB. held: a group of up to 262,144 elements in
//          the registers of lanes, a block or a cluster (row_team.cuh), 32 elements a thread; teams
//          walk over groups, the next ones on their way through shared memory (row_ring.cuh). long:
//          blocks take a chunk of a group each, first for its mean and squared differences, then,
//          chunks merged, for the result, backwards: what the L2 still holds comes first. any: a
//          block a group, any strides.
// Traffic  staged, held: x once, out once. long: x twice, out once.
// Numerics f32; held: mean, then squared differences from it; long: the same of 32 elements at a
//          time, merged by Chan's formula in a fixed order.
// Measured H200, share of the copy: staged 131,072 elements with silu 70 %, 409,600 elements 65 %,
//          16,384 elements with silu 76 %. Before: held 49 and 64 %, long 52 %.
#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/row_ring.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/shared_memory.h"
#include "backends/cuda/tensor_amax.h"
#include "core/machine.h"
#include "ops/group_norm/group_norm_groups.h"
#include "ops/group_norm/group_norm_job.cuh"
#include "ops/group_norm/group_norm_staged.cuh"

namespace pestle::ops::group_norm {
namespace {

using namespace pestle::cuda;

constexpr int kThreads = 256;    // of long and any
constexpr int kBlocks = 3;       // of a multiprocessor, of long, at least
constexpr int64_t kWave = 1056;  // chunks that fill a device
constexpr int kHeldThreads = 512;
constexpr int kHeldBlocks = 2;
constexpr int64_t kLeastStaged = 16 << 10;  // bytes of a group
constexpr int64_t kLongestHeld = int64_t{kHeldThreads} * kRowElements * kMostBlocksOfTeam;

// long: units that a thread has in flight, 128 bytes; a block's tile is kThreads times as many.
template <class T>
constexpr int kTile = 128 / (kUnit * T::kBytes);

// kCount values of a unit: (v - mean) * rstd * weight + bias of its channel, silu of it.
template <int kCount>
__device__ inline void finish(const Job& p, int64_t first_channel, int unit, float mean, float rstd,
                              float* v) {
  const int64_t channel = first_channel + p.plane.divide(unit);
  const float w = p.weight.quick_load(channel, 1.0f) * rstd;
  const float b = p.bias.quick_load(channel, 0.0f);
  for (int j = 0; j < kCount; ++j) v[j] = __fmaf_rn(v[j] - mean, w, b);
  if (!p.silu) return;
  for (int j = 0; j < kCount; ++j) v[j] = silu_of(v[j]);
}

template <class T>
using HeldMap = RowMap<T, kPieceBytes / T::kBytes>;

template <class T>
__global__ void __launch_bounds__(kHeldThreads, kHeldBlocks)
    held_kernel(const __grid_constant__ Job p) {
  using Map = HeldMap<T>;
  extern __shared__ uint4 shared[];
  __shared__ TeamJoins<4> parts;  // of groups in turn: one is read while the next is written
  Team team(p.shape);
  const int64_t row_bytes = p.units * (kUnit * T::kBytes);
  const int columns = static_cast<int>(p.units) * kUnit;
  RowElements<Map> at(team, columns);
  const RowRing<Map> ring(team, columns, shared, p.stages);
  const auto fetch = [&](int k, int stage) {
    if (team.walks_on(k)) ring.fetch(row_at(p.x, row_bytes, team.row_after(k)), stage);
    commit_copies();
  };
  for (int k = 0; k < p.stages; ++k) fetch(k, k * ring.kStride);
  team.begin(parts);
  int stage = 0, slot = 0;
  for (; team.walks_on(0); team.go_on(), slot ^= 2) {
    at.begin_row(team);
    if (p.stages == 2)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    RowValues v;
    read_row(ring, stage, v);
    fetch(p.stages, stage);
    stage = p.stages == 2 ? ring.kStride - stage : 0;
    const float sum = sum_of(v, [](float a, float s) { return s + a; });
    const float mean = team.sum(parts, slot, sum) * p.share;
    float squares = 0;
#pragma unroll
    for (int c = 0; c < Map::kChunks; ++c) {
      float own = 0;
      for (int j = 0; j < Map::kChunk; ++j) {
        const float d = v[c * Map::kChunk + j] - mean;
        own = __fmaf_rn(d, d, own);
      }
      if (at.has(c)) squares += own;
    }
    squares = team.sum(parts, slot + 1, squares);
    const float rstd = rsqrtf(__fmaf_rn(squares, p.share, p.eps));
    const int64_t first_channel = first_channel_of(p, team.row);
#pragma unroll
    for (int c = 0; c < Map::kChunks; ++c) {
      finish<Map::kChunk>(p, first_channel, at.near(c) / kUnit, mean, rstd, v + c * Map::kChunk);
    }
    store_row<Map>(row_at(p.out, row_bytes, team.row), at, v);
  }
}

// Count, mean and sum of squared differences of some elements.
struct Part {
  float n, mean, squares;

  __device__ Part merged(const Part& b) const {
    const float total = n + b.n;
    if (total == 0) return *this;
    const float apart = b.mean - mean;
    const float share = b.n / total;
    return {total, __fmaf_rn(apart, share, mean), squares + b.squares + apart * apart * n * share};
  }
  __device__ Part shifted(int distance) const {
    return {__shfl_down_sync(~0u, n, distance), __shfl_down_sync(~0u, mean, distance),
            __shfl_down_sync(~0u, squares, distance)};
  }
};

// All threads' parts merged; the result is thread 0's.
__device__ inline Part merge_block(Part part) {
  __shared__ Part warps[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) part = part.merged(part.shifted(distance));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) part = part.merged(warps[i]);
  }
  return part;
}

// A block's place: units [begin, end) of a group.
struct Chunk {
  int64_t group, begin, end;

  __device__ static Chunk of(const Job& p, int tile) {
    const int64_t group = blockIdx.x / p.chunks;
    const int64_t begin = blockIdx.x % p.chunks * p.tiles_of_chunk * tile;
    return {group, begin, min(begin + p.tiles_of_chunk * tile, p.units)};
  }
};

template <class T>
__device__ inline Part part_of(const typename T::Raw (&raw)[kTile<T>], int units) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTile<T>; ++i) {
    float v[kUnit];
    T::to_f32(raw[i], v);
    if (i >= units) continue;
    for (int j = 0; j < kUnit; ++j) sum += v[j];
  }
  Part part{static_cast<float>(units * kUnit), 0, 0};
  if (units == 0) return part;
  part.mean = sum / part.n;
#pragma unroll
  for (int i = 0; i < kTile<T>; ++i) {
    float v[kUnit];
    T::to_f32(raw[i], v);
    if (i >= units) continue;
    for (int j = 0; j < kUnit; ++j) {
      const float d = v[j] - part.mean;
      part.squares = __fmaf_rn(d, d, part.squares);
    }
  }
  return part;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) parts_kernel(const __grid_constant__ Job p) {
  constexpr int kTileUnits = kThreads * kTile<T>;
  const Chunk chunk = Chunk::of(p, kTileUnits);
  const char* x = p.x + chunk.group * p.units * (kUnit * T::kBytes);
  Part own{0, 0, 0};
  for (int64_t tile = chunk.begin; tile < chunk.end; tile += kTileUnits) {
    typename T::Raw raw[kTile<T>];
    int units = 0;
#pragma unroll
    for (int i = 0; i < kTile<T>; ++i) {
      const int64_t unit = tile + i * kThreads + threadIdx.x;
      raw[i] = T::load(x + min(unit, p.units - 1) * (kUnit * T::kBytes));
      units += unit < chunk.end;
    }
    own = own.merged(part_of<T>(raw, units));
  }
  own = merge_block(own);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = make_float4(own.n, own.mean, own.squares, 0);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocks) apply_kernel(const __grid_constant__ Job p) {
  __shared__ float2 whole;
  constexpr int kTileUnits = kThreads * kTile<T>;
  const Chunk chunk = Chunk::of(p, kTileUnits);
  Part part{0, 0, 0};
  for (int64_t i = threadIdx.x; i < p.chunks; i += kThreads) {
    const float4 v = p.parts[chunk.group * p.chunks + i];
    part = part.merged({v.x, v.y, v.z});
  }
  part = merge_block(part);
  if (threadIdx.x == 0) {
    whole = make_float2(part.mean, __frsqrt_rn(part.squares * p.share + p.eps));
  }
  __syncthreads();
  const float mean = whole.x, rstd = whole.y;
  const int64_t first_channel = first_channel_of(p, chunk.group);
  const int64_t start = chunk.group * p.units * (kUnit * T::kBytes);
  const int64_t tiles = (chunk.end - chunk.begin + kTileUnits - 1) / kTileUnits;
  for (int64_t t = tiles - 1; t >= 0; --t) {
    const int64_t first = chunk.begin + t * kTileUnits + threadIdx.x;
    typename T::Raw raw[kTile<T>];
#pragma unroll
    for (int i = 0; i < kTile<T>; ++i) {
      raw[i] = T::load(p.x + start + min(first + i * kThreads, p.units - 1) * (kUnit * T::kBytes));
    }
#pragma unroll
    for (int i = 0; i < kTile<T>; ++i) {
      const int64_t unit = first + i * kThreads;
      if (unit >= chunk.end) continue;
      float v[kUnit];
      T::to_f32(raw[i], v);
      finish<kUnit>(p, first_channel, static_cast<int>(unit), mean, rstd, v);
      T::put(p.out + start + unit * (kUnit * T::kBytes), round_unit<T>(v));
    }
  }
}

// ---- any ----

struct AnyJob {
  AnyTensor x, out;
  Parameter weight, bias;
  int64_t groups, channels, plane;
  float eps;
  bool silu;
};

__device__ float any_sum(float v) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < kThreads / 32 ? warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int step = 4; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return __shfl_sync(~0u, v, 0);
}

__global__ void __launch_bounds__(kThreads) any_kernel(const __grid_constant__ AnyJob p) {
  const int64_t group = blockIdx.x;
  const int64_t size = p.channels * p.plane;
  const int64_t start = group * size;
  const auto count = static_cast<float>(size);
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    sum += p.x.load(p.x.element_at(start + i));
  }
  const float mean = any_sum(sum) / count;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const float d = p.x.load(p.x.element_at(start + i)) - mean;
    squares = __fmaf_rn(d, d, squares);
  }
  const float rstd = __frsqrt_rn(any_sum(squares) / count + p.eps);
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const int64_t channel = group % p.groups * p.channels + i / p.plane;
    const float normal = (p.x.load(p.x.element_at(start + i)) - mean) * rstd;
    const float v = __fmaf_rn(normal, p.weight.load(channel, 1.0f), p.bias.load(channel, 0.0f));
    p.out.store(p.out.element_at(start + i), p.silu ? silu_of(v) : v);
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

template <class T>
Status start_staged(const Call& call, const StagedPlan& plan, const Groups& g, const Job& job) {
  const auto count = static_cast<uint32_t>(g.count());
  const auto pieces = static_cast<uint32_t>(g.plane * T::kBytes / 16);
  const StagedJob staged{plan, job, FastDivisor(pieces), count, g.size() * T::kBytes};
  const auto kernel = plan.threads == kFewThreads ? staged_kernel<T, kFewThreads>
                                                  : staged_kernel<T, kStagedThreads>;
  PESTLE_TRY(allow_shared(call, kernel, plan.bytes()));
  const int each =
      std::min<int>(kStagedThreads / plan.threads, (216 << 10) / (plan.bytes() + 4096));
  const int64_t clusters = resident_clusters(device_index(call), plan.cluster, std::max(each, 1));
  return launch(call, "group_norm",
                {std::min(g.count(), clusters) * plan.cluster, plan.threads,
                 static_cast<size_t>(plan.bytes()), plan.cluster},
                kernel, staged);
}

// How the staged kernel takes groups, if it does: from 64 KiB on, with shared memory of 227 KiB.
StagedPlan staged_plan(const Groups& g, const Machine& machine) {
  const int64_t bytes = g.size() * dtype_bytes(g.x.dtype);
  const int cc = machine.compute_capability;
  if (cc < 90 || cc >= 120 || bytes < kLeastStaged) return {};
  return {bytes, g.group_channels()};
}

template <class T>
Status start(const Call& call, const Groups& g, Job& job) {
  const StagedPlan plan = staged_plan(g, machine_for({DeviceType::kCuda, device_index(call)}));
  if (plan.cluster > 0) return start_staged<T>(call, plan, g, job);
  if (g.size() <= kLongestHeld) {
    using Map = HeldMap<T>;
    TeamShape& s = job.shape;
    s = team_over<Map>(g.count(), g.size(), kMostBlocksOfTeam, kHeldThreads);
    job.stages = T::kBytes == 2 ? 2 : 1;
    const int bytes = ring_bytes<Map>(s.threads, 1, job.stages);
    s.choose_walk(
        resident_blocks(device_index(call), s.threads, kHeldThreads * kHeldBlocks, bytes));
    PESTLE_TRY(allow_shared(call, held_kernel<T>, bytes));
    return launch(call, "group_norm",
                  {s.blocks(), s.threads, static_cast<size_t>(bytes), s.cluster}, held_kernel<T>,
                  job);
  }
  const int64_t tiles = ceil_div(job.units, kThreads * kTile<T>);
  job.tiles_of_chunk = ceil_div(tiles, std::min(tiles, ceil_div(kWave, g.count())));
  job.chunks = ceil_div(tiles, job.tiles_of_chunk);
  const Grid grid{g.count() * job.chunks, kThreads};
  PESTLE_TRY(launch(call, "group_norm", grid, parts_kernel<T>, job));
  return launch(call, "group_norm", grid, apply_kernel<T>, job);
}

Status run(const Call& call) {
  const Groups g(call);
  Job job{{},
          1,
          g.x.as<const char>(),
          g.out.as<char>(),
          Parameter(g.weight),
          Parameter(g.bias),
          g.groups,
          g.group_channels(),
          g.size() / kUnit,
          FastDivisor(static_cast<uint32_t>(g.plane / kUnit)),
          g.eps,
          1.0f / static_cast<float>(g.size()),
          g.silu,
          1,
          1,
          static_cast<float4*>(call.workspace)};
  switch (g.x.dtype) {
    case DType::kBF16: return start<Bf16>(call, g, job);
    case DType::kF16: return start<F16>(call, g, job);
    default: return start<F32>(call, g, job);
  }
}

Status run_any(const Call& call) {
  const Groups g(call);
  const AnyJob job{AnyTensor(g.x),
                   AnyTensor(g.out),
                   Parameter(g.weight),
                   Parameter(g.bias),
                   g.groups,
                   g.group_channels(),
                   g.plane,
                   g.eps,
                   g.silu};
  if (g.size() == 0) return {};
  return launch(call, "group_norm_any", {g.count(), kThreads}, any_kernel, job);
}

std::string refuses(const Call& call, const Machine& machine) {
  const Groups g(call);
  if (g.count() * g.size() == 0) return "the tensor is empty";
  if (g.plane % kUnit != 0) return "a channel's elements are no multiple of 8";
  if (g.count() >= int64_t{1} << 31) return "2^31 groups or more";
  if (g.size() / kUnit >= int64_t{1} << 31) return "groups of 2^34 elements or more";
  const bool clusters = machine.compute_capability >= 90;
  if (!clusters && g.size() <= kLongestHeld && g.size() > kLongestHeld / kMostBlocksOfTeam) {
    return "groups of this size need clusters of blocks";
  }
  for (int index : {kX, kOut}) {
    const TensorView& t = call.tensor(index);
    const std::string name = spec.args[index].name;
    if (!is_contiguous(t)) return name + " has gaps";
    if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return name + " is not aligned to 16 bytes";
  }
  for (const TensorView* t : {&g.weight, &g.bias}) {
    if (t->data == nullptr) continue;
    if (reinterpret_cast<uintptr_t>(t->data) % dtype_bytes(t->dtype) != 0) {
      return "weight or bias is not aligned to its elements";
    }
  }
  return "";
}

constexpr Impl kImpls[] = {
    {.id = "cuda/group_norm",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = "16*(1056 + size(x,0)*groups)"},
    {.id = "cuda/group_norm_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::group_norm
