// Strided copies on CUDA.
// Map      run: without gaps, a thread copies a unit of 16 bytes. units: a thread copies 4 units
//          of 16 bytes; rows of both tensors are dense, and a unit's
//          place comes from one division a dimension. tiles: x's elements are neighbours in one
//          dimension, out's in another: a thread reads a square of 16 bytes by 16 / element rows,
//          turns it in registers and stores it; a warp's stores are whole 128-byte lines, its loads
//          halves of them. staged tiles (2 and 4 bytes): the squares go through shared memory, so
//          that 256 or 512 bytes of a row of out leave together, from a whole sector on. any:
//          elements, through 64 x 64 tiles of shared memory where the dense dimensions differ.
// Traffic  each tensor once.
// Numerics bits are copied.
// Measured on an H200, share of a copy of the same size. A run: bf16 16384x8192 99.6 % (128.0 us).
//          Staged tiles: bf16 16384x8192 95 %, 8 x 4096x4096 96 %, 32760x5120 93 %; f32 8192x8192
//          96 %. Tiles: e4m3 16384x16384 91 %
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/early_launch.h"
#include "ops/copy/strided_copy_cuda.h"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;

constexpr int kThreads = 256;

// The dimensions that a kernel does not walk inside a block, innermost first.
struct OuterDims {
  int rank = 0;
  FastDivisor size[kMaxRank];
  int64_t from_stride[kMaxRank];
  int64_t to_stride[kMaxRank];

  void add(int64_t count, int64_t from, int64_t to) {
    size[rank] = FastDivisor(static_cast<uint32_t>(count));
    from_stride[rank] = from;
    to_stride[rank] = to;
    ++rank;
  }
  __device__ void place(uint32_t index, int64_t& from, int64_t& to) const {
    for (int d = 0; d < rank; ++d) {
      const uint32_t rest = size[d].divide(index);
      const uint32_t here = index - rest * size[d].divisor;
      from += here * from_stride[d];
      to += here * to_stride[d];
      index = rest;
    }
  }
};

// ---- units ----

constexpr int kUnitsEach = 4;  // of a thread, at most
constexpr int kUnitBytes = 16;

struct UnitCopy {
  const char* from;
  char* to;
  uint32_t units;
  uint32_t each;  // of a thread
  FastDivisor row_units;
  OuterDims outer;
};

// One run of bytes, a unit a thread: blocks that read 4 KiB each, in the order of memory, are 5 %
// faster than those whose threads have four units, and a short kernel starts sooner.
struct RunCopy {
  const char* from;
  char* to;
  uint32_t units;
  int tail_bytes;
};

__global__ void __launch_bounds__(kThreads) copy_run(const __grid_constant__ RunCopy copy) {
  wait_previous_kernel();
  start_next_kernel();
  const uint32_t unit = blockIdx.x * kThreads + threadIdx.x;
  const int64_t place = static_cast<int64_t>(unit) * kUnitBytes;
  if (unit < copy.units) {
    *reinterpret_cast<uint4*>(copy.to + place) = load16(copy.from + place);
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x < copy.tail_bytes) {
    const int64_t last = static_cast<int64_t>(copy.units) * kUnitBytes + threadIdx.x;
    copy.to[last] = copy.from[last];
  }
}

__global__ void __launch_bounds__(kThreads) copy_units(const __grid_constant__ UnitCopy copy) {
  const uint32_t first = blockIdx.x * kThreads * copy.each + threadIdx.x;
  uint4 values[kUnitsEach];
  int64_t places[kUnitsEach];
#pragma unroll
  for (int i = 0; i < kUnitsEach; ++i) {
    const uint32_t unit = first + i * kThreads;
    int64_t from = 0;
    places[i] = 0;
    const uint32_t row = copy.row_units.divide(unit);
    from = places[i] = static_cast<int64_t>(unit - row * copy.row_units.divisor) * kUnitBytes;
    copy.outer.place(row, from, places[i]);
    if (i < copy.each && unit < copy.units) values[i] = load16(copy.from + from);
  }
#pragma unroll
  for (int i = 0; i < kUnitsEach; ++i) {
    // Without a hint: 1.3 % faster than evict-first.
    if (i < copy.each && first + i * kThreads < copy.units) {
      *reinterpret_cast<uint4*>(copy.to + places[i]) = values[i];
    }
  }
}

