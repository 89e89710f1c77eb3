// quantize_int4 on CUDA.
// Map      groups  a thread 16 neighbouring columns in each of kRows rows; group_size / 16
//                  neighbouring threads share a scale
//          row     one group a row: a thread block the row, which stays in registers
//          rotated one group a row: a thread block up to 8 rows, 64 neighbours a lane
//                  (hadamard_lanes.cuh), the next row's copy under way meanwhile; else, and by
//                  groups of 1024, a warp 1024 columns (hadamard.cuh), then four units of 8
//                  neighbours a lane
//          any     a thread block 1024 columns of a row in shared memory, one pass for the ends of
//                  every group, one for the codes; any strides and groups
// Traffic  x once, q and scales once; _any reads x twice.
// Numerics exact: f32 operation by operation as formats/int4.h. Quotients by device/divide.cuh
//          where the group's ends lie between 2^-50 and 2^60, else by the scalar rule, a unit at a
//          time.
// Measured 32768 x 16384 bf16 on an H200: groups of 32, 64, 128 at 105, 103, 102 % of the copy,
//          with zero points 96 %; rotated by 256, one group a row, 66 %.
#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/int4/quantize_int4/quantize_int4_spec.h"
#include "ops/quant/int4/quantize_int4/quantize_int4_unit.cuh"

namespace pestle::ops::quantize_int4 {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kZeroOut = arg_index(spec, "zero_out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

constexpr int kWarps = 8;         // of a thread block, rotated groups
constexpr int kRowWarps = 16;     // rotated, one group a row: 16384 columns
constexpr int kRowThreads = 512;  // of a row
constexpr int kLongestRow = 8 * kRowThreads * kUnit;
constexpr int kPiece = 2 * kChunk;

// Where a group's scale and zero point go.
struct ScalePlace {
  char* scale;
  char* zero;

  __device__ void store(const GroupScale& g) const {
    *reinterpret_cast<float*>(scale) = g.scale;
    if (zero != nullptr) *zero = static_cast<char>(g.zero);
  }
};

struct Job {
  const char* x;
  int64_t x_row_bytes;
  int x_bytes;
  DType x_dtype;
  char* q;
  int64_t q_row_bytes;
  char* scale;  // elements of a row side by side
  int64_t scale_row_bytes;
  char* zero;
  int64_t zero_row_bytes;
  int64_t rows;
  int units;  // of a row
  bool asymmetric;
  Rounding rounding;
  FastDivisor pieces;  // groups: thread blocks of a row; rotated: warps
  int64_t tasks;       // rotated: warps
  int group_lanes;     // a power of two, or 0: the row is one group
  int group_shift;     // from a lane's columns to their group
  bool wide_q;         // rows of codes at multiples of 16 bytes
  int rows_each;       // rotated, one group a row: of a thread block

  __device__ ScalePlace scales_at(int64_t row, int group) const {
    return {scale + row * scale_row_bytes + group * 4,
            asymmetric ? zero + row * zero_row_bytes + group : nullptr};
  }
};

// ---- groups ----

template <class T>
constexpr int kRowsOf = T::kBytes == 2 ? 4 : 2;  // of a thread

template <class T, bool kAsymmetric>
__global__ void __launch_bounds__(384, 2) groups_kernel(Job job) {
  constexpr int kRows = kRowsOf<T>;
  const TilePlace place = tile_place(job.pieces, kRows, blockIdx.x);
  const int unit = 2 * place.unit;
  const int rows = unit < job.units ? rows_left(job.rows, place.row, kRows) : 0;
  const char* x = job.x + place.row * job.x_row_bytes + unit * (kUnit * T::kBytes);
  char* q = job.q + place.row * job.q_row_bytes + unit * 4;
  const int lanes = job.group_lanes;
  ScalePlace scales = job.scales_at(place.row, place.unit >> job.group_shift);
  const bool is_first = (place.unit & (lanes - 1)) == 0;
  typename T::Raw raw[kRows][2];
#pragma unroll
  for (int r = 0; r < kRows; ++r, x += job.x_row_bytes) {
    raw[r][0] = r < rows ? T::load(x) : T::zero();
    raw[r][1] = r < rows ? T::load(x + kUnit * T::kBytes) : T::zero();
  }
  LaneEnds<T, kAsymmetric> ends[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    ends[r] = LaneEnds<T, kAsymmetric>::of(raw[r][0]);
    ends[r].take(LaneEnds<T, kAsymmetric>::of(raw[r][1]));
  }
  for (int step = 1; step < lanes; step *= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) ends[r].join(step);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r, q += job.q_row_bytes) {
    if (r >= rows) continue;
    const GroupScale g = ends[r].ends().scale();
    if (is_first) scales.store(g);
    scales.scale += job.scale_row_bytes;
    if (kAsymmetric) scales.zero += job.zero_row_bytes;
    uint32_t words[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float v[kUnit];
      T::to_f32(raw[r][half], v);
      words[half] =
          unit_codes<kAsymmetric>(v, g, job.rounding, place.row + r, job.units, unit + half);
    }
    store8(q, make_uint2(words[0], words[1]));
  }
}

// ---- one group a row ----

template <class T, bool kAsymmetric, int kPerThread>
__global__ void __launch_bounds__(kRowThreads) row_kernel(Job job) {
  const int64_t row = blockIdx.x;
  const char* x = job.x + row * job.x_row_bytes;
  typename T::Raw raw[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int unit = threadIdx.x + i * blockDim.x;
    raw[i] = unit < job.units ? T::load(x + unit * (kUnit * T::kBytes)) : T::zero();
  }
  LaneEnds<T, kAsymmetric> lane_ends;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) lane_ends.take(LaneEnds<T, kAsymmetric>::of(raw[i]));
  Ends<kAsymmetric> ends = lane_ends.ends();
  ends.join_block();
  const GroupScale g = ends.scale();
  if (threadIdx.x == 0) job.scales_at(row, 0).store(g);
  char* q = job.q + row * job.q_row_bytes;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int unit = threadIdx.x + i * blockDim.x;
    if (unit >= job.units) continue;
    float v[kUnit];
    T::to_f32(raw[i], v);
    store4(q + unit * 4, unit_codes<kAsymmetric>(v, g, job.rounding, row, job.units, unit));
  }
}

