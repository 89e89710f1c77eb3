// Quantisers to 8-bit codes whose scales form a grid over rows and columns, on CUDA.
// Maps     given   units of 8 elements in one column of kRows rows; the scale is looked up
//          lanes   the same, 1 to 32 neighbouring threads share a computed scale
//          row     a thread block a row, which stays in registers between amax and codes
//          square  a thread block a tile of 128 x 128, likewise
//          any     a thread block 1024 columns of a row, in shared memory; one pass for the amax of
//                  every scale, one for the codes; any strides; rotates first if asked
// Traffic  x once and q once; x twice for `any` and for a computed scale of the whole tensor.
// Measured 32768 x 16384 bf16 on an H200: 4.37-4.39 TB/s row-wise and with the scale given,
//          4.36-4.44 with one computed scale (two reads counted); all above the copy's rate. int8
//          rotated by `any`: 0.135 TB/s.
#pragma once

#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "backends/cuda/host/whole_amax.h"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/rowwise/quantize_unit.cuh"

namespace pestle::ops {

// One scale covers rows x columns elements; scales are row-major in a grid.
struct ScaleMap {
  int64_t rows;  // 1, 128 or all
  int64_t columns;
  int64_t grid_rows;
  int64_t grid_columns;

  // Index of the scale of element (i, j): row(i) + column(j).
  __host__ __device__ int64_t row(int64_t i) const {
    if (grid_rows == 1) return 0;
    return (rows == 1 ? i : i / 128) * grid_columns;
  }
  __host__ __device__ int64_t column(int64_t j) const {
    return grid_columns == 1 ? 0 : static_cast<uint32_t>(j) / static_cast<uint32_t>(columns);
  }
  __host__ __device__ int64_t index(int64_t i, int64_t j) const { return row(i) + column(j); }
};

// Rows of whole units. Scales without gaps.
struct RowMatrix {
  const char* x;
  int64_t x_row_bytes;
  uint8_t* q;
  int64_t q_row_bytes;
  int64_t rows;
  int units;
  cuda::FastDivisor column_blocks;
  ScaleMap map;
  const float* scale;    // given, or
  float* scale_out;      // written; from
  const uint32_t* amax;  // this, for one scale of the whole tensor
  RandomRounding rounding;

