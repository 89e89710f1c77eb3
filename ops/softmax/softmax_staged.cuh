// Softmax's rows on their way through shared memory, where threads have as much in flight as fits
// and registers hold nothing. Each thread copies (cp.async) and reads the same 16 bytes, so that
// only the partial results of a row need barriers.
//   staged_kernel   all of a row: by a block, or by the blocks of a cluster
//   partly_staged_kernel    a longer row, the end of whose parts is read again
//   streamed_kernel a ring of a few pieces a thread: the row is read once (cross_entropy)
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "core/machine.h"
#include "ops/softmax/softmax_parts.cuh"

namespace pestle::ops {

#ifdef __CUDACC__
namespace softmax_device {

constexpr int kStagedThreads = 256;  // of a block, at most
constexpr int kStages = 4;           // waits for a row's pieces
constexpr int kTogether = 2;         // pieces that share an exponent's base

// 16 bytes of a row as numbers, and back.
template <class T>
struct Piece {
  static constexpr int kCount = 16 / T::kBytes;

  __device__ static void values(const uint4& v, float (&t)[kCount]) {
    if constexpr (T::kBytes == 2) {
      T::to_f32({v}, t);
    } else {
      t[0] = __uint_as_float(v.x);
      t[1] = __uint_as_float(v.y);
      t[2] = __uint_as_float(v.z);
      t[3] = __uint_as_float(v.w);
    }
  }
  __device__ static uint4 packed(const float (&t)[kCount]) {
    if constexpr (T::kBytes == 2) {
      return T::pack(t).v;
    } else {
      uint32_t w[4];
      for (int i = 0; i < 4; ++i) w[i] = t[i] != t[i] ? formats::kF32Nan : __float_as_uint(t[i]);
      return make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
  __device__ static void store(char* p, const float (&t)[kCount]) { store16(p, packed(t)); }
};

// Numbers that are known not to be NaN.
template <class T>
__device__ inline uint4 clean_piece(const float (&t)[Piece<T>::kCount]) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (T::kBytes == 4) {
      w[i] = __float_as_uint(t[i]);
    } else if constexpr (std::is_same_v<T, Bf16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(t[2 * i], t[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      const __half2 pair = __floats2half2_rn(t[2 * i], t[2 * i + 1]);
      w[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}
// Without the hint of store16: 1 to 2 % faster where as much is written as read.
template <class T>
__device__ inline void store_plain(char* p, const float (&t)[Piece<T>::kCount]) {
  *reinterpret_cast<uint4*>(p) = clean_piece<T>(t);
}

// The larger numbers of two words; NaN ignored.
template <class T>
__device__ inline uint32_t larger(uint32_t a, uint32_t b) {
  uint32_t r;
  if constexpr (T::kBytes == 4)
    r = __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  else if constexpr (std::is_same_v<T, Bf16>)
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <class T>
__device__ inline float largest_of(uint32_t word) {
  if constexpr (T::kBytes == 4) return __uint_as_float(word);
  if constexpr (std::is_same_v<T, Bf16>)
    return fmaxf(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
  const float2 two = F16::pair(word);
  return fmaxf(two.x, two.y);
}
template <class T>
__device__ inline uint4 all_lowest() {
  const uint32_t w =
      T::kBytes == 4 ? 0xFF800000u : (std::is_same_v<T, Bf16> ? 0xFF80FF80u : 0xFC00FC00u);
  return make_uint4(w, w, w, w);
}

// kCount neighbours of a mask's row, or one for all of them.
template <int kCount>
__device__ inline void mask_values(const char* p, int64_t step, DType dtype, float (&m)[kCount]) {
  if (step == 0) {
    const float one = load_element(p, dtype);
    for (int i = 0; i < kCount; ++i) m[i] = one;
    return;
  }
  if (dtype == DType::kF32) {
    for (int i = 0; i < kCount; i += 4) {
      const uint4 v = load16(p + 4 * i);
      m[i] = __uint_as_float(v.x);
      m[i + 1] = __uint_as_float(v.y);
      m[i + 2] = __uint_as_float(v.z);
      m[i + 3] = __uint_as_float(v.w);
    }
    return;
  }
  uint4 v = make_uint4(0, 0, 0, 0);
  if constexpr (kCount == 8) {
    v = load16(p);
  } else {
    const uint2 half = __ldg(reinterpret_cast<const uint2*>(p));
    v.x = half.x;
    v.y = half.y;
  }
  float all[kUnit];
  if (dtype == DType::kBF16)
    Bf16::to_f32({v}, all);
  else
    F16::to_f32({v}, all);
  for (int i = 0; i < kCount; ++i) m[i] = all[i];
}

// A block's part of a row, in pieces of 16 bytes: thread `lane` has every lanes-th.
template <class T>
struct StagedRow {
  static constexpr int kCount = Piece<T>::kCount;
  const SoftmaxJob& job;
  const char* x;
  const char* mask;
  int pieces;  // of the part
  int chunks;  // of a thread, at most
  int lane, lanes;

  __device__ StagedRow(const SoftmaxJob& job, const RowPlace& p)
      : job(job), x(nullptr), mask(nullptr), lane(p.lane), lanes(p.lanes) {
    pieces = p.units * (kUnit / kCount);
    chunks = (pieces + lanes - 1) / lanes;
    if (pieces == 0) return;
    x = job.x.any.data + p.row * job.x.distance + p.first * (kUnit * T::kBytes);
    if (job.mask.is_present) mask = job.mask.any.row_at(p.row) + p.first * kUnit * job.mask.step;
  }
  __device__ bool has(int chunk) const { return chunk * lanes + lane < pieces; }
  __device__ void fetch(int chunk, uint4* to) const {
    if (has(chunk)) copy_async(to, x + static_cast<int64_t>(chunk * lanes + lane) * 16);
  }
  // Nothing to do with x before its exponential?
  __device__ bool is_plain() const { return !job.mask.is_present && job.scale == 1; }
  // t of a piece; -infinity past the part's end.
  __device__ void logits(int chunk, const uint4& raw, float (&t)[kCount]) const {
    if (!has(chunk)) {
      for (float& v : t) v = -kInfinity;
      return;
    }
    Piece<T>::values(raw, t);
    if (mask != nullptr) {
      float m[kCount];
      mask_values(mask + static_cast<int64_t>(chunk * lanes + lane) * kCount * job.mask.step,
                  job.mask.step, job.mask.any.dtype, m);
      for (int i = 0; i < kCount; ++i) t[i] = __fmaf_rn(t[i], job.scale, m[i]);
    } else if (job.scale != 1) {
      for (int i = 0; i < kCount; ++i) t[i] *= job.scale;
    }
  }
};

// The online algorithm on some pieces.
template <class T>
__device__ inline void add_pieces(const float (&t)[kTogether][Piece<T>::kCount],
                                  SoftmaxPart& part) {
  float largest = part.largest;
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    for (float v : t[k]) largest = fmaxf(largest, v);
  }
  const float base = base_of(largest);
  float sums[2] = {part.sum * quick_exp(part.largest - base), 0};
#pragma unroll
  for (int k = 0; k < kTogether; ++k) {
    for (float v : t[k]) sums[k % 2] += quick_exp(v - base);
  }
  part.largest = largest;
  part.sum = sums[0] + sums[1];
}

// Of a part that the short way can't sum up.
__device__ inline SoftmaxPart odd_part(float largest) {
  return {largest, __uint_as_float(formats::kF32Nan), 0};
}

// The same of x as it is, in fewer instructions: 2^(x log2 e - base), where any base will do. It is
// 24 below the largest so far, which keeps what f32 can show of the results from being flushed, and
// rounded: what that is off by is in every exponential and in the one that corrects their sum.
// Infinities above, NaN and overflowing bases end in a sum that is no positive number: such rows
// are gone through again, by add_pieces.
struct PlainPart {
  static constexpr float kLowest = -1e38f;
  float base = kLowest, sum = 0, largest = -kInfinity;

  template <class T>
  __device__ void add(const uint4 (&raw)[kTogether]) {
    uint32_t top = raw[0].x;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      top = larger<T>(top, larger<T>(larger<T>(raw[k].x, raw[k].y), larger<T>(raw[k].z, raw[k].w)));
    }
    const float value = largest_of<T>(top);
    largest = fmaxf(largest, value);
    const float now = fmaxf(base, __fmaf_rn(value, kLog2E, -24.0f));
    float sums[2] = {sum * quick_exp2(base - now), 0};
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      float v[Piece<T>::kCount];
      Piece<T>::values(raw[k], v);
      for (float x : v) sums[k % 2] += quick_exp2(__fmaf_rn(x, kLog2E, -now));
    }
    base = now;
    sum = sums[0] + sums[1];
  }
  // Exponentials that are all 0 although there are numbers: a large base's rounding, which such
  // rows must not be judged by, nor lose these elements for. NaN sends the row the general way.
  __device__ SoftmaxPart part() const {
    if (sum == 0) return largest > -kInfinity ? odd_part(largest) : SoftmaxPart::none();
    return {largest, sum * quick_exp2(__fmaf_rn(-largest, kLog2E, base)), 0};
  }
};
__device__ inline bool is_regular(const SoftmaxPart& all) {
  return all.sum > 0 && all.sum < kInfinity;
}

// Some of a thread's pieces, at pieces(chunk) in shared memory.
template <class T, class Pieces>
__device__ inline void add_general(const StagedRow<T>& row, Pieces&& pieces, int begin, int end,
                                   SoftmaxPart& part) {
#pragma unroll 1
  for (int c = begin; c < end; c += kTogether) {
    float t[kTogether][Piece<T>::kCount];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) row.logits(c + k, *pieces(c + k), t[k]);
    add_pieces<T>(t, part);
  }
}
template <class T, class Pieces>
__device__ inline void add_plain(const StagedRow<T>& row, Pieces&& pieces, int begin, int end,
                                 PlainPart& part) {
#pragma unroll 1
  for (int c = begin; c < end; c += kTogether) {
    uint4 raw[kTogether];
    if ((c + kTogether) * row.lanes <= row.pieces) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) raw[k] = *pieces(c + k);
    } else {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        raw[k] = row.has(c + k) ? *pieces(c + k) : all_lowest<T>();
      }
    }
    part.template add<T>(raw);
  }
}

// What becomes of a row's pieces.
template <class T, SoftmaxKind kKind>
struct StagedResult {
  RowResult<T, kKind> general;
  float base, by;
  bool plain;

