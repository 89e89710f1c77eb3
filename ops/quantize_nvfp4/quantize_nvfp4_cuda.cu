// quantize_nvfp4 on CUDA.
// Map      cuda/quantize_nvfp4: a thread takes blocks of 16 in one column of kRows rows; a thread
//          block takes `threads` neighbouring columns. Rows and columns of the scales' padding are
//          part of the grid. _any: a thread a block, element by element, any strides.
// Traffic  x once (twice with the amax of the whole tensor), q and scales once.
// Numerics docs/formats/nvfp4.md; the block's scale by IEEE divisions, the codes' quotients by
//          device/divide.cuh where that is exact, else by IEEE division, block by block.
// Measured 16384 x 32768 bf16: H200: 3.2 TB/s with the global scale given, 78 % of the copy;
//          3.6 TB/s, 85 %, with it computed (two reads). Bound by instructions: quantize_nvfp4.md.
#include "backends/cuda/device/block_scales.cuh"
#include "backends/cuda/device/divide.cuh"
#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/fp8.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "formats/nvfp4.h"
#include "ops/quantize_nvfp4/quantize_nvfp4_block.h"
#include "ops/quantize_nvfp4/quantize_nvfp4_spec.h"

namespace pestle::ops::quantize_nvfp4 {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kGlobalScale = arg_index(spec, "global_scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kGlobalScaleOut = arg_index(spec, "global_scale_out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

constexpr int kRows = 2;

// f32 bits of 2^-40 and 2^40: amax between them keeps every quotient in range.
constexpr uint32_t kSmallest = (127u - 40u) << 23;
constexpr uint32_t kLargest = (127u + 40u) << 23;

struct Rule {
  const char* given_scale;  // the global scale, of any alignment, or
  const uint32_t* amax;     // what it follows from, and
  char* scale_out;          // where it is then stored
  bool high_first;
  bool stochastic;
  uint64_t seed;

  __device__ float global_scale() const {
    if (given_scale != nullptr) return __uint_as_float(AnyTensor::bits(given_scale, 4));
    return formats::nvfp4_global_scale(*amax);
  }
  // By one thread of the grid.
  __device__ void store_global_scale() const {
    if (given_scale != nullptr || blockIdx.x != 0 || threadIdx.x != 0) return;
    AnyTensor::put(scale_out, __float_as_uint(global_scale()), 4);
  }
};

struct Matrix {
  const char* x;
  int64_t x_row_bytes;
  int64_t x_rows;
  uint8_t* q;
  int64_t q_row_bytes;
  int64_t q_rows;
  int blocks;  // of a row
  FastDivisor column_blocks;
  ScaleBytes scales;
};

// formats::nvfp4_block_scale where every quotient is in the range of short_quotient.
__device__ uint8_t block_scale(uint32_t amax, float g, float reciprocal) {
  const float sixth = short_quotient(__uint_as_float(amax), 6.0f, 1.0f / 6.0f);
  const float t = short_quotient(sixth, g, reciprocal);
  return static_cast<uint8_t>(fp8_pair<formats::E4m3>(t > 448.0f ? 448.0f : t, 0.0f));
}

__device__ __noinline__ uint8_t slow_block_scale(uint32_t amax, float g) {
  return formats::nvfp4_block_scale(amax, g);
}

// Where a block lies among all, for its random bits: computed only where they are drawn.
struct BlockIndex {
  int64_t row;
  int unit;
  int blocks;  // of a row
};

// Codes of a block by the scalar rule.
template <class T>
__device__ __noinline__ uint2 slow_codes(typename T::Raw first, typename T::Raw second,
                                         float factor, bool stochastic, uint64_t seed,
                                         BlockIndex index) {
  const auto block = static_cast<uint64_t>(index.row * index.blocks + index.unit);
  uint32_t words[2];
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    float x[kUnit];
    T::to_f32(half == 0 ? first : second, x);
    const formats::PhiloxWords random = formats::philox_block(seed, 2 * block + half);
    uint32_t word = 0;
    for (int i = 0; i < kUnit; ++i) {
      const float v = __fdiv_rn(x[i], factor);
      const uint32_t code =
          stochastic ? formats::code_stochastic<formats::E2m1>(v, formats::philox_lane(random, i))
                     : formats::e2m1_from_f32(v);
      word |= code << (4 * i);
    }
    (half == 0 ? words[0] : words[1]) = word;
  }
  return make_uint2(words[0], words[1]);
}

template <class T>
__device__ uint32_t fast_codes(const typename T::Raw& raw, const Divider& by) {
  float x[kUnit];
  float v[kUnit];
  T::to_f32(raw, x);
  for (int i = 0; i < kUnit; ++i) v[i] = by.shortly(x[i]);
  return e2m1_codes(v, x);
}

// kWhole: every block and row of the thread block exists.
template <class T, bool kWhole>
__device__ void quantize_tile(const Matrix& m, const Rule& rule, const TilePlace& place, float g) {
  const auto rows_of = [&](int64_t rows, bool in_column) {
    if constexpr (kWhole) return kRows;
    return in_column ? rows_left(rows, place.row, kRows) : 0;
  };
  const int x_rows = rows_of(m.x_rows, place.unit < m.blocks);
  const int q_rows = rows_of(m.q_rows, place.unit < m.blocks);
  const int scale_rows = rows_of(m.scales.padded_rows, place.unit < m.scales.padded_columns);
  const char* x = m.x + place.row * m.x_row_bytes + place.unit * (2 * kUnit * T::kBytes);
  uint8_t* q = m.q + place.row * m.q_row_bytes + place.unit * kUnit;
  uint8_t* scale = m.scales.at(place.row, place.unit);
  typename T::Raw raw[kRows][2];
#pragma unroll
  for (int r = 0; r < kRows; ++r, x += m.x_row_bytes) {
    raw[r][0] = r < x_rows ? T::load(x) : T::zero();
    raw[r][1] = r < x_rows ? T::load(x + kUnit * T::kBytes) : T::zero();
  }
  const bool plain_g = g >= 0x1p-40f && g <= 0x1p40f;
  const float reciprocal = short_reciprocal(g);
  uint32_t amax[kRows];
  uint8_t code[kRows];
  bool plain[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    amax[r] = max(T::amax(raw[r][0]), T::amax(raw[r][1]));
    // NaN, Inf and odd sizes go by the scalar rule, which is rare.
    plain[r] = plain_g && amax[r] - kSmallest <= kLargest - kSmallest;
    code[r] = plain[r] ? block_scale(amax[r], g, reciprocal) : slow_block_scale(amax[r], g);
    if (r >= q_rows) code[r] = 0;
  }
  m.scales.store<1, kRows>(scale, scale_rows, code);
#pragma unroll
  for (int r = 0; r < kRows; ++r, q += m.q_row_bytes) {
    if (r >= q_rows) continue;
    uint2 words = make_uint2(0, 0);
    const float factor = e4m3_value(code[r]) * g;
    if (code[r] != 0 && factor != 0.0f) {
      const Divider by = Divider::by(factor);
      const bool fast = plain[r] && !rule.stochastic && by.is_short(__uint_as_float(amax[r]));
      if (fast) {
        words = make_uint2(fast_codes<T>(raw[r][0], by), fast_codes<T>(raw[r][1], by));
      } else {
        words = slow_codes<T>(raw[r][0], raw[r][1], factor, rule.stochastic, rule.seed,
                              {place.row + r, place.unit, m.blocks});
      }
      if (rule.high_first) {
        words = make_uint2(swap_all_nibbles(words.x), swap_all_nibbles(words.y));
      }
    }
    store8(q, words);
  }
}

template <class T>
__global__ void __launch_bounds__(384, 3) tile_kernel(Matrix m, Rule rule) {
  const TilePlace place = tile_place(m.column_blocks, kRows, blockIdx.x);
  rule.store_global_scale();
  const float g = rule.global_scale();
  if (is_whole(place, m.x_rows, m.blocks, kRows))
    quantize_tile<T, true>(m, rule, place, g);
  else
    quantize_tile<T, false>(m, rule, place, g);
}

// A thread a block of 16 of the padded matrix, padding of the scales included.
__global__ void __launch_bounds__(128)
    any_kernel(AnyTensor x, AnyTensor q, AnyScales scales, Rule rule, int64_t grid_columns) {
  rule.store_global_scale();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = index / grid_columns;
  const int64_t column = index % grid_columns;
  const int64_t blocks = q.shape[1] / (kBlock / 2);
  if (row < q.shape[0] && column < blocks) {
    float values[kBlock];
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const int64_t j = column * kBlock + i;
      values[i] = row < x.shape[0] && j < x.shape[1] ? x.load(x.at(row, j)) : 0.0f;
    }
    const auto element = static_cast<uint64_t>((row * blocks + column) * kBlock);
    *scales.at(row, column) = static_cast<char>(
        quantize_block(values, rule.global_scale(), rule.stochastic, rule.seed, element, codes));
    for (int i = 0; i < kBlock; i += 2) {
      *q.at(row, (column * kBlock + i) / 2) =
          static_cast<char>(formats::pack_nibbles(codes[i], codes[i + 1], rule.high_first));
    }
  } else if (scales.swizzled && row < scales.tensor.shape[0] && column < scales.tensor.shape[1]) {
    *scales.at(row, column) = 0;
  }
}

