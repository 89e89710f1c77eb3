// quantize_nvfp4 on CUDA.
// Map      cuda/quantize_nvfp4: a thread takes blocks of 16 in one column of kRows rows; a thread
//          block takes `threads` neighbouring columns. Rows and columns of the scales' padding are
//          part of the grid. _any: a thread a block, element by element, any strides.
// Traffic  x once (twice with the amax of the whole tensor), q and scales once.
// Numerics docs/formats/nvfp4.md; a block's scale and quotients by device/divide.cuh where that is
//          exact, else by IEEE division; by a product with a reciprocal that is moved to where ties
//          fall as the quotient's do (ops/quant/block/e2m1_ties.h).
// Measured 16384 x 32768 bf16 on an H200: 4.38 TB/s with the global scale given, 99 % of the copy
//          (93 % by counts of steps, not by truncated f16); 3.96 TB/s, 88 %, with it computed (two
//          reads); 32760 x 5120 98 % (86 % by thread blocks of ten warps).
#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/numeric/e2m1.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/block_scales.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "backends/cuda/host/whole_amax.h"
#include "formats/nvfp4.h"
#include "ops/quant/block/e2m1_ties.cuh"
#include "ops/quant/block/quantize_nvfp4/quantize_nvfp4_block.h"
#include "ops/quant/block/quantize_nvfp4/quantize_nvfp4_spec.h"
#include "ops/quant/rowwise/quantize_by_reciprocal.cuh"

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

template <class T>
constexpr int kRowsOf = T::kBytes == 2 ? 4 : 2;

// f32 bits of 2^-40 and 2^40: amax between them keeps every quotient in range.
constexpr uint32_t kSmallest = (127u - 40u) << 23;
constexpr uint32_t kLargest = (127u + 40u) << 23;

struct Rule {
  const char* given_scale;  // the global scale, of any alignment, or
  const uint32_t* amax;     // what it follows from, or
  WholeAmax whole;          // what finds that (and `found` is the scale), and
  char* scale_out;          // where it is then stored
  float found;
  bool high_first;
  bool stochastic;
  uint64_t seed;

  __device__ float global_scale() const {
    if (given_scale != nullptr) return __uint_as_float(AnyTensor::bits(given_scale, 4));
    return amax != nullptr ? formats::nvfp4_global_scale(*amax) : found;
  }
  // By all threads of a block, before anything else is asked.
  template <class T>
  __device__ void find_global_scale() {
    if (given_scale == nullptr && amax == nullptr) {
      found = formats::nvfp4_global_scale(whole.by_block<T>());
    }
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
  return e4m3_of_magnitude(t > 448.0f ? 448.0f : t);
}

// A block by the scalar rule: its two words of codes and its scale. `block`: its number among all.
template <class T>
__device__ __noinline__ uint3 slow_block(typename T::Raw first, typename T::Raw second, float g,
                                         bool stochastic, uint64_t seed, uint64_t block) {
  const uint8_t scale = formats::nvfp4_block_scale(max(T::amax(first), T::amax(second)), g);
  const float factor = formats::nvfp4_factor(scale, g);
  if (scale == 0 || factor == 0.0f) return make_uint3(0, 0, scale);
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
  return make_uint3(words[0], words[1], scale);
}

// Codes of a block of quotients in range, of a scale s whose significand is at `place`.
template <class T, bool kPromotes>
__device__ uint2 fast_codes(const typename T::Raw (&raw)[2], uint32_t amax, const Divider& by,
                            const E2m1Moves& moves, uint32_t place, bool high_first) {
  uint32_t words[2];
  const int move = moves.at(place);
  if (__uint_as_float(amax) * by.reciprocal < 6.75f && move != E2m1Moves::kUndecided) {
    const float factor = E2m1Moves::moved(by.reciprocal, move) * 0x1p-14f;
    const uint32_t promotion = moves.promotes(place) ? kPromotion : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[kUnit];
      T::to_f32(raw[half], x);
      words[half] = e2m1_word<kPromotes>(x, factor, high_first, promotion);
    }
    return make_uint2(words[0], words[1]);
  }
  const E2m1Factors factors = E2m1Factors::of(1.0f);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[kUnit], v[kUnit];
    T::to_f32(raw[half], x);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) v[i] = fminf(fabsf(by.shortly(x[i])), 6.0f);
    words[half] = e2m1_words(v, factors, x);
    if (high_first) words[half] = swap_all_nibbles(words[half]);
  }
  return make_uint2(words[0], words[1]);
}

// This thread's blocks in a column of rows.
struct Column {
  const char* x;
  uint8_t* q;
  uint8_t* scale;
  int x_rows, q_rows, scale_rows;  // that exist
};

