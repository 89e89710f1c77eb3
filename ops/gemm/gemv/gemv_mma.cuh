// GEMV by mma.sync: up to 16 rows of a, sums in f32 throughout, where the tensor cores' own sums of
// 8-bit floats are refused (accumulation=f32); the others: gemv_wgmma.cuh.
//
// Map      A CTA takes 64 columns of out (rows of the weight) by 8 warps, or 32 by 16 where that
//          leaves no multiprocessor without a CTA, and a split of k; the CTAs of a cluster take the
//          splits of the same columns. Warps take turns along k, 64 bytes of each row at a time:
//          four lanes read 16 bytes each of a weight's row, and the same of a row of a, which are
//          the fragments of mma.sync if k is counted in that order.
// Order    A warp's sums along k, then warps in order, then splits in order: two runs give the same
//          bits.
// Traffic  b once; a once a CTA, from the L2.
// Numerics bf16 and f16 products in f32; 8-bit floats become f16, exactly, so sums are f32's; 8-bit
//          integers in s32. Epilogue in f32, one rounding.
// Needs    Clusters (sm_90); rows of a and b at multiples of 16 bytes, along k.
#pragma once

#include "backends/cuda/device/ptx/cluster.cuh"
#include "ops/gemm/gemv/gemv_wgmma.cuh"

namespace pestle::ops {

inline constexpr int kGemvMmaElements = 64 * 8;  // of a CTA: columns times warps

// How a CTA is made up.
template <int kColumnsOf>
struct GemvMmaShape {
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kWarps = kGemvMmaElements / kColumns;
  static constexpr int kBlocksPerSm = kColumns == 64 ? 2 : 1;
  static constexpr int kStepBytes = kWarps * 64;  // of k
};

struct GemvMmaJob {
  hopper::EpilogueArguments epilogue;
  const char* a = nullptr;
  const char* b = nullptr;
  int64_t a_row = 0, b_row = 0;  // bytes
  int k_bytes = 0, split_bytes = 0, splits = 1;
};

#ifdef __CUDACC__

template <GemvKind kKind>
struct GemvMath {
  using Sum = std::conditional_t<kKind == GemvKind::kInt8, int, float>;
  static constexpr bool kWide = kKind == GemvKind::kBf16 || kKind == GemvKind::kF16;

