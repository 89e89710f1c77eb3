// C++ over the C ABI, header only: exceptions instead of statuses, owned workspaces, checked
// labels.
//
//   pestle::api::call("quantize_fp8", {{"x", x}, {"q", q}, {"scale_out", s}, {"granularity",
//   "row"}});
#ifndef PESTLE_PESTLE_HPP_
#define PESTLE_PESTLE_HPP_

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pestle/pestle.h"

namespace pestle::api {

class Error : public std::runtime_error {
 public:
  Error(pestle_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  pestle_status status() const { return status_; }

 private:
  pestle_status status_;
};

inline void check(pestle_status status) {
  if (status != PESTLE_OK) throw Error(status, pestle_last_error());
}

// A view with its own copy of shape and strides; the memory stays the caller's.
class Tensor {
 public:
  Tensor(void* data, pestle_dtype dtype, std::vector<int64_t> shape,
         std::vector<int64_t> strides = {}, uint64_t byte_offset = 0)
      : shape_(std::move(shape)), strides_(std::move(strides)) {
    view_.data = data;
    view_.dtype = dtype;
    view_.device_type = PESTLE_CPU;
    view_.byte_offset = byte_offset;
  }
  Tensor& on(pestle_device_type device, int32_t index) {
    view_.device_type = device;
    view_.device_index = index;
    return *this;
  }
  // Points into this object: valid while it lives and stays where it is.
  const pestle_tensor* view() const {
    view_.rank = static_cast<int32_t>(shape_.size());
    view_.shape = shape_.data();
    view_.strides = strides_.empty() ? nullptr : strides_.data();
    return &view_;
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  mutable pestle_tensor view_{};
};

// One argument by name. Numbers are converted to what the contract asks for.
struct Arg {
  Arg(std::string_view n, const Tensor& tensor) : name(n) {
    value.kind = PESTLE_TENSOR;
    value.value.tensor = tensor.view();
  }
  Arg(std::string_view n, const char* label) : name(n) {
    value.kind = PESTLE_CHOICE;
    value.value.choice = label;
  }
  Arg(std::string_view n, bool flag) : name(n) {
    value.kind = PESTLE_BOOL_VALUE;
    value.value.i = flag;
  }
  Arg(std::string_view n, int number) : Arg(n, int64_t{number}) {}
  Arg(std::string_view n, int64_t number) : name(n) {
    value.kind = PESTLE_INT;
    value.value.i = number;
  }
  Arg(std::string_view n, double number) : name(n) {
    value.kind = PESTLE_FLOAT;
    value.value.f = number;
  }
  std::string_view name;
  pestle_arg value{};
};

class Op {
 public:
  explicit Op(const char* name) : op_(pestle_find_op(name)) {
    if (op_ == nullptr) throw Error(PESTLE_INVALID_ARGUMENT, std::string("no op '") + name + "'");
  }

  // Runs the op, with a workspace of its own if it needs one and `options` brings none. CPU only:
  // for CUDA tensors pass a workspace from the framework's allocator.
  void operator()(std::initializer_list<Arg> named, pestle_call_options options = {}) const {
    const std::vector<pestle_arg> args = in_order(named);
    options.size = sizeof(options);
    std::unique_ptr<char[]> workspace;
    if (options.workspace == nullptr) {
      check(pestle_choose(op_, args.data(), args.size(), &options, nullptr,
                          &options.workspace_bytes));
      workspace.reset(new char[static_cast<size_t>(options.workspace_bytes)]);
      options.workspace = workspace.get();
    }
    check(pestle_call(op_, args.data(), args.size(), &options));
  }

 private:
  std::vector<pestle_arg> in_order(std::initializer_list<Arg> named) const {
    std::vector<pestle_arg> args(pestle_op_arg_count(op_));
    for (const Arg& arg : named) args[index_of(arg.name)] = arg.value;
    return args;
  }
  size_t index_of(std::string_view name) const {
    for (size_t i = 0; i < pestle_op_arg_count(op_); ++i) {
      pestle_arg_info info{};
      info.size = sizeof(info);
      check(pestle_op_arg(op_, i, &info));
      if (name == info.name) return i;
    }
    throw Error(PESTLE_INVALID_ARGUMENT,
                std::string(pestle_op_name(op_)) + ": no argument '" + std::string(name) + "'");
  }
  const pestle_op* op_;
};

inline void call(const char* op, std::initializer_list<Arg> args,
                 pestle_call_options options = {}) {
  Op{op}(args, options);
}

// Text that the library allocated.
class Text {
 public:
  Text() = default;
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { pestle_free(text_); }
  char** out() { return &text_; }
  std::string str() const { return text_ ? text_ : ""; }

 private:
  char* text_ = nullptr;
};

}  // namespace pestle::api

#endif  // PESTLE_PESTLE_HPP_
