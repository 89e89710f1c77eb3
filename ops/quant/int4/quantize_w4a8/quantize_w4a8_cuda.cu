// quantize_w4a8 on CUDA.
// Map      fixed  the fixed codebook, rotations by 64 and 256: quantize_w4a8_fixed.cuh
//          fast   a thread block a row; a lane has whole groups of 16 neighbours, which it fits and
//                 keeps, rotated, in shared memory until the row's scale is known
//          any    a thread block 1024 columns of a row in shared memory, one pass for the fits and
//                 one for the codes; any strides, rotations and lengths
// Traffic  x once, codes and scales once; _any reads x twice.
// Numerics exact: f32 operation by operation as formats/w4a8.h. Quotients by device/divide.cuh
//          where that is exact, else the group goes by the scalar rule. Codes of a group's levels
//          ascend with its values, so its smallest and largest elements alone decide its peak.
// Measured 32768 x 16384 bf16 rotated by 256 on an H200: fixed 1181 us, 27 % of the copy; fast 2060
//          us, 15 %, 73 % of issue slots busy, at 25 % occupancy.
#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "backends/cuda/host/tensor_amax.h"
#include "formats/w4a8.h"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/int4/quantize_w4a8/quantize_w4a8_fixed.cuh"
#include "ops/quant/int4/quantize_w4a8/quantize_w4a8_spec.h"

namespace pestle::ops::quantize_w4a8 {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kHadamard = arg_index(spec, "hadamard");

constexpr int kGroup = static_cast<int>(formats::kW4a8Group);
constexpr int kLevels = formats::kW4a8Levels;
static_assert(kGroup == kLaneRun);
constexpr int kMostWarps = 8;                            // of a row
constexpr int kChunkBytes = kRotateFloats * 4 + 32 * 4;  // of shared memory: a chunk and its scales

// Levels of the call: the argument's, or the fixed ones.
struct Codebook {
  AnyTensor given;  // no memory: fixed
  float fixed[kLevels];

  explicit Codebook(const Call& call) {
    if (call.has(kCodebook)) given = AnyTensor(call.tensor(kCodebook));
    formats::w4a8_default_codebook(fixed);
  }
  __device__ float level(int i) const {
    return given.data == nullptr ? fixed[i] : given.load(given.data + i * given.strides[0]);
  }
};

// The codebook of a thread block. Row r of `tree` holds what step r + 2 of a search among the
// midpoints compares with, at the place that the steps before it have led to; row 2 the levels.
struct Tables {
  alignas(64) float tree[3][kLevels];
  formats::W4a8Table table;
  bool ascends;  // and is finite: else there is no nearest level
  bool exact;    // no midpoint lies so near 0 that quotients of such a size would have to be exact
};

// By all threads of the block.
__device__ void fill_tables(const Codebook& codebook, Tables& t) {
  if (threadIdx.x < 32) {
    const int i = static_cast<int>(threadIdx.x % kLevels), next = i + 1 < kLevels ? i + 1 : i;
    const float level = codebook.level(i);
    const float above = __shfl_sync(~0u, level, next, kLevels);
    const bool finite = formats::abs_bits(level) < formats::kF32Inf;
    const bool ascends = __all_sync(~0u, level <= above && finite);
    const float mid = (level + above) * 0.5f;
    const bool exact = __all_sync(~0u, next == i || fabsf(mid) >= 0x1p-20f);
    if (threadIdx.x < kLevels) {
      t.tree[2][i] = t.table.level[i] = level;
      if (next != i) t.table.mid[i] = mid;
      // Midpoint 4 * n + 1 is asked third after n, 2 * n last after n.
      if (next != i && i % 4 == 1) t.tree[0][i - 1] = mid;
      if (next != i && i % 2 == 0) t.tree[1][i] = mid;
    }
    if (threadIdx.x == 0) {
      t.ascends = ascends;
      t.exact = exact;
    }
  }
  __syncthreads();
}

// Searches among the codebook's midpoints; the first three are in registers. Written out, since the
// compiler selects and adds where one predicated addition does.
struct Search {
  uint32_t tree;  // in shared memory
  float mid3, mid7, mid11;