  __device__ StagedResult(const SoftmaxPart& all, bool is_plain) : general(all), plain(is_plain) {
    base = __fmaf_rn(all.largest, kLog2E, -24.0f);
    by = quick_exp2(__fmaf_rn(-all.largest, kLog2E, base)) / all.sum;
  }
  // Where the row is plain.
  __device__ float plain_of(float v) const {
    if constexpr (kKind == SoftmaxKind::kLogSoftmax) return general.of(v);
    return quick_exp2(__fmaf_rn(v, kLog2E, -base)) * by;
  }
  __device__ void write(const StagedRow<T>& row, int chunk, const uint4& raw, char* out) const {
    float t[Piece<T>::kCount];
    char* to = out + static_cast<int64_t>(chunk * row.lanes + row.lane) * 16;
    if (plain) {
      Piece<T>::values(raw, t);
      for (float& v : t) v = plain_of(v);
      store_plain<T>(to, t);
    } else {
      row.logits(chunk, raw, t);
      for (float& v : t) v = general.of(v);
      Piece<T>::store(to, t);
    }
  }
};

template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kStagedThreads, T::kBytes == 2 ? 5 : 6)
    staged_kernel(const __grid_constant__ SoftmaxJob job) {
  extern __shared__ uint4 staged[];
  __shared__ RowParts shared[2];
  const RowPlace place = row_place(job.groups);
  begin_row(place);
  const StagedRow<T> row(job, place);
  const auto piece = [&](int chunk) { return staged + chunk * row.lanes + threadIdx.x; };
  constexpr int kStep = kTogether * kStages;
  const int each = (row.chunks + kStep - 1) / kStep * kTogether;
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    for (int c = stage * each; c < min((stage + 1) * each, row.chunks); ++c) {
      row.fetch(c, piece(c));
    }
    commit_copies();
  }
  bool plain = row.is_plain();
  SoftmaxPart part = SoftmaxPart::none();
  PlainPart plain_part;
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    wait_for_copies(kStages - 1 - stage);
    const int end = min((stage + 1) * each, row.chunks);
    if (plain)
      add_plain(row, piece, stage * each, end, plain_part);
    else
      add_general(row, piece, stage * each, end, part);
  }
  if (plain) part = plain_part.part();
  const int width = min(place.lanes, 32);
  SoftmaxPart all = join_row(place, part.over_lanes(width), shared[0]);
  if (plain && !is_regular(all)) {  // the same in all of the row's threads
    plain = false;
    part = SoftmaxPart::none();
    add_general(row, piece, 0, row.chunks, part);
    begin_row(place);
    all = join_row(place, part.over_lanes(width), shared[1]);
  }
  if (place.units == 0) return;
  const StagedResult<T, kKind> result(all, plain);
  char* out = job.out.any.data + place.row * job.out.distance + place.first * (kUnit * T::kBytes);
