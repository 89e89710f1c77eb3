// The ceiling of ops bound by memory: reads r bytes and writes w bytes, 16 at a time, several loads
// in flight a thread, and does nothing else. Blocks take equal stretches of both; a stretch goes in
// steps, each with its share of the loads and of the stores, as an op that streams has them.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "backends/cuda/current_device.h"
#include "backends/cuda/runtime.h"

namespace pestle::cuda {
namespace {

struct Config {
  int threads;
  int in_flight;  // loads (or, when more is written than read, stores) a thread and step
  int steps;      // a block; 0: as many as one wave of blocks leaves
};
constexpr Config kConfigs[] = {
    {256, 4, 1}, {512, 4, 1}, {1024, 4, 1}, {256, 8, 1}, {512, 8, 1}, {256, 4, 4},
    {512, 4, 4}, {512, 2, 1}, {1024, 2, 1}, {512, 4, 0}, {512, 8, 0}, {1024, 4, 0},
};
constexpr int kWaveThreads = 2048;  // resident a SM
// Stores of a step start at whole 128-byte lines.
constexpr int64_t kLine = 8;

__device__ int64_t share(int64_t total, int64_t part, int64_t parts) {
  return total * part / parts / kLine * kLine;
}

template <int kInFlight>
__global__ void copy_kernel(uint4* __restrict__ to, int64_t writes, const uint4* __restrict__ from,
                            int64_t reads, int steps) {
  const int64_t parts = int64_t{gridDim.x} * steps;
  uint4 left_over{threadIdx.x, 1, 2, 3};
  for (int step = 0; step < steps; ++step) {
    const int64_t part = int64_t{blockIdx.x} * steps + step;
    const bool last = part + 1 == parts;
    const int64_t read_begin = share(reads, part, parts);
    const int64_t read_end = last ? reads : share(reads, part + 1, parts);
    const int64_t write_begin = share(writes, part, parts);
    const int64_t write_end = last ? writes : share(writes, part + 1, parts);
    // Rounds of kInFlight loads, then as many stores, until the step's share of both is done.
    int64_t read = read_begin + threadIdx.x;
    int64_t write = write_begin + threadIdx.x;
    while (read < read_end || write < write_end) {
      uint4 values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t place = read + int64_t{i} * blockDim.x;
        values[i] = place < read_end ? __ldcs(from + place) : left_over;
      }
      read += int64_t{kInFlight} * blockDim.x;
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t place = write + int64_t{i} * blockDim.x;
        if (place < write_end) {
          __stcs(to + place, values[i]);
        } else {
          left_over.x ^= values[i].x;  // or the load would not be made
          left_over.y ^= values[i].y;
        }
      }
      write += int64_t{kInFlight} * blockDim.x;
    }
  }
  if (left_over.x == 0x9E3779B9u && left_over.y == 0x7F4A7C15u) to[0] = left_over;
}

using Kernel = void (*)(uint4*, int64_t, const uint4*, int64_t, int);

Kernel kernel_of(int in_flight) {
  if (in_flight == 2) return copy_kernel<2>;
  return in_flight == 4 ? copy_kernel<4> : copy_kernel<8>;
}

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
  std::snprintf(text, sizeof(text), "%d threads, %d loads in flight, %s", c.threads, c.in_flight,
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
  const int64_t a_step = int64_t{c.threads} * c.in_flight;
  const int64_t all_steps = std::max<int64_t>(1, (std::max(reads, writes) + a_step - 1) / a_step);
  int64_t steps = c.steps;
  int64_t blocks = 0;
  if (steps == 0) {
    int sms = 0;
    PESTLE_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    blocks = std::min<int64_t>(all_steps, int64_t{sms} * (kWaveThreads / c.threads));
    steps = (all_steps + blocks - 1) / blocks;
  } else {
    blocks = (all_steps + steps - 1) / steps;
  }
  kernel_of(c.in_flight)<<<static_cast<unsigned>(blocks), c.threads, 0,
                           static_cast<cudaStream_t>(stream)>>>(static_cast<uint4*>(to), writes,
                                                                static_cast<const uint4*>(from),
                                                                reads, static_cast<int>(steps));
  PESTLE_CUDA_TRY(cudaGetLastError());
  return {};
}

}  // namespace pestle::cuda
