// Sums of parts of k, put together by the CTAs of a cluster that made them: each CTA adds those of some
// fragments and has their epilogue. For kernels whose left operand is the weight: a fragment, an
// m16n8 product's, has 16 rows of the weight and 8 rows of x, four sums a lane.
//
// Place    Fragment f of a tile is added by CTA f mod parts, where it lies as [source][f / parts][lane].
//          A source is a CTA, or some of its warps that have a part of k of their own.
// Order    Sources are added in theirs: two runs give the same bits.
#pragma once

#include "backends/cuda/device/ptx/cluster.cuh"
#include "ops/gemm/weight_only/finish_rows.cuh"

namespace pestle::cuda::many_rows {

#ifdef __CUDACC__

// Of `all` fragments of a tile, those that one of `parts` CTAs adds at most, and those that CTA `part` does.
__device__ inline int most_added(int all, int parts) { return (all + parts - 1) / parts; }
__device__ inline int added_by(int part, int all, int parts) {
  return (all - part + parts - 1) / parts;
}
// What comes to CTA `part`: of each source its fragments, and a flag of each of its warps.
__device__ inline int bytes_for(int part, int all, int parts, int sources, int warps) {
  return sources * (added_by(part, all, parts) * 512 + warps * 4);
}

// Of a lane, kCount fragments from `f` on; `to`: its place in the source's first. put(to, rank, v) has
// v stored where `to` lies in a CTA.
template <int kCount, class Put>
__device__ inline void put_fragments(int parts, int f, float4* to, const float* d, const Put& put) {
  int rank = f % parts;
  to += f / parts * 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    put(to, rank, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
    if (++rank == parts) rank = 0, to += 32;
  }
}

// What a CTA adds of a tile.
struct ClusterSums {
  float* sums;            // [source][each][32 lanes][4]
  const uint32_t* flags;  // [source][warps]: has it met what is odd?
  int parts, part, sources, warps;
  int all, each;    // fragments of the tile, and of those a CTA adds at most
  int first_row;    // of the weight
  int64_t first_x;  // row of x
  int x_rows;       // that the tile has
  int gap = 0;      // floats between the first half of the sources and the second
};

// Of a unit, eight neighbours of a row of out, in fragment `local` of those that this CTA adds: where the
// first source's lie, 16 floats from each other. Only one thread reads them.
__device__ inline float* unit_at(const ClusterSums& of, int local, int unit) {
  return of.sums + local * 128 + unit % 8 / 2 * 4 + unit / 8 * 2 + unit % 2;
}
// Lanes of odd fragments read in another order than those of even ones, so that none meet in a bank.
__device__ inline void add_fragments(const ClusterSums& of, const float* from, int local,
                                     float (&y)[8]) {
  const int swap = local & 1;
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = 0;
#pragma unroll 1
  for (int s = 0; s < of.sources; ++s, from += of.each * 128) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float a = from[(j + swap) * 16], b = from[(j + 1 - swap) * 16];
      y[j] += swap ? b : a;
      y[j + 1] += swap ? a : b;
    }
    if (of.gap != 0 && 2 * (s + 1) == of.sources) from += of.gap;
  }
}

// By thread `thread` of so many. kEights: fragments of 16 rows of the weight; kLines: of these sixteens,
// those of a warp. values(columns, row, odd, at, y) has the elements of the product put for their sums,
// whose unit may be written to.
template <int kEights, int kLines, class Values>
__device__ inline void finish_fragments(const Job& job, const ClusterSums& of, int thread,
                                        int threads, bool all_odd, const Values& values) {
#pragma unroll 1
  for (int q = thread; q < of.each * 16; q += threads) {
    const int local = q / 16, unit = q % 16, fragment = local * of.parts + of.part;
    const int lines = fragment / kEights;
    const int m = fragment % kEights * 8 + unit % 8;
    const int n = of.first_row + lines * 16 + unit / 8 * 8;
    if (fragment >= of.all || m >= of.x_rows || n >= job.n) continue;
    const int64_t row = of.first_x + m;
    const Columns columns{n, min(8, job.n - n)};
    alignas(16) float y[8];
    bool odd = all_odd;
    if (!all_odd) {
      add_fragments(of, unit_at(of, local, unit), local, y);
      for (int s = 0; s < of.sources; ++s) odd |= of.flags[s * of.warps + lines / kLines] != 0;
    }
    values(columns, row, odd, unit_at(of, local, unit), y);
    if (job.plain && columns.count == 8) {
      finish_plain_row(job.epilogue, n, row, y);
      continue;
    }
    finish_row<false>(job.epilogue, columns, row, 1.0f, y);
  }
}

#endif  // __CUDACC__

}  // namespace pestle::cuda::many_rows
