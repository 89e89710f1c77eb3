// Rows of a thread group that walks over several: each thread asks for parts of coming rows by
// asynchronous copies to shared memory while the thread group works on the present one, so that
// loads are under way whatever a row waits for. A thread's part of a row is `kElements` neighbours
// (a granule), then as many `step` granules further, 32 elements in all. Lanes ask for neighbouring
// pieces of 16 bytes and read those of their own granules, so granules of 32 and 64 bytes cost no
// half-used sectors.
#pragma once

#include <type_traits>

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/row/thread_group.cuh"
#include "backends/cuda/host/device.h"

namespace pestle::cuda {

inline constexpr int kRowElements = 32;  // of a thread
inline constexpr int kPieceBytes = 16;

// kElements: neighbours of a thread, 16 bytes and more.
template <class T, int kNeighbours>
struct RowMap {
  using Type = T;
  static constexpr int kElements = kNeighbours;
  static constexpr int kGranules = kRowElements / kElements;
  static constexpr int kPieceElements = kPieceBytes / T::kBytes;
  static constexpr int kPieces = kElements / kPieceElements;    // of a granule
  static constexpr int kStageBytes = kRowElements * T::kBytes;  // of a thread
  // What operands are read by, whatever their dtype.
  static constexpr int kChunk = kElements < 8 ? kElements : 8;
  static constexpr int kChunks = kRowElements / kChunk;
};

// A thread group's shape for rows of `columns` elements, a multiple of 8.
template <class Map>
ThreadGroupShape group_over(int64_t rows, int64_t columns, int most_blocks, int most_threads) {
  const int64_t granules = (columns + Map::kElements - 1) / Map::kElements;
  ThreadGroupShape s =
      ThreadGroupShape::over(rows, granules, most_blocks, Map::kGranules, most_threads);
  s.whole = s.whole && columns % Map::kElements == 0;
  return s;
}

// Dynamic shared memory of a block: `rings` tensors of `stages` rows.
template <class Map>
constexpr int ring_bytes(int threads, int rings, int stages) {
  return threads * Map::kStageBytes * rings * stages;
}

// Blocks that run at a time on the device, at least: registers leave room for `most_threads` of a
// multiprocessor.
inline int64_t resident_blocks(int device, int threads, int most_threads, int shared_bytes) {
  constexpr int kShared = 200 << 10, kBlocks = 32;
  const int each = std::min({most_threads / threads, kShared / (shared_bytes + 2048), kBlocks});
  return int64_t{std::max(each, 1)} * multiprocessors(device);
}

#ifdef __CUDACC__

// 16 bytes to shared memory, past the L1; zeros instead where `exists` is false.
__device__ inline void copy_async(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

template <class T>
__device__ inline void unpack_piece(uint4 piece, float* v) {
  const uint32_t w[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (T::kBytes == 4) {
      v[i] = __uint_as_float(w[i]);
    } else if constexpr (std::is_same_v<T, F16>) {
      const float2 two = F16::pair(w[i]);
      v[2 * i] = two.x;
      v[2 * i + 1] = two.y;
    } else {
      v[2 * i] = __uint_as_float(w[i] << 16);
      v[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
  }
}

// A thread's elements of a row.
template <class Map>
struct RowElements {
  static constexpr int kEach = Map::kElements / Map::kChunk;
  int places[Map::kGranules];  // first elements, of the last granule's for those past the end
  uint32_t exists = 0;         // a bit a chunk
  uint32_t stored = 0;         // the same, where the thread group has a row
  bool whole;

  __device__ RowElements(const ThreadGroup& thread_group, int columns) : whole(thread_group.whole) {
#pragma unroll
    for (int g = 0; g < Map::kGranules; ++g) {
      const int place = (thread_group.first + g * thread_group.step) * Map::kElements;
      for (int c = 0; c < kEach; ++c) {
        exists |= static_cast<uint32_t>(place + c * Map::kChunk < columns) << (g * kEach + c);
      }
      places[g] = min(place, (columns - 1) / Map::kElements * Map::kElements);
    }
  }
  // Before a row.
  __device__ void begin_row(const ThreadGroup& thread_group) {
    stored = thread_group.inside ? exists : 0;
  }
  // First element of a chunk that exists, or whose granule does.
  __device__ int element(int chunk) const {
    return places[chunk / kEach] + chunk % kEach * Map::kChunk;
  }
  __device__ bool has(int chunk) const { return exists >> chunk & 1; }
  __device__ bool stores(int chunk) const { return stored >> chunk & 1; }
  // Loads need no branch where granules are chunks. Else the second half of the last granule may
  // not exist: the first is read in its place.
  __device__ int near(int chunk) const {
    if constexpr (kEach == 1) return element(chunk);
    const int first = places[chunk / kEach];
    return chunk % kEach == 0 || whole || has(chunk) ? first + chunk % kEach * Map::kChunk : first;
  }
};
// Where element `at` of a row lies: one multiplication. What it is made of is hidden from the
// compiler: addresses shared by several operands, or kept from row to row, would fill the
// registers.
template <int kBytes, class Byte>
__device__ inline Byte* at_element(Byte* row, int at) {
  asm volatile("" : "+r"(at));
  asm volatile("" : "+l"(row));
  return row + static_cast<uint64_t>(static_cast<uint32_t>(at)) * kBytes;
}
// Row `row` of a tensor; the tensor may be absent.
template <class Byte>
__device__ inline Byte* row_at(Byte* data, int64_t row_bytes, int row) {
  return data +
         static_cast<uint64_t>(static_cast<uint32_t>(row)) * static_cast<uint64_t>(row_bytes);
}

// Where rows lie. A tensor's stages lie one after the other, each warp's part of them together;
// tensors lie behind one another.
template <class Map>
struct RowRing {
  static constexpr int kStride = 32 * Map::kStageBytes;  // from stage to stage
  uint32_t put[Map::kPieces];                            // where this lane's copies go, and
  uint32_t get[Map::kPieces];  // where its own pieces lie: of the first granule and stage
  int piece;                   // of the row: the first that this lane asks for
  int lanes, step, pieces;

  __device__ RowRing(const ThreadGroup& thread_group, int columns, const void* shared, int stages)
      : lanes(min(thread_group.lanes, 32)),
        step(thread_group.step * Map::kPieces),
        pieces(columns / Map::kPieceElements) {
    constexpr int kP = Map::kPieces;
    const int lane = threadIdx.x % 32 % lanes;
    const int group = static_cast<int>(threadIdx.x % 32) - lane;
    piece = (thread_group.first - lane) * kP + lane;
    const auto warp = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
                      threadIdx.x / 32 * (stages * kStride);
#pragma unroll
    for (int q = 0; q < kP; ++q) {
      put[q] = warp + place(group * kP + q * lanes + lane) * kPieceBytes;
      get[q] = warp + place(group * kP + kP * lane + q) * kPieceBytes;
    }
  }
  // Asks for this lane's pieces of a row; `stage`: bytes from the first tensor's first stage.
  __device__ void fetch(const char* row, int stage) const {
    int from = piece;  // hidden, as in at_element
    asm volatile("" : "+r"(from));
#pragma unroll
    for (int g = 0; g < Map::kGranules; ++g) {
#pragma unroll
      for (int q = 0; q < Map::kPieces; ++q) {
        const int at = from + g * step + q * lanes;
        copy_async(put[q] + stage + g * (32 * Map::kPieces * kPieceBytes),
                   at_element<kPieceBytes>(row, min(at, pieces - 1)), at < pieces);
      }
    }
  }
  // Values of a granule's piece; zeros past the row's end.
  __device__ void read(int stage, int granule, int q, float* v) const {
    unpack_piece<typename Map::Type>(
        load_shared(get[q] + stage + granule * (32 * Map::kPieces * kPieceBytes)), v);
  }

 private:
  // Lanes that read neighbouring granules would meet in the same banks.
  __device__ static int place(int at) { return at ^ (at >> 3 & (Map::kPieces - 1)); }
};

template <class T>
__device__ __noinline__ typename T::Raw round_with_nan(float a, float b, float c, float d, float e,
                                                       float f, float g, float h) {
  const float v[kUnit] = {a, b, c, d, e, f, g, h};
  return T::pack(v);
}
// T::pack but for NaN, whose code may be another than the canonical one.
template <class T>
__device__ inline typename T::Raw round_loosely(const float (&v)[kUnit]) {
  if constexpr (T::kBytes == 4) {
    uint32_t w[kUnit];
    for (int i = 0; i < kUnit; ++i) w[i] = __float_as_uint(v[i]);
    return {make_uint4(w[0], w[1], w[2], w[3]), make_uint4(w[4], w[5], w[6], w[7])};
  } else {
    uint32_t w[4];
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, F16>) {
        const __half2 pair = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
        w[i] = *reinterpret_cast<const uint32_t*>(&pair);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        w[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
    return {make_uint4(w[0], w[1], w[2], w[3])};
  }
}
// T::pack with what NaN needs out of line.
template <class T>
__device__ inline typename T::Raw round_unit(const float (&v)[kUnit]) {
  if constexpr (T::kBytes == 4) {
    return T::pack(v);
  } else {
    if (maybe_nan(v)) return round_with_nan<T>(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
    return round_loosely<T>(v);
  }
}

// What a thread holds of a row.
using RowValues = float[kRowElements];

// One piece of 16 bytes, rounded to T.
template <class T>
__device__ inline void store_piece(char* to, const float* v) {
  if constexpr (T::kBytes == 2) {
    float w[kUnit];
    for (int j = 0; j < kUnit; ++j) w[j] = v[j];
    T::put(to, round_unit<T>(w));
  } else {
    uint32_t w[4];
    for (int j = 0; j < 4; ++j) w[j] = v[j] != v[j] ? formats::kF32Nan : __float_as_uint(v[j]);
    store16(to, make_uint4(w[0], w[1], w[2], w[3]));
  }
}
// All of the thread's elements, rounded to T.
template <class Map>
__device__ inline void store_row(char* row, const RowElements<Map>& at, const RowValues& v) {
  using T = typename Map::Type;
#pragma unroll
  for (int i = 0; i < kRowElements; i += Map::kPieceElements) {
    if (!at.stores(i / Map::kChunk)) continue;
    const int element = at.places[i / Map::kElements] + i % Map::kElements;
    store_piece<T>(at_element<T::kBytes>(row, element), v + i);
  }
}

template <class Map>
__device__ inline void clear_missing(const RowElements<Map>& at, RowValues& v) {
  if (at.whole) return;
#pragma unroll
  for (int c = 0; c < Map::kChunks; ++c) {
    if (at.has(c)) continue;
    for (int j = 0; j < Map::kChunk; ++j) v[c * Map::kChunk + j] = 0;
  }
}

// Four sums, so that additions do not wait for one another.
template <class Term>
__device__ inline float sum_of(const RowValues& v, Term term) {
  float sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] = term(v[i * 8], 0.0f);
    for (int j = 1; j < 8; ++j) sums[i] = term(v[i * 8 + j], sums[i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Straight to registers; elements past the row's end are others.
template <class Map>
__device__ inline void load_pieces(const char* row, const RowElements<Map>& at,
                                   uint4 (&pieces)[Map::kGranules]) {
  static_assert(Map::kPieces == 1);
#pragma unroll
  for (int g = 0; g < Map::kGranules; ++g) {
    pieces[g] = load16(at_element<Map::Type::kBytes>(row, at.places[g]));
  }
}
template <class Map>
__device__ inline void read_row(const RowRing<Map>& ring, int stage, RowValues& v) {
#pragma unroll
  for (int g = 0; g < Map::kGranules; ++g) {
#pragma unroll
    for (int q = 0; q < Map::kPieces; ++q) {
      ring.read(stage, g, q, v + g * Map::kElements + q * Map::kPieceElements);
    }
  }
}

#endif

}  // namespace pestle::cuda
