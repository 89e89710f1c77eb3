// The pieces of norm_persistent.cu: subgroups of warps that take rows in turns, their joins, a
// thread's part of a row in its registers, parameters in shared memory.
#pragma once

#include "backends/cuda/device/tensor/tensor_sums.cuh"
#include "backends/cuda/device/tensor/tensor_unpack.cuh"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/quant/hadamard/hadamard_lanes.cuh"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops::norm_device {

#ifdef __CUDACC__

using namespace row_quantizer;

// int8 after rotation by groups of 256.
struct RotatedRuns {
  static constexpr bool kQuantizes = true, kBytes = false;
};

// What a thread holds: granules of kN neighbours, those of a warp side by side.
template <class T, class Kind>
struct PersistentMap {
  static constexpr bool kRotates = std::is_same_v<Kind, RotatedOutput>;
  static constexpr bool kRuns = std::is_same_v<Kind, RotatedRuns>;
  // Rows that are finished step by step stay in shared memory until then: a loop that is not
  // unrolled, and registers for more warps.
  static constexpr bool kStays = std::is_same_v<Kind, Nvfp4Output>;
  static constexpr int kN =
      kRotates ? kLongRun : (Kind::kQuantizes ? kRun : kPieceBytes / T::kBytes);
  static constexpr int kPieces = kN * T::kBytes / kPieceBytes;
  static constexpr int kQuads = kN / 4;  // of parameters
  // So many that a multiprocessor's registers hold them all.
  static constexpr int kSteps = (T::kBytes == 4               ? 64
                                 : kRotates                   ? 64
                                 : kRuns                      ? 32
                                 : Kind::kQuantizes || kStays ? 80
                                                              : 48) /
                                kN;
  static constexpr int kWarps = T::kBytes == 4 || kRotates ? 16
                                : kStays                   ? 32
                                : Kind::kQuantizes         ? 20
                                                           : 24;
  static constexpr int kExchangeBytes =  // of a warp
      kRotates ? kLongQuads * 16 : (kRuns ? 4 * (1024 + 64 + 256 + 16) : 0);
  static constexpr int kStepBytes = 32 * kPieces * kPieceBytes;  // of a warp
  static constexpr int kStepQuads = 32 * kQuads;
};
constexpr int kMostWarps = 32, kWarpsOfSubgroup = 12, kSubgroupsOfCluster = 4;

struct PersistentNorm {
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  Operand factor, addend;
  float one = 0;  // added to factors
  float eps = 0, share = 1;
  bool subtract_mean = false;
  int granules = 0;  // of a row
  int warps = 1, steps = 1, subgroups = 1, cluster = 1;
  int groups = 1, rows_of_group = 1, clusters_of_group = 1;
  float zeros[4] = {0, 0, 0, 0};  // which the compiler does not know
  RowQuantizer codes;
};

// ---- joins over a subgroup ----

// Numbers of a join, by turn: one row's are read while the next one's are written.
enum JoinKind : int { kSumsJoin, kSquaresJoin, kLargestJoin, kJoins };
struct PersistentReductions {
  uint2 warps[2 * kJoins][kMostWarps];
  uint2 blocks[2 * kJoins][kSubgroupsOfCluster][kMostGroupBlocks];
  uint64_t arrived[2 * kJoins][kSubgroupsOfCluster];
};

__device__ inline void send_pair(const uint2* own, const uint64_t* barrier, unsigned rank,
                                 uint2 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [to], {%3, %4}, [at];\n}" ::"r"(
          shared_place(own)),
      "r"(shared_place(barrier)), "r"(rank), "r"(v.x), "r"(v.y)
      : "memory");
#endif
}
__device__ inline uint2 load_pair(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}

struct PersistentSubgroup {
  int index, warp, lane, warps, cluster;
  unsigned rank;
  int turn = 0;         // of the joins' numbers
  uint32_t phases = 0;  // of their barriers
  uint32_t joined;      // where PersistentReductions lies