  __device__ uint64_t element(int64_t row, int unit) const {
    return static_cast<uint64_t>(row * units + unit) * cuda::kUnit;
  }
};
// For quantize_given: the tensor's largest magnitude, where its one scale is computed. Apart from
// RowMatrix, since a longer parameter cost quantize_row 12 registers, and 10 % of its speed.
struct GivenMatrix : RowMatrix {
  cuda::WholeAmax whole;
};

template <class T>
__device__ inline const char* x_at(const RowMatrix& m, int64_t row, int unit) {
  return m.x + row * m.x_row_bytes + unit * (cuda::kUnit * T::kBytes);
}
__device__ inline void put(const RowMatrix& m, int64_t row, int unit, uint2 codes) {
  cuda::store8(m.q + row * m.q_row_bytes + unit * cuda::kUnit, codes);
}

// kWhole: every unit and row of the block exists.
template <class T, class Code, int kRows, bool kWhole>
__device__ void quantize_given_tile(const GivenMatrix& m, const cuda::TilePlace& place,
                                    float whole_scale) {
  if (!kWhole && place.unit >= m.units) return;
  const int rows = kWhole ? kRows : cuda::rows_left(m.rows, place.row, kRows);
  const char* x = x_at<T>(m, place.row, place.unit);
  uint8_t* q = m.q + place.row * m.q_row_bytes + place.unit * cuda::kUnit;
  const float* scales = m.scale + m.map.column(place.unit * cuda::kUnit);
  typename T::Raw raw[kRows];
  float scale[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    raw[r] = T::load(x);
    scale[r] = m.whole.is_known() ? __ldg(scales + m.map.row(place.row + r)) : whole_scale;
    x += m.x_row_bytes;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    // Without a hint: 0.5 % faster than evict-first.
    *reinterpret_cast<uint2*>(q) = encode_unit<T, Code, false>(
        raw[r], cuda::Divider::by(scale[r]), m.rounding, m.element(place.row + r, place.unit));
    q += m.q_row_bytes;
  }
}

// Backwards over x when an amax pass has just read it: what that read last is still in the L2.
template <class T, class Code, int kRows>
__global__ void __launch_bounds__(384) quantize_given(GivenMatrix m) {
  cuda::wait_previous_kernel();
  cuda::start_next_kernel();
  const bool after_amax = !m.whole.is_known();
  const unsigned block = after_amax ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const cuda::TilePlace place = cuda::tile_place(m.column_blocks, kRows, block);
  float whole = 0;
  if (after_amax) whole = Code::scale(m.whole.by_block<T>());
  if (after_amax && block == 0 && threadIdx.x == 0) *m.scale_out = whole;
  if (cuda::is_whole(place, m.rows, m.units, kRows))
    quantize_given_tile<T, Code, kRows, true>(m, place, whole);
  else
    quantize_given_tile<T, Code, kRows, false>(m, place, whole);
}

// `lanes`, a power of two, threads share a scale.
template <class T, class Code, int kRows>
__global__ void __launch_bounds__(384) quantize_lanes(RowMatrix m, int lanes) {
  cuda::wait_previous_kernel();
  const cuda::TilePlace place = cuda::tile_place(m.column_blocks, kRows, blockIdx.x);
  typename T::Raw raw[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool inside = place.row + r < m.rows && place.unit < m.units;
    raw[r] = inside ? T::load(x_at<T>(m, place.row + r, place.unit)) : T::zero();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = place.row + r;
    uint32_t amax = cuda::largest_of_unit<T>(raw[r]);
    for (int step = 1; step < lanes; step *= 2) {
      amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, step));
    }
    if (row >= m.rows || place.unit >= m.units) continue;
    const float s = Code::scale(amax);
    if (place.unit % lanes == 0) m.scale_out[row * m.map.grid_columns + place.unit / lanes] = s;
    put(m, row, place.unit,
        encode_unit_below<T, Code, true>(amax, raw[r], cuda::Divider::by(s), m.rounding,
                                         m.element(row, place.unit)));
  }
}

// The largest of a thread block's values, in all threads. `warps`: 32 words of shared memory.
__device__ inline uint32_t block_max(uint32_t value, uint32_t* warps) {
  value = __reduce_max_sync(0xFFFFFFFFu, value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return __reduce_max_sync(0xFFFFFFFFu, lane < blockDim.x / 32 ? warps[lane] : 0u);
}
__device__ inline uint32_t block_max(uint32_t value) {
  __shared__ uint32_t warps[32];
  return block_max(value, warps);
}

template <class T, class Code, int kPerThread>
__global__ void __launch_bounds__(512) quantize_row(RowMatrix m) {
  cuda::wait_previous_kernel();
  // A GEMM's blocks find their places, and may read what is older than this kernel: all blocks have
  // waited for that before the next kernel begins.
  cuda::start_next_kernel();
  const int64_t row = blockIdx.x;
  typename T::Raw raw[kPerThread];
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int unit = threadIdx.x + i * blockDim.x;
    raw[i] = unit < m.units ? T::load(x_at<T>(m, row, unit)) : T::zero();
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) amax = max(amax, cuda::largest_of_unit<T>(raw[i]));
  amax = block_max(amax);
  const float s = Code::scale(amax);
  if (threadIdx.x == 0) m.scale_out[row] = s;
  const cuda::Divider by = cuda::Divider::by(s);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int unit = threadIdx.x + i * blockDim.x;
    if (unit < m.units) {
      put(m, row, unit,
          encode_unit_below<T, Code, true>(amax, raw[i], by, m.rounding, m.element(row, unit)));
    }
  }
}

