// group_norm's kernel for groups that lie in the shared memory of a block or a cluster.
// Map      a block (or a cluster of up to 16) stays and goes through groups; a thread has the same
//          pieces of 16 bytes of each, two at a time, asks for them itself by asynchronous copies
//          into a ring, and reads only what it asked for, so that no barrier belongs to the loads.
//          Where a pair was read for the result, one of a coming group takes its place: loads are
//          under way while a group's statistics are made and exchanged. With a residual or a gate
//          a pair is a piece of x and the residual's.
// Traffic  x, residual, out and residual_out once.
// Numerics each thread: sums around the mean of its first piece; threads, warps and blocks are
//          joined as counts, means and squared differences, in a fixed order.
// Measured H200: group_norm_cuda.cu, group_norm.md.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/row/row_ring.cuh"
#include "ops/norm/group_norm/group_norm_job.cuh"

namespace pestle::ops::group_norm {

using namespace pestle::cuda;

constexpr int kStagedThreads = 1024;  // of a block; kFewThreads where groups are small
constexpr int kFewThreads = 256;
constexpr int kMostTurns = 4;  // pairs of pieces of a thread, where a larger cluster exists
constexpr int kRingPairs = 7;  // of a thread, at most
// Channels of a group, at most; fewer where their gates are kept, too: 227 KiB are all there is.
constexpr int kStagedChannels = 64, kGatedChannels = 56;
constexpr int kMostBlocks = 16;  // of a cluster

struct StagedPlan {
  int threads = kFewThreads;
  int cluster = 0;       // 0: a group does not fit
  int pieces = 0;        // of 16 bytes, of a group
  int block_pieces = 0;  // of a block
  int turns = 0;         // pairs of pieces of a thread
  int ring = 0;          // pairs of a thread that shared memory holds

  StagedPlan() = default;
  // `each`: pieces of x of a pair.
  StagedPlan(int64_t group_bytes, int64_t channels, int each) {
    const int64_t all = group_bytes / 16;
    const int64_t most = int64_t{kMostBlocks} * each * kRingPairs * kStagedThreads;
    if (channels > (each == 1 ? kGatedChannels : kStagedChannels) || all > most) return;
    pieces = static_cast<int>(all);
    if (pieces > each * kMostTurns * kFewThreads) threads = kStagedThreads;
    for (cluster = 1; cluster < kMostBlocks; cluster *= 2) {
      if (pieces <= int64_t{each * kMostTurns} * threads * cluster) break;
    }
    block_pieces = (pieces + cluster - 1) / cluster;
    turns = (block_pieces + each * threads - 1) / (each * threads);
    ring = 2 * turns < kRingPairs ? 2 * turns : kRingPairs;
  }
  int bytes() const { return ring * threads * 32; }
};

struct StagedJob {
  StagedPlan plan;
  Job job;
  FastDivisor plane;  // pieces of a channel
  uint32_t count;     // of groups
  int64_t group_bytes;
  uint32_t delay;  // clocks from one cluster's beginning to the next one's
};

#ifdef __CUDACC__

// Of some elements: how many, their mean, the sum of squared differences from it.
struct Moments {
  float n, mean, squares;
};

template <bool kSum>
struct StagedParts {
  static constexpr int kChannels = kSum ? kGatedChannels : kStagedChannels;
  float4 of_warps[2][kStagedThreads / 32];  // by parity of the group
  float4 of_blocks[2][kMostBlocks];
  float2 parameters[2][kChannels];
  float gates[2][kSum ? kChannels : 1];
  uint64_t arrived[2];
  float factor;  // of codes
};

template <class T, int kThreads, bool kSum>
struct Staged {
  static constexpr int kEach = kSum ? 1 : 2;  // pieces of x of a pair
  static constexpr int kElements = 16 / T::kBytes;
  static constexpr int kStep = kThreads * 16;  // from one piece of a thread to the next, bytes