#pragma unroll 2
  for (int c = 0; c < row.chunks; ++c) {
    if (!row.has(c)) break;
    result.write(row, c, *piece(c), out);
  }
}

// ---- rows beyond what a cluster holds ----

constexpr int kPartlyThreads = 512;  // of a block, which is alone on its multiprocessor
constexpr int kAgain = 4;            // pieces of a thread that are on their way a second time

// `staged_pieces` pieces of a thread, an even number, stay in shared memory. The others are looked
// at while those are on their way, and read again at the end: the L2 may still have them.
template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kPartlyThreads, 1)
    partly_staged_kernel(const __grid_constant__ SoftmaxJob job, int staged_pieces) {
  extern __shared__ uint4 staged[];
  __shared__ RowParts shared[2];
  const RowPlace place = row_place(job.groups);
  begin_row(place);
  const StagedRow<T> row(job, place);
  staged_pieces = min(staged_pieces, row.chunks);
  const auto piece = [&](int chunk) { return staged + chunk * row.lanes + threadIdx.x; };
  const auto* x = reinterpret_cast<const uint4*>(row.x) + row.lane;
  const auto far_piece = [&](int chunk) { return x + chunk * row.lanes; };
  constexpr int kStep = kTogether * kStages;
  const int each = (staged_pieces + kStep - 1) / kStep * kTogether;
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    for (int c = stage * each; c < min((stage + 1) * each, staged_pieces); ++c)
      row.fetch(c, piece(c));
    commit_copies();
  }
  bool plain = row.is_plain();
  SoftmaxPart part = SoftmaxPart::none();
  PlainPart plain_part;
  if (plain)
    add_plain(row, far_piece, staged_pieces, row.chunks, plain_part);
  else
    add_general(row, far_piece, staged_pieces, row.chunks, part);
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) {
    wait_for_copies(kStages - 1 - stage);
    const int end = min((stage + 1) * each, staged_pieces);
    if (plain)
      add_plain(row, piece, stage * each, end, plain_part);
    else
      add_general(row, piece, stage * each, end, part);
  }
  if (plain) part = plain_part.part();
  SoftmaxPart all = join_row(place, part.over_lanes(32), shared[0]);
  if (plain && !is_regular(all)) {  // the same in all of the row's threads
    plain = false;
    part = SoftmaxPart::none();
    add_general(row, far_piece, staged_pieces, row.chunks, part);
    add_general(row, piece, 0, staged_pieces, part);
    begin_row(place);
    all = join_row(place, part.over_lanes(32), shared[1]);
  }
  if (place.units == 0) return;
  const StagedResult<T, kKind> result(all, plain);
  char* out = job.out.any.data + place.row * job.out.distance + place.first * (kUnit * T::kBytes);