// 256 threads, 16 of them a row of a tile; eight rows each.
template <class T, class Code>
__global__ void __launch_bounds__(256) quantize_square(RowMatrix m) {
  cuda::wait_previous_kernel();
  constexpr int kUnitsAcross = 16, kRowsEach = 8;
  const int64_t tile_row = blockIdx.x / m.map.grid_columns;
  const int64_t tile_column = blockIdx.x % m.map.grid_columns;
  const int unit = static_cast<int>(tile_column) * kUnitsAcross + threadIdx.x % kUnitsAcross;
  const int64_t first = tile_row * 128 + threadIdx.x / kUnitsAcross;
  typename T::Raw raw[kRowsEach];
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const int64_t row = first + i * 16;
    raw[i] = row < m.rows && unit < m.units ? T::load(x_at<T>(m, row, unit)) : T::zero();
  }
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) amax = max(amax, cuda::largest_of_unit<T>(raw[i]));
  amax = block_max(amax);
  const float s = Code::scale(amax);
  if (threadIdx.x == 0) m.scale_out[blockIdx.x] = s;
  const cuda::Divider by = cuda::Divider::by(s);
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    const int64_t row = first + i * 16;
    if (row < m.rows && unit < m.units) {
      put(m, row, unit,
          encode_unit_below<T, Code, true>(amax, raw[i], by, m.rounding, m.element(row, unit)));
    }
  }
}

struct AnyMatrix {
  cuda::AnyTensor x;
  cuda::AnyTensor q;
  cuda::AnyTensor scale;  // given, or written
  bool computes;
  uint32_t* amax;  // one a scale
  int64_t rows;
  int64_t columns;
  ScaleMap map;
  int hadamard;
  RandomRounding rounding;

  __device__ char* scale_at(int64_t index) const {
    const int64_t row = cuda::AnyTensor::quotient(index, map.grid_columns);
    return scale.at(row, index - row * map.grid_columns);
  }
  __device__ float given_scale(int64_t index) const {
    return __uint_as_float(cuda::AnyTensor::bits(scale_at(index), 4));
  }
  template <class Code>
  __device__ float scale_of(int64_t index) const {
    return computes ? Code::scale(amax[index]) : given_scale(index);
  }
};

// The magnitudes of a piece of several scales to theirs: where one of them covers what a warp has, by
// one addition to memory.
__device__ inline void add_magnitudes(const AnyMatrix& m, int64_t row, int64_t first, int count,
                                      const float* v) {
  if (m.map.columns == 1) {
    for (int i = threadIdx.x; i < count; i += kAnyThreads)
      atomicMax(m.amax + m.map.index(row, first + i), formats::abs_bits(v[i]));
    return;
  }
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i - lane < count; i += kAnyThreads) {
    const int64_t low = m.map.index(row, first + i - lane);
    const bool is_one = low == m.map.index(row, first + min(i - lane + 31, count - 1));
    uint32_t magnitude = i < count ? formats::abs_bits(v[i]) : 0u;
    if (is_one) magnitude = __reduce_max_sync(0xFFFFFFFFu, magnitude);
    if (i < count && (!is_one || lane == 0)) {
      atomicMax(m.amax + m.map.index(row, first + i), magnitude);
    }
  }
}

// kEncodes false: adds every element's magnitude to its scale's amax. Else codes, and scales.
template <class Code, bool kEncodes>
__global__ void __launch_bounds__(kAnyThreads) quantize_any(AnyMatrix m) {
  __shared__ float v[kAnyColumns];
  const int64_t pieces = (m.columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), m.columns - first));
  load_piece(m.x, row, first, count, v);
  if (m.hadamard > 0) rotate_shared(v, count, m.hadamard);
  const bool is_one = m.map.column(first) == m.map.column(first + count - 1);  // scale for all
  if (!kEncodes && is_one) {
    // One addition to memory.
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < count; i += kAnyThreads) {
      largest = max(largest, formats::abs_bits(v[i]));
    }
    largest = block_max(largest);
    if (threadIdx.x == 0) atomicMax(m.amax + m.map.index(row, first), largest);
    return;
  }
  if constexpr (!kEncodes) return add_magnitudes(m, row, first, count, v);
  char* q = m.q.row_at(row);
  float s = is_one ? m.template scale_of<Code>(m.map.index(row, first)) : 0.0f;
  for (int i = threadIdx.x; i < count; i += kAnyThreads) {
    const int64_t column = first + i;
    if (!is_one) s = m.template scale_of<Code>(m.map.index(row, column));
    const float quotient = __fdiv_rn(v[i], s);
    const auto element = static_cast<uint64_t>(row * m.columns + column);
    const uint8_t code =
        m.rounding.stochastic
            ? Code::stochastic(quotient, formats::philox_u16(m.rounding.seed, element))
            : Code::code(quotient);
    q[column * m.q.step()] = static_cast<char>(code);
  }
}

