#include "backends/cuda/host/runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "backends/cuda/host/current_device.h"

namespace pestle::cuda {

std::string driver_text();  // clocks.cu

namespace {

constexpr int kKnownDevices = 64;

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

int read_attribute(int device, cudaDeviceAttr attribute) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) {
    (void)cudaGetLastError();  // forgotten: the caller is told by 0
    return 0;
  }
  return value;
}

__device__ uint64_t mixed(uint64_t word, uint64_t place) {
  uint64_t z = word ^ ((place + 1) * 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A sum, so that the order does not matter.
__global__ void hash_words(const uint64_t* words, int64_t count, const uint8_t* tail,
                           int tail_bytes, unsigned long long* sum) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint64_t own = 0;
  for (int64_t i = thread; i < count; i += step) own += mixed(words[i], i);
  if (thread < tail_bytes) own += mixed(tail[thread] + 1u, count + thread);
  for (int distance = 16; distance > 0; distance /= 2) {
    own += __shfl_down_sync(0xFFFFFFFFu, own, distance);
  }
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

constexpr unsigned long long kGateNanoseconds = 2'000'000'000;

__global__ void wait_at_gate(volatile int* flags) {
  unsigned long long start;
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  while (flags[0] == 0) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - start > kGateNanoseconds) {
      flags[1] = 1;
      __threadfence_system();
      return;
    }
    __nanosleep(500);
  }
}

}  // namespace

bool compiled() { return true; }

int portable() {
#ifdef PESTLE_CUDA_PORTABLE
  return PESTLE_CUDA_PORTABLE;
#else
  return 0;
#endif
}

int compute_capability(int32_t device) {
  // 0: not asked yet; -1: no such device.
  static std::array<std::atomic<int>, kKnownDevices> known{};
  if (device < 0 || device >= kKnownDevices) return 0;
  std::atomic<int>& entry = known[static_cast<size_t>(device)];
  if (int value = entry.load(std::memory_order_relaxed); value != 0) return value > 0 ? value : 0;
  int value = 10 * read_attribute(device, cudaDevAttrComputeCapabilityMajor) +
              read_attribute(device, cudaDevAttrComputeCapabilityMinor);
#ifdef PESTLE_CUDA_PORTABLE
  value = std::min(value, PESTLE_CUDA_PORTABLE);
#endif
  entry.store(value > 0 ? value : -1, std::memory_order_relaxed);
  return value;
}

Result<DeviceInfo> device_info(int device) {
  cudaDeviceProp properties;
  PESTLE_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  DeviceInfo info;
  char bus[32] = {};
  PESTLE_CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof(bus), device));
  info.bus = bus;
  info.name = properties.name;
  info.compute_capability = 10 * properties.major + properties.minor;
  info.sm_count = properties.multiProcessorCount;
  info.l2_bytes = properties.l2CacheSize;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  PESTLE_CUDA_TRY(cudaDriverGetVersion(&info.driver_version));
  info.driver = driver_text();
  return info;
}

Result<void*> allocate(int device, int64_t bytes) {
  PESTLE_ON_DEVICE(device);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError();  // said by the status
  PESTLE_TRY(from_cuda(error, "cudaMalloc"));
  return memory;
}

void release(int device, void* memory) {
  const CurrentDevice on_device(device);
  cudaFree(memory);
}

Result<int64_t> free_bytes(int device) {
  PESTLE_ON_DEVICE(device);
  size_t free = 0;
  size_t total = 0;
  PESTLE_CUDA_TRY(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

Status copy_to_device(int device, void* to, const void* from, int64_t bytes) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  // From pageable memory the copy may return before its last part has arrived.
  PESTLE_CUDA_TRY(cudaStreamSynchronize(nullptr));
  return {};
}

Status copy_to_host(int device, void* to, const void* from, int64_t bytes) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
  return {};
}

Status copy_on_device(int device, void* to, const void* from, int64_t bytes, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                  as_stream(stream)));
  return {};
}

Status fill_bytes(int device, void* memory, uint8_t byte, int64_t bytes, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaMemsetAsync(memory, byte, static_cast<size_t>(bytes), as_stream(stream)));
  return {};
}

