#include "harness/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "harness/test_tensor.h"

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

  int64_t free_bytes() const override {
    return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  bool host_visible() const override { return true; }
  void to_device(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void to_host(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void fill(void* memory, uint8_t byte, int64_t bytes) override {
    std::memset(memory, byte, static_cast<size_t>(bytes));
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  uint64_t hash(const void* memory, int64_t bytes) override { return hash_bytes(memory, bytes); }
  void synchronize() override {}
  double time_us(const std::function<void()>& work) override {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }

  bool has(Launch launch) const override { return launch == Launch::kDefault; }
  Status call(Launch, std::span<const Region>, std::unique_ptr<Recording>&,
              const std::function<Status(void* stream)>& work) override {
    return work(nullptr);
  }
};

}  // namespace

std::string_view launch_name(Launch launch) {
  constexpr std::string_view kNames[kLaunches] = {"default", "stream", "graph"};
  return kNames[static_cast<int>(launch)];
}

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace pestle::harness