#pragma unroll 1
  for (int c = staged_pieces; c < row.chunks; c += kAgain) {
    uint4 raw[kAgain];
#pragma unroll
    for (int k = 0; k < kAgain; ++k) {
      if (row.has(c + k)) raw[k] = *far_piece(c + k);
    }
#pragma unroll
    for (int k = 0; k < kAgain; ++k) {
      if (row.has(c + k)) result.write(row, c + k, raw[k], out);
    }
  }
#pragma unroll 2
  for (int c = 0; c < staged_pieces; ++c) {
    if (!row.has(c)) break;
    result.write(row, c, *piece(c), out);
  }
}

// Pieces of a thread's ring; kTogether of them are waited for at a time.
inline size_t ring_bytes(int threads) {
  return static_cast<size_t>(threads) * kStages * kTogether * 16;
}

// Goes through a row once: take(chunk, pieces) for each kTogether chunks.
template <class T, class Take>
__device__ inline void stream_row(const StagedRow<T>& row, uint4* own, Take&& take) {
  constexpr int kSlots = kStages * kTogether;
  const auto piece = [&](int chunk) { return own + chunk % kSlots * row.lanes; };
  const auto fetch = [&](int first) {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) row.fetch(first + k, piece(first + k));
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage * kTogether);
#pragma unroll 1
  for (int c = 0; c < row.chunks; c += kTogether) {
    fetch(c + (kStages - 1) * kTogether);
    wait_for_copies<kStages - 1>();
    take(c, piece);
  }
  wait_for_copies<0>();
}