  __device__ PersistentSubgroup(const PersistentNorm& p, PersistentReductions& joins)
      : lane(threadIdx.x % 32), warps(p.warps), cluster(p.cluster) {
    index = static_cast<int>(threadIdx.x / 32) / warps;
    warp = static_cast<int>(threadIdx.x / 32) - index * warps;
    rank = cluster == 1 ? 0 : blockIdx.x % cluster;
    joined = shared_place(&joins);
    asm volatile("" : "+r"(joined));
    if (cluster == 1) return;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (auto& barriers : joins.arrived) {
        for (auto& barrier : barriers) init_arrivals(&barrier);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
#endif
  }
  __device__ bool leads() const { return rank == 0 && warp == 0 && lane == 0; }
  __device__ void meet() const {
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(warps * 32) : "memory");
  }
  // v: the warp's first number in lane 0, its second in lane 1.
  template <class Join>
  __device__ uint2 join(PersistentReductions& joins, JoinKind kind, uint32_t v, Join f) {
    if (warps == 1 && cluster == 1) {
      return make_uint2(__shfl_sync(~0u, v, 0), __shfl_sync(~0u, v, 1));
    }
    const int slot = turn * kJoins + kind;
    const uint32_t numbers = joined + (slot * kMostWarps + index * warps) * sizeof(uint2);
    if (lane < 2) store_word(numbers + warp * sizeof(uint2) + lane * 4, v);
    meet();
    const uint2 all = join_numbers(numbers, warps, f);
    return cluster == 1 ? all : join_blocks(joins, slot, all, f);
  }
  __device__ float2 sums(PersistentReductions& joins, JoinKind kind, float v) {
    const uint2 all = join(joins, kind, __float_as_uint(v), [](uint2 a, uint2 b) {
      return make_uint2(__float_as_uint(__uint_as_float(a.x) + __uint_as_float(b.x)),
                        __float_as_uint(__uint_as_float(a.y) + __uint_as_float(b.y)));
    });
    return make_float2(__uint_as_float(all.x), __uint_as_float(all.y));
  }
  // Of all threads' own.
  __device__ float sum_of_own(PersistentReductions& joins, JoinKind kind, float v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
    return sums(joins, kind, v).x;
  }
  __device__ uint32_t largest(PersistentReductions& joins, uint32_t v) {
    return join(joins, kLargestJoin, __reduce_max_sync(~0u, v),
                [](uint2 a, uint2 b) { return make_uint2(max(a.x, b.x), 0); })
        .x;
  }

 private:
  template <class Join>
  __device__ uint2 join_blocks(PersistentReductions& joins, int slot, uint2 v, Join f) {
    uint64_t* arrived = &joins.arrived[slot][index];
    if (warp == 0) {
      if (lane == 0) expect_arrivals(arrived, cluster * static_cast<int>(sizeof(uint2)));
      if (lane < cluster) send_pair(&joins.blocks[slot][index][rank], arrived, lane, v);
    }
    await_pairs(arrived, phases >> slot & 1);
    phases ^= 1u << slot;
    return join_numbers(shared_place(joins.blocks[slot][index]), cluster, f);
  }
  // Of `count` numbers, 16 at most. Many by all lanes at once: one after another, each load waits
  // for the one before. What changes nothing is zeros.
  template <class Join>
  __device__ uint2 join_numbers(uint32_t numbers, int count, Join f) const {
    static_assert(kWarpsOfSubgroup <= 16 && kMostGroupBlocks <= 16);
    if (count <= 4) {
      uint2 few = load_pair(numbers);
#pragma unroll 1
      for (int i = 1; i < count; ++i) few = f(few, load_pair(numbers + i * sizeof(uint2)));
      return few;
    }
    const int at = lane % 16;
    uint2 all = make_uint2(0, 0);
    if (at < count) all = load_pair(numbers + at * sizeof(uint2));
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      all = f(all, make_uint2(__shfl_xor_sync(~0u, all.x, distance),
                              __shfl_xor_sync(~0u, all.y, distance)));
    }
    return all;
  }
  // Of the block's scope: with the cluster's each wait empties the L1.
  __device__ static void await_pairs(const uint64_t* barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n.reg .pred done;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;\n}"
          : "=r"(done)
          : "r"(shared_place(barrier)), "r"(parity)
          : "memory");
    }
