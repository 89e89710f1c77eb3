// Elements of f64 of any tensor on the device, which AnyTensor's own load and store do not know.
#pragma once

#include "backends/cuda/device/tensor/any_tensor.cuh"

namespace pestle::cuda {

#ifdef __CUDACC__
__device__ inline double load_f64(const char* p) {
  return __hiloint2double(static_cast<int>(AnyTensor::bits(p + 4, 4)),
                          static_cast<int>(AnyTensor::bits(p, 4)));
}
__device__ inline void store_f64(char* p, double v) {
  AnyTensor::put(p, static_cast<uint32_t>(__double2loint(v)), 4);
  AnyTensor::put(p + 4, static_cast<uint32_t>(__double2hiint(v)), 4);
}
#endif

}  // namespace pestle::cuda
