#include "harness/cuda_memory.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "backends/cuda/host/runtime.h"

namespace pestle::harness {
namespace {

// What a tensor holds until the copies of its content, queued before the call, have run: a call
// that does not wait for its stream works on this.
constexpr uint8_t kTooEarly = 0xC3;
// Left free for the driver's own needs.
constexpr int64_t kReserve = int64_t{512} << 20;
constexpr int64_t kKept = int64_t{1} << 20;  // largest allocation that is kept

class GraphRecording final : public Recording {
 public:
  GraphRecording(int device, void* graph) : device_(device), graph_(graph) {}
  ~GraphRecording() override { cuda::destroy_graph(device_, graph_); }
  void* graph() const { return graph_; }

 private:
  int device_;
  void* graph_;
};

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(int device) : device_(device) {}
  ~CudaMemory() override {
    drop_kept();
    if (stream_ != nullptr) cuda::destroy_stream(device_, stream_);
    for (void* event : events_) {
      if (event != nullptr) cuda::destroy_event(device_, event);
    }
  }

  Status start() {
    auto gate = cuda::Gate::make(device_);
    PESTLE_TRY(gate.status());
    gate_ = std::move(gate.value());
    auto stream = cuda::make_stream(device_);
    PESTLE_TRY(stream.status());
    stream_ = stream.value();
    for (void*& event : events_) {
      auto made = cuda::make_event(device_);
      PESTLE_TRY(made.status());
      event = made.value();
    }
    return {};
  }

  Device device() const override { return {DeviceType::kCuda, device_}; }
  // Small allocations are kept for others of exactly their size: the driver's own wait for the
  // device, which many processes share.
  void* allocate(int64_t bytes) override {
    auto& same = kept_[bytes];
    if (!same.empty()) {
      void* memory = same.back();
      same.pop_back();
      return memory;
    }
    auto memory = cuda::allocate(device_, bytes);
    if (memory.ok()) return memory.value();
    drop_kept();
    memory = cuda::allocate(device_, bytes);
    return memory.ok() ? memory.value() : nullptr;
  }
  void release(void* memory, int64_t bytes) override {
    if (memory == nullptr) return;
    if (bytes <= kKept)
      kept_[bytes].push_back(memory);
    else
      cuda::release(device_, memory);
  }
  int64_t free_bytes() const override {
    const auto bytes = cuda::free_bytes(device_);
    return bytes.ok() ? bytes.value() - kReserve : 0;
  }
  bool host_visible() const override { return false; }
  void to_device(void* device, const void* host, int64_t bytes) override {
    must(cuda::copy_to_device(device_, device, host, bytes));
  }
  void to_host(void* host, const void* device, int64_t bytes) override {
    must(cuda::copy_to_host(device_, host, device, bytes));
  }
  void fill(void* memory, uint8_t byte, int64_t bytes) override {
    must(cuda::fill_bytes(device_, memory, byte, bytes, nullptr));
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    must(cuda::copy_on_device(device_, to, from, bytes, nullptr));
    must(cuda::synchronize_device(device_));
  }
  uint64_t hash(const void* memory, int64_t bytes) override {
    auto hash = cuda::hash(device_, memory, bytes);
    must(hash.status());
    return hash.value();
  }
  void synchronize() override { must(cuda::synchronize_device(device_)); }

  double time_us(const std::function<void()>& work) override {
    must(cuda::record_event(device_, events_[0], nullptr));
    work();
    must(cuda::record_event(device_, events_[1], nullptr));
    auto us = cuda::elapsed_us(device_, events_[0], events_[1]);
    must(us.status());
    return us.value();
  }

  bool has(Launch) const override { return true; }

  Status call(Launch launch, std::span<const Region> regions, std::unique_ptr<Recording>& recording,
              const std::function<Status(void* stream)>& work) override {
    synchronize();
    if (launch == Launch::kDefault) {
      const Status status = work(nullptr);
      must(cuda::synchronize_device(device_));
      return status;
    }
    return launch == Launch::kStream ? behind_a_gate(regions, work) : replay(recording, work);
  }

