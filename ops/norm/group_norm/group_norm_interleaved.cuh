// group_norm's kernel for groups of 128 to 256 KiB that fill the threads of two blocks, where
// nothing but x is read and a channel is whole pairs of pieces of all threads.
// Map      as group_norm_staged.cuh: a cluster of two blocks of 1,024 threads stays and goes
//          through groups, which lie in a ring of pairs of pieces that a thread asked for itself.
//          One loop adds up a pair of the next group, then writes a pair of this one: a warp's
//          statistics are on their way to the other warps while its last pair is written. No
//          barrier: a warp waits for the statistics of all, and the channels' parameters come with
//          the first warp's.
// Traffic  x and out (or codes) once.
// Numerics each warp: sums around the mean of its first piece; warps are joined as means and
//          squared differences, in a fixed order. 16-bit numbers less their mean by the tensor
//          cores, within an ulp of the larger one.
// Measured H200, 131,072 elements with silu 81.7 us, 80 % of the copy; group_norm.md.
#pragma once

#include "backends/cuda/device/tensor/tensor_unpack.cuh"
#include "ops/norm/group_norm/group_norm_staged.cuh"

namespace pestle::ops::group_norm {

constexpr int kInterleavedThreads = 1024;
constexpr int kInterleavedWarps = kInterleavedThreads / 32;
constexpr int kInterleavedBlocks = 2;
constexpr int kInterleavedRing = 7;   // pairs of a thread
constexpr int kInterleavedTurns = 4;  // pairs of a group, at most
constexpr int kInterleavedBytes = kInterleavedRing * kInterleavedThreads * 32;
constexpr int kInterleavedSlots = 3;  // groups whose channels' parameters are kept
constexpr int kInterleavedChannels = 16;

struct InterleavedPlan {
  int turns = 0;         // pairs of pieces of a thread; 0: groups do not fit
  int block_pieces = 0;  // of 16 bytes

  InterleavedPlan() = default;
  InterleavedPlan(int64_t group_bytes, int64_t plane_bytes, int64_t channels) {
    constexpr int64_t kPair = kInterleavedThreads * 32;
    const int64_t pairs = group_bytes / (kPair * kInterleavedBlocks);
    if (group_bytes % (kPair * kInterleavedBlocks) != 0 || plane_bytes % kPair != 0) return;
    if (pairs <= kInterleavedTurns / 2 || pairs > kInterleavedTurns ||
        channels > kInterleavedChannels)
      return;
    turns = static_cast<int>(pairs);
    block_pieces = turns * 2 * kInterleavedThreads;
  }
};

struct InterleavedJob {
  InterleavedPlan plan;
  Job job;
  FastDivisor plane;     // pieces of a channel
  uint32_t count, step;  // groups; from a cluster's group to its next one
  int64_t group_bytes;
  int64_t jump;    // from behind a thread's pairs of a group to those of its cluster's next one
  uint32_t delay;  // clocks from one cluster's beginning to the next one's
};

#ifdef __CUDACC__

struct InterleavedParts {
  float2 of_warps[2][kInterleavedWarps * kInterleavedBlocks];  // by parity of the group
  float2 affine[kInterleavedSlots][kInterleavedChannels];
  bool is_wild[kInterleavedSlots];  // an affine is large enough for infinities to come out
  uint64_t arrived[2];
  float factor;  // of codes
};

// The numbers of a piece plus an addend, four registers of the same. Whole warps call this; all
// numbers are finite, or others become NaN, too.
template <class T>
struct PiecePlus {
  static constexpr int kElements = 16 / T::kBytes;
  uint32_t ones = 0;
  float addend[4];

  __device__ explicit PiecePlus(float a) {
    if constexpr (T::kBytes == 2) {
      ones = on_diagonal(std::is_same_v<T, Bf16> ? 0x3F803F80u : 0x3C003C00u);
    }
    set(a);
  }
  __device__ void set(float a) {
    for (float& one : addend) {
      one = a;
      asm volatile("" : "+f"(one));  // or four registers in a row are made for each product
    }
  }
  __device__ void apply(const uint4& raw, float (&v)[kElements]) const {
    if constexpr (T::kBytes == 2) {
      four(raw.x, raw.y, v);
      four(raw.z, raw.w, v + 4);
    } else {
      unpack_piece<T>(raw, v);
      for (int j = 0; j < kElements; ++j) v[j] += addend[0];
    }
  }

 private:
  __device__ void four(uint32_t a0, uint32_t a1, float* v) const {
    if constexpr (std::is_same_v<T, F16>) {
      asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
          "{%7, %8, %9, %10};"
          : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
          : "r"(a0), "r"(a1), "r"(ones), "f"(addend[0]), "f"(addend[1]), "f"(addend[2]),
            "f"(addend[3]));
    } else {
      float d[4];
      bf16_product(d, a0, a1, ones, addend);
      for (int j = 0; j < 4; ++j) v[j] = d[j];
    }
  }
};

template <class T>
struct Interleaved {
  static constexpr int kElements = 16 / T::kBytes;
  static constexpr int kStep =
      kInterleavedThreads * 16;  // from one piece of a thread to the next, bytes

