#include "python/csrc/dtypes.h"

#include <array>

namespace pestle::torch {
namespace {

constexpr size_t kTorchCodes = 128;
std::array<DType, kTorchCodes> g_from_torch;
std::array<int32_t, 32> g_to_torch;
int32_t g_cpu = -1;
int32_t g_cuda = -1;

}  // namespace

void load_dtypes() {
  const TorchAbi& abi = torch_abi();
  g_from_torch.fill(DType::kNone);
  g_to_torch.fill(-1);
  const auto add = [](DType dtype, int32_t code) {
    g_from_torch[static_cast<size_t>(code) % kTorchCodes] = dtype;
    g_to_torch[static_cast<size_t>(dtype)] = code;
  };
  add(DType::kU8, abi.torch_dtype_float4_e2m1fn_x2());  // one way only: the next line takes over
  add(DType::kU8, abi.aoti_torch_dtype_uint8());
  add(DType::kF32, abi.aoti_torch_dtype_float32());
  add(DType::kF16, abi.aoti_torch_dtype_float16());
  add(DType::kBF16, abi.aoti_torch_dtype_bfloat16());
  add(DType::kF64, abi.aoti_torch_dtype_float64());
  add(DType::kE4M3, abi.aoti_torch_dtype_float8_e4m3fn());
  add(DType::kE5M2, abi.aoti_torch_dtype_float8_e5m2());
  add(DType::kE8M0, abi.torch_dtype_float8_e8m0fnu());
  add(DType::kI8, abi.aoti_torch_dtype_int8());
  add(DType::kI16, abi.aoti_torch_dtype_int16());
  add(DType::kU16, abi.aoti_torch_dtype_uint16());
  add(DType::kI32, abi.aoti_torch_dtype_int32());
  add(DType::kU32, abi.aoti_torch_dtype_uint32());
  add(DType::kI64, abi.aoti_torch_dtype_int64());
  add(DType::kU64, abi.aoti_torch_dtype_uint64());
  add(DType::kBool, abi.aoti_torch_dtype_bool());
  g_cpu = abi.aoti_torch_device_type_cpu();
  g_cuda = abi.aoti_torch_device_type_cuda();
}

DType dtype_from_torch(int32_t code) {
  return code >= 0 && static_cast<size_t>(code) < kTorchCodes
             ? g_from_torch[static_cast<size_t>(code)]
             : DType::kNone;
}

int32_t dtype_to_torch(DType dtype) { return g_to_torch[static_cast<size_t>(dtype)]; }

bool is_torch_cpu(int32_t type) { return type == g_cpu; }

bool device_from_torch(int32_t type, int32_t index, Device& device) {
  device.type = type == g_cuda ? DeviceType::kCuda : DeviceType::kCpu;
  device.index = type == g_cuda ? index : 0;  // torch's CPU tensors may say -1
  return type == g_cpu || type == g_cuda;
}

int32_t device_type_to_torch(DeviceType type) { return type == DeviceType::kCuda ? g_cuda : g_cpu; }

}  // namespace pestle::torch