  __device__ explicit Search(const Tables& t)
      : tree(static_cast<uint32_t>(__cvta_generic_to_shared(t.tree))),
        mid3(t.table.mid[3]),
        mid7(t.table.mid[7]),
        mid11(t.table.mid[11]) {}

  // The level of formats::w4a8_index of a number.
  __device__ float nearest(float v) const {
    float level;
    asm volatile(
        "{.reg .pred p; .reg .f32 m; .reg .u32 a;\n"
        "setp.gt.f32 p, %1, %2; selp.f32 m, %4, %3, p; selp.u32 a, %6, %5, p;\n"
        "setp.gt.f32 p, %1, m; @p add.u32 a, a, 16;\n"
        "ld.shared.f32 m, [a]; setp.gt.f32 p, %1, m; @p add.u32 a, a, 8;\n"
        "ld.shared.f32 m, [a + 64]; setp.gt.f32 p, %1, m; @p add.u32 a, a, 4;\n"
        "ld.shared.f32 %0, [a + 128];}"
        : "=f"(level)
        : "f"(v), "f"(mid7), "f"(mid3), "f"(mid11), "r"(tree), "r"(tree + 32));
    return level;
  }
};

struct Job : RowTensors {
  int chunks;
};

// What a lane keeps of a chunk in shared memory: its group, rotated, and the group's scale.
struct Kept {
  float* values;
  float* scale;

  __device__ Kept(float* memory, int chunks, int chunk)
      : values(memory + chunk * kRotateFloats),
        scale(memory + chunks * kRotateFloats + chunk * 32 + threadIdx.x % 32) {}
  __device__ void load(float (&v)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four = *quad(i);
      v[4 * i] = four.x;
      v[4 * i + 1] = four.y;
      v[4 * i + 2] = four.z;
      v[4 * i + 3] = four.w;
    }
  }
  __device__ void store(const float (&v)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *quad(i) = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
  }
  __device__ float4* quad(int i) const {
    return reinterpret_cast<float4*>(values + lane_quad(static_cast<int>(threadIdx.x % 32), i));
  }
};

// ---- groups by the scalar rule ----

__device__ __noinline__ formats::W4a8Fit fit_slowly(Kept kept, const formats::W4a8Table* table) {
  float v[kGroup];
  kept.load(v);
  return formats::w4a8_fit_group(v, *table);
}
__device__ __noinline__ uint2 codes_slowly(Kept kept, const formats::W4a8Table* table, uint8_t rel,
                                           float channel) {
  float v[kGroup];
  uint8_t codes[kGroup];
  kept.load(v);
  formats::w4a8_assign_group(v, *table, rel, channel, codes);
  uint32_t words[2] = {0, 0};
  for (int i = 0; i < kGroup; ++i) words[i / 8] |= uint32_t{codes[i]} << (i % 8 * 4);
  return make_uint2(words[0], words[1]);
}

// ---- fast ----

// max_keep_nan of numbers that are none.
__device__ inline float at_least_smallest(float v) { return fmaxf(v, formats::kW4a8MinScale); }

// Assigns and refits once: formats::w4a8_fit_group's loop.
__device__ inline float refit(const float (&v)[kGroup], const Divider& by, const Search& search) {
  float num[kGroup / 2], den[kGroup / 2];
#pragma unroll
  for (int i = 0; i < kGroup / 2; ++i) {
    const float low = search.nearest(by.shortly(v[i]));
    const float high = search.nearest(by.shortly(v[i + 8]));
    num[i] = v[i] * low + v[i + 8] * high;
    den[i] = low * low + high * high;
  }
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) {
      num[i] = num[i] + num[i + half];
      den[i] = den[i] + den[i + half];
    }
  }
  return at_least_smallest(__fdiv_rn(num[0], at_least_smallest(den[0])));
}

// formats::w4a8_fit_group; a scale of 0: it does not hold here.
__device__ inline formats::W4a8Fit fit_quickly(const float (&v)[kGroup], float low, float high,
                                               const Search& search) {
  const float amax = fmaxf(-low, high);
  float scale = at_least_smallest(amax);
#pragma unroll 1
  for (int pass = 0; pass < formats::kW4a8Passes; ++pass) {
    const Divider by = Divider::by(scale);
    if (!by.is_short(amax)) return {0, 0};
    scale = refit(v, by, search);
  }
  const Divider by = Divider::by(scale);
  if (!by.is_short(amax)) return {0, 0};
  const float lowest = search.nearest(by.shortly(low));
  const float highest = search.nearest(by.shortly(high));
  return {scale, formats::abs_bits(fmaxf(fabsf(lowest), fabsf(highest)) * scale)};
}

