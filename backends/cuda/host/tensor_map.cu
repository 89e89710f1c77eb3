#include "backends/cuda/host/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "backends/cuda/host/device.h"

namespace pestle::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);
using Replace = decltype(&cuTensorMapReplaceAddress);

// By name from the loaded driver: nothing is linked against it.
void* find(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return function;
}

// A map that was made, and what of; of each thread, which asks for the same shapes again. Making
// one costs the host ten times what copying does.
struct Remembered {
  BoxedTensor tensor;  // at its last address
  CUtensorMap map{};
};

Remembered& place_of(const BoxedTensor& t) {
  constexpr size_t kPlaces = 64;
  static thread_local std::array<Remembered, kPlaces> places;
  uint64_t hash = static_cast<uint64_t>(t.element_bytes) << 8 | static_cast<uint64_t>(t.swizzle);
  for (const int64_t word :
       {t.size[0], t.size[1], t.stride_bytes[0], int64_t{t.box[0]} << 32 | t.box[1], t.size[2]})
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
  return places[hash >> 58];
}

bool same_but_address(const BoxedTensor& a, const BoxedTensor& b) {
  return a.element_bytes == b.element_bytes && a.swizzle == b.swizzle &&
         std::equal(a.size, a.size + 3, b.size) &&
         std::equal(a.stride_bytes, a.stride_bytes + 2, b.stride_bytes) &&
         std::equal(a.box, a.box + 2, b.box);
}

Status refused(const char* function, CUresult status) {
  return unsupported(std::string(function) + " refuses a tensor (error " +
                     std::to_string(static_cast<int>(status)) + ")");
}

CUtensorMapSwizzle swizzle_of(const BoxedTensor& t) {
  switch (t.swizzle) {
    case 128: return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    default: return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

Status encode_map(const BoxedTensor& t, CUtensorMap* map) {
  static const auto encode = reinterpret_cast<Encode>(find("cuTensorMapEncodeTiled"));
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
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(t),
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? Status() : refused("cuTensorMapEncodeTiled", status);
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
  static const auto replace = reinterpret_cast<Replace>(find("cuTensorMapReplaceAddress"));
  Remembered& place = place_of(t);
  if (!replace || !same_but_address(place.tensor, t)) {
    place.tensor = {};
    PESTLE_TRY(encode_map(t, &place.map));
  } else if (place.tensor.data != t.data) {
    const CUresult status = replace(&place.map, const_cast<void*>(t.data));
    if (status != CUDA_SUCCESS) {
      place.tensor = {};
      return refused("cuTensorMapReplaceAddress", status);
    }
  }
  place.tensor = t;
  *map = place.map;
  return {};
}

}  // namespace pestle::cuda
