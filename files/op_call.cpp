#include "files/op_call.h"

#include <charconv>

#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/expr.h"
#include "core/text.h"

namespace pestle::files {
namespace {

Status defect(const std::string& what) {
  return {Code::kInternal, "file engine: " + what + "; please report this"};
}

}  // namespace

OpCall::OpCall(std::string_view op, std::string_view attributes) : op_(find_op(op)) {
  if (op_ == nullptr) {
    first_error_ = unsupported("this build has no op " + std::string(op) +
                               ", which the format needs; pestle ops lists what there is");
    return;
  }
  values_.resize(op_->spec->args.size());
  set_default_attributes(*op_->spec, values_);
  for (const std::string_view text : split(attributes, ' ')) {
    if (!text.empty()) attribute(text);
  }
}

int OpCall::index_of(std::string_view name) {
  if (!first_error_.ok()) return -1;
  const int index = find_arg(*op_->spec, name);
  if (index < 0) {
    first_error_ = defect(std::string(op_->spec->name) + " has no argument " + std::string(name));
  }
  return index;
}

void OpCall::attribute(std::string_view text) {
  const size_t equals = text.find('=');
  const int index = index_of(text.substr(0, equals));
  if (index < 0) return;
  const std::string_view value = text.substr(equals + 1);
  const Arg& arg = op_->spec->args[static_cast<size_t>(index)];
  int64_t number = 0;
  if (arg.kind == Kind::kChoice) {
    number = choice_index(arg.choices, value);
    if (number < 0) first_error_ = defect("no choice " + std::string(text));
  } else {
    std::from_chars(value.data(), value.data() + value.size(), number);
  }
  values_[static_cast<size_t>(index)].present = true;
  values_[static_cast<size_t>(index)].i = number;
}

void OpCall::tensor(std::string_view name, const TensorView& view) {
  const int index = index_of(name);
  if (index < 0) return;
  values_[static_cast<size_t>(index)].tensor = view;
  // An output that only has its dtype so far becomes present by infer().
  values_[static_cast<size_t>(index)].present = view.rank > 0;
}

Status OpCall::infer() {
  PESTLE_TRY(first_error_);
  Call call;
  call.spec = op_->spec;
  call.args = values_;
  Scope scope;
  scope.args = values_;
  return op_->contract.infer_outputs(call, scope);
}

TensorView OpCall::view(std::string_view name) {
  const int index = index_of(name);
  return index < 0 ? TensorView{} : values_[static_cast<size_t>(index)].tensor;
}

Status OpCall::run() {
  PESTLE_TRY(first_error_);
  Call call;
  call.spec = op_->spec;
  call.args = values_;
  const auto choice = choose(*op_, call);
  PESTLE_TRY(choice.status());
  thread_local std::vector<std::byte> workspace;
  const auto bytes = static_cast<size_t>(choice.value().workspace_bytes);
  if (workspace.size() < bytes) workspace.resize(bytes);
  call.workspace = workspace.data();
  call.workspace_bytes = static_cast<int64_t>(workspace.size());
  return pestle::run(*op_, call);
}

}  // namespace pestle::files
