// kernel: nvfp4_gemv/cuda
// language = "cuda"
// entry = "run"
// arguments = ["c", "a", "b", "sfa", "sfb", "M", "K", "L", "a.stride2", "b.stride2", "sfa.stride2", "sfb.stride2", "c.stride2", "stream"]
// constraints = ["memory contiguous"]
// notes = "A warp takes a row: 16 bytes of codes a lane and step, values by table in f16, sums of a block of 16 in f16 pairs, of blocks in f32."
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace {

constexpr int kWarps = 4;  // rows of a CTA

// Twice the values, which f16 and the sums of 16 products hold exactly: 2·6 · 2·6 · 16 < 2^12.
__device__ __forceinline__ __half2 twice(uint32_t low, uint32_t high) {
  constexpr uint64_t kTable = 0x0C0806'0403020100ull;  // 12 8 6 4 3 2 1 0
  const auto one = [&](uint32_t code) {
    const int size = static_cast<int>(kTable >> ((code & 7) * 8)) & 0xFF;
    return __int2half_rn(code & 8 ? -size : size);
  };
  return __halves2half2(one(low), one(high));
}

__device__ __forceinline__ float scale_at(const uint8_t* scales, int64_t block) {
  __nv_fp8_e4m3 value;
  value.__x = scales[block];
  return static_cast<float>(value);
}

// The dot product of eight codes each, times four.
__device__ __forceinline__ __half2 dot8(uint32_t a, uint32_t b, __half2 sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t x = a >> (8 * i), y = b >> (8 * i);
    sum = __hfma2(twice(x & 15, (x >> 4) & 15), twice(y & 15, (y >> 4) & 15), sum);
  }
  return sum;
}

__global__ void __launch_bounds__(32 * kWarps)
    gemv(__half* c, const uint8_t* a, const uint8_t* b, const uint8_t* sfa, const uint8_t* sfb,
         int64_t rows, int64_t k, int64_t a_batch, int64_t b_batch, int64_t sfa_batch,
         int64_t sfb_batch, int64_t c_batch) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t z = blockIdx.y;
  if (row >= rows) return;
  const uint8_t* codes = a + z * a_batch + row * (k / 2);
  const uint8_t* vector = b + z * b_batch;
  const uint8_t* scales = sfa + z * sfa_batch + row * (k / 16);
  const uint8_t* vector_scales = sfb + z * sfb_batch;
  float sum = 0;
  for (int64_t block = lane; block < k / 16; block += 32) {
    const uint2 x = *reinterpret_cast<const uint2*>(codes + block * 8);
    const uint2 y = *reinterpret_cast<const uint2*>(vector + block * 8);
    const __half2 pair = dot8(x.y, y.y, dot8(x.x, y.x, __half2{}));
    sum += (__low2float(pair) + __high2float(pair)) *
           (scale_at(scales, block) * scale_at(vector_scales, block));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (lane == 0) c[z * c_batch + row] = __float2half_rn(sum * 0.25f);
}

}  // namespace

extern "C" int run(void* c, const void* a, const void* b, const void* sfa, const void* sfb,
                   int64_t m, int64_t k, int64_t l, int64_t a_batch, int64_t b_batch,
                   int64_t sfa_batch, int64_t sfb_batch, int64_t c_batch, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((m + kWarps - 1) / kWarps), static_cast<unsigned>(l));
  const auto bytes = [](const void* p) { return static_cast<const uint8_t*>(p); };
  gemv<<<grid, 32 * kWarps, 0, stream>>>(static_cast<__half*>(c), bytes(a), bytes(b), bytes(sfa),
                                         bytes(sfb), m, k, a_batch, b_batch, sfa_batch, sfb_batch,
                                         c_batch);
  return cudaGetLastError();
}