#endif
  }
};

// ---- a thread's part of rows ----

template <class T, class Kind>
struct PersistentPlace {
  using Map = PersistentMap<T, Kind>;
  int first;     // granule of the row; the others 32 further each
  int left;      // granules from it on
  int count;     // steps that this warp has
  int pieces;    // of 16 bytes from the first that this lane asks for on
  int offset;    // where that lies in a row
  uint32_t put;  // where this lane's copies go
  uint32_t get;  // its own pieces; the second by exclusive or

  __device__ PersistentPlace(const PersistentNorm& p, const PersistentSubgroup& subgroup,
                             uint32_t shared) {
    const int of_row = static_cast<int>(subgroup.rank) * p.warps + subgroup.warp;
    const int lane = subgroup.lane;
    first = of_row * p.steps * 32 + lane;
    left = p.granules - first;
    count = min(max((left + lane + 31) / 32, 0), p.steps);
    const uint32_t own =
        shared + (subgroup.index * p.warps + subgroup.warp) * (p.steps * Map::kStepBytes);
    get = own + swizzled(lane * Map::kPieces) * kPieceBytes;
    put = own + swizzled(lane) * kPieceBytes;
    offset = ((first - lane) * Map::kPieces + lane) * kPieceBytes;
    pieces = (left + lane) * Map::kPieces - lane;
    asm volatile("" : "+r"(get));
    asm volatile("" : "+r"(put));
    asm volatile("" : "+r"(offset));
    asm volatile("" : "+r"(pieces));
  }
  __device__ bool has(int step) const { return step * 32 < left; }
  // Pieces past the row's end are zeros for good.
  __device__ void clear() const {
    for (int s = 0; s < count; ++s) {
      for (int q = 0; q < Map::kPieces; ++q) {
        store_shared(put + s * Map::kStepBytes + q * 512, make_uint4(0, 0, 0, 0));
      }
    }
    __syncwarp();
  }
  __device__ void fetch(const char* row) const {
    const char* from = row + offset;
    asm volatile("" : "+l"(from));
#pragma unroll
    for (int s = 0; s < Map::kSteps; ++s) {
      if (s == count) break;
#pragma unroll
      for (int q = 0; q < Map::kPieces; ++q) {
        if ((s * Map::kPieces + q) * 32 < pieces) {
          const uint32_t to = Map::kPieces == 8 && q % 2 == 1 ? put ^ 64 : put;
          copy_piece(to + s * Map::kStepBytes + q * 512, from + s * Map::kStepBytes + q * 512);
        }
      }
    }
    commit_copies();
  }
  // The same of one step; `row`: where the lane's pieces of it begin.
  __device__ void fetch_step(const char* row, int s) const {
#pragma unroll
    for (int q = 0; q < Map::kPieces; ++q) {
      if ((s * Map::kPieces + q) * 32 < pieces) {
        copy_piece(put + s * Map::kStepBytes + q * 512, row + s * Map::kStepBytes + q * 512);
      }
    }
  }
  __device__ uint4 load(int s, int q) const {
    return load_shared((get ^ q * kPieceBytes) + s * Map::kStepBytes);
  }

 private:
  // Lanes that read neighbouring granules would meet in the same banks.
  __device__ static int swizzled(int at) { return at ^ (at >> 3 & (Map::kPieces - 1)); }
};

// ---- parameters ----

// As each lane reads them: quad i of step s of a warp's lanes side by side. Zeros past the row's
// end.
template <class T, class Kind>
struct PersistentParameters {
  using Map = PersistentMap<T, Kind>;
  uint32_t factor, addend;
  bool adds;

  __device__ PersistentParameters(const PersistentNorm& p, const PersistentSubgroup& subgroup,
                                  uint32_t shared)
      : adds(p.addend.data != nullptr) {
    const uint32_t of_warp = p.steps * Map::kStepQuads * 16;
    factor = shared + subgroup.warp * of_warp + subgroup.lane * 16;
    addend = factor + p.warps * of_warp;
    asm volatile("" : "+r"(factor));
    asm volatile("" : "+r"(addend));
  }
  // Parameters are asked for before rows, or they would come after them, and four quads at once: 1
  // % for codes; numbers lose by it.
  static constexpr bool kAhead = Kind::kQuantizes;

