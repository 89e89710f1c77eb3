// GEMV with 4-bit weights, up to 16 rows of x: the weight is decoded in registers.
//
// Map      A CTA of 8 warps takes 32 rows of the weight, a warp 4 of them, and up to 4 rows of x, which it
//          holds in shared memory as f32, some columns at a time. A lane reads 16 bytes (32 codes) of each of
//          its rows a step, the next step's before it uses this one's. CTAs with other rows of x and the same
//          rows of the weight are neighbours, so that these come from L2.
// Traffic  the weight and its scales once from memory; x once a CTA, from L2.
// Numerics codes become f16, exactly, then f32; products with x are summed in f32 over the 16 columns that
//          share a scale, times the scale, then over a lane's groups, then as a tree over the warp. Where a
//          scale is so large or small that the decoded weight leaves f32's range, or infinite, each weight is
//          decoded as the format's op does; so are those of a warp whose sums are not finite, for x may
//          overflow sums that their scale would have brought back. Epilogue in f32, one rounding.
#pragma once

#include <cuda_fp16.h>

#include <array>

#include "backends/cuda/device/numeric/e2m1_pairs.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/gemm/epilogue/unfused_epilogue.h"
#include "ops/gemm/linear/input_rows.h"

namespace pestle::ops {

inline constexpr int kWeightOnlyWarps = 8;
inline constexpr int kWeightOnlyRows = 4;   // of the weight, for a warp
inline constexpr int kWeightOnlyUnit = 32;  // codes of a lane and step
inline constexpr int kWeightOnlyX = 4;      // rows of x, for a CTA
inline constexpr int64_t kWeightOnlyMost = 16;

struct WeightOnlyJob {
  const char* weight;
  int64_t weight_row;                      // bytes
  cuda::AnyTensor x, out, bias, residual;  // data null: none
  const char* alpha;                       // of any alignment; null: 1
  int activation;
  bool x_aligned;  // to its elements
  int64_t rows_of_x, n, k;
  int64_t x_groups;  // CTAs with the same rows of the weight
};

// Positions in the contract; scales are the format's own.
struct WeightOnlyArgs {
  int x, weight, out, alpha;
  int hadamard = -1;  // none
};

#ifdef __CUDACC__

__device__ __forceinline__ __half2 half2_of(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

// Codes i and i + 4 of a word of E2M1 codes as f16.
template <int kCode>
__device__ __forceinline__ __half2 e2m1_pair(uint32_t word) {
  return __hmul2(half2_of(cuda::e2m1_pair_bits<kCode>(word)),
                 __float2half2_rn(cuda::kE2m1PairUnit));
}

// Codes i and i + 4 of a word of integers 0 to 15, less `zero` (1024 more than it): 1024 + code is an
// f16 number whose last bits are the code.
template <int kCode>
__device__ __forceinline__ __half2 integer_pair(uint32_t word, uint32_t flip, __half2 zero) {
  const uint32_t bits = (((word >> (4 * kCode)) & 0x000F000Fu) ^ flip) | 0x64006400u;
  return __hsub2(half2_of(bits), zero);
}

__device__ __forceinline__ float load_x_at(const WeightOnlyJob& job, const char* p) {
  if (!job.x_aligned) return job.x.load(p);
  switch (job.x.dtype) {
    case DType::kBF16:
      return __uint_as_float(uint32_t{*reinterpret_cast<const uint16_t*>(p)} << 16);
    case DType::kF16: return __half2float(*reinterpret_cast<const __half*>(p));
    default: return *reinterpret_cast<const float*>(p);
  }
}

// Sums of a group whose decoded weights f32 holds as normal numbers may be scaled as a whole.
__device__ __forceinline__ bool scales_sums(float factor) {
  const float size = fabsf(factor);
  return size == 0 || (size > 0x1p-100f && size < 0x1p100f) || size != size;
}

template <int kM>
struct WeightOnlyShared {
  static constexpr int kColumns = 8192 / kM;
  // By row of x; for each step of a warp eight times 32 lanes of 16 bytes, half a word's values each.
  float4 x[kM][kColumns / 4];
};

// Four values of x each for a word's codes (0, 4), (1, 5) and (2, 6), (3, 7).
struct WordOfX {
  float4 low, high;
};

__device__ __forceinline__ void add_pair(__half2 weights, float first, float second, float& sum) {
  const float2 w = __half22float2(weights);
  sum = __fmaf_rn(w.x, first, sum);
  sum = __fmaf_rn(w.y, second, sum);
}
__device__ __forceinline__ void add_decoded(__half2 weights, float factor, float first,
                                            float second, float& sum) {
  const float2 w = __half22float2(weights);
  sum = __fmaf_rn(w.x * factor, first, sum);
  sum = __fmaf_rn(w.y * factor, second, sum);
}

template <class Format, int kM>
struct WeightOnlyRows {
  using Shared = WeightOnlyShared<kM>;
  struct Step {
    uint4 codes[kWeightOnlyRows];
    typename Format::Scales scales[kWeightOnlyRows];

    __device__ void load(const WeightOnlyJob& job, const Format& format,
                         const int64_t (&rows)[kWeightOnlyRows], int64_t column, bool inside) {
#pragma unroll
      for (int r = 0; r < kWeightOnlyRows; ++r) {
        codes[r] = make_uint4(0, 0, 0, 0);
        scales[r] = {};
        if (!inside) continue;
        const char* from = job.weight + rows[r] * job.weight_row + column / 2;
        codes[r] = __ldg(reinterpret_cast<const uint4*>(from));
        scales[r] = format.load(rows[r], column);
      }
    }
  };

  // Columns [column, column + count) of the rows from `row` on; rows past the end are 0.
  __device__ static void load_x(const WeightOnlyJob& job, bool swapped, int64_t row, int64_t column,
                                int count, Shared& shared) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const bool inside = row + m < job.rows_of_x;
      const int64_t stride = job.x.strides[job.x.rank - 1];
      const char* from = job.x.row_at(inside ? row + m : row) + column * stride;
      for (int c = static_cast<int>(threadIdx.x); c < count; c += kWeightOnlyWarps * 32) {
        const int unit = c / kWeightOnlyUnit, word = c % kWeightOnlyUnit / 8;
        const int code = swapped ? (c % 8) ^ 1 : c % 8;  // its place in the word
        // (0, 4), (1, 5) in the first float4, (2, 6), (3, 7) in the second
        const int place = code % 2 * 2 + code / 4;
        const int half = code % 4 / 2;
        float4* to = &shared.x[m][unit / 32 * 256 + (word * 2 + half) * 32 + unit % 32];
        reinterpret_cast<float*>(to)[place] = inside ? load_x_at(job, from + c * stride) : 0.0f;
      }
    }
  }

