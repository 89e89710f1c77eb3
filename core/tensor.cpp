#include "core/tensor.h"

namespace pestle {

int64_t numel(const TensorView& tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.shape[d];
  return count;
}

bool is_contiguous_from(const TensorView& tensor, int first_dim) {
  int64_t expected = 1;
  for (int d = tensor.rank - 1; d >= first_dim; --d) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

bool is_contiguous(const TensorView& tensor) {
  return numel(tensor) == 0 || is_contiguous_from(tensor, 0);
}

void set_contiguous_strides(TensorView& tensor) {
  int64_t stride = 1;
  for (int d = tensor.rank - 1; d >= 0; --d) {
    tensor.strides[d] = stride;
    stride *= tensor.shape[d];
  }
}

TensorView make_view(void* data, DType dtype, int rank, const int64_t* dims) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = rank;
  for (int d = 0; d < rank; ++d) view.shape[d] = dims[d];
  set_contiguous_strides(view);
  return view;
}

ByteRange byte_range(const TensorView& tensor) {
  const auto base = reinterpret_cast<uintptr_t>(tensor.data);
  if (tensor.data == nullptr || numel(tensor) == 0) return {base, base};
  int64_t low = 0;
  int64_t high = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    const int64_t reach = (tensor.shape[d] - 1) * tensor.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t bytes = dtype_bytes(tensor.dtype);
  return {base + static_cast<uintptr_t>(low * bytes),
          base + static_cast<uintptr_t>((high + 1) * bytes)};
}

std::string describe(const TensorView& tensor) {
  std::string text(dtype_name(tensor.dtype));
  text += '[';
  for (int d = 0; d < tensor.rank; ++d) {
    if (d > 0) text += ',';
    text += std::to_string(tensor.shape[d]);
  }
  return text + ']';
}

}  // namespace pestle
