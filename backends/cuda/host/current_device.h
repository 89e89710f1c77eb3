// Makes a device current while it lives. For the runtime's own calls.
#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/host/device.h"

namespace pestle::cuda {

class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : status_(change(device)) {}
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  Status change(int device) {
    PESTLE_CUDA_TRY(cudaGetDevice(&before_));
    if (before_ == device) return {};
    PESTLE_CUDA_TRY(cudaSetDevice(device));
    changed_ = true;
    return {};
  }

  int before_ = 0;
  bool changed_ = false;
  Status status_;  // last: change() sets the others
};

}  // namespace pestle::cuda

// Makes `device` current in this scope, or returns why it can't be.
#define PESTLE_ON_DEVICE(device)                          \
  const ::pestle::cuda::CurrentDevice on_device_(device); \
  PESTLE_TRY(on_device_.status())