Result<uint64_t> hash(int device, const void* memory, int64_t bytes) {
  PESTLE_ON_DEVICE(device);
  unsigned long long* sum = nullptr;
  PESTLE_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&sum), sizeof(*sum)));
  unsigned long long result = 0;
  const auto run = [&]() -> Status {
    PESTLE_CUDA_TRY(cudaMemset(sum, 0, sizeof(*sum)));
    const int64_t words = bytes / 8;
    const auto* tail = static_cast<const uint8_t*>(memory) + words * 8;
    hash_words<<<1024, 256>>>(static_cast<const uint64_t*>(memory), words, tail,
                              static_cast<int>(bytes % 8), sum);
    PESTLE_CUDA_TRY(cudaGetLastError());
    PESTLE_CUDA_TRY(cudaMemcpy(&result, sum, sizeof(result), cudaMemcpyDeviceToHost));
    return {};
  };
  const Status status = run();
  cudaFree(sum);
  PESTLE_TRY(status);
  return result + static_cast<uint64_t>(bytes);
}

Result<void*> make_stream(int device) {
  PESTLE_ON_DEVICE(device);
  cudaStream_t stream = nullptr;
  PESTLE_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return static_cast<void*>(stream);
}

void destroy_stream(int device, void* stream) {
  const CurrentDevice on_device(device);
  cudaStreamDestroy(as_stream(stream));
}

Status synchronize(int device, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaStreamSynchronize(as_stream(stream)));
  return {};
}

Status synchronize_device(int device) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaDeviceSynchronize());
  return {};
}

Status last_error(int device) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaGetLastError());
  return {};
}

Result<void*> make_event(int device) {
  PESTLE_ON_DEVICE(device);
  cudaEvent_t event = nullptr;
  PESTLE_CUDA_TRY(cudaEventCreate(&event));
  return static_cast<void*>(event);
}

void destroy_event(int device, void* event) {
  const CurrentDevice on_device(device);
  cudaEventDestroy(as_event(event));
}

Status record_event(int device, void* event, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaEventRecord(as_event(event), as_stream(stream)));
  return {};
}

Result<double> elapsed_us(int device, void* from, void* to) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaEventSynchronize(as_event(to)));
  float milliseconds = 0;
  PESTLE_CUDA_TRY(cudaEventElapsedTime(&milliseconds, as_event(from), as_event(to)));
  return milliseconds * 1e3;
}

Result<Gate> Gate::make(int device) {
  PESTLE_ON_DEVICE(device);
  Gate gate;
  gate.device_ = device;
  PESTLE_CUDA_TRY(cudaHostAlloc(&gate.flags_, 2 * sizeof(int), cudaHostAllocPortable));
  return Result<Gate>(std::move(gate));
}

Gate& Gate::operator=(Gate&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(flags_, other.flags_);
  return *this;
}

Gate::~Gate() {
  if (flags_ == nullptr) return;
  const CurrentDevice on_device(device_);
  cudaFreeHost(flags_);
}

Status Gate::close(void* stream) {
  PESTLE_ON_DEVICE(device_);
  auto* flags = static_cast<volatile int*>(flags_);
  flags[0] = 0;
  flags[1] = 0;
  wait_at_gate<<<1, 1, 0, as_stream(stream)>>>(flags);
  PESTLE_CUDA_TRY(cudaGetLastError());
  return {};
}

void Gate::open() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  static_cast<volatile int*>(flags_)[0] = 1;
}

bool Gate::timed_out() const { return static_cast<volatile int*>(flags_)[1] != 0; }

Result<void*> capture_graph(int device, void* stream, const std::function<Status()>& work) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal));
  const Status queued = work();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(as_stream(stream), &graph);
  const auto instantiate = [&]() -> Status {
    PESTLE_TRY(queued);
    PESTLE_TRY(from_cuda(ended, "cudaStreamEndCapture"));
    PESTLE_CUDA_TRY(cudaGraphInstantiate(&ready, graph, 0));
    return {};
  };
  const Status made = instantiate();
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!made.ok()) {
    (void)cudaGetLastError();  // said by the status
    return made;
  }
  return static_cast<void*>(ready);
}

Status launch_graph(int device, void* graph, void* stream) {
  PESTLE_ON_DEVICE(device);
  PESTLE_CUDA_TRY(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream)));
  return {};
}

void destroy_graph(int device, void* graph) {
  const CurrentDevice on_device(device);
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace pestle::cuda
