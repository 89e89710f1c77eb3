#include "harness/memory.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace pestle::harness {
namespace {

constexpr int64_t kPage = 4096;
// Above this, memory comes from mmap in huge pages, so that timings are not those of the TLB.
constexpr int64_t kMapped = int64_t{4} << 20;

class HostMemory final : public Memory {
 public:
  Device device() const override { return {}; }

  void* allocate(int64_t bytes) override {
    if (bytes < kMapped) {
      return std::aligned_alloc(kPage, static_cast<size_t>((bytes / kPage + 1) * kPage));
    }
    void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return memory;
  }

  void release(void* memory, int64_t bytes) override {
    if (memory == nullptr) return;
    if (bytes < kMapped)
      std::free(memory);
    else
      munmap(memory, static_cast<size_t>(bytes));
  }

  bool host_visible() const override { return true; }
  void to_device(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void to_host(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void synchronize() override {}
  double time_us(const std::function<void()>& work) override {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace pestle::harness