// ---- tiles ----

// Tiles that run at the same time should make whole pages of both tensors: they go down this many
// before they go on to the next column. Staged ones are larger and go all the way down.
constexpr uint32_t kTilesDown = 64;
constexpr uint32_t kStagedDown = 1024;

// x's element (r, c) is at from + r * from_row + c * bytes, and goes to to + c * to_row + r *
// bytes.
struct TileCopy {
  const char* from;
  char* to;
  int64_t from_row;
  int64_t to_row;
  uint32_t rows;
  uint32_t columns;
  uint32_t tiles_down;
  uint32_t together;        // tiles that go down before the next column
  FastDivisor tiles;        // of a matrix
  FastDivisor group_tiles;  // of so many rows of tiles
  uint32_t halo;            // staged: pieces that a row may begin late by, 0 or 1
  uint32_t flip;            // staged, 4 bytes: bits to turn over
  OuterDims outer;
};

template <int kBytes>
struct Square {
  static constexpr int kSide = kUnitBytes / kBytes;
  static constexpr int kSquares =
      kBytes == 4 ? 2 : 1;  // of a thread, side by side along out's rows
  static constexpr int kTileRows = 2 * 8 * kSide * kSquares;
  static constexpr int kTileColumns = 4 * 4 * kSide;
};

__device__ inline uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Column kColumn of a square: element kColumn of each row.
template <int kBytes>
__device__ inline uint4 column_of(const uint4 (&rows)[kUnitBytes / kBytes], int column) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kBytes == 4) {
      w[i] = word_of(rows[i], column);
    } else if constexpr (kBytes == 2) {
      w[i] = __byte_perm(word_of(rows[2 * i], column / 2), word_of(rows[2 * i + 1], column / 2),
                         column % 2 == 0 ? 0x5410 : 0x7632);
    } else {
      const uint32_t pick = column % 4 + (column % 4 + 4) * 16;
      const uint32_t low =
          __byte_perm(word_of(rows[4 * i], column / 4), word_of(rows[4 * i + 1], column / 4), pick);
      const uint32_t high = __byte_perm(word_of(rows[4 * i + 2], column / 4),
                                        word_of(rows[4 * i + 3], column / 4), pick);
      w[i] = __byte_perm(low, high, 0x5410);
    }
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