// ---- rotated ----

// This lane's four units of a piece, rotated by groups of kN; without the norm.
template <int kN>
__device__ void load_rotated(const Job& job, const char* x, int left, float* shared,
                             float (&v)[2][kLaneRun]) {
  const int first = threadIdx.x % 32 * kLaneRun;
  const bool inside[2] = {first < left, first + kChunk < left};
  load_runs(job.x_dtype, x + first * job.x_bytes, inside, v);
  rotate_runs<kN, true>(v, shared);
  restore_runs<kN>(v, shared);
  const float norm = formats::hadamard_norm(kN);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int i = 0; i < kLaneRun; ++i) v[c][i] *= norm;
  }
}

// Word i of lane j of four neighbours to word j of lane i.
__device__ void transpose_words(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
  const auto swap = [](uint32_t& a, uint32_t& b, bool second, int distance) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, second ? a : b, distance);
    (second ? a : b) = other;
  };
  swap(w[0], w[1], odd, 1);
  swap(w[2], w[3], odd, 1);
  swap(w[0], w[2], upper, 2);
  swap(w[1], w[3], upper, 2);
}

// Codes of a lane's eight units, by the product with the reciprocal if that is certain.
template <bool kAsymmetric>
__device__ inline void lane_codes(const float (&v)[kLongRun], const Divider& by, int zero,
                                  uint32_t (&words)[8]) {
  const auto unit_of = [&](int u, float(&unit)[kUnit]) {
#pragma unroll
    for (int k = 0; k < kUnit; ++k) unit[k] = v[u * kUnit + k];
  };
  if constexpr (!kAsymmetric) {
    const BothSides sides = BothSides::of(by);
    uint32_t differs = 0;
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      float unit[kUnit];
      unit_of(u, unit);
      words[u] = certain_codes(unit, sides, differs);
    }
    if (differs == 0) return;
  }
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    float unit[kUnit];
    unit_of(u, unit);
    words[u] = short_codes<kAsymmetric>(unit, by, zero);
  }
}

