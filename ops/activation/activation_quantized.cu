// Codes of an activation on CUDA, straight from registers: a row in shared memory
// (activation_rows.cu) costs 7 instructions an element besides, since a thread has 48 elements of
// it.
// Map      tiles  scales of blocks, or one given for the tensor: a thread 16 neighbours in each of
//                 kRows rows
//          rows   a scale computed for each row: a thread block a row, 64 (f32: 32) elements a
//                 thread, which stay in registers between the row's largest and its codes
// Traffic  x once, codes and scales once.
// Numerics values are rounded to x's dtype first; codes: ops/quant/output/quantized_output.h.
// Measured bf16 12288 x 12288 on an H200, share of the copy: fp8 of the tensor 99 %, by row 96 %,
//          int8 by row 96 %, mxfp8 92 %, nvfp4 75 % (in shared memory: 86, 81, 83, 87, 68 %).
#include "ops/activation/activation_quantized.cuh"

#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace row_quantizer;

constexpr int kThreads = 256;  // of a block, at most

struct DirectJob {
  const char* x;
  int64_t x_row_bytes;
  int rows;
  int units;  // of a row: runs of 16 (tiles) or of 8 (rows)
  FastDivisor column_blocks;
  Activation act;
  RowQuantizer codes;
};

// A unit of 8, rounded to T.
template <class T>
__device__ inline void activate_raw(Activation act, typename T::Raw& raw) {
  float v[kUnit];
  T::to_f32(raw, v);
  if constexpr (T::kBytes == 2)
    activation_codes::activate_roughly(act, v);
  else
    activate(act, v);
  raw = round_loosely<T>(v);
}
// The same for all of a thread's, with one branch for them together.
template <class T, int kCount>
__device__ inline void activate_all(Activation act, typename T::Raw (&raw)[kCount]) {
  const auto all = [&](Activation one) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) activate_raw<T>(one, raw[i]);
  };
  switch (act) {
    case Activation::kSilu: return all(Activation::kSilu);
    case Activation::kGelu: return all(Activation::kGelu);
    default: return all(Activation::kGeluTanh);
  }
}

// ---- tiles ----

template <class T>
constexpr int kRowsOf = T::kBytes == 2 ? 4 : 2;

// Codes of a byte under the tensor's scale.
template <class T, class Code>
__device__ inline void put_given_run(const RowQuantizer& o, const ByteRule& rule, char* q,
                                     const typename T::Raw& low, const typename T::Raw& high) {
  const uint32_t largest = largest_of<T>(low, high);
  if (!rule.by.is_short(__uint_as_float(largest))) {
    store_run(o, q, any_byte_codes<T, Code>(low, rule.by.scale),
              any_byte_codes<T, Code>(high, rule.by.scale));
  } else if (rule.by_reciprocal) {
    store_run(o, q, bytes_by_reciprocal<T, Code, false>(low, rule),
              bytes_by_reciprocal<T, Code, false>(high, rule));
  } else {
    store_run(o, q, short_byte_codes<T, Code, false>(low, rule.by),
              short_byte_codes<T, Code, false>(high, rule.by));
  }
}