template <int kBytes>
__global__ void __launch_bounds__(kThreads) copy_tiles(const __grid_constant__ TileCopy copy) {
  using S = Square<kBytes>;
  wait_previous_kernel();
  start_next_kernel();
  const uint32_t matrix = copy.tiles.divide(blockIdx.x);
  const uint32_t tile = blockIdx.x - matrix * copy.tiles.divisor;
  const uint32_t group = copy.group_tiles.divide(tile);
  const uint32_t in_group = tile - group * copy.group_tiles.divisor;
  const uint32_t down = min(copy.together, copy.tiles_down - group * copy.together);
  const uint32_t tile_row = group * copy.together + in_group % down;
  const uint32_t tile_column = in_group / down;

  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t row =
      tile_row * S::kTileRows + warp % 2 * (S::kTileRows / 2) + lane % 8 * S::kSide;
  const uint32_t column = tile_column * S::kTileColumns + (warp / 2 * 4 + lane / 8) * S::kSide;
  int64_t from = row * copy.from_row + static_cast<int64_t>(column) * kBytes;
  int64_t to = column * copy.to_row + static_cast<int64_t>(row) * kBytes;
  copy.outer.place(matrix, from, to);
  if (column >= copy.columns) return;

  constexpr int kSquareRows = 8 * S::kSide;  // from a thread's square to its next one
  uint4 squares[S::kSquares][S::kSide];
#pragma unroll
  for (int s = 0; s < S::kSquares; ++s) {
    if (row + s * kSquareRows >= copy.rows) break;
    const char* p = copy.from + from + s * kSquareRows * copy.from_row;
#pragma unroll
    for (int i = 0; i < S::kSide; ++i) squares[s][i] = load16(p + i * copy.from_row);
  }
#pragma unroll
  for (int s = 0; s < S::kSquares; ++s) {
    if (row + s * kSquareRows >= copy.rows) break;
    char* p = copy.to + to + s * kSquareRows * kBytes;
#pragma unroll
    for (int i = 0; i < S::kSide; ++i) {
      // Kept in the L2: rows that are no multiple of 32 bytes share sectors with other blocks'
      // tiles.
      *reinterpret_cast<uint4*>(p + i * copy.to_row) = column_of<kBytes>(squares[s], i);
    }
  }
}

// ---- staged tiles ----

// A tile of 2- or 4-byte elements by way of shared memory, so that a warp stores 512 bytes of a row
// of out, from a multiple of 32 bytes to one, wherever the row begins: a sector that two blocks
// write in parts costs more than the 16 bytes of each row that they both read.
template <int kBytes>
struct Staged {
  static constexpr int kSide = kUnitBytes / kBytes;
  static constexpr int kPieces = kBytes == 2 ? 16 : 32;  // of 16 bytes, of a row of out
  static constexpr int kAcross = 16;                     // of 16 bytes, of a row of x
  static constexpr int kHalo = 8;  // room for pieces of the next tile, swizzled
  static constexpr int kSlots = kPieces + kHalo;
  static constexpr int kRows = kAcross * kSide;  // of out
  static constexpr int kReaders = 256;
  static constexpr int kThreads = kReaders + 32;  // a ninth warp reads the pieces of the next tile
};

template <int kBytes>
__global__ void __launch_bounds__(Staged<kBytes>::kThreads, 4)
    copy_staged_tiles(const __grid_constant__ TileCopy copy) {
  using S = Staged<kBytes>;
  __shared__ uint4 tile_of[S::kRows * S::kSlots];
  wait_previous_kernel();
  start_next_kernel();
  const uint32_t matrix = copy.tiles.divide(blockIdx.x);
  const uint32_t tile = blockIdx.x - matrix * copy.tiles.divisor;
  const uint32_t group = copy.group_tiles.divide(tile);
  const uint32_t in_group = tile - group * copy.group_tiles.divisor;
  const uint32_t down = min(copy.together, copy.tiles_down - group * copy.together);
  const uint32_t first = (group * copy.together + in_group % down) * S::kPieces;  // piece
  const uint32_t across = in_group / down * S::kAcross;
  int64_t from = 0, to = 0;
  copy.outer.place(matrix, from, to);

  const uint32_t pieces = copy.rows / S::kSide;
  const uint32_t over = threadIdx.x % S::kAcross;
  const uint32_t column = (across + over) * S::kSide;
  const char* p = copy.from + from + static_cast<int64_t>(column) * kBytes;
  const auto read = [&](uint32_t place) {
    if (first + place >= pieces || column >= copy.columns) return;
    uint4 square[S::kSide];
    const char* rows = p + static_cast<int64_t>(first + place) * S::kSide * copy.from_row;
#pragma unroll
    for (int i = 0; i < S::kSide; ++i) square[i] = load16(rows + i * copy.from_row);
    if constexpr (kBytes == 4) {
#pragma unroll
      for (int i = 0; i < S::kSide; ++i) {
        square[i] = make_uint4(square[i].x ^ copy.flip, square[i].y ^ copy.flip,
                               square[i].z ^ copy.flip, square[i].w ^ copy.flip);
      }
    }
#pragma unroll
    for (int i = 0; i < S::kSide; ++i) {
      tile_of[(over * S::kSide + i) * S::kSlots + (place ^ over % S::kHalo)] =
          column_of<kBytes>(square, i);
    }
  };
  const uint32_t place = threadIdx.x / S::kAcross;
  constexpr int kPlaces = S::kReaders / S::kAcross;
  if (place < kPlaces) {
#pragma unroll
    for (int k = 0; k < S::kPieces; k += kPlaces) read(place + k);
  } else {
    for (uint32_t k = place - kPlaces; k < copy.halo; k += 32 / S::kAcross) read(S::kPieces + k);
  }
  __syncthreads();
  const uint32_t lane = threadIdx.x % S::kPieces;
  for (uint32_t row = threadIdx.x / S::kPieces; row < S::kRows; row += S::kThreads / S::kPieces) {
    if (across * S::kSide + row >= copy.columns) break;
    char* out = copy.to + to + static_cast<int64_t>(across * S::kSide + row) * copy.to_row;
    const uint32_t shift =
        static_cast<uint32_t>(-(reinterpret_cast<uintptr_t>(out) / kUnitBytes)) & copy.halo;
    const uint32_t begin = first == 0 ? 0 : shift;
    const uint32_t end = min(S::kPieces + shift, pieces - first);
    const uint4* own = tile_of + row * S::kSlots;
    for (uint32_t k = begin + lane; k < end; k += S::kPieces) {
      *reinterpret_cast<uint4*>(out + static_cast<int64_t>(first + k) * kUnitBytes) =
          own[k ^ row / S::kSide % S::kHalo];
    }
  }
}

