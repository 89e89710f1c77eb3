// gemv_nvfp4 on CUDA.
// Map      _hopper: gemv_nvfp4_hopper.cuh. From sm_80 on a CTA of 8 warps takes 32 rows of a batch, a
//          warp 4 of them: a lane reads 16 bytes (32 codes) of each row and multiplies them with the
//          same 32 values of b, which the CTA decoded into shared memory (16,384 columns at a time).
//          The next step's codes are loaded before this one's are used.
//          _any: a warp a row, a block of 16 a lane, byte by byte: any strides, offsets and K.
// Traffic  a and its scales once; b and its scales once a CTA, from L2.
// Numerics E2M1 times 2^-14 is an f16 number of the same bits; eight products of such with values of b
//          are multiples of 2^-16 below 2^-5, which f16 adds exactly. A block's two such sums times its
//          scales, and all that follows, is f32: lanes by blocks, then a tree over the warp.
// Nibbles  both operands have the same order, on which a sum of products does not depend.
// Needs    K % 32 == 0, rows and batches of codes 16 bytes apart, scales plain or swizzled (else _any).
#include <cuda_fp16.h>

#include "backends/cuda/device/numeric/e2m1_pairs.cuh"
#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/runtime.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_hopper.cuh"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_spec.h"

namespace pestle::ops::gemv_nvfp4 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kAlpha = arg_index(spec, "alpha");
constexpr int kOut = arg_index(spec, "out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

constexpr int kWarps = 8;
constexpr int kWarpRows = 4;
constexpr int kRows = kWarps * kWarpRows;  // of a CTA
constexpr int kChunk = 16384;              // columns of b in shared memory
constexpr int kUnit = 32;                  // codes of a lane and step

__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

__device__ __forceinline__ uint32_t value_pair(uint32_t bits) {
  const __half2 value = __hmul2(as_half2(bits), __float2half2_rn(cuda::kE2m1PairUnit));
  return *reinterpret_cast<const uint32_t*>(&value);
}

// Values of b: for each step of a warp four times 32 lanes of 16 bytes, the pairs of one word each.
struct Vector {
  uint4 pairs[kChunk / 8];
  float factors[kChunk / kBlock];
};

// Columns [column, column + count) of b.
__device__ void decode_vector(const Job& job, int64_t batch, int64_t column, int count,
                              Vector& vector) {
  const char* codes = job.b + batch * job.b_batch + column / 2;
  for (int unit = static_cast<int>(threadIdx.x); unit < count / kUnit; unit += kWarps * 32) {
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(codes) + unit);
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
    uint4* to = vector.pairs + unit / 32 * 128 + unit % 32;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      to[w * 32] = make_uint4(
          value_pair(cuda::e2m1_pair_bits<0>(all[w])), value_pair(cuda::e2m1_pair_bits<1>(all[w])),
          value_pair(cuda::e2m1_pair_bits<2>(all[w])), value_pair(cuda::e2m1_pair_bits<3>(all[w])));
    }
    const uint8_t* scales = job.scale_b.at(batch, 0, (column + unit * kUnit) / kBlock);
    vector.factors[2 * unit] = cuda::e4m3_value(scales[0]);
    vector.factors[2 * unit + 1] = cuda::e4m3_value(scales[1]);
  }
}

// Eight codes times values of b, onto `sum`.
__device__ __forceinline__ __half2 add_word(uint32_t word, const uint4& values, __half2 sum) {
  sum = __hfma2(as_half2(cuda::e2m1_pair_bits<0>(word)), as_half2(values.x), sum);
  sum = __hfma2(as_half2(cuda::e2m1_pair_bits<1>(word)), as_half2(values.y), sum);
  sum = __hfma2(as_half2(cuda::e2m1_pair_bits<2>(word)), as_half2(values.z), sum);
  return __hfma2(as_half2(cuda::e2m1_pair_bits<3>(word)), as_half2(values.w), sum);
}

// A lane's share of one step: of each of the warp's rows 32 codes and two scales.
struct Step {
  uint4 codes[kWarpRows];
  uint16_t scales[kWarpRows];