  // 8 codes of each row times x, onto `part`; with `kDecode` each weight times its factor first.
  template <bool kDecode>
  __device__ static void add_word(const typename Format::Decoder& decoder, uint32_t word,
                                  const WordOfX& x, float factor, float& part) {
    const __half2 w[4] = {decoder.template pair<0>(word), decoder.template pair<1>(word),
                          decoder.template pair<2>(word), decoder.template pair<3>(word)};
    const float v[8] = {x.low.x, x.low.y, x.low.z, x.low.w, x.high.x, x.high.y, x.high.z, x.high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kDecode)
        add_decoded(w[i], factor, v[2 * i], v[2 * i + 1], part);
      else
        add_pair(w[i], v[2 * i], v[2 * i + 1], part);
    }
  }

  __device__ static void multiply(const Step& step, const Format& format, const Shared& shared,
                                  int unit, float (&sums)[kWeightOnlyRows][kM]) {
    const int base = unit / 32 * 256 + unit % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float parts[kWeightOnlyRows][kM] = {};
      float factors[kWeightOnlyRows];
      bool whole = true;
#pragma unroll
      for (int r = 0; r < kWeightOnlyRows; ++r) {
        factors[r] = format.factor(step.scales[r], half);
        whole = whole && scales_sums(factors[r]);
      }
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const int word = half * 2 + w;
        WordOfX x[kM];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          x[m].low = shared.x[m][base + word * 64];
          x[m].high = shared.x[m][base + word * 64 + 32];
        }
