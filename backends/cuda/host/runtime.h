// What a program without CUDA headers needs of CUDA: devices, memory, streams, events, graphs. No
// CUDA type leaves this folder. In a build without CUDA everything here says "not compiled".
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"

namespace pestle::cuda {

// False in a build without the CUDA backend.
bool compiled();
// 80 or 90 in a build of that architecture's code alone, which says so of every device; else 0.
int portable();
// The devices that this process may use; a missing or too old driver is a device error.
Result<int> device_count();
// 90 for sm_90; 0 when there is no such device. Never an error, and remembered: dispatch asks.
int compute_capability(int32_t device);

struct DeviceInfo {
  std::string name;
  std::string bus;  // PCI address, as NVML wants it
  int compute_capability = 0;
  int sm_count = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  int driver_version = 0;  // CUDA version of the driver, 13000 for 13.0
  std::string driver;      // "580.159.04", empty when NVML is missing
};
Result<DeviceInfo> device_info(int device);

// What the device does now, as NVML says; known is false where there is no NVML.
struct Clocks {
  bool known = false;
  int sm_mhz = 0, memory_mhz = 0, temperature = 0;
  uint64_t throttle_reasons = 0;  // NVML's bits; 0 and 1 (idle) are no throttling
  std::string throttled() const;  // "power cap, thermal", empty when not
};
Clocks clocks(int device);

// ---- memory -------------------------------------------------------------------------------------
Result<void*> allocate(int device, int64_t bytes);
void release(int device, void* memory);
Result<int64_t> free_bytes(int device);
// Blocking: the host's memory may be used at once.
Status copy_to_device(int device, void* to, const void* from, int64_t bytes);
Status copy_to_host(int device, void* to, const void* from, int64_t bytes);
// On a stream (nullptr: the default one), without waiting.
Status copy_on_device(int device, void* to, const void* from, int64_t bytes, void* stream);
Status fill_bytes(int device, void* memory, uint8_t byte, int64_t bytes, void* stream);
// 64 bits that depend on every byte and its place; the same whatever order blocks run in. `memory`
// as allocate() gave it. Blocking.
Result<uint64_t> hash(int device, const void* memory, int64_t bytes);

// ---- order and time -----------------------------------------------------------------------------
Result<void*> make_stream(int device);  // does not wait for the default stream
void destroy_stream(int device, void* stream);
Status synchronize(int device, void* stream);
Status synchronize_device(int device);
// The error that a kernel has left behind, if any.
Status last_error(int device);

Result<void*> make_event(int device);
void destroy_event(int device, void* event);
Status record_event(int device, void* event, void* stream);
Result<double> elapsed_us(int device, void* from, void* to);  // waits for `to`

// Keeps what follows on the stream from starting until open(), so that calls queue up and the time
// between two events holds no host work. Gives up after a while: a call that waits for the device
// would else hang.
class Gate {
 public:
  static Result<Gate> make(int device);
  Gate() = default;
  Gate(Gate&& other) noexcept { *this = std::move(other); }
  Gate& operator=(Gate&& other) noexcept;
  ~Gate();
  Status close(void* stream);
  void open();
  // Did the gate give up before open()? Ask after synchronising.
  bool timed_out() const;

 private:
  int device_ = 0;
  void* flags_ = nullptr;  // pinned: [0] opened, [1] timed out
};

// Records what `work` queues on the stream instead of running it.
Result<void*> capture_graph(int device, void* stream, const std::function<Status()>& work);
Status launch_graph(int device, void* graph, void* stream);
void destroy_graph(int device, void* graph);

// ---- for benches --------------------------------------------------------------------------------
// Reads `bytes` of `memory`, so that L2 holds nothing else and nothing that must be written back;
// undoes any persisting part of L2 first.
Status flush_l2(int device, const void* memory, int64_t bytes, void* stream);
// A kernel that does nothing, started as bare as can be: the least that a call can cost the host.
Status launch_nothing(int device, void* stream);

// The ceiling: reads and writes so many bytes, 16 at a time, nothing else. `config` <
// copy_configs() selects how; which is fastest depends on the sizes.
int copy_configs();
std::string copy_config_name(int config);
Status copy_like(int device, void* to, int64_t write_bytes, const void* from, int64_t read_bytes,
                 int config, void* stream);

}  // namespace pestle::cuda
