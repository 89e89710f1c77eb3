// Rotary position embedding on CUDA, of heads as they are or normalised first by their root mean
// square (kNorm).
// Map      a thread rotates one unit (4 neighbouring pairs, or 8 pairs across the halves) of one
//          position in some heads, one after the other, and keeps their rotations (and weights) in
//          registers. What it will need of the next heads is on its way into shared memory
//          (cp.async), where it alone reads it: no barriers. A head is one row of lanes within a
//          warp, which adds up its squares by shuffles. A second tensor is the rest of the same
//          grid.
// Traffic  x and out once; rotations once for each group of heads, from the L2 but the first time.
// Numerics f32: (x * r) * weight, then f0 * x0 + f1 * x1 with one fused multiply-add, one rounding
//          to x's dtype at the end. What rot_dim leaves is copied, or only normalised.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "ops/rope/rope.cuh"

namespace pestle::ops {

// Of a block, at most. 256 threads ran 20 % slower at [1, 24, 4608, 128].
inline constexpr int kRopeBlockThreads = 128;

#ifdef __CUDACC__

// 16-byte pieces that a thread has of a head: 1, 2 or 4.
template <class T, bool kSplit>
inline constexpr int kRopePieces = RopeUnit<kSplit>::kChunks * T::kBytes / 2;
// Heads whose sums are joined side by side, and how often as many are under way: 128 to 192 bytes.
template <class T, bool kSplit>
inline constexpr int kRopeAtOnce = kRopePieces<T, kSplit> == 4 ? 1 : 2;
template <class T, bool kSplit>
inline constexpr int kRopeStages = kRopePieces<T, kSplit> == 1 ? 4 : 3;
template <class T, bool kSplit>
inline constexpr int kRopeRing = kRopeAtOnce<T, kSplit> * kRopeStages<T, kSplit>;

// A thread's pieces on their way through shared memory.
template <class T, bool kSplit>
struct RopeRing {
  static constexpr int kChunks = RopeUnit<kSplit>::kChunks;
  static constexpr int kEach = T::kBytes / 2;  // pieces of a chunk
  uint4* own;

  __device__ uint4* piece(int head, int i) const {
    return own + (head % kRopeRing<T, kSplit> * kRopePieces<T, kSplit> + i) * blockDim.x;
  }
  __device__ void fetch(int head, const char* x, const int (&offset)[2]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      for (int i = 0; i < kEach; ++i) {
        cuda::copy_async(piece(head, c * kEach + i), x + offset[c] + 16 * i);
      }
    }
  }
  __device__ typename T::Raw raw(int head, int c) const {
    if constexpr (kEach == 2)
      return {*piece(head, 2 * c), *piece(head, 2 * c + 1)};
    else
      return {*piece(head, c)};
  }
};

