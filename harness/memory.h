// Where tensors under test live, how calls get there and how they are timed. The host here; a CUDA
// device implements the same interface (cuda_memory.h), and nothing else in the harness asks where
// a tensor is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "core/tensor.h"

namespace pestle::harness {

// How a call reaches its device: on the default stream, on a stream of its own behind work that is
// still running, or recorded once and replayed.
enum class Launch : int { kDefault, kStream, kGraph };
inline constexpr int kLaunches = 3;
std::string_view launch_name(Launch launch);

// A call recorded for replay.
class Recording {
 public:
  virtual ~Recording() = default;
};

struct Region {
  void* memory;
  int64_t bytes;
};

class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  // What is being done there: said when the device fails, which ends the process.
  void set_context(std::string text) { context_ = std::move(text); }
  // Aligned to 4096 bytes (256 on a device), content undefined; nullptr when there is not so much.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory, int64_t bytes) = 0;
  // What allocate can still give, more or less.
  virtual int64_t free_bytes() const = 0;
  // May the CPU read and write it? If not, tensors keep a host image beside it.
  virtual bool host_visible() const = 0;
  virtual void to_device(void* device, const void* host, int64_t bytes) = 0;
  virtual void to_host(void* host, const void* device, int64_t bytes) = 0;
  // As memset, memcpy and hash_bytes, where the memory is; what follows here sees fill's bytes,
  // other streams after synchronize(). Any good hash will do; it is compared with none of another
  // memory.
  virtual void fill(void* memory, uint8_t byte, int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  virtual uint64_t hash(const void* memory, int64_t bytes) = 0;
  // Waits for everything that calls have started.
  virtual void synchronize() = 0;
  // Microseconds from the start of `work` to the end of everything that it started.
  virtual double time_us(const std::function<void()>& work) = 0;

  // Does launching in this way differ from the default one here?
  virtual bool has(Launch launch) const = 0;
  // Runs `work`, which queues a call on the stream that it is given, and waits for its end. The
  // call's tensors and workspace lie in `regions`, ready to be used. With kGraph, work is recorded
  // into `recording` when that is empty; then the recording is run.
  virtual Status call(Launch launch, std::span<const Region> regions,
                      std::unique_ptr<Recording>& recording,
                      const std::function<Status(void* stream)>& work) = 0;

 protected:
  std::string context_;
};

Memory& host_memory();

}  // namespace pestle::harness
