// Codes and their transpose by overlapping tiles, squares of 128 x 128 and the 24 rows above, on
// CUDA, where rows of q_t begin inside sectors of 32 bytes.
// Map      a thread block a square, a thread 8 rows of a unit, and 48 threads the 24 rows above it
//          once more: a column's stretch of q_t goes from whole sector to whole sector, so that it
//          may begin with the end of the square above, and its own end is left to the one below.
//          The block of the square above, which began before this one, tells its scale by a word
//          that is never 0, in memory cleared before the launch. Squares go down 32 at a time, 4
//          under one given scale
// Traffic  x, q and q_t once; 24 of 128 rows of x twice, the second time from the L2
// Numerics as ops/quant/rowwise/quantize_transposed.cuh
// Measured 32760 x 5120 bf16 on an H200, share of a copy of the same bytes: one given scale, int8
//          90.0 % (tall tiles 86.6 %), fp8 90.0 % (89.3 %); computed scales of squares 82.8 %
//          (74.3 % with sectors in parts; 75.6, 77.8 % with 4, 8 down at a time). Two blocks a
//          multiprocessor instead of three: 81.9, 86.0 and 68.9 %
#pragma once

#include "ops/quant/rowwise/quantize_transposed.cuh"

namespace pestle::ops {

struct OverlappingTile {
  static constexpr int kUnits = 16;
  static constexpr int kColumns = kUnits * cuda::kUnit;
  static constexpr int kGroups = 16;  // of 8 rows
  static constexpr int kAbove = 3;    // more of them, first in shared memory
  static constexpr int kPlaces = kGroups + kAbove;
  static constexpr int kThreads = (kGroups + kAbove + 1) * kUnits;

  // Of 8 rows of a column. A half warp writes 16 units' columns of one number of one group, and
  // reads 16 groups of a column: neither meets a bank twice.
  __device__ static int place(int column, int group) {
    const int unit = column / cuda::kUnit;
    return group * kColumns + column % cuda::kUnit * kUnits + (unit + group) % kUnits;
  }
};

// The square's scale, for the square below: with its sign set, a word that is never 0.
__device__ inline void tell_scale(uint32_t* word, float scale) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
               :
               : "l"(word), "r"(__float_as_uint(scale) | 0x80000000u)
               : "memory");
}
__device__ inline float hear_scale(const uint32_t* word) {
  uint32_t bits;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(word) : "memory");
  } while (bits == 0);
  return __uint_as_float(bits & 0x7FFFFFFFu);
}

// The scale of this thread's rows. `told`: a word a square.
template <class T, class Code>
__device__ float overlapping_scale(const QuantizeTiles& t, const TileAt& tile, bool above,
                                   const typename T::Raw (&raw)[8], uint32_t* told) {
  const RowMatrix& m = t.m;
  if (t.whole) return __ldg(m.scale);
  const int64_t own = tile.down * m.map.grid_columns + tile.across;
  const int64_t index = above ? max(own - m.map.grid_columns, int64_t{0}) : own;
  if (m.scale != nullptr) return __ldg(m.scale + index);
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = max(amax, T::amax(raw[i]));
  const float s = Code::scale(block_max(above ? 0u : amax));
  if (threadIdx.x == 0) {
    m.scale_out[own] = s;
    tell_scale(told + own, s);
  }
  return above && tile.down > 0 ? hear_scale(told + index) : s;
}

// Codes of this thread's rows. A computed scale bounds the quotients, so one look at it is enough.
template <class T, class Code>
__device__ inline void encode_rows(const typename T::Raw (&raw)[8], const cuda::Divider& by,
                                   const RowMatrix& m, int64_t row, int unit, uint2 (&codes)[8]) {
  if (m.scale == nullptr && !m.rounding.stochastic && by.is_short(0)) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float v[cuda::kUnit];
      T::to_f32(raw[i], v);
      for (int c = 0; c < cuda::kUnit; ++c) v[c] = by.shortly(v[c]);
      codes[i] = Code::template plain_codes<true>(v);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    codes[i] = encode_unit<T, Code, false>(raw[i], by, m.rounding, m.element(row + i, unit));
  }
}

// Columns of q_t from whole sector to whole sector, half a warp each; by the threads that have the
// square's own rows. `to`: row 0 of the square.
__device__ inline void store_overlapping(const uint2* turned, uint8_t* to, int64_t row_bytes,
                                         int columns, int groups, bool is_first, bool is_last) {
  using Shape = OverlappingTile;
  const int half = threadIdx.x / 16, lane = threadIdx.x % 16;
  to += half * row_bytes;
  // The same for columns 16 apart: rows lie at distances of a multiple of 8 bytes.
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(to) / 8) & 3;
  const int end = is_last ? groups : Shape::kGroups - shift;
  // Once, but the last square may have 19 groups for a column.