// ---- any ----

// v[i]: the element at p[i] where there is one. All are on their way before the first is needed.
template <class T, int kN>
__device__ inline void load_any(const char* const (&p)[kN], const bool (&exists)[kN], bool aligned,
                                T (&v)[kN]) {
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = exists[i] ? *reinterpret_cast<const T*>(p[i]) : T{0};
    return;
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    v[i] = 0;
    if (!exists[i]) continue;
    for (unsigned k = 0; k < sizeof(T); ++k) {
      v[i] |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(p[i][k])) << (8 * k));
    }
  }
}
template <class T>
__device__ inline void store_any(char* p, T value, bool aligned) {
  if (aligned) {
    *reinterpret_cast<T*>(p) = value;
    return;
  }
  for (unsigned i = 0; i < sizeof(T); ++i) p[i] = static_cast<char>(value >> (8 * i));
}

constexpr int kSide = 64;
constexpr int kTileThreadRows = kThreads / kSide;

// A copy by tiles of two dimensions: `rows` are out's, `columns` x's dense ones, if there are such.
struct AnyCopy {
  const char* from;
  char* to;
  bool aligned;
  int64_t rows, columns;
  int64_t from_row, from_column;
  int64_t to_row, to_column;
  int64_t tiles_down, tiles_over;
  int rank;  // of the other dimensions, innermost first
  int64_t size[kMaxRank];
  int64_t from_stride[kMaxRank];
  int64_t to_stride[kMaxRank];
};

