// Quantisers to 8-bit codes by tiles, on CUDA: the codes, and in the same pass also their
// transpose. One scale for the tensor, for each square of 128 x 128, or for each column.
// Map      a thread block a tile: 128 x 128, or 256 rows of 64 columns where rows of q_t begin
//          inside sectors. A thread turns its 8 x 8 codes in registers; they cross the block
//          through shared memory and leave a second time by columns, 16 bytes a lane. Tall tiles
//          write q_t from whole sector to whole sector: a ninth warp makes the codes of the next
//          tile's first 24 rows once more. Tiles go down 4 at a time (16 without q_t), so
//          that tiles that share sectors of q_t run together.
// Traffic  x, q and q_t once. x twice for a computed scale of the tensor or of columns: an amax
//          pass first, then tiles from the end, which the L2 still holds.
// Numerics as ops/quant/rowwise/quantize_rows.cuh: codes bit for bit those of the CPU.
// Measured on an H200, share of a copy of the same bytes, bf16: 32768 x 16384 with a scale for the
//          tensor 91 % (89 % by 16 down, 88 % by 64), computed 92 %, squares 89 %, columns 90 %
//          (86 % by two blocks a multiprocessor, not three, which spill 100 bytes), computed and
//          without q_t 93 % (85 %); 32760 x 5120, where
//          q_t's rows begin inside sectors: fp8 89 %, int8 87 % (87 and 86 % by 16 down, 84 % by
//          64; 82 % with sectors in parts), squares 74 %: overlapping_tiles.cuh is faster.
// Tried    squares down a strip of 8 or 16, what fills no sector kept for the next: 72 and 73 %;
//          four blocks a multiprocessor: squares 73 %; q by plain stores: the same.
#pragma once

#include "ops/copy/strided_copy_cuda.h"
#include "ops/quant/rowwise/quantize_transposed.h"
#include "ops/quant/rowwise/quantize_units.cuh"

namespace pestle::ops {

inline constexpr int kTileThreads = 256;

// A thread has 8 rows of a unit. Square: 128 x 128; tall: 256 rows of 64 columns, whose columns are
// longer pieces of q_t's rows.
template <bool kTall>
struct TileShape {
  static constexpr int kUnits = kTall ? 8 : 16;  // across
  static constexpr int kColumns = kUnits * cuda::kUnit;
  static constexpr int kGroups = kTileThreads / kUnits;  // of 8 rows
  static constexpr int kRows = kGroups * 8;
  static constexpr int kHaloGroups = kTall ? 3 : 0;  // of the next tile
  static constexpr int kPlaces = kGroups + (kTall ? 16 : 0);
  static constexpr int kThreads = kTileThreads + (kTall ? 32 : 0);

  // Columns have kPlaces places of 8 bytes in shared memory. Which one rows 8g..8g+7 have depends
  // on the column's unit, so that neither the writers, who have different units, nor the readers
  // share banks.
  __device__ static int place(int column, int group) {
    const int unit = column / cuda::kUnit;
    return column * kPlaces + (group ^ (kTall ? 2 * unit : unit));
  }
};

struct QuantizeTiles {
  RowMatrix m;
  uint8_t* q_t;  // or null
  int64_t q_t_row_bytes;
  int store_bytes;  // 16, 8, 4 or 1: how q_t's rows are aligned
  bool whole;       // one scale for all
  bool halo;        // tall: rows of q_t are written by whole sectors
  unsigned tiles_down;
  unsigned tiles_across;
  unsigned down_each;             // tiles that go down before the next column
  cuda::FastDivisor group_tiles;  // of so many rows of tiles
};

struct TileAt {
  unsigned down, across;
};
__device__ inline TileAt tile_at(const QuantizeTiles& t, unsigned block) {
  const unsigned group = t.group_tiles.divide(block);
  const unsigned in_group = block - group * t.group_tiles.divisor;
  const unsigned down = min(t.down_each, t.tiles_down - group * t.down_each);
  return {group * t.down_each + in_group % down, in_group / down};
}

// ---- a scale for each column ----

template <class T, class Code>
__device__ __noinline__ uint2 encode_columns_slowly(typename T::Raw raw, const float* scale,
                                                    const uint32_t* amax, RandomRounding rounding,
                                                    uint64_t element) {
  float v[cuda::kUnit];
  T::to_f32(raw, v);
  for (int c = 0; c < cuda::kUnit; ++c) {
    v[c] = __fdiv_rn(v[c], scale != nullptr ? scale[c] : Code::scale(amax[c]));
  }
  if (!rounding.stochastic) return Code::codes(v);
  const formats::PhiloxWords random = formats::philox_block(rounding.seed, element / cuda::kUnit);
  uint32_t w[2] = {0, 0};
  for (int c = 0; c < cuda::kUnit; ++c) {
    const uint32_t code = Code::stochastic(v[c], formats::philox_lane(random, c));
    w[c / 4] |= code << (8 * (c % 4));
  }
  return make_uint2(w[0], w[1]);
}

template <class T, class Code>
struct ColumnScales {
  const float* given;
  const uint32_t* amax;
  float scale[cuda::kUnit];
  float reciprocal[cuda::kUnit];
  bool in_range = true;  // of cuda::Divider's short form