  __device__ static void multiply(Sum (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                  uint32_t b0, uint32_t b1) {
#define PESTLE_GEMV_MMA(TEXT, C)                                                  \
  asm volatile("mma.sync.aligned." TEXT                                           \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : C(d[0]), C(d[1]), C(d[2]), C(d[3])                               \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
    if constexpr (kKind == GemvKind::kBf16)
      PESTLE_GEMV_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
    else if constexpr (kKind == GemvKind::kInt8)
      PESTLE_GEMV_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r");
    else
      PESTLE_GEMV_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
#undef PESTLE_GEMV_MMA
  }

  // Four codes to two pairs of f16.
  template <bool kE4m3>
  __device__ static uint2 widen(uint32_t codes) {
    uint2 v{0, 0};
#if __CUDA_ARCH__ >= 890
    if constexpr (kE4m3) {
      asm("{.reg .b16 l, h; mov.b32 {l, h}, %2;\n"
          "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;}"
          : "=r"(v.x), "=r"(v.y)
          : "r"(codes));
    } else {
      asm("{.reg .b16 l, h; mov.b32 {l, h}, %2;\n"
          "cvt.rn.f16x2.e5m2x2 %0, l;\ncvt.rn.f16x2.e5m2x2 %1, h;}"
          : "=r"(v.x), "=r"(v.y)
          : "r"(codes));
    }
#endif
    return v;
  }

  // 16 bytes of k of 16 rows of the weight (low: row lane / 4, high: 8 below) and of 8 rows of a.
  __device__ static void multiply_unit(Sum (&d)[4], const uint4& low, const uint4& high,
                                       const uint4& x) {
    if constexpr (kWide || kKind == GemvKind::kInt8) {
      multiply(d, low.x, high.x, low.y, high.y, x.x, x.y);
      multiply(d, low.z, high.z, low.w, high.w, x.z, x.w);
    } else {
      constexpr bool kA = kKind == GemvKind::kE4m3 || kKind == GemvKind::kE4m3E5m2;
      constexpr bool kB = kKind == GemvKind::kE4m3 || kKind == GemvKind::kE5m2E4m3;
      const uint32_t l[4] = {low.x, low.y, low.z, low.w};
      const uint32_t h[4] = {high.x, high.y, high.z, high.w};
      const uint32_t r[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 wl = widen<kB>(l[i]), wh = widen<kB>(h[i]), wx = widen<kA>(r[i]);
        multiply(d, wl.x, wh.x, wl.y, wh.y, wx.x, wx.y);
      }
    }
  }
};

__device__ inline uint4 load_once(const char* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// What a thread holds of one step along k.
template <int kColumns, int kEights>
struct GemvStep {
  uint4 w[kColumns / 8];
  uint4 x[kEights];
};

// Bits of sums: f32 or s32.
template <int kColumns>
struct GemvMmaShared {
  uint32_t sums[GemvMmaShape<kColumns>::kWarps][kColumns][20];  // 16 rows of a; 20: banks differ
  uint32_t parts[kColumns][16];                                 // [split][own column]
};

// The value of one result, to its end in memory.
__device__ inline void finish_gemv(const hopper::EpilogueArguments& a, int m, int n, float y) {
  if (a.rows.data) y = y * a.rows.at(m);
  if (a.columns.data) y = y * a.columns.at(n);
  if (a.alpha) y *= __ldg(a.alpha);
  if (a.bias.data) y += float_at(a.bias, n * a.bias.column_stride);
  float v[1] = {y};
  hopper::activate_all(a.activation, v);
  const hopper::FloatMatrix& r = a.residual;
  if (r.data) v[0] += float_at(r, m * r.row_stride + n * r.column_stride);
  char* p = const_cast<char*>(a.out.data) +
            (m * a.out.row_stride + n * a.out.column_stride) * a.out.element_bytes();
  if (a.out.dtype == hopper::Float::kF32)
    *reinterpret_cast<float*>(p) = v[0];
  else
    *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(hopper::pack(v[0], 0, a.out.dtype));
}

template <GemvKind kKind, int kEights, int kColumns>
struct GemvMma {
  using Math = GemvMath<kKind>;
  using Sum = typename Math::Sum;
  using Step = GemvStep<kColumns, kEights>;
  using Shared = GemvMmaShared<kColumns>;
  static constexpr int kWarps = GemvMmaShape<kColumns>::kWarps;
  static constexpr int kStepBytes = GemvMmaShape<kColumns>::kStepBytes;

  // Rows beyond the ends are read from the last one and dropped later.
  struct Places {
    const char* w[kColumns / 8];
    const char* x[kEights];
  };
  __device__ static Places places_of(const GemvMmaJob& job, int column0) {
    const int lane = threadIdx.x % 32;
    Places p;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i)
      p.w[i] = job.b + min(column0 + 8 * i + lane / 4, job.epilogue.n - 1) * job.b_row;
#pragma unroll
    for (int i = 0; i < kEights; ++i)
      p.x[i] = job.a + min(8 * i + lane / 4, job.epilogue.m - 1) * job.a_row;
    return p;
  }
  __device__ static void load(const Places& p, int at, bool exists, Step& s) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i)
      s.w[i] = exists ? load_once(p.w[i] + at) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kEights; ++i)
      s.x[i] = exists ? __ldg(reinterpret_cast<const uint4*>(p.x[i] + at)) : make_uint4(0, 0, 0, 0);
  }