// One row, rotated: its scale and codes.
template <bool kAsymmetric, int kN>
__device__ inline void quantize_long_row(const Job& job, int64_t row, int piece,
                                         const float (&v)[kLongRun], uint32_t* join) {
  constexpr float kNorm = kHadamardNorm<kN>;
  const int lane = threadIdx.x % 32;
  const int left = job.units * kUnit - piece;
  auto ends = Ends<kAsymmetric>::of_rotated(v, kNorm);
  ends.join_block(join);
  const GroupScale g = ends.scale();
  if (threadIdx.x == 0) job.scales_at(row, 0).store(g);
  char* q = job.q + row * job.q_row_bytes + piece / 2;
  if (g.is_short && !job.rounding.stochastic && job.wide_q) {
    uint32_t words[8];
    lane_codes<kAsymmetric>(v, Divider::by(g.scale * (1 / kNorm)), g.zero, words);
    __syncwarp();
#pragma unroll
    for (int four = 0; four < 2; ++four) {
      uint32_t w[4] = {words[4 * four], words[4 * four + 1], words[4 * four + 2],
                       words[4 * four + 3]};
      transpose_words(w);
      // 32 columns; a row may end in their middle.
      const int offset = lane / 4 * 256 + four * 128 + lane % 4 * 32;
      if (offset + 32 <= left)
        store16(q + offset / 2, make_uint4(w[0], w[1], w[2], w[3]));
      else if (offset < left)
        store8(q + offset / 2, make_uint2(w[0], w[1]));
    }
    return;
  }
#pragma unroll
  for (int u = 0; u < kLongRun / kUnit; ++u) {
    const int offset = long_run_offset(lane, u);
    if (offset >= left) continue;
    float unit[kUnit];
#pragma unroll
    for (int k = 0; k < kUnit; ++k) unit[k] = v[u * kUnit + k] * kNorm;
    store4(q + offset / 2, unit_codes_out_of_line<kAsymmetric>(
                               unit, g, job.rounding, row, job.units, (piece + offset) / kUnit));
  }
}

// One group a row, rotated by groups up to 256: 64 neighbours a lane (hadamard_lanes.cuh).
template <bool kAsymmetric, int kN>
__global__ void __launch_bounds__(32 * kLongWarps, 2) rotated_row_kernel(Job job) {
  extern __shared__ __align__(128) char memory[];
  __shared__ uint32_t join[2][Ends<kAsymmetric>::kJoinWords];
  const int warp = threadIdx.x / 32;
  const int piece = warp * kLongPiece;
  const int left = job.units * kUnit - piece;
  auto* exchange = reinterpret_cast<float4*>(memory) + warp * kLongQuads;
  char* stage = memory + blockDim.x / 32 * (kLongQuads * sizeof(float4)) + piece * job.x_bytes;
  const char* x = job.x + static_cast<int64_t>(piece) * job.x_bytes;
  int64_t row = static_cast<int64_t>(blockIdx.x) * job.rows_each;
  const int64_t end = min(row + job.rows_each, job.rows);
  start_long_runs(x + row * job.x_row_bytes, left, job.x_bytes, stage);
  for (int turn = 0; row < end; ++row, turn ^= 1) {
    float v[kLongRun];
    await_copies();
    take_long_runs(job.x_dtype, stage, v);
    __syncwarp();
    if (row + 1 < end) start_long_runs(x + (row + 1) * job.x_row_bytes, left, job.x_bytes, stage);
    rotate_long_runs<kN, true>(v, exchange);
    quantize_long_row<kAsymmetric, kN>(job, row, piece, v, join[turn]);
  }
}

template <bool kAsymmetric, int kN>
__global__ void __launch_bounds__(32 * kRowWarps, 2) rotated_kernel(Job job) {
  extern __shared__ __align__(16) float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool one_group = job.group_lanes == 0;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  // Blocks of rows have whole rows, so only the others may lack a task.
  if (task >= job.tasks) return;
  const auto row = static_cast<int64_t>(job.pieces.divide(static_cast<uint32_t>(task)));
  const auto piece = static_cast<int>(task - row * job.pieces.divisor) * kPiece;
  const int left = job.units * kUnit - piece;
  float v[2][kLaneRun];
  load_rotated<kN>(job, job.x + row * job.x_row_bytes + static_cast<int64_t>(piece) * job.x_bytes,
                   left, shared + warp * kRotateFloats, v);
  GroupScale row_scale;
  if (one_group) {
    Ends<kAsymmetric> ends;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int i = 0; i < kLaneRun; ++i) ends.take(v[c][i]);
    }
    ends.join_block();
    row_scale = ends.scale();
    if (threadIdx.x == 0) job.scales_at(row, 0).store(row_scale);
  }
  char* q = job.q + row * job.q_row_bytes + piece / 2;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int offset = c * kChunk + half_offset(lane, half);
      float unit[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) unit[i] = v[c][8 * half + i];
      GroupScale g = row_scale;
      if (!one_group) {
        Ends<kAsymmetric> ends;
#pragma unroll
        for (int i = 0; i < kUnit; ++i) ends.take(unit[i]);
        for (int step = 1; step < job.group_lanes; step *= 2) ends.join(step);
        g = ends.scale();
      }
      if (offset >= left) continue;
      const int place = (piece + offset) / kUnit;
      if (!one_group && (lane & (job.group_lanes - 1)) == 0) {
        job.scales_at(row, place >> job.group_shift).store(g);
      }
      store4(q + offset / 2, unit_codes<kAsymmetric>(unit, g, job.rounding, row, job.units, place));
    }
  }
}