  const StagedJob& p;
  StagedParts<kSum>& parts;
  int rank;
  int first, own;      // this thread's first piece of the group, and how many it has
  uint32_t ring, end;  // its places in shared memory
  uint32_t get;        // the present group's first place, then that of what is read
  // What is asked for next: it takes the place of what was read last.
  uint32_t put_group;
  int put_own, put_piece = 0;
  const char* from;
  uint32_t uses = 0;  // groups so far
  float2 asked = make_float2(1, 0);
  float asked_gate = 1;

  __device__ Staged(const StagedJob& job, StagedParts<kSum>& own_parts, uint4* memory)
      : p(job), parts(own_parts) {
    const StagedPlan& plan = p.plan;
    rank = plan.cluster == 1 ? 0 : static_cast<int>(blockIdx.x % plan.cluster);
    const int begin = rank * plan.block_pieces;
    const int here = min(plan.block_pieces, plan.pieces - begin);
    first = begin + static_cast<int>(threadIdx.x);
    own = max(0, (here - static_cast<int>(threadIdx.x) + kThreads - 1) / kThreads);
    get = ring = shared_at(memory + threadIdx.x);
    end = ring + plan.ring * (2 * kStep);
    put_group = blockIdx.x / plan.cluster;
    put_own = own;
    from = p.job.x + start_of(put_group);
  }
  // Of this thread's first piece of a group, in x and out.
  __device__ int64_t start_of(uint32_t group) const {
    return static_cast<int64_t>(static_cast<uint64_t>(group) *
                                static_cast<uint64_t>(p.group_bytes)) +
           static_cast<uint32_t>(first) * 16u;
  }
  __device__ uint32_t after(uint32_t place) const {
    return place + 2 * kStep == end ? ring : place + 2 * kStep;
  }
  // Asks for this thread's next pair.
  __device__ void fetch(uint32_t place) {
    if (kSum ? put_piece < put_own && p.job.residual != nullptr : put_piece + 1 < put_own) {
      const char* second = from + (kSum ? p.job.residual - p.job.x : kStep);
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16;\n"
          "cp.async.cg.shared.global [%0 + %3], [%2], 16;" ::"r"(place),
          "l"(from), "l"(second), "n"(kStep)
          : "memory");
    } else if (put_piece < put_own) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    }
    from += kEach * kStep;
    put_piece += kEach;
    if (put_piece < kEach * p.plan.turns) return;
    commit_copies();
    put_piece = 0;
    put_group += gridDim.x / p.plan.cluster;
    put_own = put_group < p.count ? own : 0;
    from = p.job.x + start_of(put_group);
  }
  // What is normalised, of the piece of x that lies at `place`.
  __device__ void read_sum(uint32_t place, int piece, float (&v)[kElements]) const {
    unpack_piece<T>(load_shared(place), v);
    const float gate = p.job.gate.data ? parts.gates[uses & 1][p.plane.divide(piece)] : 1.0f;
    float r[kElements] = {};
    if (p.job.residual != nullptr) unpack_piece<T>(load_shared(place + kStep), r);
    for (int j = 0; j < kElements; ++j) v[j] = __fmaf_rn(v[j], gate, r[j]);
  }

  // ---- statistics ----

  __device__ static float over_lanes(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
    return v;
  }
  // Of all lanes' together.
  __device__ static Moments joined(const Moments& m) {
    const float n = over_lanes(m.n);
    const float mean = n > 0 ? __fdividef(over_lanes(m.mean * m.n), n) : 0;
    const float away = m.n > 0 ? m.mean - mean : 0;
    return {n, mean, over_lanes(__fmaf_rn(away * m.n, away, m.squares))};
  }
  // Of this thread's pieces.
  __device__ Moments moments() const {
    float shift = 0, sums[2] = {0, 0}, squares[2] = {0, 0};
    const auto add = [&](const float(&v)[kElements]) {
      for (int j = 0; j < kElements; ++j) {
        const float d = v[j] - shift;
        sums[j & 1] += d;
        squares[j & 1] = __fmaf_rn(d, d, squares[j & 1]);
      }
    };
    uint32_t place = get;
    if (own > 0) {
      float v[kElements];
      if constexpr (kSum)
        read_sum(place, first, v);
      else
        unpack_piece<T>(load_shared(place), v);
      for (int j = 0; j < kElements; ++j) shift += v[j];
      shift *= 1.0f / kElements;
    }
    int k = 0;
    if constexpr (kSum) {
#pragma unroll 2
      for (; k < own; ++k, place = after(place)) {
        float v[kElements];
        read_sum(place, first + k * kThreads, v);
        add(v);
      }
    }
#pragma unroll 2
    for (; k + 1 < own; k += 2, place = after(place)) {
      const uint4 raw[2] = {load_shared(place), load_shared(place + kStep)};
      float v[kElements];
      unpack_piece<T>(raw[0], v);
      add(v);
      unpack_piece<T>(raw[1], v);
      add(v);
    }
    if (k < own) {
      float v[kElements];
      unpack_piece<T>(load_shared(place), v);
      add(v);
    }
    const auto n = static_cast<float>(own * kElements);
    const float sum = sums[0] + sums[1];
    const float away = own > 0 ? __fdividef(sum, n) : 0;
    const float rest = __fmaf_rn(-away, sum, squares[0] + squares[1]);
    return {n, shift + away, rest < 0 ? 0.0f : rest};
  }
  __device__ static Moments of(const float4& v) { return {v.x, v.y, v.z}; }
  __device__ Moments of_block(int parity) const {
    const int lane = threadIdx.x % 32;
    Moments m = {0, 0, 0};
    if (lane < kThreads / 32) m = of(parts.of_warps[parity][lane]);
    return joined(m);
  }
  // The group's, in all threads of the cluster.
  __device__ Moments exchange(const Moments& mine) {
    const int parity = uses & 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Moments w = joined(mine);
    if (lane == 0) parts.of_warps[parity][warp] = make_float4(w.n, w.mean, w.squares, 0);
    __syncthreads();
    const int cluster = p.plan.cluster;
    if (cluster == 1) return of_block(parity);
    if (warp == 0) {
      if (lane == 0) expect_bytes(&parts.arrived[parity], cluster * 16);
      const Moments b = of_block(parity);
      if (lane < cluster) {
        tell_block(&parts.of_blocks[parity][rank], &parts.arrived[parity],
                   static_cast<unsigned>(lane), make_float4(b.n, b.mean, b.squares, 0));
      }
    }
    wait_bytes(&parts.arrived[parity], uses >> 1 & 1);
    Moments m = {0, 0, 0};
    if (lane < cluster) m = of(parts.of_blocks[parity][lane]);
    return joined(m);
  }

  // ---- the result ----

  // What belongs to a channel of the group: of thread c to channel c. Asked for a group ahead,
  // since nothing else is done where it is waited for.
  __device__ void ask_for_parameters(uint32_t group) {
    if (group >= p.count || threadIdx.x >= p.job.channels) return;
    const Place of(p.job, group);
    const uint32_t channel = of.channel + threadIdx.x;
    asked = p.job.affine.quick_load(of.sample, channel);
    if constexpr (kSum) asked_gate = p.job.gate.quick_load(of.sample, channel, 1.0f);
  }
  // To where the block finds it.
  __device__ void keep_parameters() {
    if (threadIdx.x >= p.job.channels) return;
    parts.parameters[uses & 1][threadIdx.x] = asked;
    if constexpr (kSum) parts.gates[uses & 1][threadIdx.x] = asked_gate;
  }
  // `sound`: no infinity and no NaN can come out.
  template <bool kSilu>
  __device__ void put(int64_t to, int piece, float (&v)[kElements], float mean, float rstd,
                      bool sound) const {
    const float2 wb = parts.parameters[uses & 1][p.plane.divide(piece)];
    const float w = wb.x * rstd;
    for (int j = 0; j < kElements; ++j) v[j] = __fmaf_rn(v[j] - mean, w, wb.y);
    if (sound && fabsf(wb.x) + fabsf(wb.y) < 1e18f) {
      if constexpr (kSilu) silu_pairs<kElements>(v);
      store_result<T>(p.job, to, round_numbers<T>(v), parts.factor);
    } else {
      for (int j = 0; j < kElements; ++j) v[j] = kSilu ? silu_of(v[j]) : v[j];
      store_result<T>(p.job, to, round_piece<T>(v), 0);
    }
  }
  template <bool kSilu>
  __device__ void put(int64_t to, int piece, const uint4& raw, float mean, float rstd,
                      bool sound) const {
    float v[kElements];
    unpack_piece<T>(raw, v);
    put<kSilu>(to, piece, v, mean, rstd, sound);
  }
  template <bool kSilu>
  __device__ void apply(uint32_t group, const Moments& m) {
    const float rstd = rsqrtf(__fmaf_rn(m.squares, p.job.share, p.job.eps));
    const bool sound = fabsf(m.mean) < 1e30f && rstd > 0 && rstd < 1e18f;
    int64_t to = start_of(group);
    if constexpr (kSum) return apply_sums<kSilu>(to, m.mean, rstd, sound);
    int piece = first, k = 0;
    for (; k + 1 < own; k += 2, piece += 2 * kThreads, to += 2 * kStep) {
      const uint4 raw[2] = {load_shared(get), load_shared(get + kStep)};
      fetch(get);
      get = after(get);
      put<kSilu>(to, piece, raw[0], m.mean, rstd, sound);
      put<kSilu>(to + kStep, piece + kThreads, raw[1], m.mean, rstd, sound);
    }
    for (; k < 2 * p.plan.turns; k += 2) {
      uint4 raw = make_uint4(0, 0, 0, 0);
      if (k < own) raw = load_shared(get);
      fetch(get);
      get = after(get);
      if (k < own) put<kSilu>(to, piece, raw, m.mean, rstd, sound);
    }
  }
  template <bool kSilu>
  __device__ void apply_sums(int64_t to, float mean, float rstd, bool sound) {
    int piece = first;
    for (int k = 0; k < p.plan.turns; ++k, piece += kThreads, to += kStep) {
      float v[kElements] = {};
      if (k < own) read_sum(get, piece, v);
      fetch(get);
      get = after(get);
      if (k >= own) continue;
      if (p.job.residual_out != nullptr) {
        store_piece<T>(p.job.residual_out + to, v);
      }
      put<kSilu>(to, piece, v, mean, rstd, sound);
    }
  }
  __device__ void group(uint32_t number) {
    keep_parameters();
    if (kSum && p.job.gate.data != nullptr) __syncthreads();  // gates are there
    if (p.plan.ring == 2 * p.plan.turns)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    const Moments m = exchange(moments());
    ask_for_parameters(number + gridDim.x / p.plan.cluster);
    if (p.job.silu)
      apply<true>(number, m);
    else
      apply<false>(number, m);
    ++uses;
  }
};

