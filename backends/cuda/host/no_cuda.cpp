// Compiled instead of the CUDA sources in a build without CUDA: every call says so.
#include "backends/cuda/host/runtime.h"
#include "backends/cuda/measure/launched.h"

namespace pestle::cuda {
namespace {

Status missing() {
  return {Code::kNotCompiled, "this build has no CUDA backend (make cuda builds one)"};
}

}  // namespace

bool compiled() { return false; }
int portable() { return 0; }
Result<int> device_count() { return missing(); }
int compute_capability(int32_t) { return 0; }
Result<DeviceInfo> device_info(int) { return missing(); }
std::string Clocks::throttled() const { return ""; }
Clocks clocks(int) { return {}; }

Result<void*> allocate(int, int64_t) { return missing(); }
void release(int, void*) {}
Result<int64_t> free_bytes(int) { return missing(); }
Status copy_to_device(int, void*, const void*, int64_t) { return missing(); }
Status copy_to_host(int, void*, const void*, int64_t) { return missing(); }
Status copy_on_device(int, void*, const void*, int64_t, void*) { return missing(); }
Status fill_bytes(int, void*, uint8_t, int64_t, void*) { return missing(); }
Result<uint64_t> hash(int, const void*, int64_t) { return missing(); }

Result<void*> make_stream(int) { return missing(); }
void destroy_stream(int, void*) {}
Status synchronize(int, void*) { return missing(); }
Status synchronize_device(int) { return missing(); }
Status last_error(int) { return missing(); }
Result<void*> make_event(int) { return missing(); }
void destroy_event(int, void*) {}
Status record_event(int, void*, void*) { return missing(); }
Result<double> elapsed_us(int, void*, void*) { return missing(); }

Result<Gate> Gate::make(int) { return missing(); }
Gate& Gate::operator=(Gate&&) noexcept { return *this; }
Gate::~Gate() { flags_ = nullptr; }
Status Gate::close(void*) { return missing(); }
void Gate::open() {}
bool Gate::timed_out() const { return device_ < 0 && flags_ == nullptr; }

Result<void*> capture_graph(int, void*, const std::function<Status()>&) { return missing(); }
Status launch_graph(int, void*, void*) { return missing(); }
Result<std::vector<std::string>> launched(int, void*, const std::function<Status()>&) {
  return missing();
}
void destroy_graph(int, void*) {}

Status flush_l2(int, const void*, int64_t, void*) { return missing(); }
Status launch_nothing(int, void*) { return missing(); }
int copy_configs() { return 0; }
std::string copy_config_name(int) { return ""; }
Status copy_like(int, void*, int64_t, const void*, int64_t, int, void*) { return missing(); }

}  // namespace pestle::cuda