// ---- any ----

// abs_bits of the largest negative and positive magnitudes, NaN above all in both. Integer maxima,
// so that the order does not matter.
struct AnyEnds {
  uint32_t below = 0;
  uint32_t above = 0;

  __device__ void take(float v) {
    const uint32_t abs = formats::abs_bits(v);
    const bool nan = formats::abs_is_nan(abs);
    if (v < 0 || nan) below = max(below, abs);
    if (v > 0 || nan) above = max(above, abs);
  }
  // formats::int4_scale or int4_asym_scale of the group.
  __device__ formats::Int4Zero scale(bool asymmetric) const {
    if (!asymmetric) return {formats::int4_scale(max(below, above)), 0};
    const float ends[2] = {-__uint_as_float(below), __uint_as_float(above)};
    return formats::int4_asym_scale(ends, 2);
  }
};

// The code of one quotient.
__device__ uint32_t code_of(float quotient, int zero, bool asymmetric) {
  if (!asymmetric) return static_cast<uint32_t>(formats::round_clamp(quotient, -8, 7)) & 0xFu;
  return static_cast<uint32_t>(formats::round_clamp(quotient, -zero, 15 - zero) + zero);
}

struct AnyJob {
  AnyTensor x, q, scale, zero;
  uint32_t* ends;  // two a group
  int64_t columns, group, groups;
  bool asymmetric, stochastic;
  uint64_t seed;
  int hadamard;

  __device__ AnyEnds ends_at(int64_t row, int64_t column) const {
    const uint32_t* e = ends + 2 * (row * groups + column / group);
    return {e[0], e[1]};
  }
  __device__ uint32_t code(float v, const formats::Int4Zero& s, int64_t row, int64_t column) const {
    const float quotient = __fdiv_rn(v, s.scale);
    if (!stochastic) return code_of(quotient, s.zero, asymmetric);
    const auto element = static_cast<uint64_t>(row * columns + column);
    const int lo = asymmetric ? -s.zero : -8;
    const int code =
        formats::int_stochastic(quotient, formats::philox_u16(seed, element), lo, lo + 15);
    return static_cast<uint32_t>(code + (asymmetric ? s.zero : 0)) & 0xFu;
  }
};

// kEncodes false: adds every element to its group's ends. Else codes, two a thread.
template <bool kEncodes>
__global__ void __launch_bounds__(kAnyThreads) any_kernel(AnyJob job) {
  __shared__ float v[kAnyColumns];
  const int64_t pieces = (job.columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), job.columns - first));
  load_piece(job.x, row, first, count, v);
  if (job.hadamard > 0) rotate_shared(v, count, job.hadamard);
  __syncthreads();
  for (int i = 2 * threadIdx.x; i < count; i += 2 * kAnyThreads) {
    uint32_t byte = 0;
    for (int j = 0; j < 2; ++j) {
      const int64_t column = first + i + j;
      if constexpr (kEncodes) {
        const formats::Int4Zero s = job.ends_at(row, column).scale(job.asymmetric);
        byte |= job.code(v[i + j], s, row, column) << (4 * j);
      } else {
        AnyEnds ends;
        ends.take(v[i + j]);
        uint32_t* to = job.ends + 2 * (row * job.groups + column / job.group);
        if (ends.below != 0) atomicMax(to, ends.below);
        if (ends.above != 0) atomicMax(to + 1, ends.above);
      }
    }
    if constexpr (kEncodes) *job.q.at(row, (first + i) / 2) = static_cast<char>(byte);
  }
}