template <class T, int kRows, bool kPromotes>
__device__ void put_codes(const Matrix& m, bool high_first, const Column& c, float g,
                          const E2m1Moves& moves, const uint8_t (&code)[kRows],
                          const typename T::Raw (&raw)[kRows][2], const uint32_t (&amax)[kRows]) {
  uint8_t* q = c.q;
#pragma unroll
  for (int r = 0; r < kRows; ++r, q += m.q_row_bytes) {
    // The code as the upper bits of an f32 is its value * 2^-120. One of 0 stands for zeros: any
    // other value will do.
    const uint32_t bits = code[r] == 0 ? 1u << 23 : static_cast<uint32_t>(code[r]) << 20;
    const float s = __uint_as_float(bits) * 0x1p120f;
    uint2 words = fast_codes<T, kPromotes>(raw[r], amax[r], Divider::by(s * g), moves,
                                           E2m1Moves::place(s), high_first);
    if (code[r] == 0) words = make_uint2(0, 0);
    if (r < c.q_rows) store8(q, words);
  }
}

// By whole warps, whose global scale is the same.
template <class T, int kRows>
__device__ void quantize_quickly(const Matrix& m, bool high_first, const Column& c, float g,
                                 const typename T::Raw (&raw)[kRows][2],
                                 const uint32_t (&amax)[kRows]) {
  const E2m1Moves moves = e2m1_moves<T>(g);
  const float reciprocal = short_reciprocal(g);
  uint8_t code[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    code[r] = r < c.q_rows ? block_scale(amax[r], g, reciprocal) : 0;
  }
  m.scales.store<1, kRows>(c.scale, c.scale_rows, code);
  if (moves.promoted == 0)
    put_codes<T, kRows, false>(m, high_first, c, g, moves, code, raw, amax);
  else
    put_codes<T, kRows, true>(m, high_first, c, g, moves, code, raw, amax);
}

template <class T, int kRows>
__device__ void quantize_slowly(const Matrix& m, const Rule& rule, const TilePlace& place,
                                const Column& c, float g, const typename T::Raw (&raw)[kRows][2]) {
  uint8_t code[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    code[r] = 0;
    if (r >= c.q_rows) continue;
    const auto block = static_cast<uint64_t>((place.row + r) * m.blocks + place.unit);
    const uint3 done = slow_block<T>(raw[r][0], raw[r][1], g, rule.stochastic, rule.seed, block);
    uint2 words = make_uint2(done.x, done.y);
    code[r] = static_cast<uint8_t>(done.z);
    if (rule.high_first) words = make_uint2(swap_all_nibbles(words.x), swap_all_nibbles(words.y));
    store8(c.q + r * m.q_row_bytes, words);
  }
  m.scales.store<1, kRows>(c.scale, c.scale_rows, code);
}

// kWhole: every block and row of the thread block exists.
template <class T, bool kWhole>
__device__ void quantize_tile(const Matrix& m, const Rule& rule, const TilePlace& place) {
  constexpr int kRows = kRowsOf<T>;
  const auto rows_of = [&](int64_t rows, bool in_column) {
    if constexpr (kWhole) return kRows;
    return in_column ? rows_left(rows, place.row, kRows) : 0;
  };
  const Column c{m.x + place.row * m.x_row_bytes + place.unit * (2 * kUnit * T::kBytes),
                 m.q + place.row * m.q_row_bytes + place.unit * kUnit,
                 m.scales.at(place.row, place.unit),
                 rows_of(m.x_rows, place.unit < m.blocks),
                 rows_of(m.q_rows, place.unit < m.blocks),
                 rows_of(m.scales.padded_rows, place.unit < m.scales.padded_columns)};
  typename T::Raw raw[kRows][2];
  const char* x = c.x;
#pragma unroll
  for (int r = 0; r < kRows; ++r, x += m.x_row_bytes) {
    raw[r][0] = r < c.x_rows ? T::load(x) : T::zero();
    raw[r][1] = r < c.x_rows ? T::load(x + kUnit * T::kBytes) : T::zero();
  }
  const float g = rule.global_scale();  // after the loads of x: nothing waits for it before
  // NaN, Inf and odd sizes go by the scalar rule, which is rare; a block of zeros does not. The
  // scales are stored by whole warps, so all lanes take the same way.
  bool plain = g >= 0x1p-40f && g <= 0x1p40f && !rule.stochastic;
  uint32_t amax[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    amax[r] = largest_of<T>(raw[r][0], raw[r][1]);
    plain = plain && (amax[r] - kSmallest <= kLargest - kSmallest || amax[r] == 0);
  }
  if (__all_sync(0xFFFFFFFFu, plain))
    quantize_quickly<T, kRows>(m, rule.high_first, c, g, raw, amax);
  else
    quantize_slowly<T, kRows>(m, rule, place, c, g, raw);
}