#pragma unroll
        for (int r = 0; r < kWeightOnlyRows; ++r) {
          const uint4& c = step.codes[r];
          const uint32_t codes = word == 0 ? c.x : word == 1 ? c.y : word == 2 ? c.z : c.w;
          const typename Format::Decoder decoder = format.decoder(step.scales[r]);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            if (whole)
              add_word<false>(decoder, codes, x[m], 1, parts[r][m]);
            else
              add_word<true>(decoder, codes, x[m], factors[r], parts[r][m]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kWeightOnlyRows; ++r) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          sums[r][m] = __fmaf_rn(parts[r][m], whole ? factors[r] : 1.0f, sums[r][m]);
        }
      }
    }
  }

  __device__ static bool are_finite(const float (&sums)[kWeightOnlyRows][kM]) {
    bool all = true;
#pragma unroll
    for (int r = 0; r < kWeightOnlyRows; ++r) {
#pragma unroll
      for (int m = 0; m < kM; ++m) all = all && fabsf(sums[r][m]) <= 0x1.fffffep127f;
    }
    return all;
  }

  // The lane's part of one element of the product, every weight decoded first.
  __device__ static float decoded_sum(const WeightOnlyJob& job, const Format& format, int64_t m,
                                      int64_t n) {
    const int64_t stride = job.x.strides[job.x.rank - 1];
    const char* x = job.x.row_at(m);
    float sum = 0;
#pragma unroll 1
    for (int64_t column = threadIdx.x % 32 * kWeightOnlyUnit; column < job.k;
         column += 32 * kWeightOnlyUnit) {
      const typename Format::Scales scales = format.load(n, column);
      const typename Format::Decoder decoder = format.decoder(scales);
#pragma unroll 1
      for (int word = 0; word < 4; ++word) {
        const int64_t at = column + word * 8;
        const auto* codes = reinterpret_cast<const uint32_t*>(job.weight + n * job.weight_row);
        const auto value = [&](int code) {
          return load_x_at(job, x + (at + (format.high_first ? code ^ 1 : code)) * stride);
        };
        const WordOfX values{make_float4(value(0), value(4), value(1), value(5)),
                             make_float4(value(2), value(6), value(3), value(7))};
        add_word<true>(decoder, __ldg(codes + at / 8), values, format.factor(scales, word / 2),
                       sum);
      }
    }
    return sum;
  }
};

__device__ inline float activated(int activation, float y) {
  switch (activation) {
    case 1: return 0.5f * y * (1.0f + erff(y * 0.70710678118654752440f));
    case 2: return 0.5f * y * (1.0f + tanhf(0.79788456080286535588f * (y + 0.044715f * y * y * y)));
    case 3: return y / (1.0f + expf(-y));
    default: return y;
  }
}

// The epilogue of column `n` of row `m` of out.
__device__ inline void finish_weight_only(const WeightOnlyJob& job, int64_t m, int64_t n,
                                          float sum) {
  if (job.alpha != nullptr) sum *= __uint_as_float(cuda::AnyTensor::bits(job.alpha, 4));
  if (job.bias.data != nullptr) sum += job.bias.load(job.bias.data + n * job.bias.strides[0]);
  sum = activated(job.activation, sum);
  if (job.residual.data != nullptr) sum += job.residual.load(job.residual.at(m, n));
  job.out.store(job.out.at(m, n), sum);
}
// The same of the warp's lanes' sums.
__device__ inline void store_weight_only(const WeightOnlyJob& job, int64_t m, int64_t n,
                                         float sum) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0 && n < job.n && m < job.rows_of_x) finish_weight_only(job, m, n, sum);
}

