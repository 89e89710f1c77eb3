// Reads the C ABI's arguments into a Call.
#pragma once

#include "core/op_table.h"
#include "pestle/pestle.h"

namespace pestle {

class CallValues {
 public:
  explicit CallValues(const Op& op);
  CallValues(const CallValues&) = delete;
  CallValues& operator=(const CallValues&) = delete;

  Status read(const pestle_arg* args, size_t count);
  Status read_options(const pestle_call_options* options);
  Call& call() { return call_; }
  std::string_view forced() const { return forced_; }

 private:
  Status read_arg(size_t index, const pestle_arg& arg);
  Status read_tensor(size_t index, const pestle_tensor* tensor, TensorView& view) const;
  Status read_choice(size_t index, const char* label);
  Status error(size_t index, const std::string& what) const;

  const OpSpec& spec_;
  Value values_[kMaxArgs];
  std::vector<std::vector<TensorView>> lists_;
  Call call_;
  std::string_view forced_;
};

}  // namespace pestle