struct RowEnds {
  uint32_t peak = 0;  // formats::W4a8Fit
  uint32_t amax = 0;
};

// Fits this lane's group, which it keeps.
__device__ inline void fit_kept(const float (&v)[kGroup], const Kept& kept, const Tables& tables,
                                const Search& search, RowEnds& ends) {
  float low = v[0], high = v[0];
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    low = fminf(low, v[i]);
    high = fmaxf(high, v[i]);
    amax = max(amax, formats::abs_bits(v[i]));
  }
  formats::W4a8Fit fit{0, 0};
  if (amax < formats::kF32Inf && tables.exact) fit = fit_quickly(v, low, high, search);
  if (!(fit.scale > 0)) fit = fit_slowly(kept, &tables.table);
  *kept.scale = fit.scale;
  ends.peak = max(ends.peak, fit.peak);
  ends.amax = max(ends.amax, amax);
}

// Codes of a group under quotients in range: formats::w4a8_assign_group. `own`: this lane's column
// of 8 rows of 32 floats of shared memory.
__device__ inline uint2 codes_quickly(const float (&v)[kGroup], const Tables& tables, float rel,
                                      const Divider& by, float* own) {
  // Twice the midpoints; they are compared with twice the quotients.
  float mid[kLevels - 1];
  float below = 0;
#pragma unroll
  for (int i = 0; i < kLevels; ++i) {
    const float clamped = fminf(fmaxf(tables.tree[2][i] * rel, -127.0f), 127.0f);
    const float value = (clamped + 0x1.8p23f) - 0x1.8p23f;
    if (i > 0) mid[i - 1] = below + value;
    below = value;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) own[32 * i] = mid[2 * i];
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float quotient = by.shortly(v[i]);
    // 64 times the code: the last midpoint lies 128 bytes times half of it from `base` on.
    uint32_t code;
    asm volatile(
        "{.reg .pred p; .reg .f32 m, u, d; .reg .u32 a;\n"
        "setp.gt.f32 p, %1, %5; selp.f32 m, %7, %3, p; selp.f32 u, %8, %4, p;\n"
        "selp.f32 d, %6, %2, p; selp.u32 a, %10, %9, p;\n"
        "setp.gt.f32 p, %1, m; selp.f32 m, u, d, p; @p add.u32 a, a, 256;\n"
        "setp.gt.f32 p, %1, m; @p add.u32 a, a, 128;\n"
        "ld.shared.f32 m, [a]; setp.gt.f32 p, %1, m; sub.u32 %0, a, %9; @p add.u32 %0, %0, 64;}"
        : "=&r"(code)
        : "f"(quotient + quotient), "f"(mid[1]), "f"(mid[3]), "f"(mid[5]), "f"(mid[7]), "f"(mid[9]),
          "f"(mid[11]), "f"(mid[13]), "r"(base), "r"(base + 512));
    words[i / 8] |= i % 8 * 4 >= 6 ? code << (i % 8 * 4 - 6) : code >> (6 - i % 8 * 4);
  }
  return make_uint2(words[0], words[1]);
}

// Is codes_quickly exact under this scale of a row? Quotients of subnormals keep their sign where
// they are not made smaller.
__device__ inline bool is_short(const Divider& by, uint32_t amax) {
  return by.scale <= 0.5f && by.is_short(__uint_as_float(amax));
}

// This lane's group of a chunk in neighbours again, rotated and normed.
template <int kN>
__device__ inline void rotate_group(float (&v)[kGroup], float* shared) {
  if constexpr (kN > 0) {
    float one[1][kLaneRun];
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = 0; i < kLaneRun; ++i) one[0][i] = v[i];
    warp_rotate<kN, true>(one, shared);
    if constexpr (kN >= 64) {
      __syncwarp();
      put_strided<kN>(shared, lane, one[0]);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(shared + lane_quad(lane, i));
        one[0][4 * i] = four.x;
        one[0][4 * i + 1] = four.y;
        one[0][4 * i + 2] = four.z;
        one[0][4 * i + 3] = four.w;
      }
    }
    const float norm = formats::hadamard_norm(kN);