__global__ void __launch_bounds__(kAnyThreads) any_scales(AnyJob job, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kAnyThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / job.groups, group = index % job.groups;
  const formats::Int4Zero s = job.ends_at(row, group * job.group).scale(job.asymmetric);
  job.scale.store(job.scale.at(row, group), s.scale);
  if (job.asymmetric) *job.zero.at(row, group) = static_cast<char>(s.zero);
}

// ---- host ----

int64_t group_of(const Call& call) {
  return std::max<int64_t>(1, int4_group(call.integer(kGroupSize), call.tensor(kX).shape[1]));
}
// Columns of a group's lane.
int lane_columns(const Call& call) { return call.integer(kHadamard) > 0 ? kUnit : 2 * kUnit; }
// Lanes that share a scale; 0: the row is one group, or -1: neither.
int group_lanes(const Call& call) {
  const int64_t group = group_of(call), columns = lane_columns(call), lanes = group / columns;
  if (group % columns == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0) {
    return static_cast<int>(lanes);
  }
  return group >= call.tensor(kX).shape[1] ? 0 : -1;
}

Job job_of(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& scale = call.tensor(kScaleOut);
  Job job{};
  job.x = x.as<char>();
  job.x_row_bytes = row_distance(x);
  job.x_bytes = dtype_bytes(x.dtype);
  job.x_dtype = x.dtype;
  job.q = call.tensor(kQ).as<char>();
  job.q_row_bytes = row_distance(call.tensor(kQ));
  job.scale = scale.as<char>();
  job.scale_row_bytes = scale.strides[0] * 4;
  job.asymmetric = call.has(kZeroOut);
  if (job.asymmetric) {
    job.zero = call.tensor(kZeroOut).as<char>();
    job.zero_row_bytes = call.tensor(kZeroOut).strides[0];
  }
  job.rows = x.shape[0];
  job.units = static_cast<int>(x.shape[1] / kUnit);
  job.wide_q = refuse_unaligned("q", call.tensor(kQ), 16).empty();
  job.rounding = {call.integer(kRounding) == 1, static_cast<uint64_t>(call.integer(kSeed))};
  job.group_lanes = group_lanes(call);
  while ((2 << job.group_shift) <= job.group_lanes) ++job.group_shift;
  return job;
}

template <bool kAsymmetric>
Status run_rotated(const Call& call, Job job, int hadamard) {
  if (job.group_lanes == 0 && hadamard <= kLongestGroup) {
    const auto warps = static_cast<int>(ceil_div(job.units, kLongPiece / kUnit));
    const size_t each = kLongQuads * sizeof(float4) + kLongPiece * static_cast<size_t>(job.x_bytes);
    job.rows_each = rows_each(call, warps, job.rows);
    const Grid grid{ceil_div(job.rows, job.rows_each), 32 * warps,
                    static_cast<size_t>(warps) * each};
    return with_hadamard(hadamard, [&](auto n) -> Status {
      constexpr int kN = n <= kLongestGroup ? static_cast<int>(n) : kLongestGroup;
      PESTLE_TRY(allow_shared(call, rotated_row_kernel<kAsymmetric, kN>,
                              static_cast<int>(grid.shared_bytes)));
      return launch(call, spec.name, grid, rotated_row_kernel<kAsymmetric, kN>, job);
    });
  }
  const int64_t pieces = ceil_div(job.units, kPiece / kUnit);
  job.tasks = job.rows * pieces;
  job.pieces = FastDivisor(static_cast<uint32_t>(pieces));
  const int warps = job.group_lanes == 0 ? static_cast<int>(pieces) : kWarps;
  const Grid grid{ceil_div(job.tasks, warps), 32 * warps,
                  static_cast<size_t>(warps) * kRotateFloats * sizeof(float)};
  return with_hadamard(hadamard, [&](auto n) {
    return launch(call, spec.name, grid, rotated_kernel<kAsymmetric, n>, job);
  });
}

template <class T, bool kAsymmetric>
Status run_as(const Call& call, Job job) {
  if (job.group_lanes > 0) {
    const Tiles tiles = Tiles::over(job.rows, job.units / 2);
    job.pieces = tiles.column_blocks;
    return launch(call, spec.name, {tiles.blocks(kRowsOf<T>), tiles.threads},
                  groups_kernel<T, kAsymmetric>, job);
  }
  const auto threads = [&](int64_t each) {
    return static_cast<int>(ceil_div(ceil_div(job.units, each), 32) * 32);
  };
  if (job.units <= 4 * 256) {
    return launch(call, spec.name, {job.rows, threads(4)}, row_kernel<T, kAsymmetric, 4>, job);
  }
  return launch(call, spec.name, {job.rows, threads(8)}, row_kernel<T, kAsymmetric, 8>, job);
}

