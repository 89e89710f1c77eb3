#include "bindings/c/c_values.h"

#include "core/call_text.h"

namespace pestle {

CallValues::CallValues(const Op& op) : spec_(*op.spec) {
  call_.spec = op.spec;
  call_.args = std::span<Value>(values_, spec_.args.size());
  set_default_attributes(spec_, call_.args);
}

Status CallValues::error(size_t index, const std::string& what) const {
  return invalid_argument(std::string(spec_.name) + ": " + spec_.args[index].name + " " + what);
}

Status CallValues::read(const pestle_arg* args, size_t count) {
  if (count > spec_.args.size()) {
    return invalid_argument(std::string(spec_.name) + ": " + std::to_string(count) +
                            " arguments given, the contract has " +
                            std::to_string(spec_.args.size()));
  }
  if (args == nullptr && count > 0) {
    return invalid_argument(std::string(spec_.name) + ": args is NULL");
  }
  for (size_t i = 0; i < count; ++i) {
    if (args[i].kind != PESTLE_ABSENT) PESTLE_TRY(read_arg(i, args[i]));
  }
  return {};
}

Status CallValues::read_options(const pestle_call_options* options) {
  if (options == nullptr) return {};
  if (options->size < sizeof(pestle_call_options)) {
    return invalid_argument(std::string(spec_.name) +
                            ": options.size must be sizeof(pestle_call_options)");
  }
  call_.stream = options->stream;
  call_.workspace = options->workspace;
  call_.workspace_bytes = options->workspace_bytes;
  if (options->impl != nullptr) forced_ = options->impl;
  return {};
}

Status CallValues::read_arg(size_t index, const pestle_arg& arg) {
  Value& value = values_[index];
  value.present = true;
  switch (spec_.args[index].kind) {
    case Kind::kTensor:
      if (arg.kind != PESTLE_TENSOR) return error(index, "must be given as a tensor");
      return read_tensor(index, arg.value.tensor, value.tensor);
    case Kind::kTensorList: {
      if (arg.kind != PESTLE_TENSOR_LIST) return error(index, "must be given as a list of tensors");
      if (arg.count < 0 || (arg.count > 0 && arg.value.tensor == nullptr)) {
        return error(index, "is a list without tensors behind it");
      }
      // Values view the elements, which stay where they are when the outer vector grows.
      std::vector<TensorView>& list = lists_.emplace_back(static_cast<size_t>(arg.count));
      for (size_t i = 0; i < list.size(); ++i) {
        PESTLE_TRY(read_tensor(index, arg.value.tensor + i, list[i]));
      }
      value.list = list;
      return {};
    }
    case Kind::kInt:
      if (arg.kind != PESTLE_INT) return error(index, "must be given as an integer");
      value.i = arg.value.i;
      return {};
    case Kind::kBool:
      if (arg.kind != PESTLE_BOOL_VALUE) return error(index, "must be given as a boolean");
      value.i = arg.value.i != 0;
      return {};
    case Kind::kFloat:
      if (arg.kind != PESTLE_FLOAT) return error(index, "must be given as a float");
      value.f = arg.value.f;
      return {};
    case Kind::kChoice:
      if (arg.kind != PESTLE_CHOICE) return error(index, "must be given as a label");
      return read_choice(index, arg.value.choice);
  }
  return error(index, "has an unknown kind");
}

Status CallValues::read_choice(size_t index, const char* label) {
  if (label == nullptr) return error(index, "is a NULL label");
  values_[index].i = choice_index(spec_.args[index].choices, label);
  if (values_[index].i >= 0) return {};
  return error(index,
               "is '" + std::string(label) + "', expected one of " + spec_.args[index].choices);
}

Status CallValues::read_tensor(size_t index, const pestle_tensor* tensor, TensorView& view) const {
  if (tensor == nullptr) return error(index, "is a NULL tensor");
  if (tensor->rank < 0 || tensor->rank > kMaxRank) {
    return error(index, "has rank " + std::to_string(tensor->rank) + ", expected 0 to 8");
  }
  if (tensor->rank > 0 && tensor->shape == nullptr) return error(index, "has no shape");
  view.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  view.dtype = static_cast<DType>(tensor->dtype);
  if (view.dtype == DType::kNone || dtype_info(view.dtype).dtype == DType::kNone) {
    return error(index, "has unknown dtype number " + std::to_string(tensor->dtype));
  }
  view.device.type =
      tensor->device_type == 0 ? DeviceType::kCpu : static_cast<DeviceType>(tensor->device_type);
  view.device.index = tensor->device_index;
  view.rank = tensor->rank;
  __int128 elements = 1;
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = tensor->shape[d];
    if (view.shape[d] < 0) return error(index, "has a negative dimension");
    elements *= view.shape[d];
    if (elements > INT64_MAX / 16) return error(index, "has more elements than memory can hold");
  }
  if (tensor->strides == nullptr) {
    set_contiguous_strides(view);
  } else {
    for (int d = 0; d < view.rank; ++d) view.strides[d] = tensor->strides[d];
  }
  return {};
}

}  // namespace pestle