#pragma unroll
    for (int i = 0; i < kLaneRun; ++i) v[i] = one[0][i] * norm;
  }
}

// This lane's 16 neighbours; zeros behind the row's end.
template <class T>
__device__ inline void load_group_of(const char* x, bool inside, float (&v)[kGroup]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float y[kUnit];
    T::to_f32(inside ? T::load(x + half * kUnit * T::kBytes) : T::zero(), y);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) v[half * kUnit + i] = y[i];
  }
}
__device__ inline void load_group(const Job& job, const char* x, bool inside, float (&v)[kGroup]) {
  switch (job.x_dtype) {
    case DType::kBF16: return load_group_of<Bf16>(x, inside, v);
    case DType::kF16: return load_group_of<F16>(x, inside, v);
    default: return load_group_of<F32>(x, inside, v);
  }
}

// The largest of the block, for all threads. `warps`: room for a word a warp.
__device__ inline uint32_t largest_of_block(uint32_t value, uint32_t* warps) {
  value = __reduce_max_sync(~0u, value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_max_sync(~0u, threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0u);
}

// A row for which there is no nearest level: its scale is NaN, and so is all that it decodes to.
__device__ inline void fill_with_nan(const Job& job, int64_t row) {
  if (threadIdx.x == 0) job.scale_channel[row] = formats::f32_nan();
  for (int g = threadIdx.x; g < job.columns / kGroup; g += blockDim.x) {
    job.scale_rel[row * job.scale_rel_row_bytes + g] = 0x7F;
    store8(job.q + row * job.q_row_bytes + g * (kGroup / 2), make_uint2(0, 0));
  }
}

template <int kN>
__global__ void __launch_bounds__(32 * kMostWarps, 3)
    rows_kernel(const Job job, const __grid_constant__ Codebook codebook) {
  cuda::wait_previous_kernel();
  extern __shared__ __align__(16) float memory[];
  __shared__ Tables tables;
  __shared__ uint32_t warps[2][kMostWarps];
  fill_tables(codebook, tables);
  const int64_t row = blockIdx.x;
  if (!tables.ascends) return fill_with_nan(job, row);
  const Search search(tables);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int step = static_cast<int>(blockDim.x / 32);
  const char* x = job.x + row * job.x_row_bytes;
  RowEnds ends;
  for (int chunk = warp; chunk < job.chunks; chunk += step) {
    const int first = chunk * kChunk + lane * kGroup;
    const Kept kept(memory, job.chunks, chunk);
    float v[kGroup];
    load_group(job, x + static_cast<int64_t>(first) * job.x_bytes, first < job.columns, v);
    rotate_group<kN>(v, kept.values);
    __syncwarp();
    kept.store(v);
    if (first < job.columns) fit_kept(v, kept, tables, search, ends);
  }
  const uint32_t peak = largest_of_block(ends.peak, warps[0]);
  const uint32_t amax = largest_of_block(ends.amax, warps[1]);
  const float channel = formats::w4a8_channel_scale(peak);
  if (threadIdx.x == 0) job.scale_channel[row] = channel;
  const Divider by = Divider::by(channel);
  const bool quick = is_short(by, amax);
  char* q = job.q + row * job.q_row_bytes;
  char* scale_rel = job.scale_rel + row * job.scale_rel_row_bytes;
  for (int chunk = warp; chunk < job.chunks; chunk += step) {
    const int first = chunk * kChunk + lane * kGroup;
    const Kept kept(memory, job.chunks, chunk);
    float v[kGroup];
    kept.load(v);
    __syncwarp();  // the chunk's memory serves codes_quickly now
    if (first >= job.columns) continue;
    const auto rel =
        static_cast<uint8_t>(fp8_pair<formats::E4m3>(__fdiv_rn(*kept.scale, channel), 0.0f));
    uint2 words;
    if (quick) {
      words = codes_quickly(v, tables, e4m3_value(rel), by, kept.values + lane);
    } else {
      words = codes_slowly(kept, &tables.table, rel, channel);
    }
    scale_rel[first / kGroup] = static_cast<char>(rel);
    store8(q + first / 2, words);
  }
}

// ---- any ----

struct AnyJob {
  AnyTensor x, q, scale_rel, scale_channel;
  float* fitted;   // of a group
  uint32_t* peak;  // of a row
  int64_t columns;
  int hadamard;
};

// kEncodes false: fits. Else codes.
template <bool kEncodes>
__global__ void __launch_bounds__(kAnyThreads)
    any_kernel(const AnyJob job, const __grid_constant__ Codebook codebook) {
  __shared__ float v[kAnyColumns];
  __shared__ Tables tables;
  fill_tables(codebook, tables);
  const int64_t pieces = (job.columns + kAnyColumns - 1) / kAnyColumns;
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kAnyColumns;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), job.columns - first));
  load_piece(job.x, row, first, count, v);
  if (job.hadamard > 0) rotate_shared(v, count, job.hadamard);
  __syncthreads();
  for (int g = threadIdx.x; g < count / kGroup; g += kAnyThreads) {
    const int64_t group = first / kGroup + g;
    float* fitted = job.fitted + row * (job.columns / kGroup) + group;
    if constexpr (!kEncodes) {
      formats::W4a8Fit fit{formats::f32_nan(), formats::kF32Nan};
      if (tables.ascends) fit = formats::w4a8_fit_group(v + g * kGroup, tables.table);
      *fitted = fit.scale;
      atomicMax(job.peak + row, fit.peak);
    } else {
      const float channel = formats::w4a8_channel_scale(job.peak[row]);
      const uint8_t rel = formats::w4a8_relative_scale(*fitted, channel);
      uint8_t codes[kGroup];
      formats::w4a8_assign_group(v + g * kGroup, tables.table, rel, channel, codes);
      *job.scale_rel.at(row, group) = static_cast<char>(rel);
      for (int i = 0; i < kGroup; i += 2) {
        *job.q.at(row, (group * kGroup + i) / 2) = static_cast<char>(codes[i] | codes[i + 1] << 4);
      }
    }
  }
}