  __device__ void load(const Job& job, int64_t batch, const int64_t (&rows)[kWarpRows],
                       int64_t column, bool inside) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      codes[r] = make_uint4(0, 0, 0, 0);
      scales[r] = 0;
      if (!inside) continue;
      const char* from = job.a + batch * job.a_batch + rows[r] * job.a_row + column / 2;
      codes[r] = __ldg(reinterpret_cast<const uint4*>(from));
      scales[r] =
          __ldg(reinterpret_cast<const uint16_t*>(job.scale_a.at(batch, rows[r], column / kBlock)));
    }
  }

  // `unit`: of the chunk in shared memory.
  __device__ void multiply(const Vector& vector, int unit, float (&sums)[kWarpRows]) const {
    const uint4* values = vector.pairs + unit / 32 * 128 + unit % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 first = values[half * 64], second = values[half * 64 + 32];
      const float factor = vector.factors[2 * unit + half];
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        const uint32_t low = half == 0 ? codes[r].x : codes[r].z;
        const uint32_t high = half == 0 ? codes[r].y : codes[r].w;
        const __half2 sum = add_word(high, second, add_word(low, first, __half2{}));
        const auto scale = static_cast<uint8_t>(scales[r] >> (8 * half));
        sums[r] = __fmaf_rn(__low2float(sum) + __high2float(sum), cuda::e4m3_value(scale) * factor,
                            sums[r]);
      }
    }
  }
};

// Row `row` of out, of the warp's lanes' sums. `alpha` is null for 1.
__device__ void store_sum(const cuda::AnyTensor& out, const char* alpha, int64_t batch, int64_t row,
                          bool inside, float sum) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0 && inside) store_result(out, alpha, batch, row, sum);
}

__global__ void __launch_bounds__(kWarps * 32) gemv_rows(Job job) {
  __shared__ Vector vector;
  const int64_t batch = blockIdx.x / job.row_groups;
  const int64_t first = blockIdx.x % job.row_groups * kRows + threadIdx.x / 32 * kWarpRows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t rows[kWarpRows];  // those past the end read the last one again
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) rows[r] = min(first + r, job.rows - 1);
  float sums[kWarpRows] = {};
  for (int64_t column = 0; column < job.k; column += kChunk) {
    const int count = static_cast<int>(min(job.k - column, int64_t{kChunk}));
    const int units = count / kUnit;
    Step step;
    step.load(job, batch, rows, column + lane * kUnit, lane < units);
    if (column > 0) __syncthreads();
    decode_vector(job, batch, column, count, vector);
    __syncthreads();
    for (int unit = lane; unit < units; unit += 32) {
      const Step now = step;
      const int next = unit + 32;
      step.load(job, batch, rows, column + int64_t{next} * kUnit, next < units);
      now.multiply(vector, unit, sums);
    }
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    store_sum(job.out, job.alpha, batch, first + r, first + r < job.rows,
              sums[r] * cuda::kE2m1PairUnit);
  }
}

// Any strides: a block of 16 a lane, each code and scale a byte.
struct FallbackJob {
  cuda::AnyTensor a, b, scale_a, scale_b, out;
  const char* alpha;
  int64_t rows, k, batches;
  bool swizzled;

  __device__ float scale(const cuda::AnyTensor& t, int64_t batch, int64_t row,
                         int64_t block) const {
    int64_t i = row, j = block;
    if (swizzled) {
      const int64_t offset = formats::swizzle_offset(row, block, k / kBlock);
      i = offset / t.shape[2];
      j = offset % t.shape[2];
    }
    const char* at = t.data + batch * t.strides[0] + i * t.strides[1] + j * t.strides[2];
    return cuda::e4m3_value(static_cast<uint8_t>(*at));
  }
};

__global__ void __launch_bounds__(kWarps * 32) gemv_fallback(FallbackJob job) {
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t batch = warp / job.rows, row = warp % job.rows;
  if (batch >= job.batches) return;
  const char* a = job.a.data + batch * job.a.strides[0] + row * job.a.strides[1];
  const char* b = job.b.data + batch * job.b.strides[0];
  float sum = 0;
  for (int64_t block = threadIdx.x % 32; block < job.k / kBlock; block += 32) {
    float products = 0;
    for (int i = 0; i < kBlock / 2; ++i) {
      const int64_t byte = block * (kBlock / 2) + i;
      const auto x = static_cast<uint8_t>(a[byte * job.a.strides[2]]);
      const auto y = static_cast<uint8_t>(b[byte * job.b.strides[2]]);
      products += formats::f32_from_e2m1(x & 15) * formats::f32_from_e2m1(y & 15) +
                  formats::f32_from_e2m1(x >> 4) * formats::f32_from_e2m1(y >> 4);
    }
    sum += products *
           (job.scale(job.scale_a, batch, row, block) * job.scale(job.scale_b, batch, 0, block));
  }
  store_sum(job.out, job.alpha, batch, row, true, sum);
}

const char* alpha_of(const Call& call) {
  return call.has(kAlpha) ? call.tensor(kAlpha).as<char>() : nullptr;
}

bool apart_by(const TensorView& t, int64_t bytes) {
  for (int d = 0; d + 1 < t.rank; ++d) {
    if (t.shape[d] > 1 && t.strides[d] % bytes != 0) return false;
  }
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0;
}

