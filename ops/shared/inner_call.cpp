#include "ops/shared/inner_call.h"

#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/expr.h"

namespace pestle::ops {
std::string_view label_of(const Call& call, std::string_view choice) {
  const int at = find_arg(*call.spec, choice);
  return choice_label(call.spec->args[static_cast<size_t>(at)].choices, call.integer(at));
}

InnerCall::InnerCall(const Call& outer, std::string_view op)
    : outer_(outer), op_(find_op(op)), call_(outer) {
  if (op_ == nullptr) return;
  const OpSpec& spec = *op_->spec;
  set_default_attributes(spec, values_);
  call_.spec = &spec;
  call_.args = std::span<Value>(values_.data(), spec.args.size());
  call_.sum_magnitudes = false;
}

Value& InnerCall::value(std::string_view name) {
  Value& v = values_[static_cast<size_t>(find_arg(*call_.spec, name))];
  v.present = true;
  return v;
}

void InnerCall::set(std::string_view name, const TensorView& tensor) {
  if (op_ != nullptr) value(name).tensor = tensor;
}
void InnerCall::set(std::string_view name, int64_t number) {
  if (op_ != nullptr) value(name).i = number;
}
void InnerCall::set(std::string_view name, std::string_view label) {
  if (op_ == nullptr) return;
  const Arg& arg = call_.spec->args[static_cast<size_t>(find_arg(*call_.spec, name))];
  value(name).i = choice_index(arg.choices, label);
}

void InnerCall::pass(std::string_view from, std::string_view to) {
  if (op_ == nullptr) return;
  const int own = find_arg(*outer_.spec, from);
  if (own < 0 || !outer_.has(own)) return;
  if (outer_.spec->args[static_cast<size_t>(own)].kind == Kind::kChoice)
    set(to, label_of(outer_, from));
  else
    value(to) = outer_.args[static_cast<size_t>(own)];
}

Status InnerCall::run(void* workspace, int64_t bytes) {
  if (op_ == nullptr) return {Code::kInternal, "the table lacks an op that another one is made of"};
  call_.workspace = workspace;
  call_.workspace_bytes = bytes;
  return run_within(*op_, call_);
}

}  // namespace pestle::ops