  // Asks for what fill() reads, by the whole block.
  __device__ static void announce(const PersistentNorm& p, unsigned rank, int group) {
    if constexpr (!kAhead) return;
    const int first = static_cast<int>(rank) * p.warps * p.steps * 32 * Map::kN;
    const int last = min(first + p.warps * p.steps * 32 * Map::kN, p.granules * Map::kN);
    announce_operand(p.factor, group, first, last);
    announce_operand(p.addend, group, first, last);
  }
  // By the whole block; are all of them ordinary numbers? Only this thread's are known.
  __device__ static bool fill(const PersistentNorm& p, unsigned rank, int group, float4* to) {
    constexpr int kBatch = kAhead ? 4 : 1;
    const int quads = p.warps * p.steps * Map::kStepQuads;
    const int all = p.addend.data == nullptr ? quads : 2 * quads;
    const int first = static_cast<int>(rank) * p.warps * p.steps * 32 * Map::kN;
    bool plain = true;
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += kBatch * blockDim.x) {
      uint4 raw[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int at = i + b * static_cast<int>(blockDim.x);
        raw[b] = load_quad(p, group, first, quads, at < all ? at : i);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int at = i + b * static_cast<int>(blockDim.x);
        if (at >= all) break;
        const float4 v = quad_of(p, first, quads, at, raw[b]);
        plain = plain && fabsf(v.x) < 0x1p100f && fabsf(v.y) < 0x1p100f && fabsf(v.z) < 0x1p100f &&
                fabsf(v.w) < 0x1p100f;
        to[at] = v;
      }
    }
    return plain;
  }
  __device__ void apply(int s, float (&v)[Map::kN]) const {
    const auto quad = [&](uint32_t of, int i, float(&w)[4]) {
      const uint4 bits = load_shared(of + (s * Map::kQuads + i) * 512);
      w[0] = __uint_as_float(bits.x);
      w[1] = __uint_as_float(bits.y);
      w[2] = __uint_as_float(bits.z);
      w[3] = __uint_as_float(bits.w);
    };
    if (adds) {
#pragma unroll
      for (int i = 0; i < Map::kQuads; ++i) {
        float w[4], b[4];
        quad(factor, i, w);
        quad(addend, i, b);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[4 * i + j] = __fmaf_rn(v[4 * i + j], w[j], b[j]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Map::kQuads; ++i) {
        float w[4];
        quad(factor, i, w);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[4 * i + j] *= w[j];
      }
    }
  }

 private:
  __device__ static void announce_operand(const Operand& o, int group, int first, int last) {
    if (o.data == nullptr) return;
    const int bytes = o.dtype == DType::kF32 ? 4 : 2;
    const char* row = row_at(o.data, o.row_bytes, group);
    for (int at = first * bytes + threadIdx.x * 128; at < last * bytes; at += blockDim.x * 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at));
    }
  }
  // Of quad `at`, the factors' and behind them the addends'.
  __device__ static int column_of(int first, int quads, int at) {
    if (at >= quads) at -= quads;
    const int in_step = at % Map::kStepQuads;
    return first + at / Map::kStepQuads * (32 * Map::kN) + in_step % 32 * Map::kN +
           in_step / 32 * 4;
  }
  // As it lies in memory: loads do not wait for one another's conversion.
  __device__ static uint4 load_quad(const PersistentNorm& p, int group, int first, int quads,
                                    int at) {
    const Operand& o = at >= quads ? p.addend : p.factor;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (o.data == nullptr) return raw;
    const int column = min(column_of(first, quads, at), p.granules * Map::kN - 4);
    const char* row = row_at(o.data, o.row_bytes, group);
    if (o.dtype == DType::kF32) {
      raw = __ldg(reinterpret_cast<const uint4*>(row) + column / 4);
    } else {
      const uint2 half = __ldg(reinterpret_cast<const uint2*>(row) + column / 4);
      raw.x = half.x;
      raw.y = half.y;
    }
    return raw;
  }
  __device__ static float4 quad_of(const PersistentNorm& p, int first, int quads, int at,
                                   uint4 raw) {
    const bool is_addend = at >= quads;
    const Operand& o = is_addend ? p.addend : p.factor;
    if (column_of(first, quads, at) >= p.granules * Map::kN) return make_float4(0, 0, 0, 0);
    const float one = is_addend ? 0.0f : p.one;
    if (o.data == nullptr) return make_float4(1, 1, 1, 1);
    float v[8];
    if (o.dtype == DType::kF32)
      unpack_piece<F32>(raw, v);
    else if (o.dtype == DType::kBF16)
      unpack_piece<Bf16>(raw, v);
    else
      unpack_piece<F16>(raw, v);
    return make_float4(one + v[0], one + v[1], one + v[2], one + v[3]);
  }
};