template <class Format, int kM>
__global__ void __launch_bounds__(kWeightOnlyWarps * 32)
    weight_only_rows(WeightOnlyJob job, Format format) {
  using Rows = WeightOnlyRows<Format, kM>;
  __shared__ typename Rows::Shared shared;
  constexpr int kColumns = Rows::Shared::kColumns;
  const int64_t row_of_x = blockIdx.x % job.x_groups * kM;
  const int64_t first = blockIdx.x / job.x_groups * (kWeightOnlyWarps * kWeightOnlyRows) +
                        threadIdx.x / 32 * kWeightOnlyRows;
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t rows[kWeightOnlyRows];  // those past the end read the last one again
#pragma unroll
  for (int r = 0; r < kWeightOnlyRows; ++r) rows[r] = min(first + r, job.n - 1);
  format.start();
  float sums[kWeightOnlyRows][kM] = {};
  for (int64_t column = 0; column < job.k; column += kColumns) {
    const int count = static_cast<int>(min(job.k - column, int64_t{kColumns}));
    const int units = count / kWeightOnlyUnit;
    typename Rows::Step step;
    step.load(job, format, rows, column + lane * kWeightOnlyUnit, lane < units);
    if (column > 0) __syncthreads();
    Rows::load_x(job, format.high_first, row_of_x, column, count, shared);
    __syncthreads();
    for (int unit = lane; unit < units; unit += 32) {
      const typename Rows::Step now = step;
      const int next = unit + 32;
      step.load(job, format, rows, column + int64_t{next} * kWeightOnlyUnit, next < units);
      Rows::multiply(now, format, shared, unit, sums);
    }
  }
  if (__any_sync(0xFFFFFFFFu, !Rows::are_finite(sums))) {
#pragma unroll 1
    for (int e = 0; e < kWeightOnlyRows * kM; ++e) {
      const int64_t m = row_of_x + e % kM, n = first + e / kM;
      const float sum =
          Rows::decoded_sum(job, format, min(m, job.rows_of_x - 1), min(n, job.n - 1));
      store_weight_only(job, m, n, sum);
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kWeightOnlyRows; ++r) {
#pragma unroll
    for (int m = 0; m < kM; ++m) store_weight_only(job, row_of_x + m, first + r, sums[r][m]);
  }
}

#endif  // __CUDACC__

inline WeightOnlyJob weight_only_job(const Call& call, const WeightOnlyArgs& args) {
  const TensorView& weight = call.tensor(args.weight);
  const TensorView& x = call.tensor(args.x);
  WeightOnlyJob job{};
  job.weight = weight.as<char>();
  job.weight_row = weight.strides[0];
  job.x = cuda::AnyTensor(x);
  job.out = cuda::AnyTensor(call.tensor(args.out));
  if (call.has(args.alpha)) job.alpha = call.tensor(args.alpha).as<char>();
  if (call.has(args.alpha + 1)) job.bias = cuda::AnyTensor(call.tensor(args.alpha + 1));
  if (call.has(args.alpha + 2)) job.residual = cuda::AnyTensor(call.tensor(args.alpha + 2));
  job.x_aligned = job.x.is_aligned;
  job.activation = static_cast<int>(call.integer(args.alpha + 3));
  job.rows_of_x = row_count(x);
  job.n = weight.shape[0];
  job.k = weight.shape[1] * 2;
  return job;
}

// Why the kernel can't take the product of the call, whatever its epilogue; empty: it can. `bits` of a
// code of the weight.
inline std::string refuse_weight_only(const Call& call, const WeightOnlyArgs& args, int bits = 4) {
  const TensorView& weight = call.tensor(args.weight);
  if (row_count(call.tensor(args.x)) > kWeightOnlyMost) return "is for at most 16 rows of x";
  if (has_input_act(call)) return "input_act: another implementation's";
  if (args.hadamard >= 0 && call.integer(args.hadamard) != 0)
    return "hadamard: x is rotated in the workspace first";
  if (weight.shape[1] * 8 / bits % 32 != 0) return "K must be a multiple of 32";
  return cuda::refuse_unaligned("weight", weight);
}

#ifdef __CUDACC__
template <class Format>
Status run_weight_only(const Call& call, const char* name, const WeightOnlyArgs& args,
                       const Format& format) {
  WeightOnlyJob job = weight_only_job(call, args);
  const int64_t groups = cuda::ceil_div(job.n, kWeightOnlyWarps * kWeightOnlyRows);
  const auto start = [&](auto kernel, int64_t rows) {
    job.x_groups = cuda::ceil_div(job.rows_of_x, rows);
    const cuda::Grid grid{.blocks = groups * job.x_groups, .threads = kWeightOnlyWarps * 32};
    return cuda::launch(call, name, grid, kernel, job, format);
  };
  if (job.rows_of_x == 1) return start(weight_only_rows<Format, 1>, 1);
  if (job.rows_of_x == 2) return start(weight_only_rows<Format, 2>, 2);
  return start(weight_only_rows<Format, kWeightOnlyX>, kWeightOnlyX);
}
#endif

}  // namespace pestle::ops