template <class T, class Kind>
__global__ void __launch_bounds__(kThreads, 3) tiles_kernel(const __grid_constant__ DirectJob p) {
  constexpr int kRows = kRowsOf<T>, kRunBytes = kRun * T::kBytes;
  const TilePlace place = tile_place(p.column_blocks, kRows, blockIdx.x);
  const int first_row = static_cast<int>(place.row);
  const bool inside = place.unit < p.units;
  const int rows = inside ? rows_left(p.rows, place.row, kRows) : 0;
  const char* x = p.x + place.row * p.x_row_bytes + static_cast<int64_t>(place.unit) * kRunBytes;
  typename T::Raw raw[2 * kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r, x += p.x_row_bytes) {
    raw[2 * r] = r < rows ? T::load(x) : T::zero();
    raw[2 * r + 1] = r < rows ? T::load(x + kUnit * T::kBytes) : T::zero();
  }
  const RowQuantizer& o = p.codes;
  activate_all<T>(p.act, raw);
  if constexpr (Kind::kBytes) {
    const ByteRule rule = given_rule<T, typename Kind::Code>(__ldg(o.given));
    char* q = o.q + place.row * o.q_row_bytes + place.unit * kRun;
#pragma unroll
    for (int r = 0; r < kRows; ++r, q += o.q_row_bytes) {
      if (r < rows) put_given_run<T, typename Kind::Code>(o, rule, q, raw[2 * r], raw[2 * r + 1]);
    }
  } else {
    Nvfp4Scale global{};
    if constexpr (std::is_same_v<Kind, Nvfp4Output>) global = Nvfp4Scale::from<T>(o.global_scale);
    constexpr int kBytes = kRun / (std::is_same_v<Kind, Nvfp4Output> ? 2 : 1);  // of a run's codes
    char* q = o.q + place.row * o.q_row_bytes + place.unit * kBytes;
#pragma unroll
    for (int r = 0; r < kRows; ++r, q += o.q_row_bytes) {
      const auto &low = raw[2 * r], &high = raw[2 * r + 1];
      uint32_t amax = largest_of<T>(low, high);
      uint8_t* scale = o.scale_row(first_row + r) + o.scale_place(place.unit / Kind::kRuns);
      if constexpr (std::is_same_v<Kind, Nvfp4Output>) {
        if (r >= rows) continue;
        const uint3 done = nvfp4_block<T>(low, high, amax, global, o.high_first);
        store_plain(q, make_uint2(done.x, done.y));
        store_plain(scale, static_cast<uint8_t>(done.z));
      } else {
        amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
        if (r >= rows) continue;
        const Mxfp8Scale block = Mxfp8Scale::of(amax);
        store_run(o, q, block.codes<T>(low), block.codes<T>(high));
        if (threadIdx.x % 2 == 0) store_plain(scale, block.code);
      }
    }
    // One block of each stretch of rows has their padding, too.
    if (place.unit < static_cast<int>(blockDim.x)) {
      for (int r = 0; r < min(kRows, p.rows - first_row); ++r) {
        o.clear_padding(first_row + r, p.rows, threadIdx.x, blockDim.x);
      }
    }
  }
}

// ---- rows ----

template <class T>
constexpr int kUnitsOf = T::kBytes == 2 ? 8 : 4;  // of a thread

template <class T, class Code>
__global__ void __launch_bounds__(kThreads, 3) rows_kernel(const __grid_constant__ DirectJob p) {
  constexpr int kUnits = kUnitsOf<T>, kBytes = kUnit * T::kBytes;
  __shared__ uint32_t warps[kThreads / 32];
  const auto row = static_cast<int64_t>(blockIdx.x);
  const char* x = p.x + row * p.x_row_bytes;
  const int threads = static_cast<int>(blockDim.x);
  typename T::Raw raw[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int unit = static_cast<int>(threadIdx.x) + i * threads;
    raw[i] = unit < p.units ? T::load(x + unit * kBytes) : T::zero();
  }
  activate_all<T>(p.act, raw);
  MagnitudeOf<T> most;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if constexpr (T::kBytes == 2) {
      most.add(raw[i].v);
    } else {
      most.add(raw[i].low);
      most.add(raw[i].high);
    }
  }
  const uint32_t own = __reduce_max_sync(~0u, most.bits());
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  const uint32_t largest = __reduce_max_sync(~0u, lane < blockDim.x / 32 ? warps[lane] : 0u);
  const float scale = Code::scale(largest);
  const RowQuantizer& o = p.codes;
  if (threadIdx.x == 0) o.scale_out[row] = scale;
  const ByteRule rule = computed_rule<T, Code>(scale, largest);
  char* q = o.q + row * o.q_row_bytes;
  const auto each = [&](auto codes) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = static_cast<int>(threadIdx.x) + i * threads;
      if (unit < p.units) store_plain(q + unit * kUnit, codes(raw[i]));
    }
  };
  using Raw = typename T::Raw;
  if (!rule.by.is_short(__uint_as_float(largest))) {
    each([&](const Raw& one) { return any_byte_codes<T, Code>(one, scale); });
  } else if (rule.by_reciprocal) {
    each([&](const Raw& one) { return bytes_by_reciprocal<T, Code, true>(one, rule); });
  } else {
    each([&](const Raw& one) { return short_byte_codes<T, Code, true>(one, rule.by); });
  }
}