  __device__ ColumnScales(const RowMatrix& m, int unit)
      : given(m.scale == nullptr ? nullptr : m.scale + unit * cuda::kUnit),
        amax(m.amax == nullptr ? nullptr : m.amax + unit * cuda::kUnit) {
    for (int c = 0; c < cuda::kUnit; ++c) {
      scale[c] = given != nullptr ? __ldg(given + c) : Code::scale(__ldg(amax + c));
      reciprocal[c] = cuda::short_reciprocal(scale[c]);
      in_range &= scale[c] >= 0x1p-60f && scale[c] <= 0x1p60f;
    }
  }
  __device__ uint2 encode(const typename T::Raw& raw, const RandomRounding& rounding,
                          uint64_t element) const {
    float v[cuda::kUnit];
    T::to_f32(raw, v);
    bool plain = in_range && !rounding.stochastic;
    for (int c = 0; c < cuda::kUnit; ++c) {
      v[c] = cuda::short_quotient(v[c], scale[c], reciprocal[c]);
      plain &= fabsf(v[c]) <= 0x1p17f;  // not so for NaN, nor after an overflow
    }
    if (!plain) return encode_columns_slowly<T, Code>(raw, given, amax, rounding, element);
    return Code::template plain_codes<false>(v);
  }
};

// ---- turning a tile ----

// Bytes of four rows of four into their columns.
__device__ inline uint4 turn4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
  return make_uint4(__byte_perm(ab, cd, 0x5410), __byte_perm(ab, cd, 0x7632),
                    __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632));
}

// `place`: of a column in `turned`.
template <class Place>
__device__ inline void put_turned(uint2* turned, const uint2 (&codes)[8], int unit, Place&& place) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto word = [&](int row) { return half == 0 ? codes[row].x : codes[row].y; };
    const uint4 top = turn4(word(0), word(1), word(2), word(3));
    const uint4 low = turn4(word(4), word(5), word(6), word(7));
    const int column = unit * cuda::kUnit + half * 4;
    turned[place(column)] = make_uint2(top.x, low.x);
    turned[place(column + 1)] = make_uint2(top.y, low.y);
    turned[place(column + 2)] = make_uint2(top.z, low.z);
    turned[place(column + 3)] = make_uint2(top.w, low.w);
  }
}

// Kept in the L2: rows of q_t that are no multiple of 32 bytes share sectors with other tiles.
template <bool kTall, class Word>
__device__ inline void store_turned(const uint2* turned, uint8_t* to, int64_t row_bytes,
                                    int columns, int rows) {
  using Shape = TileShape<kTall>;
  constexpr int kBytes = sizeof(Word), kAcross = Shape::kRows / kBytes;
#pragma unroll 4
  for (int i = threadIdx.x; i < Shape::kColumns * kAcross; i += Shape::kThreads) {
    const int column = i / kAcross, row = i % kAcross * kBytes;
    if (column >= columns || row >= rows) continue;
    Word word;
    if constexpr (kBytes == 16) {
      // The two places of 16 rows are neighbours, the other way round in odd units of square tiles.
      const int pair = Shape::place(column, row / 8) / 2;
      const uint4 v = reinterpret_cast<const uint4*>(turned)[pair];
      const bool in_order = kTall || column / cuda::kUnit % 2 == 0;
      word = in_order ? v : make_uint4(v.z, v.w, v.x, v.y);
    } else {
      word =
          reinterpret_cast<const Word*>(turned + Shape::place(column, row / 8))[row % 8 / kBytes];
    }
    *reinterpret_cast<Word*>(to + column * row_bytes + row) = word;
  }
}

