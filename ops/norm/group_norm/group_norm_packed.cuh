// group_norm's kernel for groups of 64 KiB to 2 MiB, half as long with a residual or a gate, whose
// pieces fill all threads: the group that is written lies in registers as it came, shared memory
// holds what comes next.
// Map      a block (or a cluster of up to 16) stays and goes through groups; a thread has the same
//          pieces of 16 bytes of each, two at a time, and asks for them itself by asynchronous
//          copies into a ring. One loop writes a pair of this group, takes the same pair of the
//          next into its registers, and adds up the pair two further: when the next group's
//          statistics are on their way between the blocks, two pairs are still to be written.
//          With a residual or a gate a pair is a piece of x and the residual's.
// Traffic  x, residual, out and residual_out once.
// Numerics each warp: sums around the mean of its first piece; warps are joined as means and
//          squared differences, in a fixed order.
// Measured H200: group_norm_cuda.cu, group_norm.md.
#pragma once

#include "ops/norm/group_norm/group_norm_staged.cuh"

namespace pestle::ops::group_norm {

constexpr int kPackedThreads = 512;
constexpr int kPackedWarps = kPackedThreads / 32;
constexpr int kPackedPairs = 8;  // of a thread, in registers
constexpr int kPackedLeast = kPackedPairs / 2 + 1;
constexpr int kPackedRing = 13;  // pairs of a thread that shared memory holds
constexpr int kPackedAhead = 2;  // pairs by which statistics are ahead
constexpr int kPackedBytes = kPackedRing * kPackedThreads * 32;
constexpr int kPackedSlots = 4;  // groups whose channels' numbers are kept
constexpr int kPackedKinds = 5;  // weight, bias, scale, shift, gate
constexpr int kPackedChannels = 64;

struct PackedPlan {
  int cluster = 0;       // 0: a group does not fit, or is too short, or leaves threads without work
  int block_pieces = 0;  // of 16 bytes, of x, of a block
  int turns = 0;         // pairs of a thread

  PackedPlan() = default;
  // `each`: pieces of x of a pair.
  PackedPlan(int64_t group_bytes, int64_t channels, int each) {
    const int64_t pieces = group_bytes / 16, pair = int64_t{each} * kPackedThreads;
    const int64_t most = kPackedPairs * pair;
    if (channels > kPackedChannels) return;
    if (pieces > most * kMostBlocks || 2 * pieces <= most) return;
    int blocks = 1;
    while (pieces > most * blocks) blocks *= 2;
    if (each == 2 && blocks < 4) return;  // staged is as fast
    if (group_bytes % 16 != 0 || pieces % (pair * blocks) != 0) return;
    cluster = blocks;
    block_pieces = static_cast<int>(pieces / blocks);
    turns = static_cast<int>(block_pieces / pair);
  }
};

struct PackedJob {
  PackedPlan plan;
  Job job;
  FastDivisor plane;     // pieces of a channel
  uint32_t count, step;  // groups; from a cluster's group to its next one
  int64_t group_bytes;
  int64_t jump;    // from behind a thread's pairs of a group to those of its cluster's next one
  uint32_t delay;  // clocks from one cluster's beginning to the next one's
};

#ifdef __CUDACC__

struct PackedParts {
  float2 of_warps[2][kPackedWarps * kMostBlocks];  // of the cluster, by parity of the group
  // By number of the group.
  float kinds[kPackedSlots][kPackedKinds][kPackedChannels];
  float2 affine[kPackedSlots][kPackedChannels];
  uint64_t arrived[2];
};

// A thread's pieces of a whole group, where infinities and NaN may come out; rare. Reads them once
// more. `start`: its first byte; `first`: its first piece.
template <class T, bool kSum>
__device__ __noinline__ void put_carefully(const PackedJob& p, const float2* parameters,
                                           const float* gates, int64_t start, int first, float mean,
                                           float rstd) {
  constexpr int kElements = 16 / T::kBytes;
#pragma unroll 1
  for (int k = 0; k < p.plan.turns * (kSum ? 1 : 2); ++k) {
    const int64_t at = start + int64_t{k} * kPackedThreads * 16;
    const uint32_t channel = p.plane.divide(first + k * kPackedThreads);
    float v[kElements];
    unpack_piece<T>(load16(p.job.x + at), v);
    if constexpr (kSum) {
      float r[kElements] = {};
      if (p.job.residual != nullptr) unpack_piece<T>(load16(p.job.residual + at), r);
      const float gate = p.job.gate.data ? gates[channel] : 1.0f;
      for (int j = 0; j < kElements; ++j) v[j] = __fmaf_rn(v[j], gate, r[j]);
      if (p.job.residual_out != nullptr) store_piece<T>(p.job.residual_out + at, v);
    }
    const float2 wb = parameters[channel];
    for (int j = 0; j < kElements; ++j) {
      v[j] = __fmaf_rn(v[j] - mean, wb.x * rstd, wb.y);
      if (p.job.silu) v[j] = silu_of(v[j]);
    }
    store_piece<T>(p.job.out + at, v);
  }
}

template <class T, bool kSum>
struct Packed {
  static constexpr int kThreads = kPackedThreads;
  static constexpr int kEach = kSum ? 1 : 2;  // pieces of x of a pair
  static constexpr int kElements = 16 / T::kBytes;
  static constexpr int kStep = kThreads * 16;  // from one piece of a thread to the next, bytes

