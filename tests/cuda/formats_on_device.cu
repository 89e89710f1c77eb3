// Every format's scalar functions, run by the GPU and by the host on the same seeded blocks: the
// bytes must be equal; and device/fp8.cuh's words of codes for every f32 there is.
// usage: pestle_cuda_formats [BLOCKS]; exit 0 when all agree.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backends/cuda/device/numeric/fp8.cuh"
#include "backends/cuda/host/device.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/fp8.h"
#include "formats/gguf.h"
#include "formats/hadamard.h"
#include "formats/int4.h"
#include "formats/int8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "formats/philox.h"
#include "formats/stochastic.h"
#include "formats/swizzle.h"
#include "formats/w4a8.h"

namespace pestle {
namespace {

using namespace formats;

constexpr int kBlock = 32;

// What the formats make of one block of 32 elements, f32 results as bits with one NaN.
struct Record {
  uint32_t floats[10 * kBlock + 4];
  uint8_t bytes[16 * kBlock + 8];
  int32_t num_floats;
  int32_t num_bytes;
  int64_t swizzled;

  PESTLE_HD void put(float v) { floats[num_floats++] = v != v ? kF32Nan : bits_from_f32(v); }
  PESTLE_HD void put_byte(int v) { bytes[num_bytes++] = static_cast<uint8_t>(v); }
};

// Every other block is of raw bits (all exponents, NaN, Inf, subnormals), the others of values
// within 2^8 of each other as in a tensor, every 16th of those with zeros.
PESTLE_HD void make_input(uint64_t block, float* x) {
  for (int i = 0; i < kBlock; i += 4) {
    const PhiloxWords words = philox_block(block, static_cast<uint64_t>(i));
    const auto* lanes = reinterpret_cast<const uint32_t*>(&words);
    for (int j = 0; j < 4; ++j) {
      uint32_t bits = lanes[j];
      if (block % 2 != 0) {
        const uint32_t top = static_cast<uint32_t>(block / 2 % 247);
        bits = (bits & 0x807FFFFFu) | ((top + (bits >> 23 & 7u)) << 23);
        if (block % 16 == 1 && (bits & 3u) == 0) bits &= 0x80000000u;
      }
      x[i + j] = f32_from_bits(bits);
    }
  }
}

template <class F>
PESTLE_HD void record_float8(const float* x, uint32_t amax, Record& out) {
  const float scale = fp8_scale<F>(amax);
  uint8_t codes[kBlock];
  out.put(scale);
  out.put_byte(mx_quantize_block<F>(x, codes));
  for (int i = 0; i < kBlock; ++i) {
    const uint8_t code = fp8_quantize<F>(x[i], scale);
    out.put_byte(code);
    out.put_byte(codes[i]);
    out.put_byte(code_stochastic<F>(x[i], static_cast<uint16_t>(i * 2047)));
    out.put(fp8_dequantize<F>(code, scale));
  }
}

PESTLE_HD void record_int(const float* x, uint32_t amax, Record& out) {
  const float scale8 = int8_scale(amax);
  const float scale4 = int4_scale(amax);
  const Int4Zero zero = int4_asym_scale(x, kBlock);
  for (int i = 0; i < kBlock; ++i) {
    const int8_t q = int8_quantize(x[i], scale8);
    out.put_byte(q);
    out.put_byte(int4_quantize(x[i], scale4));
    out.put_byte(int4_asym_quantize(x[i], zero));
    out.put(int8_dequantize(q, scale8));
  }
}

PESTLE_HD void record_four_bit(const float* x, uint32_t amax, Record& out) {
  uint8_t codes[kBlock];
  float values[kBlock];
  out.put_byte(mx_quantize_block<E2m1>(x, codes));
  for (int i = 0; i < kBlock; ++i) out.put_byte(codes[i]);
  const float g = nvfp4_global_scale(amax);
  for (int half = 0; half < kBlock; half += static_cast<int>(kNvfp4Block)) {
    const uint8_t scale = nvfp4_quantize_block(x + half, g, codes);
    nvfp4_dequantize_block(codes, scale, g, values);
    out.put_byte(scale);
    for (int i = 0; i < kNvfp4Block; ++i) out.put(values[i]);
  }
  float levels[kW4a8Levels];
  w4a8_default_codebook(levels);
  out.put(w4a8_fit_group(x, w4a8_table(levels)).scale);
}

PESTLE_HD void make_record(uint64_t block, Record& out) {
  out.num_floats = 0;
  out.num_bytes = 0;
  float x[kBlock];
  make_input(block, x);
  const uint32_t amax = amax_bits(x, kBlock);
  record_float8<E4m3>(x, amax, out);
  record_float8<E5m2>(x, amax, out);
  record_int(x, amax, out);
  record_four_bit(x, amax, out);
  float values[kBlock];
  q8_0_dequantize_block(reinterpret_cast<const uint8_t*>(x), values);
  for (int i = 0; i < kBlock; ++i) out.put(values[i]);
  for (int i = 0; i < kBlock; ++i) {
    out.put(f32_from_bf16(bf16_from_f32(x[i])));
    out.put(f32_from_f16(f16_from_f32(x[i])));
  }
  hadamard_rotate(x, 16);
  for (int i = 0; i < 16; ++i) out.put(x[i]);
  out.swizzled = swizzle_offset(static_cast<int64_t>(block), static_cast<int64_t>(block % 8), 8);
}

__global__ void records_kernel(Record* out, uint64_t num_blocks) {
  const uint64_t block = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  if (block < num_blocks) make_record(block, out[block]);
}

Status run(uint64_t num_blocks) {
  const size_t bytes = num_blocks * sizeof(Record);
  std::vector<Record> host(num_blocks);
  std::vector<Record> device(num_blocks);
  // The same fill on both sides, so that whole records compare.
  std::memset(static_cast<void*>(host.data()), 0, bytes);
  void* memory = nullptr;
  PESTLE_CUDA_TRY(cudaMalloc(&memory, bytes));
  PESTLE_CUDA_TRY(cudaMemset(memory, 0, bytes));
  constexpr unsigned kThreads = 128;
  const unsigned grid = static_cast<unsigned>((num_blocks + kThreads - 1) / kThreads);
  records_kernel<<<grid, kThreads>>>(static_cast<Record*>(memory), num_blocks);
  PESTLE_CUDA_TRY(cudaGetLastError());
  PESTLE_CUDA_TRY(cudaMemcpy(device.data(), memory, bytes, cudaMemcpyDeviceToHost));
  PESTLE_CUDA_TRY(cudaFree(memory));
  for (uint64_t block = 0; block < num_blocks; ++block) {
    make_record(block, host[block]);
    if (std::memcmp(&host[block], &device[block], sizeof(Record)) == 0) continue;
    for (int i = 0; i < host[block].num_floats; ++i) {
      if (host[block].floats[i] != device[block].floats[i]) {
        std::printf("float %d: host %08x, device %08x\n", i, host[block].floats[i],
                    device[block].floats[i]);
      }
    }
    for (int i = 0; i < host[block].num_bytes; ++i) {
      if (host[block].bytes[i] != device[block].bytes[i]) {
        std::printf("byte %d: host %d, device %d\n", i, host[block].bytes[i],
                    device[block].bytes[i]);
      }
    }
    return {Code::kInternal, "block " + std::to_string(block) + " differs"};
  }
  return {};
}

// ---- words of codes ----

// Codes of a 16-bit element, the lower bits, times a factor, which the upper ones are half of.
template <class T>
__device__ bool products_agree(uint32_t bits) {
  const typename T::Raw raw{make_uint4(bits & 0xFFFFu, bits << 16, bits & 0xFFFFu, bits << 16)};
  float x[cuda::kUnit];
  T::to_f32(raw, x);
  const float factor = __uint_as_float((bits & 0x7FFF0000u) | 0x8421u);
  const float product = x[0] * factor;
  if (!(factor > 0x1p-80f && factor < 0x1p80f && fabsf(product) < 0x1p20f)) return true;
  const uint32_t code = code_from_f32<E4m3>(product);
  const uint32_t zero = code_from_f32<E4m3>(x[1] * factor);
  const uint32_t rule = code | zero << 8 | zero << 16 | code << 24;
  const uint2 codes = cuda::fp8_codes_of_products<T, E4m3, false>(raw, factor);
  bool same = codes.x == rule && codes.y == rule;
  if (fabsf(product) > 448.0f) return same;
  const uint2 bounded = cuda::fp8_codes_of_products<T, E4m3, true>(raw, factor);
  return same && bounded.x == rule && bounded.y == rule;
}

// Counts the numbers whose codes by any of the words' functions are not the rule's.
template <class F>
__global__ void words_kernel(unsigned long long* wrong) {
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  unsigned long long count = 0;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < 1ull << 32; i += threads) {
    const float x = __uint_as_float(static_cast<uint32_t>(i));
    const float abs = fabsf(x);
    const uint32_t code = code_from_f32<F>(x), back = code_from_f32<F>(-x);
    const uint32_t rule = code | code_from_f32<F>(1.5f) << 8 | back << 16 | code << 24;
    bool same = cuda::fp8_word<F>(x, 1.5f, -x, x) == rule;
    if (abs < 0x1p100f) {
      same &= cuda::fp8_word_of_numbers<F, false>(x, 1.5f, -x, x) == rule;
      if (abs <= F::kMax) same &= cuda::fp8_word_of_numbers<F, true>(x, 1.5f, -x, x) == rule;
    }
    if (F::kMan == 3 && i >> 31 == 0 && !(abs >= 0x1p100f)) {
      same &= cuda::e4m3_of_magnitudes(x, 1.5f) == (rule & 0xFFFF);
      same &= cuda::e4m3_of_magnitudes(1.5f, x) == (rule >> 8 & 0xFF | code << 8);
    }
    if constexpr (F::kMan == 3) {
      same &= products_agree<cuda::Bf16>(static_cast<uint32_t>(i));
      same &= products_agree<cuda::F16>(static_cast<uint32_t>(i));
    }
    count += !same;
  }
  if (count != 0) atomicAdd(wrong, count);
}

template <class F>
Status run_words(const char* format) {
  unsigned long long* wrong = nullptr;
  unsigned long long count = 0;
  PESTLE_CUDA_TRY(cudaMalloc(&wrong, sizeof(count)));
  PESTLE_CUDA_TRY(cudaMemset(wrong, 0, sizeof(count)));
  words_kernel<F><<<4096, 256>>>(wrong);
  PESTLE_CUDA_TRY(cudaGetLastError());
  PESTLE_CUDA_TRY(cudaMemcpy(&count, wrong, sizeof(count), cudaMemcpyDeviceToHost));
  PESTLE_CUDA_TRY(cudaFree(wrong));
  if (count == 0) return {};
  return {Code::kInternal, std::string(format) + ": " + std::to_string(count) + " of 2^32 differ"};
}

}  // namespace
}  // namespace pestle

int main(int argc, char** argv) {
  const uint64_t num_blocks = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
  for (const pestle::Status& status :
       {pestle::run_words<pestle::formats::E4m3>("E4M3 words"),
        pestle::run_words<pestle::formats::E5m2>("E5M2 words"), pestle::run(num_blocks)}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("%llu blocks: device and host agree on every format, and on 2^32 words\n",
              static_cast<unsigned long long>(num_blocks));
  return 0;
}