// A column's stretch from a whole sector of 32 bytes to another: its first groups of 8 rows, up to
// 3, are the tile's above, and as many of the next tile are here. A sector that two blocks write in
// parts costs more than to make some codes twice.
__device__ inline void store_whole_sectors(const uint2* turned, uint8_t* to, int64_t row_bytes,
                                           int columns, int rows, bool is_first) {
  using Shape = TileShape<true>;
  const int lane = threadIdx.x % 32;
  for (int column = threadIdx.x / 32; column < columns; column += Shape::kThreads / 32) {
    uint8_t* out = to + column * row_bytes;
    const int shift = static_cast<int>(-(reinterpret_cast<uintptr_t>(out) / 8)) & 3;
    const int end = min(Shape::kGroups + shift, rows / 8);
    for (int group = (is_first ? 0 : shift) + lane; group < end; group += 32) {
      *reinterpret_cast<uint2*>(out + group * 8) = turned[Shape::place(column, group)];
    }
  }
}

// ---- the kernel ----

// The scale of a tile, in all threads.
template <class T, class Code>
__device__ float tile_scale(const QuantizeTiles& t, const TileAt& tile,
                            const typename T::Raw (&raw)[8]) {
  const RowMatrix& m = t.m;
  const int64_t index = t.whole ? 0 : tile.down * m.map.grid_columns + tile.across;
  if (m.scale != nullptr) return __ldg(m.scale + index);
  float s;
  if (m.amax != nullptr) {
    s = Code::scale(*m.amax);
  } else {
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) amax = max(amax, cuda::largest_of_unit<T>(raw[i]));
    s = Code::scale(block_max(amax));
  }
  const bool mine = !t.whole || (tile.down == 0 && tile.across == 0);
  if (mine && threadIdx.x == 0) m.scale_out[index] = s;
  return s;
}

template <class T, class Code, bool kColumns>
__device__ void encode_tile(const QuantizeTiles& t, const TileAt& tile, int unit, int64_t row,
                            int left, uint2 (&codes)[8]) {
  const RowMatrix& m = t.m;
  typename T::Raw raw[8];
  const char* x = x_at<T>(m, row, unit);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    raw[i] = i < left ? T::load(x) : T::zero();
    x += m.x_row_bytes;
  }
  if constexpr (kColumns) {
    if (unit >= m.units) return;
    const ColumnScales<T, Code> scales(m, unit);
    if (m.scale == nullptr && row == 0) {
      for (int c = 0; c < cuda::kUnit; ++c) m.scale_out[unit * cuda::kUnit + c] = scales.scale[c];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      codes[i] = scales.encode(raw[i], m.rounding, m.element(row + i, unit));
    }
  } else {
    const cuda::Divider by = cuda::Divider::by(tile_scale<T, Code>(t, tile, raw));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      codes[i] = encode_unit<T, Code, false>(raw[i], by, m.rounding, m.element(row + i, unit));
    }
  }
}

