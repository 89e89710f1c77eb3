// f32 rows to f16 parts: the kernel.
#include "ops/attention/sm80/f16_parts.cuh"

namespace pestle::cuda {
namespace {

__global__ void __launch_bounds__(kPartsThreads)
    split_rows_kernel(const __grid_constant__ SplitRowsJob job) {
  constexpr int kPieces = kPartsRows * kMostPartsColumns / 8 / kPartsThreads;  // of eight columns
  __shared__ uint32_t by_warps[kPartsThreads / 32];
  const int block = static_cast<int>(blockIdx.x);
  int of = 0;
  while (of + 1 < job.count && block >= job.tensors[of + 1].first_block) ++of;
  const SplitRows& t = job.tensors[of];
  const int blocks = t.to.blocks(), head = (block - t.first_block) / blocks;
  const int row0 = (block - t.first_block) % blocks * kPartsRows;
  const int pieces = t.to.columns / 8;
  float x[kPieces][8];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = threadIdx.x + i * kPartsThreads, row = row0 + piece / pieces;
    const bool exists = piece < kPartsRows * pieces && row < t.to.rows;
    const auto* from = reinterpret_cast<const float4*>(
        t.from.at(head / t.heads, head % t.heads, exists ? row : 0) + piece % pieces * 32);
    const float4 none = make_float4(0, 0, 0, 0);
    const float4 a = exists ? from[0] : none, b = exists ? from[1] : none;
    const float all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[i][j] = all[j];
      largest = max(largest, __float_as_uint(all[j]) & 0x7FFFFFFFu);
    }
  }
  largest = __reduce_max_sync(~0u, largest);
  if (threadIdx.x % 32 == 0) by_warps[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kPartsThreads / 32; ++w) largest = max(largest, by_warps[w]);
  const PartsScale scale(largest);
  bool serves = scale.serves;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = threadIdx.x + i * kPartsThreads, row = row0 + piece / pieces;
    if (piece >= kPartsRows * pieces || row >= t.to.rows) continue;
    uint32_t high[4], low[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      serves = serves && scale.serves_for(x[i][2 * j]) && scale.serves_for(x[i][2 * j + 1]);
      const F16PartsPair p = f16_parts(x[i][2 * j] * scale.up, x[i][2 * j + 1] * scale.up);
      high[j] = p.high;
      low[j] = p.low;
    }
    char* to =
        t.to.data + (int64_t{head} * t.to.rows + row) * 4 * t.to.columns + piece % pieces * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(to + 2 * t.to.columns) = make_uint4(low[0], low[1], low[2], low[3]);
  }
  serves = __syncthreads_and(serves) != 0;
  if (threadIdx.x == 0)
    t.to.factors[int64_t{head} * blocks + row0 / kPartsRows] =
        serves ? scale.down : __uint_as_float(0x7FC00000u);
}

}  // namespace

Status start_split_rows(const Call& call, const SplitRowsJob& job) {
  return launch(call, "split_rows", {job.blocks, kPartsThreads}, split_rows_kernel, job);
}

}  // namespace pestle::cuda