  // A warp's sums over the split [begin, end) of k, in bytes.
  __device__ static void accumulate(const GemvMmaJob& job, int column0, int begin, int end,
                                    Sum (&d)[kColumns / 16][kEights][4]) {
    const Places p = places_of(job, column0);
    int at = begin + threadIdx.x / 32 * 64 + threadIdx.x % 4 * 16;
    Step now;
    load(p, at, at < end, now);
    for (int k = begin; k < end; k += kStepBytes) {
      at += kStepBytes;
      Step next;
      load(p, at, at < end, next);
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i)
#pragma unroll
        for (int j = 0; j < kEights; ++j)
          Math::multiply_unit(d[i][j], now.w[2 * i], now.w[2 * i + 1], now.x[j]);
      now = next;
    }
  }

  __device__ static uint32_t bits_of(Sum v) {
    if constexpr (std::is_same_v<Sum, int>) return static_cast<uint32_t>(v);
    return __float_as_uint(v);
  }
  __device__ static Sum sum_of(uint32_t bits) {
    if constexpr (std::is_same_v<Sum, int>) return static_cast<int>(bits);
    return __uint_as_float(bits);
  }

  // One thread's share of the warps' sums, four rows of a of one column, as bits.
  __device__ static float4 add_warps(const Shared& s, int column, int four) {
    Sum sum[4] = {};
    for (int w = 0; w < kWarps; ++w) {
      const uint4 v = *reinterpret_cast<const uint4*>(&s.sums[w][column][four]);
      sum[0] += sum_of(v.x);
      sum[1] += sum_of(v.y);
      sum[2] += sum_of(v.z);
      sum[3] += sum_of(v.w);
    }
    return make_float4(__uint_as_float(bits_of(sum[0])), __uint_as_float(bits_of(sum[1])),
                       __uint_as_float(bits_of(sum[2])), __uint_as_float(bits_of(sum[3])));
  }

  __device__ static void keep(Shared& s, const Sum (&d)[kColumns / 16][kEights][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i)
#pragma unroll
      for (int j = 0; j < kEights; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t* to = &s.sums[warp][16 * i + 8 * h + lane / 4][8 * j + lane % 4 * 2];
          *reinterpret_cast<uint2*>(to) =
              make_uint2(bits_of(d[i][j][2 * h]), bits_of(d[i][j][2 * h + 1]));
        }
  }

  __device__ static void run(const GemvMmaJob& job) {
    __shared__ Shared s;
    const int split = blockIdx.x % job.splits;
    const int column0 = blockIdx.x / job.splits * kColumns;
    const int own = kColumns / job.splits;  // columns that this CTA finishes
    const int begin = split * job.split_bytes;
    Sum d[kColumns / 16][kEights][4] = {};
    accumulate(job, column0, begin, min(begin + job.split_bytes, job.k_bytes), d);
    keep(s, d);
    if (job.splits > 1) cuda::cluster_arrive();  // all CTAs have begun
    __syncthreads();
    const int column = threadIdx.x / 4, four = threadIdx.x % 4 * 4;
    // Rows of a beyond 8 * kEights have no sums; nobody asks for their parts.
    const bool has_sums = four < 8 * kEights && column < kColumns;
    const float4 sum = has_sums ? add_warps(s, column, four) : make_float4(0, 0, 0, 0);
    auto* to = reinterpret_cast<float4*>(&s.parts[split * own + column % own][four]);
    if (job.splits > 1) {
      cuda::cluster_wait();
      if (column < kColumns) cuda::store_to_block(to, column / own, sum);
      cuda::cluster_arrive();
      cuda::cluster_wait();
    } else {
      if (column < kColumns) *to = sum;
      __syncthreads();
    }
    for (int i = threadIdx.x; i < own * kGemvRows; i += blockDim.x) {
      const int c = i % own, m = i / own;
      const int n = column0 + split * own + c;
      if (m >= job.epilogue.m || n >= job.epilogue.n) continue;
      Sum y = 0;
      for (int p = 0; p < job.splits; ++p) y += sum_of(s.parts[p * own + c][m]);
      finish_gemv(job.epilogue, m, n, static_cast<float>(y));
    }
  }
};

