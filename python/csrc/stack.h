// Ownership of what torch puts on the stack of a boxed kernel.
#pragma once

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "python/csrc/torch_abi.h"

namespace pestle::torch {

// A value of a schema type that is no pointer: torch copies it into the low bytes.
template <class T>
T plain_value(StableIValue value) {
  T result;
  std::memcpy(&result, &value, sizeof(T));
  return result;
}

template <class T>
StableIValue stable_value(T value) {
  StableIValue result = 0;
  std::memcpy(&result, &value, sizeof(T));
  return result;
}

// The value inside an optional and true, or false if there is none. Frees the box around it.
inline bool open_optional(StableIValue value, StableIValue& inner) {
  auto* box = plain_value<StableIValue*>(value);
  if (box == nullptr) return false;
  inner = *box;
  if (torch_abi().torch_delete_stable_ivalue != nullptr) {
    torch_abi().torch_delete_stable_ivalue(box);
  } else {
    delete box;  // torch 2.11 allocates it by new, and asks kernels to delete it
  }
  return true;
}

class OwnedTensor {
 public:
  OwnedTensor() = default;
  explicit OwnedTensor(TensorHandle handle) : handle_(handle) {}
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  OwnedTensor(OwnedTensor&& other) noexcept : handle_(other.release()) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~OwnedTensor() { reset(nullptr); }

  void reset(TensorHandle handle) {
    if (handle_ != nullptr) torch_abi().aoti_torch_delete_tensor_object(handle_);
    handle_ = handle;
  }
  TensorHandle release() {
    TensorHandle handle = handle_;
    handle_ = nullptr;
    return handle;
  }
  TensorHandle get() const { return handle_; }

 private:
  TensorHandle handle_ = nullptr;
};

// The tensors of a list, which are owned here; the list itself is freed.
inline std::vector<OwnedTensor> open_list(StableIValue value) {
  const auto list = plain_value<StableListHandle>(value);
  size_t count = 0;
  torch_abi().torch_list_size(list, &count);
  std::vector<OwnedTensor> tensors(count);
  for (size_t i = 0; i < count; ++i) {
    StableIValue item = 0;
    torch_abi().torch_list_get_item(list, i, &item);
    tensors[i].reset(plain_value<TensorHandle>(item));
  }
  torch_abi().torch_delete_list(list);
  return tensors;
}

// A list that torch owns, and with it the tensors.
inline StableIValue give_list(std::vector<OwnedTensor>& tensors) {
  StableListHandle list = nullptr;
  torch_abi().torch_new_list_reserve_size(tensors.size(), &list);
  for (OwnedTensor& tensor : tensors) {
    torch_abi().torch_list_push_back(list, stable_value(tensor.release()));
  }
  return stable_value(list);
}

class OwnedString {
 public:
  explicit OwnedString(StableIValue value) : handle_(plain_value<StringHandle>(value)) {}
  OwnedString(const OwnedString&) = delete;
  OwnedString& operator=(const OwnedString&) = delete;
  ~OwnedString() { torch_abi().torch_delete_string(handle_); }

  std::string_view text() const {
    size_t length = 0;
    const char* data = "";
    torch_abi().torch_string_length(handle_, &length);
    torch_abi().torch_string_c_str(handle_, &data);
    return {data, length};
  }

 private:
  StringHandle handle_;
};

// Makes a CUDA device the current one for a scope; nothing for the CPU.
class DeviceScope {
 public:
  DeviceScope() = default;
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (guard_ != nullptr) torch_abi().aoti_torch_delete_device_guard(guard_);
  }
  bool enter(int32_t device_index) {
    int32_t current = -1;  // asking is cheaper than a guard
    if (torch_abi().aoti_torch_get_current_device_index(&current) == 0 && current == device_index) {
      return true;
    }
    return torch_abi().aoti_torch_create_device_guard(device_index, &guard_) == 0;
  }

 private:
  GuardHandle guard_ = nullptr;
};

}  // namespace pestle::torch
