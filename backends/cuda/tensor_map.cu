#include "backends/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/device.h"

namespace pestle::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// By name from the loaded driver: nothing is linked against it.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Encode>(function);
}

}  // namespace

const char* refuse_boxes(const BoxedTensor& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16) return "does not begin at a multiple of 16 bytes";
  for (const int64_t stride : t.stride_bytes) {
    if (stride % 16 || stride < 0 || stride >= int64_t{1} << 40)
      return "has a stride that is no multiple of 16 bytes below 2^40";
  }
  for (const int64_t size : t.size) {
    if (size < 1 || size > int64_t{1} << 32) return "has a dimension of 0 or of more than 2^32";
  }
  return "";
}

Status make_tensor_map(const BoxedTensor& t, CUtensorMap* map) {
  static const Encode encode = find_encode();
  if (!encode) return unsupported("the driver has no cuTensorMapEncodeTiled (CUDA 12.0)");
  const CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                       CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                       CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
  cuuint64_t size[3];
  for (int i = 0; i < 3; ++i) size[i] = static_cast<cuuint64_t>(t.size[i]);
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(t.stride_bytes[0]),
                                 static_cast<cuuint64_t>(t.stride_bytes[1])};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(t.box[0]), static_cast<cuuint32_t>(t.box[1]),
                             1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status =
      encode(map, types[t.element_bytes / 2], 3, const_cast<void*>(t.data), size, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             t.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return unsupported("cuTensorMapEncodeTiled refuses a tensor (error " +
                       std::to_string(static_cast<int>(status)) + ")");
  return {};
}

}  // namespace pestle::cuda
