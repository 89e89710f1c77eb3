// The part of PyTorch's stable C ABI that the package uses, looked up in the libtorch of the
// process. Nothing of PyTorch is needed to compile or to link, so one binary serves every torch
// from 2.11 on, CUDA build or not. tests/torch/test_abi.py holds the declarations to PyTorch's own
// headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pestle::torch {

using StableIValue = uint64_t;
using Error = int32_t;  // 0: success
struct TensorOpaque;
struct LibraryOpaque;
struct StringOpaque;
struct GuardOpaque;
struct StableListOpaque;
using TensorHandle = TensorOpaque*;
using LibraryHandle = LibraryOpaque*;
using StringHandle = StringOpaque*;
using GuardHandle = GuardOpaque*;
using StableListHandle = StableListOpaque*;
using BoxedKernel = void (*)(StableIValue* stack, uint64_t inputs, uint64_t outputs);

// The torch version whose conventions the kernels follow; newer ones translate.
inline constexpr uint64_t kTargetVersion = 0x020b000000000000;  // 2.11.0

// X(result, name, arguments)
#define PESTLE_TORCH_FUNCTIONS(X)                                                                  \
  X(Error, aoti_torch_library_init_fragment, (const char*, const char*, uint32_t, LibraryHandle*)) \
  X(Error, aoti_torch_library_init_impl,                                                           \
    (const char*, const char*, const char*, uint32_t, LibraryHandle*))                             \
  X(Error, aoti_torch_library_def, (LibraryHandle, const char*))                                   \
  X(Error, torch_library_impl, (LibraryHandle, const char*, BoxedKernel, uint64_t))                \
  X(Error, aoti_torch_get_data_ptr, (TensorHandle, void**))                                        \
  X(Error, aoti_torch_get_dim, (TensorHandle, int64_t*))                                           \
  X(Error, aoti_torch_get_sizes, (TensorHandle, int64_t**))                                        \
  X(Error, aoti_torch_get_strides, (TensorHandle, int64_t**))                                      \
  X(Error, aoti_torch_get_dtype, (TensorHandle, int32_t*))                                         \
  X(Error, aoti_torch_get_layout, (TensorHandle, int32_t*))                                        \
  X(Error, aoti_torch_get_device_type, (TensorHandle, int32_t*))                                   \
  X(Error, aoti_torch_get_device_index, (TensorHandle, int32_t*))                                  \
  X(Error, aoti_torch_empty_strided,                                                               \
    (int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, TensorHandle*))           \
  X(Error, aoti_torch_delete_tensor_object, (TensorHandle))                                        \
  X(Error, torch_string_length, (StringHandle, size_t*))                                           \
  X(Error, torch_string_c_str, (StringHandle, const char**))                                       \
  X(Error, torch_delete_string, (StringHandle))                                                    \
  X(Error, torch_new_list_reserve_size, (size_t, StableListHandle*))                               \
  X(Error, torch_list_size, (StableListHandle, size_t*))                                           \
  X(Error, torch_list_get_item, (StableListHandle, size_t, StableIValue*))                         \
  X(Error, torch_list_push_back, (StableListHandle, StableIValue))                                 \
  X(Error, torch_delete_list, (StableListHandle))                                                  \
  X(Error, aoti_torch_get_current_device_index, (int32_t*))                                        \
  X(Error, aoti_torch_create_device_guard, (int32_t, GuardHandle*))                                \
  X(Error, aoti_torch_delete_device_guard, (GuardHandle))                                          \
  X(int32_t, aoti_torch_layout_strided, ())                                                        \
  X(int32_t, aoti_torch_device_type_cpu, ())                                                       \
  X(int32_t, aoti_torch_device_type_cuda, ())                                                      \
  X(int32_t, aoti_torch_dtype_float32, ())                                                         \
  X(int32_t, aoti_torch_dtype_float16, ())                                                         \
  X(int32_t, aoti_torch_dtype_bfloat16, ())                                                        \
  X(int32_t, aoti_torch_dtype_float64, ())                                                         \
  X(int32_t, aoti_torch_dtype_float8_e4m3fn, ())                                                   \
  X(int32_t, aoti_torch_dtype_float8_e5m2, ())                                                     \
  X(int32_t, torch_dtype_float8_e8m0fnu, ())                                                       \
  X(int32_t, torch_dtype_float4_e2m1fn_x2, ())                                                     \
  X(int32_t, aoti_torch_dtype_uint8, ())                                                           \
  X(int32_t, aoti_torch_dtype_int8, ())                                                            \
  X(int32_t, aoti_torch_dtype_int16, ())                                                           \
  X(int32_t, aoti_torch_dtype_uint16, ())                                                          \
  X(int32_t, aoti_torch_dtype_int32, ())                                                           \
  X(int32_t, aoti_torch_dtype_uint32, ())                                                          \
  X(int32_t, aoti_torch_dtype_int64, ())                                                           \
  X(int32_t, aoti_torch_dtype_uint64, ())                                                          \
  X(int32_t, aoti_torch_dtype_bool, ())

// In libtorch_cuda, so only when that is in the process.
#define PESTLE_TORCH_CUDA_FUNCTIONS(X) \
  X(Error, aoti_torch_get_current_cuda_stream, (int32_t, void**))

// Since some torch after 2.11 the inner value of an optional is freed by torch itself.
#define PESTLE_TORCH_OPTIONAL_FUNCTIONS(X) X(Error, torch_delete_stable_ivalue, (StableIValue*))

struct TorchAbi {
#define PESTLE_MEMBER(result, name, arguments) result(*name) arguments = nullptr;
  PESTLE_TORCH_FUNCTIONS(PESTLE_MEMBER)
  PESTLE_TORCH_CUDA_FUNCTIONS(PESTLE_MEMBER)
  PESTLE_TORCH_OPTIONAL_FUNCTIONS(PESTLE_MEMBER)
#undef PESTLE_MEMBER
};

// Valid once load_torch_abi has succeeded; constant from then on, but for the CUDA part.
const TorchAbi& torch_abi();
// Empty, or why there is no usable libtorch in the process.
std::string load_torch_abi();
// Looks again for libtorch_cuda; false if it is not in the process.
bool load_torch_cuda();

}  // namespace pestle::torch