// Adds the place in the other dimensions.
__device__ inline void add_place(const AnyCopy& copy, int64_t index, const char*& from, char*& to) {
#pragma unroll 1
  for (int d = 0; d < copy.rank; ++d) {
    const int64_t rest = AnyTensor::quotient(index, copy.size[d]);
    from += (index - rest * copy.size[d]) * copy.from_stride[d];
    to += (index - rest * copy.size[d]) * copy.to_stride[d];
    index = rest;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) copy_any(const __grid_constant__ AnyCopy copy) {
  constexpr int kOfThread = kSide / kTileThreadRows;
  __shared__ T tile[kSide][kSide + 1];
  const int64_t tile_rows = AnyTensor::quotient(blockIdx.x, copy.tiles_over);
  const int64_t over = (blockIdx.x - tile_rows * copy.tiles_over) * kSide;
  const int64_t others = AnyTensor::quotient(tile_rows, copy.tiles_down);
  const int64_t down = (tile_rows - others * copy.tiles_down) * kSide;
  const char* from = copy.from;
  char* to = copy.to;
  add_place(copy, others, from, to);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const char* p[kOfThread];
  bool exists[kOfThread];
#pragma unroll
  for (int k = 0; k < kOfThread; ++k) {
    const int64_t row = down + y + k * kTileThreadRows;
    p[k] = from + row * copy.from_row + (over + x) * copy.from_column;
    exists[k] = row < copy.rows && over + x < copy.columns;
  }
  T v[kOfThread];
  load_any(p, exists, copy.aligned, v);
#pragma unroll
  for (int k = 0; k < kOfThread; ++k) tile[y + k * kTileThreadRows][x] = v[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kOfThread; ++k) {
    const int i = y + k * kTileThreadRows;
    const int64_t row = down + x, column = over + i;
    if (row < copy.rows && column < copy.columns) {
      store_any<T>(to + row * copy.to_row + column * copy.to_column, tile[x][i], copy.aligned);
    }
  }
}

// Without a dimension to cross: elements in out's order.
constexpr int kColumnsEach = 4;  // of a thread

template <class T>
__global__ void __launch_bounds__(kThreads) copy_elements(const __grid_constant__ AnyCopy copy) {
  constexpr int64_t kOfBlock = kThreads * kColumnsEach;
  const int64_t blocks = (copy.columns + kOfBlock - 1) / kOfBlock;
  const int64_t others = AnyTensor::quotient(blockIdx.x, blocks);
  const int64_t column = (blockIdx.x - others * blocks) * kOfBlock + threadIdx.x;
  if (column >= copy.columns) return;
  const char* from = copy.from + column * copy.from_column;
  char* to = copy.to + column * copy.to_column;
  add_place(copy, others, from, to);
  const char* p[kColumnsEach];
  bool exists[kColumnsEach];
#pragma unroll
  for (int k = 0; k < kColumnsEach; ++k) {
    p[k] = from + k * kThreads * copy.from_column;
    exists[k] = column + k * kThreads < copy.columns;
  }
  T v[kColumnsEach];
  load_any(p, exists, copy.aligned, v);
#pragma unroll
  for (int k = 0; k < kColumnsEach; ++k) {
    if (exists[k]) store_any<T>(to + k * kThreads * copy.to_column, v[k], copy.aligned);
  }
}

// ---- host ----

bool is_aligned(const CopyPlan& plan, int bytes, int besides_a, int besides_b) {
  const auto addresses =
      reinterpret_cast<uintptr_t>(plan.from) | reinterpret_cast<uintptr_t>(plan.to);
  bool aligned = addresses % static_cast<unsigned>(bytes) == 0;
  for (int d = 0; d < plan.rank; ++d) {
    if (d != besides_a) aligned &= plan.from_stride[d] % bytes == 0;
    if (d != besides_b) aligned &= plan.to_stride[d] % bytes == 0;
  }
  return aligned;
}

constexpr int64_t kSmallUnits = int64_t{kThreads} * kUnitsEach * 132 * 2;

int64_t units_of(const CopyPlan& plan) { return plan.elements * plan.from_bytes / kUnitBytes; }

template <int kBytes, int kTileRows, int kTileColumns>
Status start_tiles(const Call& call, const char* name, const CopyPlan& plan, const Grid& block,
                   void (*kernel)(TileCopy), uint32_t together, uint32_t flip = 0) {
  const int across = plan.crossing(), last = plan.rank - 1;
  TileCopy copy{};
  copy.from = plan.from;
  copy.to = plan.to;
  copy.from_row = plan.from_stride[last];
  copy.to_row = plan.to_stride[across];
  copy.rows = static_cast<uint32_t>(plan.shape[last]);
  copy.columns = static_cast<uint32_t>(plan.shape[across]);
  copy.tiles_down = static_cast<uint32_t>(ceil_div(copy.rows, kTileRows));
  const int64_t over = ceil_div(copy.columns, kTileColumns);
  copy.tiles = FastDivisor(static_cast<uint32_t>(copy.tiles_down * over));
  copy.together = std::min(together, copy.tiles_down);
  copy.group_tiles = FastDivisor(static_cast<uint32_t>(copy.together * over));
  int64_t matrices = 1;
  for (int d = last - 1; d >= 0; --d) {
    if (d == across) continue;
    copy.outer.add(plan.shape[d], plan.from_stride[d], plan.to_stride[d]);
    matrices *= plan.shape[d];
  }
  bool whole_sectors = reinterpret_cast<uintptr_t>(plan.to) % 32 == 0;
  for (int d = 0; d < last; ++d) whole_sectors &= plan.to_stride[d] % 32 == 0;
  copy.halo = whole_sectors ? 0 : 1;
  copy.flip = flip;
  Grid grid = block;
  grid.blocks = matrices * copy.tiles_down * over;
  return launch_early(call, name, grid, kernel, copy);
}

template <int kBytes>
Status start_squares(const Call& call, const char* name, const CopyPlan& plan) {
  using S = Square<kBytes>;
  return start_tiles<kBytes, S::kTileRows, S::kTileColumns>(call, name, plan, {0, kThreads},
                                                            copy_tiles<kBytes>, kTilesDown);
}

template <int kBytes>
Status start_staged(const Call& call, const char* name, const CopyPlan& plan, uint32_t flip = 0) {
  using S = Staged<kBytes>;
  return start_tiles<kBytes, S::kPieces * S::kSide, S::kRows>(
      call, name, plan, {0, S::kThreads}, copy_staged_tiles<kBytes>, kStagedDown, flip);
}

Status start_units(const Call& call, const char* name, const CopyPlan& plan) {
  if (plan.rank < 2) {
    const RunCopy run{plan.from, plan.to, static_cast<uint32_t>(units_of(plan)),
                      static_cast<int>(plan.elements * plan.from_bytes % kUnitBytes)};
    return launch_early(call, name, {std::max<int64_t>(1, ceil_div(run.units, kThreads)), kThreads},
                        copy_run, run);
  }
  UnitCopy copy{};
  copy.from = plan.from;
  copy.to = plan.to;
  copy.units = static_cast<uint32_t>(units_of(plan));
  const int last = plan.rank - 1;
  copy.row_units =
      FastDivisor(static_cast<uint32_t>(plan.shape[last] * plan.from_bytes / kUnitBytes));
  for (int d = last - 1; d >= 0; --d) {
    copy.outer.add(plan.shape[d], plan.from_stride[d], plan.to_stride[d]);
  }
  // Small tensors are spread over more blocks.
  copy.each = units_of(plan) < kSmallUnits ? 1 : kUnitsEach;
  const int64_t blocks = std::max<int64_t>(1, ceil_div(copy.units, kThreads * int64_t{copy.each}));
  return launch(call, name, {blocks, kThreads}, copy_units, copy);
}

AnyCopy any_of(const CopyPlan& plan, int across, int last) {
  AnyCopy copy{};
  copy.from = plan.from;
  copy.to = plan.to;
  copy.aligned = is_aligned(plan, plan.from_bytes, -1, -1);
  copy.rows = copy.columns = 1;
  if (last >= 0) {
    // Columns are x's: a warp reads along them, and stores along the rows.
    copy.columns = plan.shape[across];
    copy.from_column = plan.from_stride[across];
    copy.to_column = plan.to_stride[across];
    if (across != last) {
      copy.rows = plan.shape[last];
      copy.from_row = plan.from_stride[last];
      copy.to_row = plan.to_stride[last];
    }
  }
  copy.tiles_down = ceil_div(copy.rows, kSide);
  copy.tiles_over = ceil_div(copy.columns, kSide);
  for (int d = last - 1; d >= 0; --d) {
    if (d == across) continue;
    copy.size[copy.rank] = plan.shape[d];
    copy.from_stride[copy.rank] = plan.from_stride[d];
    copy.to_stride[copy.rank] = plan.to_stride[d];
    ++copy.rank;
  }
  return copy;
}

template <class T>
Status start_any(const Call& call, const char* name, const CopyPlan& plan) {
  const int last = plan.rank - 1;
  int across = last;
  for (int d = 0; d < last; ++d) {
    if (std::llabs(plan.from_stride[d]) < std::llabs(plan.from_stride[across])) across = d;
  }
  const AnyCopy copy = any_of(plan, across, last);
  const int64_t others = plan.elements / (copy.rows * copy.columns);
  if (across == last) {
    return launch(call, name, {others * ceil_div(copy.columns, kThreads * kColumnsEach), kThreads},
                  copy_elements<T>, copy);
  }
  return launch(call, name, {others * copy.tiles_down * copy.tiles_over, kThreads}, copy_any<T>,
                copy);
}

constexpr int64_t kMostUnitsOfCopy = int64_t{1} << 31;

}  // namespace