template <class T>
__global__ void __launch_bounds__(kStagedThreads, 6)
    streamed_kernel(const __grid_constant__ SoftmaxJob job) {
  cuda::wait_previous_kernel();
  extern __shared__ uint4 staged[];
  __shared__ RowParts shared[2];
  const RowPlace place = row_place(job.groups);
  const StagedRow<T> row(job, place);
  uint4* own = staged + threadIdx.x;
  const int width = min(place.lanes, 32);
  SoftmaxPart all = SoftmaxPart::none();
  if (job.loss.smoothing == 0) {
    PlainPart part;
    stream_row(row, own, [&](int c, auto& piece) { add_plain(row, piece, c, c + 1, part); });
    all = join_row(place, part.part().over_lanes(width), shared[0]);
  }
  if (!is_regular(all)) {
    SoftmaxPart part = SoftmaxPart::none();
    stream_row(row, own, [&](int c, auto& piece) {
      float t[kTogether][Piece<T>::kCount];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        row.logits(c + k, *piece(c + k), t[k]);
        if (!row.has(c + k)) continue;
        for (float v : t[k]) part.total += double{v};
      }
      add_pieces<T>(t, part);
    });
    all = join_row(place, part.over_lanes(width), shared[1]);
  }
  if (place.row < job.groups.rows && place.lane == 0) store_loss(job, place.row, all);
}

}  // namespace softmax_device

// ---- the host's side ----

// Blocks of a cluster that the call's device takes.
inline int cluster_blocks(const Call& call) {
  const Device device{DeviceType::kCuda, cuda::device_index(call)};
  return cuda::largest_cluster(machine_for(device).compute_capability);
}

// What a block takes of a row, if clusters allow: three such blocks fit into a multiprocessor.
inline constexpr int64_t kStagedBytes = 65536;
inline constexpr int64_t kStagedEach = 8;  // pieces of a thread, at least

struct StagedRows {
  cuda::RowGroups groups;  // cluster 0: the row is too long
  size_t shared_bytes = 0;
};

// Shared memory that a block of the call's device may have for a row, with 1 KiB left for the rest.
inline int64_t most_shared(const Call& call) {
  const Device device{DeviceType::kCuda, cuda::device_index(call)};
  const int capability = machine_for(device).compute_capability;
  if (capability >= 90 && capability < 120) return 226 * 1024;
  return (capability == 80 || capability == 87 ? 162 : 98) * 1024;
}

inline StagedRows staged_rows(const Call& call, int64_t rows, int64_t units, int bytes) {
  constexpr int64_t kAligned = 8;  // units: parts begin at multiples of 128 bytes
  const int64_t unit_bytes = int64_t{cuda::kUnit} * bytes;
  StagedRows s;
  int64_t part = kStagedBytes;
  const int most_blocks = units * unit_bytes > part ? cluster_blocks(call) : 1;
  s.groups.cluster = 1;
  while (s.groups.cluster < most_blocks && part * s.groups.cluster < units * unit_bytes) {
    s.groups.cluster *= 2;
  }
  const int64_t each = (units + s.groups.cluster - 1) / s.groups.cluster;
  s.groups.rows = rows;
  s.groups.units = units;
  s.groups.block_units = (each + kAligned - 1) / kAligned * kAligned;
  const int64_t pieces = s.groups.block_units * unit_bytes / 16;
  s.groups.lanes = static_cast<int>(std::clamp<int64_t>(
      (pieces + kStagedEach - 1) / kStagedEach / 32 * 32, 64, softmax_device::kStagedThreads));
  const int64_t chunks = (pieces + s.groups.lanes - 1) / s.groups.lanes;
  s.shared_bytes = static_cast<size_t>(chunks * s.groups.lanes * 16);
  if (static_cast<int64_t>(s.shared_bytes) > most_shared(call)) s.groups.cluster = 0;
  return s;
}

// Starts the kernel that reads the rest of a row again, if a cluster holds four fifths of it;
// false: it does not.
template <class T, SoftmaxKind kKind>
Result<bool> start_partly_staged(const Call& call, const char* name, SoftmaxJob& job) {
  using namespace softmax_device;
  const int blocks = cluster_blocks(call);
  const int staged_pieces = static_cast<int>(most_shared(call) / (kPartlyThreads * 16)) / 2 * 2;
  cuda::RowGroups& g = job.groups;
  g.units = job.x.count / kUnit;
  g.cluster = blocks;
  g.lanes = kPartlyThreads;
  g.rows_of_block = 1;
  g.block_units = (ceil_div(g.units, blocks) + 7) / 8 * 8;
  const int64_t pieces = g.block_units * (kUnit / Piece<T>::kCount);
  if (blocks == 1 || ceil_div(pieces, kPartlyThreads) > staged_pieces + staged_pieces / 4)
    return false;
  const size_t bytes = static_cast<size_t>(staged_pieces) * kPartlyThreads * 16;
  PESTLE_TRY(launch(call, name, {g.rows * blocks, kPartlyThreads, bytes, blocks},
                    partly_staged_kernel<T, kKind>, job, staged_pieces));
  return true;
}
#endif

}  // namespace pestle::ops