template <class T, bool kSplit, bool kNorm>
__global__ void __launch_bounds__(kRopeBlockThreads,
                                  kRopePieces<T, kSplit> == 1 ? (kNorm ? 8 : 9) : 4)
    rope_heads(const __grid_constant__ RopeJob job) {
  using Unit = RopeUnit<kSplit>;
  constexpr int kChunks = Unit::kChunks;
  constexpr int kAtOnce = kRopeAtOnce<T, kSplit>, kStages = kRopeStages<T, kSplit>;
  extern __shared__ uint4 staged[];
  const RopeRing<T, kSplit> ring{staged + threadIdx.x};
  const int other = blockIdx.x >= job.first_blocks ? 1 : 0;
  const RopeOperand& t = job.operands[other];
  const unsigned block = blockIdx.x - (other ? static_cast<unsigned>(job.first_blocks) : 0u);
  const int unit = threadIdx.x % job.lanes;
  const int position = threadIdx.x / job.lanes;
  // Groups of heads run fastest: they meet the same rotations in the L2.
  const unsigned below = job.groups[other].divide(block);
  const int64_t b = job.tiles[other].divide(below);
  const int64_t h0 = static_cast<int64_t>(block - below * job.groups[other].divisor) * job.heads;
  const unsigned tile = below - static_cast<unsigned>(b) * job.tiles[other].divisor;
  const int64_t s = static_cast<int64_t>(tile) * job.positions + position;
  const bool active = unit < job.units && s < t.shape[2] && position < job.positions;
  const int heads = static_cast<int>(min(t.shape[1] - h0, static_cast<int64_t>(job.heads)));
  if (!kNorm && !active) return;

  const RopePlace place = rope_place<kSplit>(unit, job.rot_units, job.table.rot);
  const int offset[2] = {place.first * T::kBytes, place.second * T::kBytes};
  const char* x = t.x + (active ? rope_offset(t.x_stride, b, h0, s) : 0);
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (active && first + i < heads) ring.fetch(first + i, x, offset);
      x += t.x_stride[1];
    }
    cuda::commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage * kAtOnce);
  float w[kChunks][cuda::kUnit];
  if constexpr (kNorm) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (unit >= job.units) continue;
      load_values(t.weight + (c == 0 ? place.first : place.second) *
                                 (job.weight_dtype == DType::kF32 ? 4 : 2),
                  job.weight_dtype, w[c]);
    }
  }
  float f[4 * Unit::kPairs];
  if (active && place.rotates && job.table.shared_by_heads) {
    load_turns<Unit::kPairs>(job.table, b, 0, s, unit * Unit::kPairs, f);
  }
  char* out = t.out + rope_offset(t.out_stride, b, h0, s);
  for (int h = 0; h < heads; h += kAtOnce) {
    fetch(h + (kStages - 1) * kAtOnce);
    cuda::wait_for_copies(kStages - 1);
    typename T::Raw raw[kAtOnce][kChunks];
    float root[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      Unit v;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        raw[i][c] = active && h + i < heads ? ring.raw(h + i, c) : T::zero();
        T::to_f32(raw[i][c], v.v[c]);
      }
      root[i] = kNorm ? unit_squares(v) : 0;
    }
    if constexpr (kNorm) {
      for (int step = job.lanes / 2; step > 0; step /= 2) {
#pragma unroll
        for (float& sum : root) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
      }
#pragma unroll
      for (float& sum : root) sum = inverse_root(__fmaf_rn(sum, job.one_by_d, job.eps));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (!active || h + i >= heads) break;
      Unit v;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        T::to_f32(raw[i][c], v.v[c]);
        if constexpr (kNorm) {
          for (int j = 0; j < cuda::kUnit; ++j) v.v[c][j] = v.v[c][j] * root[i] * w[c][j];
        }
      }
      if (place.rotates) {
        if (!job.table.shared_by_heads) {
          load_turns<Unit::kPairs>(job.table, b, h0 + h + i, s, unit * Unit::kPairs, f);
        }
        v.rotate(f);
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (kNorm || place.rotates)
          T::store(out + offset[c], v.v[c]);
        else
          store_raw(raw[i][c], out + offset[c]);
      }
      out += t.out_stride[1];
    }
  }
}

#endif  // __CUDACC__

// ---- host ----

// Heads of a thread: all, if there are `many` thread blocks then.
inline void rope_share(RopeJob& job, const TensorView& x, int64_t many) {
  const int64_t tiles = x.shape[0] * cuda::ceil_div(x.shape[2], job.positions);
  int64_t parts = 1;
  while (tiles * parts < many && parts * 4 < x.shape[1]) parts *= 2;
  job.heads = static_cast<int>(std::max<int64_t>(1, cuda::ceil_div(x.shape[1], parts)));
}

// Sets operand `i` and counts its thread blocks.
inline int64_t rope_blocks(RopeJob& job, int i, const RopeOperand& o) {
  const int64_t groups = cuda::ceil_div(o.shape[1], job.heads);
  const int64_t tiles = cuda::ceil_div(o.shape[2], job.positions);
  job.operands[i] = o;
  job.groups[i] = cuda::FastDivisor(static_cast<uint32_t>(std::max<int64_t>(groups, 1)));
  job.tiles[i] = cuda::FastDivisor(static_cast<uint32_t>(std::max<int64_t>(tiles, 1)));
  return o.shape[0] * groups * tiles;
}

#ifdef __CUDACC__
template <class T, bool kSplit, bool kNorm>
Status launch_rope(const Call& call, const char* name, const RopeJob& job, int64_t blocks) {
  // Whole warps: heads that are normalised are added up by shuffles.
  const auto threads = static_cast<int>(cuda::ceil_div(job.lanes * job.positions, 32) * 32);
  const int ring = kRopeRing<T, kSplit> * kRopePieces<T, kSplit> * 16;
  return cuda::launch(call, name, {blocks, threads, static_cast<size_t>(ring) * threads},
                      rope_heads<T, kSplit, kNorm>, job);
}
#endif

}  // namespace pestle::ops