template <class T, int kThreads, bool kSum>
__global__ void __launch_bounds__(kThreads, kStagedThreads / kThreads)
    staged_kernel(const __grid_constant__ StagedJob p) {
  extern __shared__ uint4 memory[];
  __shared__ StagedParts<kSum> parts;
  static_assert(kRingPairs * kStagedThreads * 32 + sizeof(parts) <= 227 << 10);
  begin_late(blockIdx.x / p.plan.cluster * p.delay);
  Staged<T, kThreads, kSum> own(p, parts, memory);
  uint32_t place = own.get;
  for (int i = 0; i < p.plan.ring; ++i, place = own.after(place)) own.fetch(place);
  own.ask_for_parameters(blockIdx.x / p.plan.cluster);
  if (p.job.q != nullptr && threadIdx.x < 32) {
    const float factor = code_factor<T>(p.job.q_scale);
    if (threadIdx.x == 0) parts.factor = factor;
  }
  if (p.plan.cluster > 1) {  // others' shared memory is theirs only once they have begun
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) begin_barrier(&parts.arrived[i]);
    }
    cluster_arrive();
    cluster_wait();
  }
  const uint32_t step = gridDim.x / p.plan.cluster;
  for (uint32_t number = blockIdx.x / p.plan.cluster; number < p.count; number += step) {
    own.group(number);
  }
}

#endif

}  // namespace pestle::ops::group_norm
