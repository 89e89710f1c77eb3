// TensorView: a DLPack-shaped view of memory that somebody else owns.
#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace pestle {

inline constexpr int kMaxRank = 8;

// Same numbers as DLPack's device types.
enum class DeviceType : int32_t { kCpu = 1, kCuda = 2 };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};

// Strides are in elements and may be anything (0 and negative included). `data` already has any
// byte offset added, so it need not be aligned to more than one byte.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kNone;
  Device device;
  int32_t rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Number of elements: 1 for rank 0, 0 if any dimension is 0.
int64_t numel(const TensorView& tensor);
inline int64_t size_bytes(const TensorView& tensor) {
  return numel(tensor) * dtype_bytes(tensor.dtype);
}
// Row-major without gaps; dimensions of size 1 may have any stride.
bool is_contiguous(const TensorView& tensor);
// As above, asked of dimensions first_dim and later only.
bool is_contiguous_from(const TensorView& tensor, int first_dim);
void set_contiguous_strides(TensorView& tensor);
// A contiguous view; `dims` has `rank` entries.
TensorView make_view(void* data, DType dtype, int rank, const int64_t* dims);

// [lowest, one past highest] byte address that an element of the view covers; equal when empty or
// without memory.
struct ByteRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};
ByteRange byte_range(const TensorView& tensor);

// "bf16[8,4096]"
std::string describe(const TensorView& tensor);

}  // namespace pestle