template <class T, class Code, bool kColumns, bool kTall>
__global__ void __launch_bounds__(TileShape<kTall>::kThreads, kColumns&& kTall           ? 1
                                                              : kColumns&& T::kBytes < 4 ? 3
                                                                                         : 2)
    quantize_tiles(const __grid_constant__ QuantizeTiles t) {
  using Shape = TileShape<kTall>;
  __shared__ __align__(16) uint2 turned[Shape::kColumns * Shape::kPlaces];
  const RowMatrix& m = t.m;
  const TileAt tile = tile_at(t, m.amax != nullptr ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  const int unit_here = threadIdx.x % Shape::kUnits, group = threadIdx.x / Shape::kUnits;
  const int unit = static_cast<int>(tile.across) * Shape::kUnits + unit_here;
  const int64_t first_row = static_cast<int64_t>(tile.down) * Shape::kRows;
  const int64_t row = first_row + group * 8;
  // Tall: the last warp has the first rows of the next tile, for their turned codes alone.
  const bool is_halo = group >= Shape::kGroups;
  const bool is_used = !is_halo || (t.halo && group < Shape::kGroups + Shape::kHaloGroups);
  const int left = unit < m.units && is_used ? cuda::rows_left(m.rows, row, 8) : 0;
  uint2 codes[8] = {};
  encode_tile<T, Code, kColumns>(t, tile, unit, row, left, codes);
  uint8_t* q = m.q + row * m.q_row_bytes + unit * cuda::kUnit;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < left && !is_halo) cuda::store8(q, codes[i]);
    q += m.q_row_bytes;
  }
  if (t.q_t == nullptr) return;
  if (is_used) {
    put_turned(turned, codes, unit_here, [&](int column) { return Shape::place(column, group); });
  }
  __syncthreads();
  const int first_column = static_cast<int>(tile.across) * Shape::kColumns;
  const int columns = min(Shape::kColumns, m.units * cuda::kUnit - first_column);
  uint8_t* to = t.q_t + first_column * t.q_t_row_bytes + first_row;
  if (kTall && t.halo) {
    const int more = cuda::rows_left(m.rows, first_row, Shape::kRows + 8 * Shape::kHaloGroups);
    return store_whole_sectors(turned, to, t.q_t_row_bytes, columns, more, first_row == 0);
  }
  const int rows = cuda::rows_left(m.rows, first_row, Shape::kRows);
  switch (t.store_bytes) {
    case 16: return store_turned<kTall, uint4>(turned, to, t.q_t_row_bytes, columns, rows);
    case 8: return store_turned<kTall, uint2>(turned, to, t.q_t_row_bytes, columns, rows);
    case 4: return store_turned<kTall, uint32_t>(turned, to, t.q_t_row_bytes, columns, rows);
    default: return store_turned<kTall, uint8_t>(turned, to, t.q_t_row_bytes, columns, rows);
  }
}

// Each column's largest magnitude: a thread block 256 columns of `rows_each` rows.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    column_amax(const char* x, int64_t row_bytes, int64_t rows, int units, int across,
                int rows_each, uint32_t* amax) {
  constexpr int kRowThreads = kTileThreads / 32, kInFlight = 4;
  __shared__ uint32_t largest[kRowThreads][32 * cuda::kUnit];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int unit = static_cast<int>(blockIdx.x % across) * 32 + lane;
  const int64_t first = static_cast<int64_t>(blockIdx.x / across) * rows_each;
  const int64_t end = min(first + rows_each, rows);
  uint32_t own[cuda::kUnit] = {};
  for (int64_t row = first + warp; row < end && unit < units; row += kRowThreads * kInFlight) {
    typename T::Raw raw[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = row + i * kRowThreads;
      const char* from = x + at * row_bytes + unit * (cuda::kUnit * T::kBytes);
      raw[i] = at < end ? T::load(from) : T::zero();
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      float v[cuda::kUnit];
      T::to_f32(raw[i], v);
      for (int c = 0; c < cuda::kUnit; ++c) own[c] = max(own[c], formats::abs_bits(v[c]));
    }
  }
  for (int c = 0; c < cuda::kUnit; ++c) largest[warp][c * 32 + lane] = own[c];
  __syncthreads();
  // Thread t has column t / 32 of lane t % 32's unit.
  uint32_t value = 0;
  for (int w = 0; w < kRowThreads; ++w) value = max(value, largest[w][threadIdx.x]);
  if (unit < units && value != 0) atomicMax(amax + unit * cuda::kUnit + warp, value);
}

// ---- host ----

inline bool column_scales(const QuantizeRows& b) {
  return b.map.columns == 1 && b.map.grid_rows == 1 && !whole_tensor(b);
}

template <class T>
Status start_column_amax(const Call& call, const QuantizeRows& b, uint32_t* amax) {
  PESTLE_TRY(cuda::clear(call, amax, b.columns * 4));
  const int units = static_cast<int>(b.columns / cuda::kUnit);
  const int across = static_cast<int>(cuda::ceil_div(units, 32));
  const int rows_each = b.rows >= 8192 ? 512 : 128;
  return cuda::launch(call, "column_amax",
                      {across * cuda::ceil_div(b.rows, rows_each), kTileThreads}, column_amax<T>,
                      b.x.as<const char>(), cuda::row_distance(b.x), b.rows, units, across,
                      rows_each, amax);
}

// How far rows of q_t are aligned, all of them and their ends.
inline int aligned_bytes(const TensorView& q_t) {
  const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(q_t.data)) |
                    static_cast<uint64_t>(q_t.strides[0]) | static_cast<uint64_t>(q_t.shape[1]);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 1;
}

