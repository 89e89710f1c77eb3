// The ceiling of ops bound by memory: reads r bytes and writes w bytes, 16 at a time, several loads
// in flight a thread, and does nothing else. Blocks take equal stretches of both, worked out on the
// host; a stretch goes in steps, each with its share of the loads and of the stores.
//
// Measured on an H200 in GB/s (read:written in MiB; the best of 168 ways, and of copies by bulk
// instructions through shared memory): 4363 and 4241 (1024:512), 4221 and 4095 (256:256), 4104 and
// 3963 (256:512), 4247 and 4230 (256:72), 4272 and 4274 (256:0). Plain loads and stores are 3 to 5
// % faster than evict-first ones (__ldcs, __stcs) except where almost nothing is written.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "backends/cuda/host/current_device.h"
#include "backends/cuda/host/runtime.h"

namespace pestle::cuda {
namespace {

enum class Hint { kPlain, kStreamed, kNotInL1 };

template <Hint kHint>
__device__ uint4 load(const uint4* from) {
  if constexpr (kHint == Hint::kPlain) return *from;
  if constexpr (kHint == Hint::kStreamed) return __ldcs(from);
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

template <Hint kHint>
__device__ void store(uint4* to, uint4 value) {
  if constexpr (kHint == Hint::kStreamed)
    __stcs(to, value);
  else
    *to = value;
}

// Of both tensors, in units of 16 bytes; a block's share of them.
struct Extent {
  int64_t all;
  uint32_t a_block;
  __device__ int64_t begin() const { return int64_t{blockIdx.x} * a_block; }
  __device__ uint32_t count() const {
    return static_cast<uint32_t>(max(int64_t{0}, min(int64_t{a_block}, all - begin())));
  }
};

template <int kInFlight, Hint kLoad, Hint kStore>
__global__ void copy_kernel(uint4* __restrict__ to, Extent writes, const uint4* __restrict__ from,
                            Extent reads) {
  const uint32_t to_read = reads.count();
  const uint32_t to_write = writes.count();
  from += reads.begin();
  to += writes.begin();
  uint4 left_over{threadIdx.x, 1, 2, 3};
  const uint32_t step = kInFlight * blockDim.x;
  for (uint32_t at = threadIdx.x; at < to_read || at < to_write; at += step) {
    uint4 values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const uint32_t place = at + i * blockDim.x;
      values[i] = place < to_read ? load<kLoad>(from + place) : left_over;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const uint32_t place = at + i * blockDim.x;
      if (place < to_write) {
        store<kStore>(to + place, values[i]);
      } else {
        left_over.x ^= values[i].x;  // or the load would not be made
        left_over.y ^= values[i].y;
      }
    }
  }
  if (left_over.x == 0x9E3779B9u && left_over.y == 0x7F4A7C15u) to[0] = left_over;
}

using Kernel = void (*)(uint4*, Extent, const uint4*, Extent);

struct Config {
  const char* hint;
  Kernel kernel;
  int threads;
  int in_flight;  // loads (or, when more is written than read, stores) a thread and step
  int steps;      // a block; 0: as many as one wave of blocks leaves
};

template <int kInFlight>
constexpr Kernel kPlain = copy_kernel<kInFlight, Hint::kPlain, Hint::kPlain>;
template <int kInFlight>
constexpr Kernel kStreamed = copy_kernel<kInFlight, Hint::kStreamed, Hint::kStreamed>;
template <int kInFlight>
constexpr Kernel kNotInL1 = copy_kernel<kInFlight, Hint::kNotInL1, Hint::kPlain>;
constexpr Kernel kStreamedIn = copy_kernel<4, Hint::kStreamed, Hint::kPlain>;
constexpr Kernel kStreamedOut = copy_kernel<4, Hint::kPlain, Hint::kStreamed>;

// Those that were the fastest for some size, or nearly.
constexpr Config kConfigs[] = {
    {"plain", kPlain<4>, 512, 4, 1},
    {"plain", kPlain<4>, 256, 4, 1},
    {"plain", kPlain<4>, 128, 4, 1},
    {"plain", kPlain<1>, 256, 1, 4},
    {"plain", kPlain<1>, 256, 1, 1},
    {"plain", kPlain<1>, 128, 1, 1},
    {"plain", kPlain<1>, 512, 1, 1},
    {"plain", kPlain<8>, 256, 8, 1},
    {"plain", kPlain<8>, 1024, 8, 0},
    {"streamed", kStreamed<1>, 128, 1, 1},
    {"streamed", kStreamed<2>, 1024, 2, 1},
    {"streamed", kStreamed<8>, 128, 8, 1},
    {"streamed", kStreamed<8>, 1024, 8, 1},
    {"streamed", kStreamed<16>, 128, 16, 0},
    {"not in L1", kNotInL1<4>, 128, 4, 1},
    {"not in L1", kNotInL1<8>, 256, 8, 1},
    {"loads streamed", kStreamedIn, 256, 4, 1},
    {"stores streamed", kStreamedOut, 256, 4, 1},
};
// Stretches begin at whole 128-byte lines.
constexpr int64_t kLine = 8;

int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

__global__ void read_kernel(const uint4* memory, int64_t count, uint4* never) {
  uint4 kept{};
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 value = memory[i];
    kept.x ^= value.x;
    kept.y |= value.y;
  }
  if (kept.x == 0x9E3779B9u && kept.y == 0x7F4A7C15u) *never = kept;
}

__global__ void empty_kernel() {}

}  // namespace

