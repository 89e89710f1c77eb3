// Where tensors under test live and how work on them is timed. The host here; a CUDA device
// implements the same interface, and nothing else in the harness asks where a tensor is.
#pragma once

#include <cstdint>
#include <functional>

#include "core/tensor.h"

namespace pestle::harness {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual Device device() const = 0;
  // Aligned to 4096 bytes, content undefined; nullptr when there is not so much.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory, int64_t bytes) = 0;
  // May the CPU read and write it? If not, tensors keep a host image beside it.
  virtual bool host_visible() const = 0;
  virtual void to_device(void* device, const void* host, int64_t bytes) = 0;
  virtual void to_host(void* host, const void* device, int64_t bytes) = 0;
  // Waits for everything that calls have started.
  virtual void synchronize() = 0;
  // Microseconds from the start of `work` to the end of everything that it started.
  virtual double time_us(const std::function<void()>& work) = 0;
};

Memory& host_memory();

}  // namespace pestle::harness
