#include "backends/cuda/host/launch.h"

#include <array>
#include <atomic>
#include <mutex>

namespace pestle::cuda {
namespace {

// Below this no kernel has to ask; what it declares itself, 32 KiB at most, counts towards the 48.
constexpr size_t kAlwaysAllowed = 16 << 10;

// What kernels have been allowed, by the address that they are started by: a template's kernel has
// one in each file that names it, and each must be allowed for itself, on each device.
class AllowedMemory {
 public:
  Status allow(const void* kernel, int device, size_t bytes) {
    Entry* entry = find(kernel);
    const bool remembered = entry != nullptr && device >= 0 && device < kDevices;
    if (remembered && entry->bytes[device].load(std::memory_order_acquire) >= bytes) return {};
    const std::lock_guard lock(mutex_);
    const size_t wanted = std::max<size_t>(bytes, 49 << 10);
    if (remembered && entry->bytes[device].load(std::memory_order_relaxed) >= wanted) return {};
    PESTLE_ON_DEVICE(device);
    PESTLE_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(wanted)));
    if (remembered) entry->bytes[device].store(wanted, std::memory_order_release);
    return {};
  }

 private:
  static constexpr size_t kEntries = 2048;  // four times the kernels that need it
  static constexpr int kDevices = 16;       // beyond them every launch asks
  struct Entry {
    std::atomic<const void*> kernel{nullptr};
    std::atomic<size_t> bytes[kDevices]{};
  };

  // Its place, taken now if it has none; nullptr where the table is full.
  Entry* find(const void* kernel) {
    size_t place = (reinterpret_cast<uintptr_t>(kernel) >> 4) * 0x9E3779B97F4A7C15u >> 53;
    for (size_t tries = 0; tries < kEntries; ++tries, place = (place + 1) % kEntries) {
      const void* found = entries_[place].kernel.load(std::memory_order_acquire);
      if (found == nullptr &&
          entries_[place].kernel.compare_exchange_strong(found, kernel, std::memory_order_acq_rel))
        return &entries_[place];
      if (found == kernel) return &entries_[place];
    }
    return nullptr;
  }

  std::array<Entry, kEntries> entries_;
  std::mutex mutex_;
};

}  // namespace

Status allow_shared_bytes(const void* kernel, int device, size_t bytes) {
  static AllowedMemory memory;
  return bytes <= kAlwaysAllowed ? Status() : memory.allow(kernel, device, bytes);
}

Status launch_failed(int error, const char* name, const Grid& grid, int device) {
  const Status status = from_cuda(error, name);
  std::string message = status.message() + "; grid " + std::to_string(grid.blocks) + " x " +
                        std::to_string(grid.threads) + " threads, " +
                        std::to_string(grid.shared_bytes) + " bytes of dynamic shared memory";
  if (grid.cluster > 1) message += ", clusters of " + std::to_string(grid.cluster);
  return {status.code(), message + ", device " + std::to_string(device)};
}

}  // namespace pestle::cuda
