// PyTorch's dtypes and devices in Pestle's terms.
#pragma once

#include "core/tensor.h"
#include "python/csrc/torch_abi.h"

namespace pestle::torch {

// kNone if Pestle has no such dtype. Two packed 4-bit floats are a byte.
DType dtype_from_torch(int32_t code);
int32_t dtype_to_torch(DType dtype);
bool is_torch_cpu(int32_t type);
// False if Pestle has no ops for the device.
bool device_from_torch(int32_t type, int32_t index, Device& device);
int32_t device_type_to_torch(DeviceType type);
// Asks libtorch for its numbers; call once, before any of the above.
void load_dtypes();

}  // namespace pestle::torch