template <GemvKind kKind, int kEights, int kColumns>
__global__ void __launch_bounds__(32 * GemvMmaShape<kColumns>::kWarps,
                                  GemvMmaShape<kColumns>::kBlocksPerSm)
    gemv_mma_kernel(const __grid_constant__ GemvMmaJob job) {
  GemvMma<kKind, kEights, kColumns>::run(job);
}

#endif  // __CUDACC__

// 16-byte reads along k of both operands, one matrix.
inline std::string refuse_gemv(const Operands& o, int most_rows = kGemvRows) {
  if (o.out.rows > most_rows) return "is for up to " + std::to_string(most_rows) + " rows of a";
  if (o.out.batches != 1) return "is for one matrix";
  if (!o.a_along_k || !o.b_along_k) return "needs both operands along k";
  if (o.a.columns * dtype_bytes(o.a.dtype) % 16 != 0) return "K is no multiple of 16 bytes";
  if (o.a.columns >= int64_t{1} << 28) return "K is 2^28 or more";
  return "";
}

// Splits of k that fill the GPU in one wave; a power of two up to a cluster of 8.
template <class Shape>
int gemv_splits(int64_t n, int64_t k_bytes, int multiprocessors) {
  const int64_t tiles = cuda::ceil_div(n, Shape::kColumns);
  int splits = 1;
  while (splits < 8 && 2 * splits * tiles <= int64_t{Shape::kBlocksPerSm} * multiprocessors &&
         k_bytes / (2 * splits) >= 2 * Shape::kStepBytes)
    splits *= 2;
  return splits;
}

template <GemvKind kKind, int kColumns>
Status start_gemv_mma_shape(const Call& call, const char* name, const Operands& o, GemvMmaJob job) {
  using Shape = GemvMmaShape<kColumns>;
  job.splits = gemv_splits<Shape>(o.out.columns, job.k_bytes,
                                  cuda::multiprocessors(cuda::device_index(call)));
  const int64_t steps = cuda::ceil_div(job.k_bytes, int64_t{Shape::kStepBytes} * job.splits);
  job.split_bytes = static_cast<int>(steps * Shape::kStepBytes);
  const cuda::Grid grid{cuda::ceil_div(o.out.columns, kColumns) * job.splits, 32 * Shape::kWarps, 0,
                        job.splits};
  return o.out.rows <= 8 ? cuda::launch(call, name, grid, gemv_mma_kernel<kKind, 1, kColumns>, job)
                         : cuda::launch(call, name, grid, gemv_mma_kernel<kKind, 2, kColumns>, job);
}

// `e` comes filled. Pointers of o.a and o.b are multiples of 16 bytes, and so are their rows.
// `f32_sums`: no tensor core's sums of 8-bit floats.
template <GemvKind kKind>
Status start_gemv_mma(const Call& call, const char* name, const Operands& o,
                      const hopper::EpilogueArguments& e, bool f32_sums = false) {
  if (!f32_sums) return start_gemv_wgmma<kKind>(call, name, o, e);
  const int bytes = dtype_bytes(o.a.dtype);
  GemvMmaJob job;
  job.epilogue = e;
  job.a = static_cast<const char*>(o.a.data);
  job.b = static_cast<const char*>(o.b.data);
  job.a_row = o.a.row_stride * bytes;
  job.b_row = o.b.column_stride * bytes;
  job.k_bytes = static_cast<int>(o.a.columns * bytes);
  const int narrow = 32 * cuda::multiprocessors(cuda::device_index(call));
  if (o.out.columns <= narrow) return start_gemv_mma_shape<kKind, 32>(call, name, o, job);
  return start_gemv_mma_shape<kKind, 64>(call, name, o, job);
}

}  // namespace pestle::ops
