// What stands around Hopper's kernels of attention's gradients: words of the workspace become 0 before
// them, and sums are rounded to q's dtype behind them.
#pragma once

#include "ops/attention/attention_backward/hopper/attention_backward_hopper_parts.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

static __global__ void __launch_bounds__(256) clear_kernel(uint4* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = make_uint4(0, 0, 0, 0);
}

// Rows of a head that a block rounds.
struct SummedRows {
  const float* sums;  // of 64 rows: [64 columns][float4 as in Memory::d_q]
  const AttentionRows& to;
  int batch, head, row0;
  int rows, columns;  // that there are
  float by;
  int* redo;
};
// Sums of 64 rows, times `by`, to q's dtype. A thread takes 8 columns of a row and of the one 8 below,
// which are 64 bytes of the sums.
template <class C>
__device__ inline void round_sums(const SummedRows& r) {
#if PESTLE_HOPPER
  constexpr int kOfThread = C::kPieces;
  float4 parts[kOfThread][4];
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int at = static_cast<int>(threadIdx.x) + 256 * i;
    const int eight = at % 8, piece = at / 8 % C::kPieces, pair = at / 8 / C::kPieces;
    const auto* const from = reinterpret_cast<const float4*>(r.sums + piece * kSumsOfPart) +
                             eight * 128 + pair / 8 * 32 + pair % 8 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 v = parts[i][j] = from[j];
      zero = __fmaf_rn(v.x, 0.0f,
                       __fmaf_rn(v.y, 0.0f, __fmaf_rn(v.z, 0.0f, __fmaf_rn(v.w, 0.0f, zero))));
    }
  }
  const bool wrong = __syncthreads_or(zero != 0) != 0;
  if (threadIdx.x == 0) *r.redo = wrong;
  if (wrong) return;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int at = static_cast<int>(threadIdx.x) + 256 * i;
    const int column = (at / 8 % C::kPieces) * 64 + at % 8 * 8, pair = at / 8 / C::kPieces;
    if (column >= r.columns) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = r.row0 + pair / 8 * 16 + pair % 8 + 8 * half;
      if (row >= r.rows) continue;
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 v = parts[i][j];
        words[j] = half == 0 ? pack<C>(v.x * r.by, v.y * r.by) : pack<C>(v.z * r.by, v.w * r.by);
      }
      *reinterpret_cast<uint4*>(r.to.at(r.batch, r.head, row) + column * 2) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
#endif
}

// d_q from its sums: a block for 64 queries of a head.
template <class C>
__global__ void __launch_bounds__(256) backward_d_q_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  const AttentionCall& c = job.base.call;
  const int tiles = (c.queries + kTile - 1) / kTile, tile = static_cast<int>(blockIdx.x) % tiles;
  const int head = static_cast<int>(blockIdx.x) / tiles, b = head / c.heads, h = head % c.heads;
  float by = c.scale;
  if constexpr (C::kF16) by /= power_of(job, b, h / c.group);
  const float* const sums =
      job.sums + (int64_t{head} * job.query_tiles * C::kParts + tile * C::kPieces) * kSumsOfPart;
  round_sums<C>({sums, job.base.d_q, b, h, tile * kTile, c.queries, c.depth, by,
                 &job.base.redo_q[blockIdx.x]});
#endif
}

// d_v (even blocks) and d_k from the sums of several parts: a block for 64 keys of a head.
template <class C>
__global__ void __launch_bounds__(256) backward_d_k_d_v_kernel(const __grid_constant__ Job job) {
#if PESTLE_HOPPER
  const AttentionCall& c = job.base.call;
  const bool is_d_k = blockIdx.x % 2 != 0;
  const int tiles = (c.keys + kTile - 1) / kTile;
  const int index = static_cast<int>(blockIdx.x / 2), tile = index % tiles, head = index / tiles;
  const int b = head / c.key_heads, h = head % c.key_heads;
  float by = is_d_k ? c.scale : 1;
  if constexpr (C::kF16) by /= is_d_k ? power_of(job, b, h) : KeyRows<C>::kWeightScale;
  const float* const sums =
      job.key_sums + ((int64_t{head} * 2 * job.key_tiles + tile) * 2 + is_d_k) * kSumsOfKeys<C>;
  round_sums<C>({sums, is_d_k ? job.base.d_k : job.base.d_v, b, h, tile * kTile, c.keys,
                 is_d_k ? c.depth : c.value_depth, by,
                 &(is_d_k ? job.base.redo_k : job.base.redo_v)[index]});
#endif
}

}  // namespace pestle::ops::attention_backward::backward_hopper