  const InterleavedJob& p;
  InterleavedParts& parts;
  int rank;
  uint32_t get, end;   // place of what is written next; behind the last one
  uint32_t put_group;  // what is asked for next: it takes the place of what was read last
  int put_turn = 0;
  const char* from;
  uint32_t index = 0;  // of the group whose sums are made
  int slot = 0;        // of its parameters
  float2 asked = make_float2(1, 0);
  PiecePlus<T> around{0};  // what sums go around, negative
  float sums[2] = {0, 0}, squares[2] = {0, 0};

  __device__ Interleaved(const InterleavedJob& job, InterleavedParts& own_parts, uint4* memory)
      : p(job), parts(own_parts) {
    rank = static_cast<int>(blockIdx.x % kInterleavedBlocks);
    get = shared_at(memory + threadIdx.x);
    end = get + kInterleavedBytes;
    put_group = blockIdx.x / kInterleavedBlocks;
    from = p.job.x + start_of(put_group);
  }
  // Of this thread's first piece of a group, in x and out.
  __device__ int64_t start_of(uint32_t group) const {
    return static_cast<int64_t>(static_cast<uint64_t>(group) *
                                static_cast<uint64_t>(p.group_bytes)) +
           (static_cast<uint32_t>(rank * p.plan.block_pieces) + threadIdx.x) * 16u;
  }
  __device__ void fetch(uint32_t place) {
    if (put_group < p.count) {
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16;\n"
          "cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;" ::"r"(place),
          "l"(from), "n"(kStep)
          : "memory");
    }
    commit_copies();
    from += 2 * kStep;
    if (++put_turn < p.plan.turns) return;
    put_turn = 0;
    put_group += p.step;
    from += p.jump;
  }
  __device__ uint32_t after(uint32_t place, int pairs) const {
    place += pairs * (2 * kStep);
    return place >= end ? place - kInterleavedBytes : place;
  }

  // ---- statistics ----

  __device__ static float over_lanes(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
    return v;
  }
  // Sums go around the mean of the warp's first piece.
  __device__ void begin_sums(const uint4& raw) {
    float v[kElements], sum = 0;
    unpack_piece<T>(raw, v);
    for (int j = 0; j < kElements; ++j) sum += v[j];
    around.set(__shfl_sync(~0u, sum, 0) * (-1.0f / kElements));
    sums[0] = sums[1] = squares[0] = squares[1] = 0;
  }
  __device__ void add_pair(uint32_t place, bool begins) {
    const uint4 raw[2] = {load_shared(place), load_shared(place + kStep)};
    if (begins) begin_sums(raw[0]);
#pragma unroll
    for (const uint4& one : raw) {
      float d[kElements];
      around.apply(one, d);
      for (int j = 0; j < kElements; ++j) {
        sums[j & 1] += d[j];
        squares[j & 1] = __fmaf_rn(d[j], d[j], squares[j & 1]);
      }
    }
  }
  __device__ float of_warp() const { return static_cast<float>(64 * p.plan.turns * kElements); }
  // This warp's mean and squared differences, to both blocks; the first warp's parameters before
  // them, by the barrier that counts all.
  __device__ void post(uint32_t group) {
    const float sum = over_lanes(sums[0] + sums[1]), square = over_lanes(squares[0] + squares[1]);
    const float away = __fdividef(sum, of_warp());
    const float rest = __fmaf_rn(-away, sum, square);
    const float2 own = make_float2(away - around.addend[0], rest < 0 ? 0.0f : rest);
    const int parity = index & 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == 0) {
      const bool has = lane < static_cast<int>(p.job.channels);
      if (has) parts.affine[slot][lane] = asked;
      const bool is_wild = __any_sync(~0u, has && !(fabsf(asked.x) + fabsf(asked.y) < 1e18f));
      if (lane == 0) parts.is_wild[slot] = is_wild;
      __syncwarp();
      ask(group + p.step);
      if (lane == 0) {
        expect_bytes(&parts.arrived[parity],
                     kInterleavedBlocks * kInterleavedWarps * static_cast<int>(sizeof(own)));
      }
    }
    if (lane < kInterleavedBlocks) {
      tell_block(&parts.of_warps[parity][rank * kInterleavedWarps + warp], &parts.arrived[parity],
                 static_cast<unsigned>(lane), own);
    }
  }
  // Mean and 1 / deviation of the group whose sums were made last.
  __device__ float2 statistics() const {
    static_assert(kInterleavedBlocks * kInterleavedWarps == 64);
    wait_bytes_here(&parts.arrived[index & 1], index >> 1 & 1);
    const float2* all = parts.of_warps[index & 1] + threadIdx.x % 32;
    const float2 a = all[0], b = all[32];
    const float mean = over_lanes(a.x + b.x) * (1.0f / 64);
    const float c = a.x - mean, d = b.x - mean;
    const float around_it = __fmaf_rn(c, c, d * d) * of_warp() + (a.y + b.y);
    return make_float2(mean, rsqrtf(__fmaf_rn(over_lanes(around_it), p.job.share, p.job.eps)));
  }

  // ---- the result ----

  // What belongs to a channel of the group: of lane c of the first warp to channel c.
  __device__ void ask(uint32_t group) {
    if (group >= p.count || threadIdx.x >= p.job.channels) return;
    const Place of(p.job, group);
    asked = p.job.affine.quick_load(of.sample, of.channel + threadIdx.x);
  }
  template <bool kSilu, bool kQuantizes>
  __device__ void put(int64_t to, const uint4& raw, const PiecePlus<T>& mean, float w,
                      float b) const {
    float v[kElements];
    mean.apply(raw, v);
    for (int j = 0; j < kElements; ++j) v[j] = __fmaf_rn(v[j], w, b);
    if constexpr (kSilu) silu_pairs<kElements>(v);
    const uint4 rounded = round_numbers<T>(v);
    if constexpr (kQuantizes)
      store_result<T>(p.job, to, rounded, parts.factor);
    else
      store16(p.job.out + to, rounded);
  }
  // Where infinities and NaN may come out.
  __device__ void put_carefully(int64_t to, const uint4& raw, float mean, float w, float b) const {
    float v[kElements];
    unpack_piece<T>(raw, v);
    for (int j = 0; j < kElements; ++j) {
      v[j] = __fmaf_rn(v[j] - mean, w, b);
      if (p.job.silu) v[j] = silu_of(v[j]);
    }
    store_result<T>(p.job, to, round_piece<T>(v), 0);
  }
  // Writes a group, its parameters in `of`, and adds up the next one, if there is one.
  template <bool kSilu, bool kQuantizes, bool kSound>
  __device__ void turn(uint32_t group, const float2& stats, int of, bool goes_on) {
    int64_t to = start_of(group);
    const PiecePlus<T> mean(-stats.x);
    int piece = rank * p.plan.block_pieces;
#pragma unroll 1
    for (int k = 0; k < p.plan.turns; ++k, piece += 2 * kInterleavedThreads, to += 2 * kStep) {
      if (goes_on) {
        wait_for_copies<kInterleavedRing - 1 - kInterleavedTurns>();
        add_pair(after(get, p.plan.turns), k == 0);
        if (k + 1 == p.plan.turns) post(group + p.step);
      }
      const float2 wb = parts.affine[of][p.plane.divide(piece)];
      const float w = wb.x * stats.y;
      const uint4 raw[2] = {load_shared(get), load_shared(get + kStep)};
      fetch(get);
      get = after(get, 1);
      if constexpr (kSound) {
        put<kSilu, kQuantizes>(to, raw[0], mean, w, wb.y);
        put<kSilu, kQuantizes>(to + kStep, raw[1], mean, w, wb.y);
      } else {
        put_carefully(to, raw[0], stats.x, w, wb.y);
        put_carefully(to + kStep, raw[1], stats.x, w, wb.y);
      }
    }
  }
  __device__ void turn(uint32_t group, const float2& stats, int of, bool goes_on) {
    const bool sound = fabsf(stats.x) < 1e30f && stats.y > 0 && stats.y < 1e18f;
    if (!sound || parts.is_wild[of]) return turn<false, true, false>(group, stats, of, goes_on);
    if (p.job.q != nullptr) {
      return p.job.silu ? turn<true, true, true>(group, stats, of, goes_on)
                        : turn<false, true, true>(group, stats, of, goes_on);
    }
    return p.job.silu ? turn<true, false, true>(group, stats, of, goes_on)
                      : turn<false, false, true>(group, stats, of, goes_on);
  }
  __device__ void run(uint32_t group) {
    ask(group);
    wait_for_copies<kInterleavedRing - kInterleavedTurns>();
    for (int k = 0; k < p.plan.turns; ++k) add_pair(after(get, k), k == 0);
    post(group);
    for (; group < p.count; group += p.step) {
      const float2 stats = statistics();
      const int of = slot;
      slot = slot + 1 == kInterleavedSlots ? 0 : slot + 1;
      ++index;
      turn(group, stats, of, group + p.step < p.count);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kInterleavedThreads, 1)
    interleaved_kernel(const __grid_constant__ InterleavedJob p) {
  extern __shared__ uint4 memory[];
  __shared__ InterleavedParts parts;
  static_assert(kInterleavedBytes + sizeof(parts) <= 227 << 10);
  begin_late(blockIdx.x / kInterleavedBlocks * p.delay);
  Interleaved<T> own(p, parts, memory);
#pragma unroll 1
  for (uint32_t place = own.get; place < own.end; place += 2 * own.kStep) own.fetch(place);
  if (p.job.q != nullptr && threadIdx.x < 32) {
    const float factor = code_factor<T>(p.job.q_scale);
    if (threadIdx.x == 0) parts.factor = factor;
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) begin_barrier(&parts.arrived[i]);
  }
  cluster_arrive();
  cluster_wait();
  own.run(blockIdx.x / kInterleavedBlocks);
}

#endif

}  // namespace pestle::ops::group_norm