Status prepare(const Call& call, Rule& rule) {
  rule = {};
  rule.high_first = call.integer(kNibbles) == 0;
  rule.stochastic = call.integer(kRounding) == 1;
  rule.seed = static_cast<uint64_t>(call.integer(kSeed));
  if (call.has(kGlobalScale)) {
    rule.given_scale = call.tensor(kGlobalScale).as<char>();
    return {};
  }
  auto* amax = static_cast<uint32_t*>(call.workspace);
  rule.amax = amax;
  rule.scale_out = call.tensor(kGlobalScaleOut).as<char>();
  return tensor_amax(call, call.tensor(kX), amax);
}

__global__ void global_scale_kernel(Rule rule) { rule.store_global_scale(); }

int64_t scale_rows(const Call& call) { return call.tensor(kScaleOut).shape[0]; }
int64_t scale_columns(const Call& call) { return call.tensor(kScaleOut).shape[1]; }
bool is_swizzled(const Call& call) { return call.integer(kScaleLayout) == 0; }

template <class T>
Status run_tiles(const Call& call, const Rule& rule) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const int64_t blocks = q.shape[1] * 2 / kBlock;
  const Tiles tiles = Tiles::over(scale_rows(call), scale_columns(call));
  const Matrix matrix{x.as<char>(),
                      row_distance(x),
                      x.shape[0],
                      q.as<uint8_t>(),
                      row_distance(q),
                      q.shape[0],
                      static_cast<int>(blocks),
                      tiles.column_blocks,
                      ScaleBytes(call.tensor(kScaleOut), blocks, is_swizzled(call))};
  if (tiles.blocks(kRows) == 0) {
    return launch(call, "quantize_nvfp4_scale", {1, 1}, global_scale_kernel, rule);
  }
  return launch(call, "quantize_nvfp4", {tiles.blocks(kRows), tiles.threads}, tile_kernel<T>,
                matrix, rule);
}