__global__ void __launch_bounds__(kAnyThreads) any_scales(const AnyJob job, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kAnyThreads + threadIdx.x;
  if (row >= rows) return;
  const AnyTensor& out = job.scale_channel;
  out.store(out.data + row * out.strides[0], formats::w4a8_channel_scale(job.peak[row]));
}

// ---- host ----

RowTensors row_tensors(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& scale_rel = call.tensor(kScaleRel);
  return {x.as<const char>(),
          row_distance(x),
          dtype_bytes(x.dtype),
          x.dtype,
          call.tensor(kQ).as<char>(),
          row_distance(call.tensor(kQ)),
          scale_rel.as<char>(),
          scale_rel.strides[0],
          call.tensor(kScaleChannel).as<float>(),
          static_cast<int>(x.shape[1])};
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const auto chunks = static_cast<int>(ceil_div(x.shape[1], kChunk));
  const Job job{row_tensors(call), chunks};
  const int warps = std::min(chunks, kMostWarps);
  const Grid grid{x.shape[0], 32 * warps, static_cast<size_t>(chunks * kChunkBytes)};
  const auto start = [&](auto n) -> Status {
    constexpr int kN = n <= 256 ? static_cast<int>(n) : 256;
    PESTLE_TRY(allow_shared(call, rows_kernel<kN>, static_cast<int>(grid.shared_bytes)));
    return launch_early(call, spec.name, grid, rows_kernel<kN>, job, Codebook(call));
  };
  const auto hadamard = static_cast<int>(call.integer(kHadamard));
  return hadamard == 0 ? start(std::integral_constant<int, 0>()) : with_hadamard(hadamard, start);
}