template <class T>
__global__ void __launch_bounds__(384, 2) tile_kernel(Matrix m, Rule rule) {
  wait_previous_kernel();
  constexpr int kRows = kRowsOf<T>;
  const TilePlace place = tile_place(m.column_blocks, kRows, blockIdx.x);
  rule.find_global_scale<T>();
  if (is_whole(place, m.x_rows, m.blocks, kRows))
    quantize_tile<T, true>(m, rule, place);
  else
    quantize_tile<T, false>(m, rule, place);
  rule.store_global_scale();
}

// A thread a block of 16 of the padded matrix, padding of the scales included.
__global__ void __launch_bounds__(128)
    any_kernel(AnyTensor x, AnyTensor q, AnyScales scales, Rule rule, int64_t grid_columns) {
  rule.store_global_scale();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = AnyTensor::quotient(index, grid_columns);
  const int64_t column = index - row * grid_columns;
  const int64_t blocks = q.shape[1] / (kBlock / 2);
  if (row < q.shape[0] && column < blocks) {
    float values[kBlock];
    uint8_t codes[kBlock];
    AnyRow(x, row).load_padded(row, column * kBlock, values);
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

Status prepare(const Call& call, Rule& rule, bool any) {
  rule = {};
  rule.high_first = call.integer(kNibbles) == 0;
  rule.stochastic = call.integer(kRounding) == 1;
  rule.seed = static_cast<uint64_t>(call.integer(kSeed));
  if (call.has(kGlobalScale)) {
    rule.given_scale = call.tensor(kGlobalScale).as<char>();
    return {};
  }
  auto* amax = static_cast<uint32_t*>(call.workspace);
  rule.scale_out = call.tensor(kGlobalScaleOut).as<char>();
  if (!any) {
    PESTLE_TRY(whole_amax(call, call.tensor(kX), amax, rule.whole));
    if (rule.whole.count == 1) rule.amax = rule.whole.parts;
    return {};
  }
  rule.amax = amax;
  return tensor_amax(call, call.tensor(kX), amax);
}

// For an empty matrix, whose scale is that of 0.
__global__ void global_scale_kernel(Rule rule) {
  if (rule.amax == nullptr) rule.found = formats::nvfp4_global_scale(0);
  rule.store_global_scale();
}

int64_t scale_rows(const Call& call) { return call.tensor(kScaleOut).shape[0]; }
int64_t scale_columns(const Call& call) { return call.tensor(kScaleOut).shape[1]; }
bool is_swizzled(const Call& call) { return call.integer(kScaleLayout) == 0; }

// Thread blocks of ten or of five warps leave four of the 24 warps idle that a multiprocessor has
// registers for: where those cover a row best, two warps do as well, if the global scale is known
// and need not be made of an amax by each thread block.
Tiles tiles_over(int64_t rows, int64_t units, bool is_given) {
  Tiles tiles = Tiles::over(rows, units);
  if (tiles.threads % 5 != 0 || !is_given) return tiles;
  tiles.threads = 64;
  tiles.column_blocks = FastDivisor(static_cast<uint32_t>(ceil_div(units, 64)));
  return tiles;
}

template <class T>
Status run_tiles(const Call& call, const Rule& rule) {
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  constexpr int kRows = kRowsOf<T>;
  const int64_t blocks = q.shape[1] * 2 / kBlock;
  const Tiles tiles =
      tiles_over(scale_rows(call), scale_columns(call), rule.given_scale != nullptr);
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
  return launch_early(call, "quantize_nvfp4", {tiles.blocks(kRows), tiles.threads}, tile_kernel<T>,
                      matrix, rule);
}

Status run(const Call& call) {
  Rule rule;
  PESTLE_TRY(prepare(call, rule, false));
  switch (call.tensor(kX).dtype) {
    case DType::kBF16: return run_tiles<Bf16>(call, rule);
    case DType::kF16: return run_tiles<F16>(call, rule);
    default: return run_tiles<F32>(call, rule);
  }
}

Status run_any(const Call& call) {
  Rule rule;
  PESTLE_TRY(prepare(call, rule, true));
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
     .workspace = "if(has(global_scale), 0, 4096)"},
    {.id = "cuda/quantize_nvfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "if(has(global_scale), 0, 4)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_nvfp4