template <class Code>
__global__ void store_scales(AnyMatrix m, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  cuda::AnyTensor::put(m.scale_at(index), __float_as_uint(Code::scale(m.amax[index])), 4);
}

// ---- host ----

struct QuantizeRows {
  const TensorView& x;
  const TensorView& q;
  const TensorView& scale;  // given, or scale_out
  bool computes;
  int64_t rows;
  int64_t columns;
  ScaleMap map;
  int hadamard;
  RandomRounding rounding;
  const char* x_name = "x";
  const TensorView* q_t =
      nullptr;  // the codes transposed (ops/quant/rowwise/quantize_transposed.cuh)
};

// What the kernels take; amax: of the whole tensor, found before, or null.
inline RowMatrix row_matrix(const QuantizeRows& b, const uint32_t* amax) {
  return {b.x.as<char>(),
          cuda::row_distance(b.x),
          b.q.as<uint8_t>(),
          cuda::row_distance(b.q),
          b.rows,
          static_cast<int>(b.columns / cuda::kUnit),
          {},
          b.map,
          b.computes ? nullptr : b.scale.as<float>(),
          b.computes ? b.scale.as<float>() : nullptr,
          amax,
          b.rounding};
}

inline int64_t scale_count(const QuantizeRows& b) { return b.map.grid_rows * b.map.grid_columns; }
inline bool whole_tensor(const QuantizeRows& b) { return scale_count(b) == 1; }
inline bool one_row_scales(const QuantizeRows& b) {
  return b.map.rows == 1 && b.map.grid_columns == 1;
}
// Threads that share a scale of `lanes`, or 0.
inline int scale_lanes(const QuantizeRows& b) {
  const int64_t lanes = b.map.columns / cuda::kUnit;
  const bool power = lanes >= 1 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
  return b.map.rows == 1 && power && b.map.columns % cuda::kUnit == 0 ? static_cast<int>(lanes) : 0;
}
inline bool square_tiles(const QuantizeRows& b) {
  return b.map.rows == 128 && b.map.columns == 128;
}
inline constexpr int64_t kLongestRow = 65536;  // of quantize_row: 512 threads, 16 units each

// One scale of a small dense tensor: units in a row, one a thread, for every multiprocessor.
inline bool is_short_run(const QuantizeRows& b) {
  constexpr int64_t kShort = int64_t{132} * 8 * 256;  // units
  return whole_tensor(b) && b.rows * b.columns <= kShort * cuda::kUnit && is_contiguous(b.x) &&
         is_contiguous(b.q);
}

template <class T, class Code>
Status start_short_run(const Call& call, const char* name, const QuantizeRows& b, GivenMatrix m) {
  m.units = static_cast<int>(b.rows * b.columns / cuda::kUnit);
  m.rows = 1;
  // Blocks that each look for the largest element want many loads at a time.
  const int threads = m.whole.x != nullptr ? 384 : 128;
  const int64_t blocks = cuda::ceil_div(m.units, threads);
  m.column_blocks = cuda::FastDivisor(static_cast<uint32_t>(blocks));
  return cuda::launch_early(call, name, {blocks, threads}, quantize_given<T, Code, 1>, m);
}

template <class T, class Code>
Status start_rows(const Call& call, const char* name, const QuantizeRows& b, GivenMatrix given) {
  constexpr int kRows = 4;
  if (is_short_run(b)) return start_short_run<T, Code>(call, name, b, given);
  RowMatrix& m = given;
  const cuda::Tiles tiles = cuda::Tiles::over(m.rows, m.units);
  m.column_blocks = tiles.column_blocks;
  const cuda::Grid grid{tiles.blocks(kRows), tiles.threads};
  if (!b.computes || whole_tensor(b)) {
    return cuda::launch_early(call, name, grid, quantize_given<T, Code, kRows>, given);
  }
  if (one_row_scales(b)) {
    const auto threads = [&](int64_t each) {
      return static_cast<int>(cuda::ceil_div(cuda::ceil_div(m.units, each), 32) * 32);
    };
    if (m.units <= 1024) {
      return cuda::launch_early(call, name, {m.rows, threads(4)}, quantize_row<T, Code, 4>, m);
    }
    if (m.units <= 4096) {
      return cuda::launch_early(call, name, {m.rows, threads(8)}, quantize_row<T, Code, 8>, m);
    }
    return cuda::launch_early(call, name, {m.rows, threads(16)}, quantize_row<T, Code, 16>, m);
  }
  if (const int lanes = scale_lanes(b); lanes > 0) {
    return cuda::launch_early(call, name, grid, quantize_lanes<T, Code, kRows>, m, lanes);
  }
  return cuda::launch_early(call, name, {scale_count(b), 256}, quantize_square<T, Code>, m);
}