template <bool kAsymmetric>
Status run_for(const Call& call) {
  const Job job = job_of(call);
  const auto hadamard = static_cast<int>(call.integer(kHadamard));
  if (hadamard > 0) return run_rotated<kAsymmetric>(call, job, hadamard);
  switch (job.x_dtype) {
    case DType::kBF16: return run_as<Bf16, kAsymmetric>(call, job);
    case DType::kF16: return run_as<F16, kAsymmetric>(call, job);
    default: return run_as<F32, kAsymmetric>(call, job);
  }
}

Status run(const Call& call) {
  return call.has(kZeroOut) ? run_for<true>(call) : run_for<false>(call);
}

Status run_any(const Call& call) {
  const TensorView& x = call.tensor(kX);
  AnyJob job{};
  job.x = AnyTensor(x);
  job.q = AnyTensor(call.tensor(kQ));
  job.scale = AnyTensor(call.tensor(kScaleOut));
  job.asymmetric = call.has(kZeroOut);
  if (job.asymmetric) job.zero = AnyTensor(call.tensor(kZeroOut));
  job.ends = static_cast<uint32_t*>(call.workspace);
  job.columns = x.shape[1];
  job.group = group_of(call);
  job.groups = call.tensor(kScaleOut).shape[1];
  job.stochastic = call.integer(kRounding) == 1;
  job.seed = static_cast<uint64_t>(call.integer(kSeed));
  job.hadamard = static_cast<int>(call.integer(kHadamard));
  if (numel(x) == 0) return {};
  const int64_t scales = numel(call.tensor(kScaleOut));
  const Grid grid{x.shape[0] * ceil_div(x.shape[1], kAnyColumns), kAnyThreads};
  PESTLE_TRY(clear(call, job.ends, scales * 8));
  PESTLE_TRY(launch(call, "quantize_int4_any", grid, any_kernel<false>, job));
  PESTLE_TRY(launch(call, "quantize_int4_any", {ceil_div(scales, kAnyThreads), kAnyThreads},
                    any_scales, job, scales));
  return launch(call, "quantize_int4_any", grid, any_kernel<true>, job);
}

// Elements of a row side by side, rows anywhere at multiples of the element.
std::string refuse_rows(const char* name, const TensorView& t, uintptr_t bytes) {
  const bool dense = t.shape[1] <= 1 || t.strides[1] == 1;
  return dense && reinterpret_cast<uintptr_t>(t.data) % bytes == 0
             ? ""
             : std::string(name) + " has gaps within a row or is not aligned";
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (numel(x) == 0) return "the tensor is empty";
  const bool rotates = call.integer(kHadamard) > 0;
  const int lanes = group_lanes(call);
  if (lanes < 0) {
    return "group_size is no power of two from " + std::to_string(lane_columns(call)) + " to " +
           std::to_string(32 * lane_columns(call));
  }
  const int64_t step = lanes == 0 && !rotates ? kUnit : 2 * kUnit;
  if (x.shape[1] % step != 0) return "K is no multiple of " + std::to_string(step);
  const int64_t longest = rotates ? kRowWarps * kPiece : kLongestRow;
  if (lanes == 0 && x.shape[1] > longest) {
    return "rows of more than " + std::to_string(longest) + " elements in one group";
  }
  if (x.shape[1] / kUnit > kMostUnits) return "K is beyond 2^30";
  if (numel(x) / kPiece >= INT_MAX / 2) return "the tensor has more than 2^40 elements";
  if (std::string why = refuse_unaligned("x", x); !why.empty()) return why;
  if (std::string why = refuse_unaligned("q", call.tensor(kQ), step / 2); !why.empty()) return why;
  if (std::string why = refuse_rows("scale_out", call.tensor(kScaleOut), 4); !why.empty()) {
    return why;
  }
  return call.has(kZeroOut) ? refuse_rows("zero_out", call.tensor(kZeroOut), 1) : "";
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_int4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/quantize_int4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "8*numel(scale_out)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_int4
