// A call of another op of the table from within an op: arguments by name, as in a contract's rule.
// What is not set has its default, or is absent.
#pragma once

#include <array>
#include <string_view>

#include "core/op.h"

namespace pestle {
struct Op;
}

namespace pestle::ops {

class InnerCall {
 public:
  // On the stream of `outer`.
  InnerCall(const Call& outer, std::string_view op);
  InnerCall(const InnerCall&) = delete;
  InnerCall& operator=(const InnerCall&) = delete;

  void set(std::string_view name, const TensorView& tensor);
  void set(std::string_view name, int64_t value);
  void set(std::string_view name, std::string_view label);
  // The outer call's argument `from`, where it has one, choices by their labels.
  void pass(std::string_view from, std::string_view to);
  void pass(std::string_view name) { pass(name, name); }

  Status run(void* workspace, int64_t bytes);

 private:
  Value& value(std::string_view name);

  const Call& outer_;
  const Op* op_;
  std::array<Value, kMaxArgs> values_{};
  Call call_;
};

// The label of a choice of a call.
std::string_view label_of(const Call& call, std::string_view choice);

}  // namespace pestle::ops
