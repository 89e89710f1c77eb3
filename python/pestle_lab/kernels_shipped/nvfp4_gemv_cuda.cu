// kernel: nvfp4_gemv/cuda
// language = "cuda"
// entry = "run"
// arguments = ["c", "a", "b", "sfa", "sfb", "M", "K", "L", "a.stride2", "b.stride2", "sfa.stride2", "sfb.stride2", "c.stride2", "stream"]
// constraints = ["memory contiguous"]
// notes = "A warp keeps 1024 columns of the vector in registers while rows pass, four at a time: codes become bytes by PRMT, sums of a block of 16 are DP4A's, sums of blocks f32."
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>

namespace {

constexpr int kWarps = 16;       // of a CTA, at most
constexpr int kRows = 4;         // that a warp has at a time
constexpr int kMost = 64;        // rows of a CTA
constexpr int kSlice = 32 * 32;  // columns of a warp: 32 of a lane, 16 bytes and two scales
constexpr int kResident = 32;    // warps of a multiprocessor
constexpr uint32_t kSigns = 0x88888888u;

// Twice the values' sizes, 0 1 2 3 4 6 8 12, are whole numbers, looked up in a table of eight bytes
// with four codes of a word as selectors. A code with a sign gives 0; with all signs turned, what is
// left are the negative ones' sizes.
__device__ __forceinline__ uint32_t positive(uint32_t codes) {
  uint32_t sizes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(sizes) : "r"(0x03020100u), "r"(0x0C080604u), "r"(codes));
  return sizes;
}

struct Part {
  uint4 codes;
  uint16_t scales;

  // Every byte of a is read once, so that caches need not keep it.
  __device__ __forceinline__ Part(const uint8_t* code, const uint8_t* scale)
      : codes(__ldcs(reinterpret_cast<const uint4*>(code))),
        scales(__ldcs(reinterpret_cast<const uint16_t*>(scale))) {}
  __device__ __forceinline__ uint32_t word(int i) const {
    return i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
  }
  __device__ __forceinline__ float2 factors() const {
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(scales, __NV_E4M3)));
  }
};

// A lane's columns of b: signed bytes, and scales.
struct Vector {
  uint32_t values[8];
  float2 factors;

  __device__ __forceinline__ void set(const Part& b, float by) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t codes = b.word(i / 2) >> (i % 2 * 16);
      values[i] = __vsub4(positive(codes), positive(codes ^ kSigns));
    }
    factors = b.factors();
    factors.x *= by, factors.y *= by;
  }
  // Four times the sum of a block of 16, exactly.
  __device__ __forceinline__ float dot(const Part& a, int block) const {
    int above = 0, below = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = a.word(block * 2 + i / 2), turned = codes ^ kSigns;
      const int b = static_cast<int>(values[block * 4 + i]);
      above = __dp4a(static_cast<int>(positive(codes >> (i % 2 * 16))), b, above);
      below = __dp4a(static_cast<int>(positive(turned >> (i % 2 * 16))), b, below);
    }
    return static_cast<float>(above - below);
  }
  __device__ __forceinline__ float times(const Part& a) const {
    const float2 own = a.factors();
    return dot(a, 0) * (own.x * factors.x) + dot(a, 1) * (own.y * factors.y);
  }
};

// The lanes' sums of four values; value i in lanes 8 i to 8 i + 7. A lane hands over what another
// one keeps: 6 shuffles for four sums instead of 20.
__device__ __forceinline__ float sums_of_lanes(const float (&v)[kRows], int lane) {
  const auto exchange = [](bool upper, float low, float high, int step) {
    return (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, step);
  };
  const float even = exchange(lane & 16, v[0], v[2], 16), odd = exchange(lane & 16, v[1], v[3], 16);
  float sum = exchange(lane & 8, even, odd, 8);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// A CTA takes `each` rows of a matrix. Where K is more than its warps' columns, they go round.
__global__ void __launch_bounds__(32 * kWarps, kResident / kWarps)
    gemv(__half* c, const uint8_t* a, const uint8_t* b, const uint8_t* sfa, const uint8_t* sfb,
         int rows, int k, int each, int64_t a_batch, int64_t b_batch, int64_t sfa_batch,
         int64_t sfb_batch, int64_t c_batch) {
  __shared__ float sums[kMost + kRows][kWarps];
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the same in all lanes, as is seen
  const int64_t z = blockIdx.y, first = int64_t{blockIdx.x} * each;
  const int count = min(each, static_cast<int>(rows - first));
  const uint32_t code_bytes = k / 2, scale_bytes = k / 16;  // of a row
  for (int slice = warp; slice * kSlice < k; slice += warps) {
    const int own = slice * kSlice + lane * 32, column = own < k ? own : 0;
    const uint8_t* codes = a + z * a_batch + first * code_bytes + column / 2;
    const uint8_t* scales = sfa + z * sfa_batch + first * scale_bytes + column / 16;
    asm volatile("" : "+l"(codes), "+l"(scales));  // so that a row's place is 32 bits from here
    Part of_b(b + z * b_batch + column / 2, sfb + z * sfb_batch + column / 16);
    asm volatile("" : "+r"(of_b.codes.x), "+h"(of_b.scales));  // asked for here
    Vector vector;
#pragma unroll 1
    for (int row = 0; row < count; row += kRows) {
      const auto part = [&](int i) {  // past the last row that one again
        const uint32_t r = min(row + i, count - 1);
        return Part(codes + r * code_bytes, scales + r * scale_bytes);
      };
      const Part parts[kRows] = {part(0), part(1), part(2), part(3)};
      // Decoded while the first rows are on their way. Columns past the end count nothing; a
      // quarter, since both operands' values are doubled.
      if (row == 0) vector.set(of_b, own < k ? 0.25f : 0.0f);
      float dots[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) dots[i] = vector.times(parts[i]);
      const float sum = sums_of_lanes(dots, lane);
      if (lane % 8 == 0) {
        float& to = sums[row + lane / 8][warp];
        to = slice < warps ? sum : to + sum;
      }
    }
  }
  __syncthreads();
  for (int row = threadIdx.x; row < count; row += blockDim.x) {
    float sum = 0;
    for (int i = 0; i < warps; ++i) sum += sums[row][i];
    c[z * c_batch + first + row] = __float2half_rn(sum);
  }
}

int64_t over(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace

extern "C" int run(void* c, const void* a, const void* b, const void* sfa, const void* sfb,
                   int64_t m, int64_t k, int64_t l, int64_t a_batch, int64_t b_batch,
                   int64_t sfa_batch, int64_t sfb_batch, int64_t c_batch, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  if (const auto error = cudaGetDevice(&device)) return error;
  if (const auto error =
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device))
    return error;
  // Rows of a CTA such that all CTAs are there at once.
  const int64_t warps = std::min<int64_t>(kWarps, over(k, kSlice));
  int64_t each = over(m * l, multiprocessors * std::min<int64_t>(32, kResident / warps));
  if (each > kMost) each = over(m, over(m, kMost));
  const dim3 grid(static_cast<unsigned>(over(m, each)), static_cast<unsigned>(l));
  const auto bytes = [](const void* p) { return static_cast<const uint8_t*>(p); };
  gemv<<<grid, static_cast<unsigned>(32 * warps), 0, stream>>>(
      static_cast<__half*>(c), bytes(a), bytes(b), bytes(sfa), bytes(sfb), static_cast<int>(m),
      static_cast<int>(k), static_cast<int>(each), a_batch, b_batch, sfa_batch, sfb_batch, c_batch);
  return cudaGetLastError();
}