std::string refuse_codes(const char* name, const TensorView& t) {
  if (t.strides[2] == 1 && apart_by(t, 16)) return "";
  return std::string(name) +
         " needs dense rows that are 16 bytes apart and begin at a multiple of 16";
}

std::string refuse_scales(const char* name, const TensorView& t, bool swizzled) {
  const bool dense = t.shape[2] <= 1 || t.strides[2] == 1;
  const bool whole = !swizzled || t.shape[1] <= 1 || t.strides[1] == t.shape[2];
  if (dense && whole && apart_by(t, 2)) return "";
  return std::string(name) +
         (swizzled ? " needs the 128 x 4 tiles of a batch as one run of bytes at an even address"
                   : " needs dense rows that begin at even addresses");
}

std::string refuses(const Call& call, const Machine&) {
  if (call.tensor(kA).shape[2] % 16 != 0) return "K must be a multiple of 32";
  const bool swizzled = call.integer(kScaleLayout) == 0;
  for (const int index : {kA, kB}) {
    const auto& name = spec.args[static_cast<size_t>(index)].name;
    if (auto why = refuse_codes(name, call.tensor(index)); !why.empty()) return why;
  }
  for (const int index : {kScaleA, kScaleB}) {
    const auto& name = spec.args[static_cast<size_t>(index)].name;
    if (auto why = refuse_scales(name, call.tensor(index), swizzled); !why.empty()) return why;
  }
  return "";
}

// `rows`: of a CTA.
Job job_of(const Call& call, int64_t rows) {
  const TensorView& a = call.tensor(kA);
  const TensorView& b = call.tensor(kB);
  const TensorView& out = call.tensor(kOut);
  const int64_t k = a.shape[2] * 2;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  return {a.as<char>(),
          a.strides[0],
          a.strides[1],
          b.as<char>(),
          b.strides[0],
          Scales(call.tensor(kScaleA), k / kBlock, swizzled),
          Scales(call.tensor(kScaleB), k / kBlock, swizzled),
          alpha_of(call),
          cuda::AnyTensor(out),
          out.shape[1],
          k,
          cuda::ceil_div(out.shape[1], rows)};
}

Status run(const Call& call) {
  const Job job = job_of(call, kRows);
  const cuda::Grid grid{.blocks = job.row_groups * call.tensor(kOut).shape[0],
                        .threads = kWarps * 32};
  return cuda::launch(call, "gemv_nvfp4", grid, gemv_rows, job);
}

std::string refuses_hopper(const Call& call, const Machine& machine) {
  if (machine.compute_capability != 90) return "needs compute capability 9.0 (Hopper)";
  if (cuda::portable()) return "needs code for sm_90a, this build has portable code only";
  if (!apart_by(call.tensor(kScaleA), 4))
    return "scale_a needs batches and rows that are 4 bytes apart and begin at a multiple of 4";
  return refuses(call, machine);
}

Status run_hopper(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  Job job = job_of(call, kTileRows);
  const int ranks = ranks_of(job.row_groups * out.shape[0], job.k);
  job.slice = cuda::ceil_div(job.k, int64_t{kLine} * kGroups * ranks) * kLine;
  const cuda::Grid grid{
      .blocks = job.row_groups * out.shape[0] * ranks, .threads = kHopperThreads, .cluster = ranks};
  const auto kernel = job.scale_a.swizzled ? gemv_hopper<true> : gemv_hopper<false>;
  return cuda::launch(call, "gemv_nvfp4_hopper", grid, kernel, job, ranks);
}

Status run_fallback(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const FallbackJob job{cuda::AnyTensor(call.tensor(kA)),
                        cuda::AnyTensor(call.tensor(kB)),
                        cuda::AnyTensor(call.tensor(kScaleA)),
                        cuda::AnyTensor(call.tensor(kScaleB)),
                        cuda::AnyTensor(out),
                        alpha_of(call),
                        out.shape[1],
                        call.tensor(kA).shape[2] * 2,
                        out.shape[0],
                        call.integer(kScaleLayout) == 0};
  const int64_t warps = out.shape[0] * out.shape[1];
  const cuda::Grid grid{.blocks = cuda::ceil_div(warps, kWarps), .threads = kWarps * 32};
  return cuda::launch(call, "gemv_nvfp4_any", grid, gemv_fallback, job);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/gemv_nvfp4_hopper",
     .device = DeviceType::kCuda,
     .min_compute_capability = 90,
     .refuses = refuses_hopper,
     .run = run_hopper},
    {.id = "cuda/gemv_nvfp4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/gemv_nvfp4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_fallback},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::gemv_nvfp4