Status run_fixed(const Call& call) {
  const TensorView& x = call.tensor(kX);
  FixedJob job{row_tensors(call), x.shape[0], 1};
  const auto warps = static_cast<int>(ceil_div(x.shape[1], kLongPiece));
  // The tables of a thread block cost as much as two of its rows: two waves of blocks at most.
  const int64_t at_once = static_cast<int64_t>(std::max(1, kResidentWarps / warps)) *
                          multiprocessors(device_index(call));
  job.rows_each = static_cast<int>(std::clamp<int64_t>(ceil_div(job.rows, 2 * at_once), 1, 64));
  const size_t each = kLongQuads * sizeof(float4) + kLongPiece * static_cast<size_t>(job.x_bytes);
  const Grid grid{ceil_div(job.rows, job.rows_each), 32 * warps, warps * each + kTableBytes};
  const auto start = [&](auto kernel) -> Status {
    PESTLE_TRY(allow_shared(call, kernel, static_cast<int>(grid.shared_bytes)));
    return launch(call, "quantize_w4a8_fixed", grid, kernel, job);
  };
  const bool wide = job.x_bytes == 4;
  if (call.integer(kHadamard) == 64) {
    return wide ? start(fixed_kernel<64, true>) : start(fixed_kernel<64, false>);
  }
  return wide ? start(fixed_kernel<256, true>) : start(fixed_kernel<256, false>);
}

Status run_any(const Call& call) {
  const TensorView& x = call.tensor(kX);
  auto* peak = static_cast<uint32_t*>(call.workspace);
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const AnyJob job{AnyTensor(x),
                   AnyTensor(call.tensor(kQ)),
                   AnyTensor(call.tensor(kScaleRel)),
                   AnyTensor(call.tensor(kScaleChannel)),
                   reinterpret_cast<float*>(peak + rows),
                   peak,
                   columns,
                   static_cast<int>(call.integer(kHadamard))};
  if (rows == 0) return {};
  const Codebook codebook(call);
  const Grid grid{rows * ceil_div(columns, kAnyColumns), kAnyThreads};
  const char* name = "quantize_w4a8_any";
  PESTLE_TRY(clear(call, peak, 4 * rows));
  PESTLE_TRY(launch(call, name, grid, any_kernel<false>, job, codebook));
  PESTLE_TRY(launch(call, name, {ceil_div(rows, kAnyThreads), kAnyThreads}, any_scales, job, rows));
  return launch(call, name, grid, any_kernel<true>, job, codebook);
}

// Bytes of shared memory that a thread block may have.
int most_shared(int compute_capability) {
  const int major = compute_capability / 10;
  if (major == 9 || major == 10) return 220 << 10;
  return compute_capability == 80 || compute_capability == 87 ? 160 << 10 : 96 << 10;
}

std::string refuses(const Call& call, const Machine& machine) {
  const TensorView& x = call.tensor(kX);
  const TensorView& scale_rel = call.tensor(kScaleRel);
  const TensorView& channel = call.tensor(kScaleChannel);
  if (numel(x) == 0) return "the tensor is empty";
  if (call.integer(kHadamard) > 256) return "groups of 1024";
  const int64_t longest = most_shared(machine.compute_capability) / kChunkBytes * kChunk;
  if (x.shape[1] > longest) return "rows of more than " + std::to_string(longest) + " elements";
  if (std::string why = refuse_unaligned("x", x); !why.empty()) return why;
  if (std::string why = refuse_unaligned("q", call.tensor(kQ), 8); !why.empty()) return why;
  if (scale_rel.shape[1] > 1 && scale_rel.strides[1] != 1) {
    return "scale_rel has gaps within a row";
  }
  return is_contiguous(channel) && reinterpret_cast<uintptr_t>(channel.data) % 4 == 0
             ? ""
             : "scale_channel has gaps or is not aligned to 4 bytes";
}

std::string refuses_fixed(const Call& call, const Machine& machine) {
  if (std::string why = refuses(call, machine); !why.empty()) return why;
  const TensorView& rel = call.tensor(kScaleRel);
  if (call.has(kCodebook)) return "a codebook is given";
  const int64_t hadamard = call.integer(kHadamard);
  if (hadamard != 64 && hadamard != 256) return "groups of other than 64 and 256 columns";
  if (call.tensor(kX).shape[1] > kLongWarps * kLongPiece) {
    return "rows of more than " + std::to_string(kLongWarps * kLongPiece) + " elements";
  }
  return rel.strides[0] % 4 == 0 && reinterpret_cast<uintptr_t>(rel.data) % 4 == 0
             ? ""
             : "rows of scale_rel do not begin at multiples of 4 bytes";
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_w4a8_fixed",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_fixed,
     .run = run_fixed},
    {.id = "cuda/quantize_w4a8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/quantize_w4a8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any,
     .workspace = "4*numel(scale_channel) + 4*numel(scale_rel)"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_w4a8