  const PackedJob& p;
  PackedParts& parts;
  int first;          // this thread's first piece of the group
  uint32_t get, end;  // place in shared memory of what is taken next; behind the last one
  // What is asked for next: it takes the place of what was taken last.
  uint32_t put_group;
  int put_turn = 0;
  const char* from;
  uint32_t index = 0;  // of the group that comes
  uint32_t asked = 0;  // of the group after it, this thread's number, as it lies in memory
  float shift = 0, sums[2] = {0, 0}, squares[2] = {0, 0};
  uint4 held[kPackedPairs][2];  // this group's pairs, then those of the one that comes

  __device__ Packed(const PackedJob& job, PackedParts& own_parts, uint4* memory)
      : p(job), parts(own_parts) {
    first = rank() * p.plan.block_pieces + static_cast<int>(threadIdx.x);
    get = shared_at(memory + threadIdx.x);
    end = get + kPackedBytes;
    put_group = blockIdx.x / p.plan.cluster;
    from = p.job.x + start_of(put_group);
    for (int k = 0; k < kPackedPairs; ++k) held[k][0] = held[k][1] = make_uint4(0, 0, 0, 0);
  }
  __device__ int rank() const { return static_cast<int>(blockIdx.x % p.plan.cluster); }
  // Of this thread's first piece of a group, in x and out.
  __device__ int64_t start_of(uint32_t group) const {
    return static_cast<int64_t>(static_cast<uint64_t>(group) *
                                static_cast<uint64_t>(p.group_bytes)) +
           static_cast<uint32_t>(first) * 16u;
  }
  // Asks for this thread's next pair.
  __device__ void fetch(uint32_t place) {
    if (put_group < p.count) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
      if (!kSum || p.job.residual != nullptr) {
        const char* second = from + (kSum ? p.job.residual - p.job.x : kStep);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place + kStep), "l"(second)
                     : "memory");
      }
    }
    commit_copies();
    from += kEach * kStep;
    if (++put_turn < p.plan.turns) return;
    put_turn = 0;
    put_group += p.step;
    from += p.jump;
  }
  __device__ void take(uint4 (&to)[2]) {
    to[0] = load_shared(get);
    to[1] = load_shared(get + kStep);
    fetch(get);
    get += 2 * kStep;
    if (get == end) get -= kPackedBytes;
  }
  // The pair that lies `pairs` behind the next one.
  __device__ void peek(int pairs, uint4 (&to)[2]) const {
    uint32_t place = get + pairs * 2 * kStep;
    if (place >= end) place -= kPackedBytes;
    to[0] = load_shared(place);
    to[1] = load_shared(place + kStep);
  }
  // What is normalised, of a piece.
  __device__ void values(const uint4 (&raw)[2], int of, int piece, int slot,
                         float (&v)[kElements]) const {
    unpack_piece<T>(raw[kSum ? 0 : of], v);
    if constexpr (kSum) {
      const float gate = p.job.gate.data ? parts.kinds[slot][4][p.plane.divide(piece)] : 1.0f;
      float r[kElements] = {};
      if (p.job.residual != nullptr) unpack_piece<T>(raw[1], r);
      for (int j = 0; j < kElements; ++j) v[j] = __fmaf_rn(v[j], gate, r[j]);
    }
  }
  // This thread's piece number k, not known beforehand: or the channels of all of them stay in
  // registers.
  __device__ int piece(int k) const {
    int own = first;
    asm volatile("" : "+r"(own));
    return own + k * kThreads;
  }

  // ---- statistics ----

  // Sums of a group go around the mean of the warp's first piece.
  __device__ void begin_sums(const uint4 (&raw)[2], int slot) {
    float v[kElements], sum = 0;
    values(raw, 0, kSum ? piece(0) : 0, slot, v);
    for (int j = 0; j < kElements; ++j) sum += v[j];
    shift = __shfl_sync(~0u, sum, 0) * (1.0f / kElements);
    sums[0] = sums[1] = squares[0] = squares[1] = 0;
  }
  // `number`: of the pair in its group.
  __device__ void add_pair(const uint4 (&raw)[2], int number, int slot) {
    for (int of = 0; of < kEach; ++of) {
      float v[kElements];
      values(raw, of, kSum ? piece(number) : 0, slot, v);
      for (int j = 0; j < kElements; ++j) {
        const float d = v[j] - shift;
        sums[j & 1] += d;
        squares[j & 1] = __fmaf_rn(d, d, squares[j & 1]);
      }
    }
  }
  __device__ float of_warp() const {
    return static_cast<float>(32 * p.plan.turns * kEach * kElements);
  }
  // This warp's mean and squared differences of the group that comes, to all blocks.
  __device__ void post() const {
    float sum = sums[0] + sums[1], square = squares[0] + squares[1];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
      square += __shfl_xor_sync(~0u, square, distance);
    }
    const float away = __fdividef(sum, of_warp());
    const float rest = __fmaf_rn(-away, sum, square);
    const float2 own = make_float2(shift + away, rest < 0 ? 0.0f : rest);
    const int parity = index & 1, cluster = p.plan.cluster;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float2* place = &parts.of_warps[parity][rank() * kPackedWarps + warp];
    if (cluster == 1) {
      if (lane == 0) *place = own;
      return;
    }
    if (threadIdx.x == 0) {
      expect_bytes(&parts.arrived[parity], cluster * kPackedWarps * static_cast<int>(sizeof(own)));
    }
    if (lane < cluster) {
      tell_block(place, &parts.arrived[parity], static_cast<unsigned>(lane), own);
    }
  }
  __device__ static float over_lanes(float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
    return v;
  }
  // Mean and 1 / deviation of the group before the one that comes.
  __device__ float2 statistics() const {
    const uint32_t of = index - 1;
    if (p.plan.cluster > 1) wait_bytes_here(&parts.arrived[of & 1], of >> 1 & 1);
    const float2* all = parts.of_warps[of & 1];
    const int warps = p.plan.cluster * kPackedWarps, lane = threadIdx.x % 32;
    float sum = 0, around = 0;
    for (int i = lane; i < warps; i += 32) sum += all[i].x;
    const float mean = __fdividef(over_lanes(sum), static_cast<float>(warps));
    for (int i = lane; i < warps; i += 32) {
      const float2 v = all[i];
      around += __fmaf_rn((v.x - mean) * of_warp(), v.x - mean, v.y);
    }
    return make_float2(mean, rsqrtf(__fmaf_rn(over_lanes(around), p.job.share, p.job.eps)));
  }

  // ---- what belongs to channels ----

  // A thread asks for one number of a channel, groups before it is wanted.
  __device__ void ask(uint32_t group) {
    const int kind = threadIdx.x / kPackedChannels, c = threadIdx.x % kPackedChannels;
    if (group >= p.count || kind >= kPackedKinds || c >= static_cast<int>(p.job.channels)) return;
    const ChannelParameter& own = kind == 4 ? p.job.gate : (&p.job.affine.weight)[kind];
    if (own.data == nullptr) {
      asked = __float_as_uint(kind == 0 || kind == 4 ? 1.0f : 0.0f);
      return;
    }
    const Place of(p.job, group);
    const char* at = own.at(of.sample, of.channel + c);
    asked = own.dtype == DType::kF32 ? __ldg(reinterpret_cast<const unsigned*>(at))
                                     : __ldg(reinterpret_cast<const unsigned short*>(at));
  }
  __device__ void keep(int slot) {
    const int kind = threadIdx.x / kPackedChannels, c = threadIdx.x % kPackedChannels;
    if (kind >= kPackedKinds) return;
    const ChannelParameter& own = kind == 4 ? p.job.gate : (&p.job.affine.weight)[kind];
    float v = __uint_as_float(asked);
    if (own.data != nullptr && own.dtype != DType::kF32) {
      v = own.dtype == DType::kBF16 ? __uint_as_float(asked << 16) : F16::pair(asked).x;
    }
    parts.kinds[slot][kind][c] = v;
  }
  // Factor and addend of each channel. True: large enough for infinities to come out.
  __device__ bool combine(int slot) {
    const int c = threadIdx.x;
    if (c >= static_cast<int>(p.job.channels)) return false;
    const auto& kinds = parts.kinds[slot];
    const float2 wb = p.job.affine.modulated(kinds[0][c], kinds[1][c], kinds[2][c], kinds[3][c]);
    parts.affine[slot][c] = wb;
    return !(fabsf(wb.x) + fabsf(wb.y) < 1e18f);
  }

  // ---- the result ----

  // Piece number `of` of pair k; no infinity and no NaN can come out where it is stored.
  template <bool kSilu>
  __device__ void put(char* to, int k, int of, const float2& stats, int slot, bool writes) const {
    const int own = piece(k * kEach + of);
    const float2 wb = parts.affine[slot][p.plane.divide(own)];
    const float w = wb.x * stats.y;
    const int64_t at = (k * kEach + of) * kStep;
    float v[kElements];
    values(held[k], of, own, slot, v);
    if constexpr (kSum) {
      if (writes && p.job.residual_out != nullptr) {
        store16(p.job.residual_out + (to - p.job.out) + at, round_numbers<T>(v));
      }
    }
    for (int j = 0; j < kElements; ++j) v[j] = __fmaf_rn(v[j] - stats.x, w, wb.y);
    if constexpr (kSilu) silu_pairs<kElements>(v);
    const uint4 raw = round_numbers<T>(v);
    if (writes) store16(to + at, raw);
  }
  // Writes the group whose pairs are held, if `writes`, and takes the one that comes; its slot is
  // the one behind `slot`. `posts`: there is such a group.
  template <bool kSilu>
  __device__ void turn(char* to, const float2& stats, int slot, bool writes, bool posts) {
    const int coming = (slot + 1) % kPackedSlots, later = (slot + 2) % kPackedSlots;
#pragma unroll
    for (int k = 0; k < kPackedPairs; ++k) {
      if (k < p.plan.turns) {
        wait_for_copies<kPackedRing - 1 - kPackedAhead>();
        uint4 raw[2];
        peek(kPackedAhead, raw);
        for (int of = 0; of < kEach; ++of) put<kSilu>(to, k, of, stats, slot, writes);
        take(held[k]);
        const int left = p.plan.turns - k;  // pairs of the group that comes
        if (k + kPackedAhead >= kPackedLeast && left == kPackedAhead) {
          if (posts) post();
          begin_sums(raw, later);
        }
        if (k + kPackedAhead < kPackedLeast || left > kPackedAhead)
          add_pair(raw, k + kPackedAhead, coming);
        else
          add_pair(raw, kPackedAhead - left, later);
      }
    }
  }
  // Sums of the first pairs of the first group.
  __device__ void begin() {
    wait_for_copies<kPackedRing - kPackedAhead>();
    for (int k = 0; k < kPackedAhead; ++k) {
      uint4 raw[2];
      peek(k, raw);
      if (k == 0) begin_sums(raw, 0);
      add_pair(raw, k, 0);
    }
  }
  // The groups coming, coming + step, ... below p.count: each turn takes one, and writes the one
  // before it.
  __device__ void run(uint32_t coming) {
    ask(coming);
    keep(0);
    ask(coming + p.step);
    __syncthreads();
    begin();
    int slot = kPackedSlots - 1;
    bool wild = false, writes = false;
    float2 stats = make_float2(0, 1);
    while (true) {
      keep((slot + 2) % kPackedSlots);
      const bool wild_next = __syncthreads_or(combine((slot + 1) % kPackedSlots));
      ask(coming + 2 * p.step);
      const int64_t start = start_of(coming - p.step);
      bool sound = writes;
      if (writes) {
        stats = statistics();
        sound = !wild && fabsf(stats.x) < 1e30f && stats.y > 0 && stats.y < 1e18f;
        if (!sound) {
          put_carefully<T, kSum>(p, parts.affine[slot], parts.kinds[slot][4], start, first, stats.x,
                                 stats.y);
        }
      }
      if (p.job.silu)
        turn<true>(p.job.out + start, stats, slot, sound, coming < p.count);
      else
        turn<false>(p.job.out + start, stats, slot, sound, coming < p.count);
      if (coming >= p.count) return;
      wild = wild_next;
      writes = true;
      slot = (slot + 1) % kPackedSlots;
      coming += p.step;
      ++index;
    }
  }
};

template <class T, bool kSum>
__global__ void __launch_bounds__(kPackedThreads, 1)
    packed_kernel(const __grid_constant__ PackedJob p) {
  extern __shared__ uint4 memory[];
  __shared__ PackedParts parts;
  static_assert(kPackedBytes + sizeof(parts) <= 227 << 10);
  begin_late(blockIdx.x / p.plan.cluster * p.delay);
  Packed<T, kSum> own(p, parts, memory);
#pragma unroll 1
  for (uint32_t place = own.get; place != own.end; place += 2 * own.kStep) own.fetch(place);
  if (p.plan.cluster > 1) {  // others' shared memory is theirs only once they have begun
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) begin_barrier(&parts.arrived[i]);
    }
    cluster_arrive();
    cluster_wait();
  }
  own.run(blockIdx.x / p.plan.cluster);
}

#endif

}  // namespace pestle::ops::group_norm