#pragma unroll 1
  for (int group = (is_first ? 0 : -shift) + lane; group < end; group += 16) {
    uint8_t* out = to + group * 8;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 16; ++i) {
      const int column = half + 16 * i;
      if (column < columns) {
        *reinterpret_cast<uint2*>(out) = turned[Shape::place(column, group + Shape::kAbove)];
      }
      out += 16 * row_bytes;
    }
  }
}

// Registers are given to warps in fours, so that 10 warps cost what 12 do.
template <class T, class Code>
__global__ void __launch_bounds__(384, T::kBytes < 4 ? 3 : 2)
    quantize_overlapping(const __grid_constant__ QuantizeTiles t, uint32_t* told) {
  using Shape = OverlappingTile;
  __shared__ __align__(16) uint2 turned[Shape::kColumns * Shape::kPlaces];
  const RowMatrix& m = t.m;
  const TileAt tile = tile_at(t, blockIdx.x);
  const int unit_here = threadIdx.x % Shape::kUnits;
  // The last groups of threads have the rows above.
  const int number = threadIdx.x / Shape::kUnits;
  const bool above = number >= Shape::kGroups;
  const int group = above ? number - Shape::kPlaces : number;
  const int unit = static_cast<int>(tile.across) * Shape::kUnits + unit_here;
  const int64_t first_row = static_cast<int64_t>(tile.down) * 128;
  const int64_t row = first_row + group * 8;
  const bool is_used = unit < m.units && number < Shape::kPlaces && row >= 0;
  const int left = is_used ? cuda::rows_left(m.rows, row, 8) : 0;
  typename T::Raw raw[8];
  const char* x = x_at<T>(m, row, unit);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    raw[i] = i < left ? T::load(x) : T::zero();
    x += m.x_row_bytes;
  }
  const cuda::Divider by = cuda::Divider::by(overlapping_scale<T, Code>(t, tile, above, raw, told));
  uint2 codes[8];
  encode_rows<T, Code>(raw, by, m, row, unit, codes);
  uint8_t* q = m.q + row * m.q_row_bytes + unit * cuda::kUnit;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < left && !above) cuda::store8(q, codes[i]);
    q += m.q_row_bytes;
  }
  if (is_used) {
    put_turned(turned, codes, unit_here,
               [&](int column) { return Shape::place(column, group + Shape::kAbove); });
  }
  __syncthreads();
  if (above) return;
  const int first_column = static_cast<int>(tile.across) * Shape::kColumns;
  const int columns = min(Shape::kColumns, m.units * cuda::kUnit - first_column);
  store_overlapping(turned, t.q_t + first_column * t.q_t_row_bytes + first_row, t.q_t_row_bytes,
                    columns, cuda::rows_left(m.rows, first_row, 128) / 8, tile.down == 0,
                    tile.down + 1 == t.tiles_down);
}

// ---- host ----

template <class T, class Code>
Status start_overlapping(const Call& call, const char* name, QuantizeTiles t) {
  using Shape = OverlappingTile;
  t.tiles_down = static_cast<unsigned>(cuda::ceil_div(t.m.rows, 128));
  t.tiles_across = static_cast<unsigned>(cuda::ceil_div(t.m.units, Shape::kUnits));
  t.down_each = t.whole ? 4 : 32;
  t.group_tiles = cuda::FastDivisor(t.tiles_across * t.down_each);
  const int64_t tiles = static_cast<int64_t>(t.tiles_down) * t.tiles_across;
  auto* told = static_cast<uint32_t*>(call.workspace);
  if (!t.whole && t.m.scale == nullptr) PESTLE_TRY(cuda::clear(call, told, 4 * tiles));
  return cuda::launch(call, name, {tiles, Shape::kThreads}, quantize_overlapping<T, Code>, t, told);
}

template <class Code>
Status run_quantize_overlapping(const Call& call, const char* name, const QuantizeRows& b) {
  const QuantizeTiles t{row_matrix(b, nullptr),
                        b.q_t->as<uint8_t>(),
                        b.q_t->strides[0],
                        aligned_bytes(*b.q_t),
                        whole_tensor(b),
                        true,
                        0,
                        0,
                        0,
                        {}};
  switch (b.x.dtype) {
    case DType::kBF16: return start_overlapping<cuda::Bf16, Code>(call, name, t);
    case DType::kF16: return start_overlapping<cuda::F16, Code>(call, name, t);
    default: return start_overlapping<cuda::F32, Code>(call, name, t);
  }
}

inline std::string refuse_quantize_overlapping(const QuantizeRows& b) {
  if (std::string why = refuse_quantize_tiles(b); !why.empty()) return why;
  if (b.q_t == nullptr) return "no transposed codes are asked for";
  if (!square_tiles(b) && (!whole_tensor(b) || b.computes)) {
    return "it takes a scale of each square, or one that is given";
  }
  if (b.q_t->strides[0] % 32 == 0) return "rows of q_t begin with whole sectors";
  return aligned_bytes(*b.q_t) >= 8 ? "" : "rows of q_t do not begin at multiples of 8 bytes";
}

}  // namespace pestle::ops