std::string refuse_fast_copy(const CopyPlan& plan) {
  if (plan.elements == 0) return "the tensor is empty";
  if (units_of(plan) >= kMostUnitsOfCopy) return "the tensor is beyond 32 GiB";
  const int last = plan.rank - 1;
  if (plan.is_dense_row()) {
    if (!is_aligned(plan, kUnitBytes, last, last))
      return "rows do not start at multiples of 16 bytes";
    const bool whole = plan.rank < 2 || plan.shape[last] * plan.from_bytes % kUnitBytes == 0;
    return whole ? "" : "rows are no multiple of 16 bytes";
  }
  const int across = plan.crossing();
  if (across < 0) return "x or out has no dimension in which elements are neighbours";
  if (plan.from_bytes > 4) return "it turns elements of up to 4 bytes";
  if (!is_aligned(plan, kUnitBytes, across, last)) {
    return "rows do not start at multiples of 16 bytes";
  }
  const int64_t side = kUnitBytes / plan.from_bytes;
  if (plan.shape[across] % side != 0 || plan.shape[last] % side != 0) {
    return "the dense dimensions are no multiples of 16 bytes";
  }
  // Row numbers are 32-bit, with room for a tile past the end.
  const int64_t longest = std::max(plan.shape[across], plan.shape[last]);
  return longest < INT_MAX - 1024 ? "" : "a dimension is beyond 2^31";
}

Status fast_copy(const Call& call, const char* name, const CopyPlan& plan) {
  if (plan.is_dense_row()) return start_units(call, name, plan);
  switch (plan.from_bytes) {
    case 1: return start_squares<1>(call, name, plan);
    case 2: return start_staged<2>(call, name, plan);
    default: return start_staged<4>(call, name, plan);
  }
}

Status fast_flipped_copy(const Call& call, const char* name, const CopyPlan& plan, uint32_t flip) {
  return start_staged<4>(call, name, plan, flip);
}

Status any_copy(const Call& call, const char* name, const CopyPlan& plan) {
  if (plan.elements == 0) return {};
  switch (plan.from_bytes) {
    case 1: return start_any<uint8_t>(call, name, plan);
    case 2: return start_any<uint16_t>(call, name, plan);
    case 4: return start_any<uint32_t>(call, name, plan);
    default: return start_any<uint64_t>(call, name, plan);
  }
}

}  // namespace pestle::ops