template <class T, class Code, bool kColumns, bool kTall>
Status start_shape(const Call& call, const char* name, QuantizeTiles t) {
  using Shape = TileShape<kTall>;
  t.tiles_down = static_cast<unsigned>(cuda::ceil_div(t.m.rows, Shape::kRows));
  t.tiles_across = static_cast<unsigned>(cuda::ceil_div(t.m.units, Shape::kUnits));
  t.down_each = t.q_t != nullptr ? 4 : 16;
  t.group_tiles = cuda::FastDivisor(t.tiles_across * t.down_each);
  t.halo = kTall && t.store_bytes >= 8;
  const cuda::Grid grid{static_cast<int64_t>(t.tiles_down) * t.tiles_across, Shape::kThreads};
  return cuda::launch(call, name, grid, quantize_tiles<T, Code, kColumns, kTall>, t);
}

// Where rows of q_t begin inside sectors of 32 bytes, the ends of tiles' columns are written in
// parts: the longer they are, the fewer.
inline bool wants_tall(const QuantizeRows& b) {
  return b.q_t != nullptr && !(square_tiles(b) && !whole_tensor(b)) && b.q_t->strides[0] % 32 != 0;
}

template <class T, class Code, bool kHasColumns>
Status start_tiles(const Call& call, const char* name, const QuantizeRows& b, QuantizeTiles t) {
  const bool tall = wants_tall(b);
  if constexpr (kHasColumns) {
    if (column_scales(b)) {
      auto* amax = static_cast<uint32_t*>(call.workspace);
      if (b.computes) PESTLE_TRY(start_column_amax<T>(call, b, amax));
      if (b.computes) t.m.amax = amax;
      return tall ? start_shape<T, Code, true, true>(call, name, t)
                  : start_shape<T, Code, true, false>(call, name, t);
    }
  }
  return tall ? start_shape<T, Code, false, true>(call, name, t)
              : start_shape<T, Code, false, false>(call, name, t);
}

template <class Code, bool kHasColumns>
Status run_quantize_tiles(const Call& call, const char* name, const QuantizeRows& b) {
  if (b.rows == 0 || b.columns == 0) return unsupported(std::string(name) + ": empty");
  const bool pre_pass = b.computes && whole_tensor(b);
  auto* amax = static_cast<uint32_t*>(call.workspace);
  if (pre_pass) PESTLE_TRY(cuda::tensor_amax(call, b.x, amax));
  const QuantizeTiles t{row_matrix(b, pre_pass ? amax : nullptr),
                        b.q_t == nullptr ? nullptr : b.q_t->as<uint8_t>(),
                        b.q_t == nullptr ? 0 : b.q_t->strides[0],
                        b.q_t == nullptr ? 1 : aligned_bytes(*b.q_t),
                        whole_tensor(b),
                        false,
                        0,
                        0,
                        0,
                        {}};
  switch (b.x.dtype) {
    case DType::kBF16: return start_tiles<cuda::Bf16, Code, kHasColumns>(call, name, b, t);
    case DType::kF16: return start_tiles<cuda::F16, Code, kHasColumns>(call, name, b, t);
    default: return start_tiles<cuda::F32, Code, kHasColumns>(call, name, b, t);
  }
}

inline std::string refuse_quantize_tiles(const QuantizeRows& b) {
  if (std::string why = refuse_rows_of_units(b); !why.empty()) return why;
  if (!whole_tensor(b) && !square_tiles(b) && !column_scales(b)) {
    return "its tiles of 128 x 128 have several scales of this shape";
  }
  if (cuda::ceil_div(b.rows, 128) * cuda::ceil_div(b.columns, 64) > INT_MAX) {
    return "more than 2^31 tiles";
  }
  if (b.q_t != nullptr && b.rows > 1 && b.q_t->strides[1] != 1) {
    return "q_t has strides between its elements";
  }
  return "";
}

// What no kernel of tiles takes: the codes by rows, then a copy of them.
template <class Code>
Status quantize_any_transposed(const Call& call, const char* name, const QuantizeRows& b) {
  PESTLE_TRY(quantize_any_rows<Code>(call, name, b));
  if (b.q_t == nullptr || numel(b.q) == 0) return {};
  return any_copy(call, name, CopyPlan(b.q, seen_by_rows(b.q, *b.q_t)));
}

}  // namespace pestle::ops
