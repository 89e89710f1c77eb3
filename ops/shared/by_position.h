// One position of a call with lists, as a call of the op of the table that does one tensor.
#pragma once

#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/text.h"

namespace pestle::ops {

// Tensors and attributes go by name; choices by label. What the other op has beyond them is as by
// default. Views what `lists` views.
struct PositionCall {
  const Op& op;
  Value values[kMaxArgs];
  Call call;

  PositionCall(const Call& lists, size_t position, const char* name) : op(*find_op(name)) {
    call = lists;
    call.spec = op.spec;
    call.args = std::span<Value>(values, op.spec->args.size());
    set_default_attributes(*op.spec, call.args);
    for (size_t i = 0; i < lists.args.size(); ++i) {
      const Arg& arg = lists.spec->args[i];
      const int at = find_arg(*op.spec, arg.name);
      if (at < 0 || !lists.args[i].present) continue;
      Value& value = values[at];
      value = lists.args[i];
      value.list = {};
      if (arg.kind == Kind::kTensorList) value.tensor = lists.args[i].list[position];
      if (arg.kind == Kind::kChoice) {
        value.i = choice_index(op.spec->args[static_cast<size_t>(at)].choices,
                               choice_label(arg.choices, lists.args[i].i));
      }
    }
  }
};

}  // namespace pestle::ops