Status flush_l2(int device, const void* memory, int64_t bytes, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaCtxResetPersistingL2Cache());
  auto* words = static_cast<uint4*>(const_cast<void*>(memory));
  read_kernel<<<1024, 512, 0, static_cast<cudaStream_t>(stream)>>>(words, bytes / 16, words);
  PESTLE_CUDA_TRY(cudaGetLastError());
  return {};
}

Status launch_nothing(int device, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaLaunchKernel(reinterpret_cast<const void*>(empty_kernel), dim3(1), dim3(32),
                                   nullptr, 0, static_cast<cudaStream_t>(stream)));
  return {};
}

int copy_configs() { return static_cast<int>(std::size(kConfigs)); }

std::string copy_config_name(int config) {
  const Config& c = kConfigs[config];
  char text[80];
  std::snprintf(text, sizeof(text), "%s, %d threads, %d in flight, %s", c.hint, c.threads,
                c.in_flight,
                c.steps == 0   ? "one wave"
                : c.steps == 1 ? "1 step"
                               : "4 steps");
  return text;
}

Status copy_like(int device, void* to, int64_t write_bytes, const void* from, int64_t read_bytes,
                 int config, void* stream) {
  PESTLE_ON_DEVICE(device);
  const Config& c = kConfigs[config];
  const int64_t reads = (read_bytes + 15) / 16;
  const int64_t writes = (write_bytes + 15) / 16;
  const int64_t most = std::max<int64_t>(1, std::max(reads, writes));
  int64_t blocks = 0;
  if (c.steps == 0) {
    int sms = 0;
    int resident = 0;
    PESTLE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    PESTLE_CUDA_TRY(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, c.kernel, c.threads, 0));
    blocks = std::min<int64_t>(most, int64_t{sms} * resident);
  } else {
    const int64_t a_block = int64_t{c.threads} * c.in_flight * c.steps;
    blocks = (most + a_block - 1) / a_block;
  }
  const auto extent = [&](int64_t units) {
    const int64_t a_block = rounded_up((units + blocks - 1) / blocks, kLine);
    return Extent{units, static_cast<uint32_t>(a_block)};
  };
  c.kernel<<<static_cast<unsigned>(blocks), c.threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint4*>(to), extent(writes), static_cast<const uint4*>(from), extent(reads));
  PESTLE_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace pestle::cuda
