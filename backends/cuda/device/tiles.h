// How row-wise kernels cover a matrix: a block of threads takes `threads` units of 8 columns by
// kRows rows, so that every thread has kRows loads in flight and one column.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pestle::cuda {

struct Tiles {
  int64_t rows = 0;
  int64_t units = 0;  // of a row
  int threads = 128;
  int64_t column_blocks = 0;

  // The number of threads that leaves the fewest idle, multiples of a warp.
  static Tiles over(int64_t rows, int64_t units) {
    Tiles t;
    t.rows = rows;
    t.units = units;
    int64_t least = INT64_MAX;
    for (int threads : {256, 320, 192, 384, 128, 160, 224}) {
      const int64_t covered = (units + threads - 1) / threads * threads;
      if (covered >= least) continue;
      least = covered;
      t.threads = threads;
    }
    t.column_blocks = std::max<int64_t>(1, (units + t.threads - 1) / t.threads);
    return t;
  }
  int64_t blocks(int rows_per_block) const {
    return rows == 0 || units == 0 ? 0
                                   : (rows + rows_per_block - 1) / rows_per_block * column_blocks;
  }
};

#ifdef __CUDACC__
struct TilePlace {
  int64_t row;   // first of the block's rows
  int64_t unit;  // this thread's; may lie past the end
};
__device__ inline TilePlace tile_place(int64_t column_blocks, int rows_per_block, unsigned block) {
  const unsigned across = static_cast<unsigned>(column_blocks);
  const unsigned down = block / across;
  return {static_cast<int64_t>(down) * rows_per_block,
          static_cast<int64_t>(block - down * across) * blockDim.x + threadIdx.x};
}
#endif

}  // namespace pestle::cuda
