#include "harness/ceiling.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/parallel.h"
#include "core/machine.h"
#include "harness/memory.h"
#include "harness/timing.h"

namespace pestle::harness {
namespace {

using CopyFunction = void (*)(char* to, const char* from, int64_t bytes);

void copy_memcpy(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#if defined(__x86_64__)
// Both need 64-byte aligned buffers and sizes, which stretches have.
__attribute__((target("avx512f"))) void copy_stream_512(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  _mm_sfence();
}
void copy_stream_128(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
}
CopyFunction streaming_copy() {
  return best_isa() == Isa::kAvx512 ? copy_stream_512 : copy_stream_128;
}
#else
CopyFunction streaming_copy() { return copy_memcpy; }
#endif

// Twelve independent chains hide the latency of a multiply-add on every current core.
constexpr int kChains = 12;
constexpr int kVector = 16;

template <class Step>
float fma_chains(int64_t steps, Step&& step) {
  float sums[kChains][kVector];
  for (auto& chain : sums) std::fill(std::begin(chain), std::end(chain), 1.0f);
  for (int64_t i = 0; i < steps; ++i) step(sums);
  float total = 0;
  for (auto& chain : sums) total += chain[0];
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float fma_512(int64_t steps) {
  __m512 sums[kChains];
  for (auto& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (auto& sum : sums) total += _mm512_cvtss_f32(sum);
  return total;
}
__attribute__((target("avx2,fma"))) float fma_256(int64_t steps) {
  __m256 sums[kChains];
  for (auto& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 factor = _mm256_set1_ps(0.999f);
  // Two halves make the sixteen lanes that are counted.
  for (int64_t i = 0; i < 2 * steps; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (auto& sum : sums) total += _mm256_cvtss_f32(sum);
  return total;
}
#endif

float fma_plain(int64_t steps) {
  return fma_chains(steps, [](float(&sums)[kChains][kVector]) {
    for (auto& chain : sums) {
      for (float& sum : chain) sum = sum * 0.999f + 0.999f;
    }
  });
}

}  // namespace

Result<std::unique_ptr<CopyCeiling>> CopyCeiling::make() {
  std::unique_ptr<CopyCeiling> ceiling(new CopyCeiling);
  ceiling->from_ = static_cast<char*>(host_memory().allocate(kBufferBytes));
  ceiling->to_ = static_cast<char*>(host_memory().allocate(kBufferBytes));
  if (ceiling->from_ == nullptr || ceiling->to_ == nullptr) {
    return Status{Code::kOutOfMemory, "no memory for the copy that results are compared with"};
  }
  cpu::parallel_for(kBufferBytes, 1 << 21, [&](int64_t b, int64_t e) {
    std::memset(ceiling->from_ + b, 1, static_cast<size_t>(e - b));
    std::memset(ceiling->to_ + b, 2, static_cast<size_t>(e - b));
  });
  const auto timed = [&](bool streaming) {
    return [&ceiling, streaming] {
      ceiling->streaming_ = streaming;
      return ceiling->sample();
    };
  };
  const auto timings = time_interleaved({timed(false), timed(true)},
                                        {.spread = 0.02, .seconds = 0.5, .at_least = 8});
  ceiling->streaming_ = timings[1].median < timings[0].median;
  return ceiling;
}

CopyCeiling::~CopyCeiling() {
  host_memory().release(from_, kBufferBytes);
  host_memory().release(to_, kBufferBytes);
}

double CopyCeiling::sample() {
  const int64_t offset = next_;
  next_ = (next_ + kStretchBytes) % kBufferBytes;
  const CopyFunction copy = streaming_ ? streaming_copy() : copy_memcpy;
  return host_memory().time_us([&] {
    cpu::parallel_for(kStretchBytes, 1 << 21, [&](int64_t b, int64_t e) {
      copy(to_ + offset + b, from_ + offset + b, e - b);
    });
  });
}

double compute_ceiling_gflops() {
  constexpr int64_t kSteps = 2'000'000;
  float (*chains)(int64_t) = fma_plain;
#if defined(__x86_64__)
  if (best_isa() == Isa::kAvx512)
    chains = fma_512;
  else if (best_isa() == Isa::kAvx2)
    chains = fma_256;
#endif
  const int threads = cpu::threads();
  std::atomic<float> kept{0};
  const auto timings =
      time_interleaved({[&] {
                         return host_memory().time_us([&] {
                           cpu::parallel_for(threads, 1, [&](int64_t b, int64_t e) {
                             for (int64_t i = b; i < e; ++i) kept = kept + chains(kSteps);
                           });
                         });
                       }},
                       {.spread = 0.02, .seconds = 0.4, .at_least = 5});
  return 2.0 * kChains * kVector * kSteps * threads / timings[0].median * 1e-3;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace pestle::harness
