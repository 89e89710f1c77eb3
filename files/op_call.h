// One call of an op by names alone, so that the code here knows the table and no op's folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/op_table.h"

namespace pestle::files {

// The first wrong name is remembered and returned by infer() and run().
class OpCall {
 public:
  // `attributes`: "granularity=row pad=1"
  explicit OpCall(std::string_view op, std::string_view attributes = {});

  void tensor(std::string_view name, const TensorView& view);
  // Gives absent outputs their shapes; an output's dtype may be set before by tensor().
  Status infer();
  TensorView view(std::string_view name);
  // Takes the workspace it needs from a buffer of the calling thread.
  Status run();

 private:
  int index_of(std::string_view name);
  void attribute(std::string_view text);

  const Op* op_ = nullptr;
  std::vector<Value> values_;
  Status first_error_;
};

}  // namespace pestle::files