// ---- a row ----

struct RowStatistics {
  float mean = 0, rstd = 0, squares = 0;
  // Are all of the row's elements and their normalised values finite?
  __device__ bool is_plain() const { return squares < 0x1p120f && rstd < 0x1p60f; }
};

template <class T, class Kind>
struct PersistentRow {
  using Map = PersistentMap<T, Kind>;
  using Place = PersistentPlace<T, Kind>;
  const Place& at;
  uint4 x[Map::kStays ? 1 : Map::kSteps][Map::kPieces];

  __device__ explicit PersistentRow(const Place& place) : at(place) {}

  template <class F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int s = 0; s < Map::kSteps; ++s) {
      if (s == at.count) break;
      f(s);
    }
  }
  // Takes the row out of shared memory. Its numbers' sum in lane 0, that of their squares in 1.
  __device__ float load_16() {
    TensorSum<T> sum;
    TensorSquares<T> squares;
    const auto take = [&](int s) {
      uint4(&to)[Map::kPieces] = x[Map::kStays ? 0 : s];
#pragma unroll
      for (int q = 0; q < Map::kPieces; ++q) {
        to[q] = at.load(s, q);
        sum.add(to[q]);
        squares.add(to[q]);
      }
    };
    if constexpr (Map::kStays) {
#pragma unroll 1
      for (int s = 0; s < at.count; ++s) take(s);
    } else {
      each(take);
    }
    float all = squares.share();  // one lane of four has any
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    if (threadIdx.x % 4 == 0) all = sum.d[0] + sum.d[2];  // every lane of four has it
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      all += __shfl_xor_sync(~0u, all, distance);
    }
    return all;
  }
  template <class F>
  __device__ float sum_over(F f) {
    constexpr int kCount = kPieceBytes / T::kBytes;
    float sums[4] = {0, 0, 0, 0};
    const auto add = [&](int s) {
      if (!at.has(s)) return;
#pragma unroll
      for (int q = 0; q < Map::kPieces; ++q) {
        float v[kCount];
        unpack_piece<T>(Map::kStays ? at.load(s, q) : x[Map::kStays ? 0 : s][q], v);
#pragma unroll
        for (int j = 0; j < kCount; ++j) sums[j % 4] = f(v[j], sums[j % 4]);
      }
    };
    if constexpr (Map::kStays) {
#pragma unroll 1
      for (int s = 0; s < at.count; ++s) add(s);
    } else {
      each(add);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  __device__ float squares_about(PersistentSubgroup& subgroup, PersistentReductions& joins,
                                 float mean) {
    const float own = sum_over([&](float v, float sum) {
      const float d = v - mean;
      return __fmaf_rn(d, d, sum);
    });
    return subgroup.sum_of_own(joins, kSquaresJoin, own);
  }
  __device__ RowStatistics statistics(const PersistentNorm& p, PersistentSubgroup& subgroup,
                                      PersistentReductions& joins, float own) {
    RowStatistics s;
    if constexpr (T::kBytes == 2) {
      const float2 sums = subgroup.sums(joins, kSumsJoin, own);
      s.squares = sums.y;
      if (p.subtract_mean) {
        s.mean = sums.x * p.share;
        s.squares = __fmaf_rn(-sums.x, s.mean, sums.y);
        if (!(s.squares > sums.y * 0x1p-5f)) s.squares = squares_about(subgroup, joins, s.mean);
      }
    } else {
      if (p.subtract_mean) s.mean = subgroup.sum_of_own(joins, kSumsJoin, own) * p.share;
      s.squares = squares_about(subgroup, joins, s.mean);
    }
    s.rstd = rsqrtf(__fmaf_rn(s.squares, p.share, p.eps));
    return s;
  }
};

// A piece with canonical NaN, which conversions do not give. Out of line: few ask for it.
template <class T>
__device__ __noinline__ void store_canonical(char* to, uint4 v) {
  constexpr uint32_t kInf = std::is_same_v<T, Bf16> ? 0x7F80u : 0x7C00u;
  constexpr uint32_t kNan = std::is_same_v<T, Bf16> ? formats::kBf16Nan : formats::kF16Nan;
  uint32_t w[4] = {v.x, v.y, v.z, v.w};
  for (uint32_t& two : w) {
    if ((two & 0x7FFFu) > kInf) two = (two & 0xFFFF0000u) | kNan;
    if ((two >> 16 & 0x7FFFu) > kInf) two = (two & 0xFFFFu) | kNan << 16;
  }
  store_plain(to, make_uint4(w[0], w[1], w[2], w[3]));
}

template <class T, class Kind>
struct PersistentValues {
  using Map = PersistentMap<T, Kind>;
  static constexpr bool kByTensor = std::is_same_v<T, Bf16> && (Map::kStays || Map::kRuns);
  PersistentRow<T, Kind>& row;
  const PersistentParameters<T, Kind>& given;
  RowStatistics s;
  bool plain;  // finite, all of the row and what becomes of it
  TensorScale by;

  __device__ PersistentValues(const PersistentNorm& p, PersistentRow<T, Kind>& of,
                              const PersistentParameters<T, Kind>& parameters,
                              const RowStatistics& statistics, bool are_plain)
      : row(of),
        given(parameters),
        s(statistics),
        plain(are_plain && statistics.is_plain()),
        by(statistics.rstd) {
    if constexpr (kByTensor) by.add(-s.mean * by.factor, p.zeros);
  }
  __device__ void values(int step, float (&v)[Map::kN]) const { values_of(row.x[step], step, v); }
  __device__ void values_of(const uint4 (&x)[Map::kPieces], int step, float (&v)[Map::kN]) const {
    constexpr int kCount = kPieceBytes / T::kBytes;
    if (kByTensor && plain) {
#pragma unroll
      for (int q = 0; q < Map::kPieces; ++q) by.apply(x[q], v + q * kCount);
    } else {
#pragma unroll
      for (int q = 0; q < Map::kPieces; ++q) unpack_piece<T>(x[q], v + q * kCount);
#pragma unroll
      for (int j = 0; j < Map::kN; ++j) {
        v[j] =
            T::kBytes == 2 ? __fmaf_rn(v[j], s.rstd, -s.mean * s.rstd) : (v[j] - s.mean) * s.rstd;
      }
    }
    given.apply(step, v);
  }
  // Rounded, in place of x, and stored where the output is asked for beside codes.
  __device__ void round(char* out, int step) const { round_pieces(out, step, row.x[step]); }
  __device__ void round_pieces(char* out, int step, uint4 (&x)[Map::kPieces]) const {
    float v[Map::kN];
    values_of(x, step, v);
    round_granule<T, true>(v, x);
    if (out == nullptr || !row.at.has(step)) return;
    char* to = out + static_cast<int64_t>(row.at.first + step * 32) * (Map::kN * T::kBytes);
#pragma unroll
    for (int q = 0; q < Map::kPieces; ++q) {
      store_canonical<T>(to + q * kPieceBytes, x[q]);
    }
  }
};

#endif

}  // namespace pestle::ops::norm_device