Status run(const Call& call) {
  Rule rule;
  PESTLE_TRY(prepare(call, rule));
  switch (call.tensor(kX).dtype) {
    case DType::kBF16: return run_tiles<Bf16>(call, rule);
    case DType::kF16: return run_tiles<F16>(call, rule);
    default: return run_tiles<F32>(call, rule);
  }
}

Status run_any(const Call& call) {
  Rule rule;
  PESTLE_TRY(prepare(call, rule));
  const TensorView& q = call.tensor(kQ);
  const int64_t blocks = q.shape[1] * 2 / kBlock;
  const int64_t rows = is_swizzled(call) ? scale_rows(call) : q.shape[0];
  const int64_t columns = is_swizzled(call) ? scale_columns(call) : blocks;
  if (rows * columns == 0) {
    return launch(call, "quantize_nvfp4_scale", {1, 1}, global_scale_kernel, rule);
  }
  return launch(call, "quantize_nvfp4_any", {ceil_div(rows * columns, 128), 128}, any_kernel,
                AnyTensor(call.tensor(kX)), AnyTensor(q),
                AnyScales{AnyTensor(call.tensor(kScaleOut)), blocks, is_swizzled(call)}, rule,
                columns);
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (x.shape[1] % kBlock != 0) return "K is no multiple of 16: padding inside a block";
  if (std::string why = refuse_unaligned("x", x); !why.empty()) return why;
  if (std::string why = refuse_unaligned("q", call.tensor(kQ), 8); !why.empty()) return why;
  return refuse_scale_strides("scale_out", call.tensor(kScaleOut), is_swizzled(call));
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_nvfp4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run,
     .workspace = "4"},
    {.id = "cuda/quantize_nvfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "4"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_nvfp4