// ---- host ----

bool is_by_rows(const ActivationRows& a) { return a.quant.row_scale(); }

// Threads of a block of tiles: of those that fill 24 warps, the ones that leave the fewest idle.
int tile_threads(int64_t units) {
  int best = 256;
  int64_t least = INT64_MAX;
  for (int threads : {256, 192, 128, 96, 64}) {
    const int64_t covered = ceil_div(units, threads) * threads;
    if (covered < least) best = threads;
    least = std::min(least, covered);
  }
  return best;
}

template <class T>
Status start_tiles(const Call& call, const char* name, DirectJob& job, const ActivationRows& a) {
  job.units = static_cast<int>(a.columns() / kRun);
  const int threads = tile_threads(job.units);
  const int64_t across = ceil_div(job.units, threads);
  job.column_blocks = FastDivisor(static_cast<uint32_t>(across));
  const Grid grid{across * ceil_div(a.rows(), kRowsOf<T>), threads};
  switch (a.quant.format) {
    case OutFormat::kNvfp4: return launch(call, name, grid, tiles_kernel<T, Nvfp4Output>, job);
    case OutFormat::kMxfp8: return launch(call, name, grid, tiles_kernel<T, Mxfp8Output>, job);
    default:
      return launch(call, name, grid, tiles_kernel<T, ByteOutput<Fp8Code<formats::E4m3>>>, job);
  }
}

template <class T>
Status start(const Call& call, const char* name, DirectJob& job, const ActivationRows& a) {
  if (!is_by_rows(a)) return start_tiles<T>(call, name, job, a);
  job.units = static_cast<int>(a.columns() / kUnit);
  const auto threads = static_cast<int>(ceil_div(ceil_div(job.units, kUnitsOf<T>), 32) * 32);
  const Grid grid{a.rows(), threads};
  if (a.quant.format == OutFormat::kInt8Row) {
    return launch(call, name, grid, rows_kernel<T, Int8Code>, job);
  }
  return launch(call, name, grid, rows_kernel<T, Fp8Code<formats::E4m3>>, job);
}

}  // namespace

bool takes_direct_quantized(const ActivationRows& a) {
  if (a.quant.format == OutFormat::kNone || a.gate.data != nullptr || a.out.data != nullptr) {
    return false;
  }
  if (!is_by_rows(a)) return a.columns() % kRun == 0 && a.rows() < INT_MAX;
  // Shorter rows belong to warps, longer ones to clusters.
  const int bytes = dtype_bytes(a.x.dtype);
  const bool fits = a.columns() * bytes >= 8192 && a.columns() * bytes <= 32768;
  return a.quant.computes_row_scale() && a.quant.hadamard == 0 && fits;
}

Status quantized_activation_direct(const Call& call, const char* name, const ActivationRows& a) {
  DirectJob job{a.x.as<const char>(), row_distance(a.x), static_cast<int>(a.rows()), 0, {}, a.act,
                RowQuantizer(a.quant)};
  switch (a.x.dtype) {
    case DType::kBF16: return start<Bf16>(call, name, job, a);
    case DType::kF16: return start<F16>(call, name, job, a);
    default: return start<F32>(call, name, job, a);
  }
}

}  // namespace pestle::ops
