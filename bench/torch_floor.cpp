// Ops that do nothing but allocate their outputs, registered as ours are: through PyTorch's stable
// C ABI, boxed. What they cost is what no op of the package can cost less than.
// bench/torch_host_cost.py compiles this with python/csrc/torch_abi.cpp and times them.
#include <cstdio>

#include "python/csrc/torch_abi.h"

namespace pestle::torch {
namespace {

TensorHandle allocate(const int64_t* shape, int32_t dtype, int32_t type, int32_t index) {
  const int64_t strides[2] = {shape[1], 1};
  TensorHandle made = nullptr;
  torch_abi().aoti_torch_empty_strided(2, shape, strides, dtype, type, index, &made);
  return made;
}

// (Tensor x) -> Tensor, or (Tensor, Tensor) with a number for each row.
template <bool kTwo>
void floor_of(StableIValue* stack, uint64_t, uint64_t) {
  const TorchAbi& abi = torch_abi();
  const auto x = reinterpret_cast<TensorHandle>(stack[0]);
  int64_t* sizes = nullptr;
  int32_t type = 0, index = 0;
  abi.aoti_torch_get_sizes(x, &sizes);
  abi.aoti_torch_get_device_type(x, &type);
  abi.aoti_torch_get_device_index(x, &index);
  const int64_t rows[2] = {sizes[0], 1};
  const int32_t bytes = abi.aoti_torch_dtype_uint8();
  stack[0] = reinterpret_cast<StableIValue>(allocate(sizes, bytes, type, index));
  if (kTwo)
    stack[1] =
        reinterpret_cast<StableIValue>(allocate(rows, abi.aoti_torch_dtype_float32(), type, index));
  abi.aoti_torch_delete_tensor_object(x);
}

// (Tensor x, Tensor scale, the options of quantize_fp8.scale) -> Tensor
void floor_with_options(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  const TorchAbi& abi = torch_abi();
  abi.aoti_torch_delete_tensor_object(reinterpret_cast<TensorHandle>(stack[1]));
  abi.torch_delete_string(reinterpret_cast<StringHandle>(stack[2]));
  abi.torch_delete_string(reinterpret_cast<StringHandle>(stack[3]));
  floor_of<false>(stack, inputs, outputs);
}

bool register_floor() {
  const std::string error = load_torch_abi();
  if (!error.empty()) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return false;
  }
  const TorchAbi& abi = torch_abi();
  LibraryHandle library = nullptr;
  abi.aoti_torch_library_init_fragment("pestle_floor", __FILE__, __LINE__, &library);
  abi.aoti_torch_library_def(library, "one(Tensor x) -> Tensor");
  abi.aoti_torch_library_def(library, "two(Tensor x) -> (Tensor, Tensor)");
  abi.aoti_torch_library_def(
      library,
      "options(Tensor x, Tensor scale, *, str granularity=\"tensor\", str rounding=\"nearest\", "
      "SymInt seed=0, bool transposed=False, ScalarType? q_dtype=None) -> Tensor");
  for (const char* key : {"CPU", "CUDA"}) {
    abi.aoti_torch_library_init_impl("pestle_floor", key, __FILE__, __LINE__, &library);
    abi.torch_library_impl(library, "one", floor_of<false>, kTargetVersion);
    abi.torch_library_impl(library, "options", floor_with_options, kTargetVersion);
    abi.torch_library_impl(library, "two", floor_of<true>, kTargetVersion);
  }
  return true;
}
const bool g_registered = register_floor();

}  // namespace
}  // namespace pestle::torch