template <class Code>
Status run_quantize_rows(const Call& call, const char* name, const QuantizeRows& b) {
  if (b.rows == 0 || b.columns == 0) return unsupported(std::string(name) + ": empty");
  GivenMatrix m{row_matrix(b, nullptr), {}};
  if (b.computes && whole_tensor(b)) {
    PESTLE_TRY(cuda::whole_amax(call, b.x, call.workspace, m.whole));
  }
  switch (b.x.dtype) {
    case DType::kBF16: return start_rows<cuda::Bf16, Code>(call, name, b, m);
    case DType::kF16: return start_rows<cuda::F16, Code>(call, name, b, m);
    default: return start_rows<cuda::F32, Code>(call, name, b, m);
  }
}

template <class Code>
Status run_quantize_any(const Call& call, const char* name, const QuantizeRows& b) {
  auto* amax = static_cast<uint32_t*>(call.workspace);
  const AnyMatrix m{cuda::AnyTensor(b.x),
                    cuda::AnyTensor(b.q),
                    cuda::AnyTensor(b.scale),
                    b.computes,
                    amax,
                    b.rows,
                    b.columns,
                    b.map,
                    b.hadamard,
                    b.rounding};
  const cuda::Grid grid{b.rows * cuda::ceil_div(b.columns, kAnyColumns), kAnyThreads};
  if (b.computes) {
    PESTLE_TRY(cuda::clear(call, amax, scale_count(b) * 4));
    PESTLE_TRY(cuda::launch(call, name, grid, quantize_any<Code, false>, m));
    PESTLE_TRY(cuda::launch(call, name, {cuda::ceil_div(scale_count(b), 256), 256},
                            store_scales<Code>, m, scale_count(b)));
  }
  return cuda::launch(call, name, grid, quantize_any<Code, true>, m);
}

// What every kernel that moves units of 8 refuses.
inline std::string refuse_rows_of_units(const QuantizeRows& b) {
  if (b.rows == 0 || b.columns == 0) return "the tensor is empty";
  if (b.columns % cuda::kUnit != 0) return "K is no multiple of 8";
  if (b.columns / cuda::kUnit > cuda::kMostUnits) return "K is beyond 2^30";
  if (b.hadamard > 0) return "it does not rotate";
  if (std::string why = cuda::refuse_unaligned(b.x_name, b.x); !why.empty()) return why;
  if (std::string why = cuda::refuse_unaligned("q", b.q, 8); !why.empty()) return why;
  if (!is_contiguous(b.scale) || reinterpret_cast<uintptr_t>(b.scale.data) % 4 != 0) {
    return "the scales have gaps between them or are not aligned to 4 bytes";
  }
  return "";
}

inline std::string refuse_quantize_rows(const QuantizeRows& b) {
  if (std::string why = refuse_rows_of_units(b); !why.empty()) return why;
  if (b.q_t != nullptr) return "it gives no transposed codes";
  if (!b.computes) {
    return b.map.grid_columns == 1 || b.map.columns % cuda::kUnit == 0
               ? ""
               : "a scale's columns are no multiple of 8";
  }
  if (whole_tensor(b) || scale_lanes(b) > 0 || square_tiles(b)) return "";
  if (!one_row_scales(b)) return "it computes scales of this shape in two passes only";
  const int64_t longest = b.x.dtype == DType::kF32 ? kLongestRow / 2 : kLongestRow;
  return b.columns <= longest ? "" : "rows of more than " + std::to_string(longest) + " elements";
}

}  // namespace pestle::ops
