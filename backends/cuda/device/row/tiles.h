// How row-wise kernels cover a matrix: a block of threads takes `threads` units of 8 columns by
// kRows rows, so that every thread has kRows loads in flight and one column. Index arithmetic costs
// as much as the work on a unit, so it is done once a thread, in 32 bits where that is enough.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pestle::cuda {

// n / divisor for n < 2^31 by one multiplication.
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    if (d == 1) return;
    while ((uint64_t{1} << shift) < d) ++shift;
    // Round up: exact for dividends below 2^31 with a quotient's worth of 31 + shift bits.
    multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + d - 1) / d);
  }
#ifdef __CUDACC__
  __host__ __device__
#endif
      uint32_t
      divide(uint32_t n) const {
    if (multiplier == 0) return n;
    return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier) >> (31 + shift));
  }
};

struct Tiles {
  int64_t rows = 0;
  int units = 0;  // of a row
  int threads = 128;
  FastDivisor column_blocks;

  // The number of threads that leaves the fewest idle, multiples of a warp.
  static Tiles over(int64_t row_count, int64_t row_units) {
    Tiles t;
    t.rows = row_count;
    t.units = static_cast<int>(row_units);
    int64_t least = INT64_MAX;
    for (int threads : {256, 320, 192, 384, 128, 160, 224}) {
      const int64_t covered = (row_units + threads - 1) / threads * threads;
      if (covered >= least) continue;
      least = covered;
      t.threads = threads;
    }
    const int64_t across = std::max<int64_t>(1, (row_units + t.threads - 1) / t.threads);
    t.column_blocks = FastDivisor(static_cast<uint32_t>(across));
    return t;
  }
  int64_t blocks(int rows_per_block) const {
    if (rows == 0 || units == 0) return 0;
    return (rows + rows_per_block - 1) / rows_per_block * column_blocks.divisor;
  }
};

inline constexpr int64_t kMostUnits = int64_t{1} << 27;  // of a row: offsets within it fit 31 bits

#ifdef __CUDACC__
struct TilePlace {
  int64_t row;  // first of the block's rows
  int unit;     // this thread's; may lie past the end
};
__device__ inline TilePlace tile_place(const FastDivisor& column_blocks, int rows_per_block,
                                       unsigned block) {
  const unsigned down = column_blocks.divide(block);
  const unsigned across = block - down * column_blocks.divisor;
  return {static_cast<int64_t>(down) * rows_per_block,
          static_cast<int>(across * blockDim.x + threadIdx.x)};
}
// Does the whole thread block lie within the matrix? The same in all its threads; kernels have a
// body without tests for that case.
__device__ inline bool is_whole(const TilePlace& place, int64_t rows, int units,
                                int rows_per_block) {
  const int last = place.unit - static_cast<int>(threadIdx.x) + static_cast<int>(blockDim.x);
  return place.row + rows_per_block <= rows && last <= units;
}
// How many of kRows rows from `row` on exist.
__device__ inline int rows_left(int64_t rows, int64_t row, int most) {
  return static_cast<int>(max(min(rows - row, static_cast<int64_t>(most)), int64_t{0}));
}
#endif

}  // namespace pestle::cuda