 private:
  void drop_kept() {
    for (auto& [bytes, list] : kept_) {
      for (void* memory : list) cuda::release(device_, memory);
      list.clear();
    }
  }

  // After an error of the device nothing that follows can be trusted, so there is no way on.
  void must(const Status& status) const {
    if (status.ok()) return;
    std::fflush(stdout);
    std::fprintf(stderr, "pestle: %s\n", status.message().c_str());
    if (!context_.empty()) std::fprintf(stderr, "  in %s\n", context_.c_str());
    std::_Exit(1);
  }

  // The tensors' content arrives by copies queued on the stream before the call and held back until
  // the call has returned: it is right only if the call's work waits for its stream.
  Status behind_a_gate(std::span<const Region> regions,
                       const std::function<Status(void* stream)>& work) {
    std::vector<void*> staged;
    Status status;
    for (const Region& region : regions) {
      void* memory = allocate(region.bytes);
      if (memory == nullptr) {
        status = {Code::kOutOfMemory, "no memory to hold the tensors' content back"};
        break;
      }
      staged.push_back(memory);
      must(cuda::copy_on_device(device_, memory, region.memory, region.bytes, nullptr));
      must(cuda::fill_bytes(device_, region.memory, kTooEarly, region.bytes, nullptr));
    }
    synchronize();
    if (status.ok()) {
      must(gate_.close(stream_));
      for (size_t i = 0; i < regions.size(); ++i) {
        must(
            cuda::copy_on_device(device_, regions[i].memory, staged[i], regions[i].bytes, stream_));
      }
      status = work(stream_);
      gate_.open();
      must(cuda::synchronize(device_, stream_));
      if (status.ok() && gate_.timed_out()) {
        status = {Code::kInternal, "the call waits for the device: it may only queue work"};
      }
      synchronize();
    }
    for (size_t i = 0; i < staged.size(); ++i) release(staged[i], regions[i].bytes);
    return status;
  }

  Status replay(std::unique_ptr<Recording>& recording,
                const std::function<Status(void* stream)>& work) {
    if (!recording) {
      auto graph = cuda::capture_graph(device_, stream_, [&] { return work(stream_); });
      PESTLE_TRY(graph.status());
      recording = std::make_unique<GraphRecording>(device_, graph.value());
    }
    void* graph = static_cast<GraphRecording&>(*recording).graph();
    must(cuda::launch_graph(device_, graph, stream_));
    synchronize();
    return {};
  }

  int device_;
  void* stream_ = nullptr;
  void* events_[2] = {};
  cuda::Gate gate_;
  std::map<int64_t, std::vector<void*>> kept_;  // by size
};

}  // namespace

bool device_from_text(std::string_view text, Device& device) {
  device = {};
  if (text == "cpu") return true;
  if (!text.starts_with("cuda")) return false;
  device.type = DeviceType::kCuda;
  text.remove_prefix(4);
  if (text.empty()) return true;
  if (text[0] != ':') return false;
  const auto [end, error] =
      std::from_chars(text.data() + 1, text.data() + text.size(), device.index);
  return error == std::errc() && end == text.data() + text.size() && device.index >= 0;
}

Result<std::unique_ptr<Memory>> cuda_memory(int device) {
  // A kernel loaded at its first launch may wait for the device, which a closed gate holds back.
  // Has an effect before the process's first CUDA call only; an explicit setting is respected.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  auto count = cuda::device_count();
  PESTLE_TRY(count.status());
  if (device >= count.value()) {
    return invalid_argument("there is no CUDA device " + std::to_string(device) + ", only " +
                            std::to_string(count.value()));
  }
  auto memory = std::make_unique<CudaMemory>(device);
  PESTLE_TRY(memory->start());
  return std::unique_ptr<Memory>(std::move(memory));
}

}  // namespace pestle::harness
