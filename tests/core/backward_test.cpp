// The backward of every op of the table: its strings are read, and the call they describe is made,
// without data, for each small case.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/call_text.h"
#include "core/text.h"

namespace pestle {
namespace {

using Pairs = std::map<std::string, std::string>;

// "a=b, c=f(d,e)" as pairs; commas in parentheses belong to the value.
Pairs read_pairs(std::string_view text) {
  Pairs result;
  int depth = 0;
  std::string part;
  for (const char c : std::string(text) + ",") {
    depth += (c == '(') - (c == ')');
    if (c != ',' || depth != 0) {
      part += c;
      continue;
    }
    const size_t equals = part.find('=');
    EXPECT_NE(equals, std::string::npos) << "no name in '" << part << "'";
    if (equals != std::string::npos) {
      const std::string name(trim(std::string_view(part).substr(0, equals)));
      EXPECT_TRUE(result.emplace(name, trim(std::string_view(part).substr(equals + 1))).second)
          << name << " is said twice";
    }
    part.clear();
  }
  return result;
}

struct BackwardCall {
  const Op& forward;
  const Op& backward;
  const TextCall& from;
  std::vector<Value> values;

  BackwardCall(const Op& forward, const Op& backward, const TextCall& from)
      : forward(forward), backward(backward), from(from), values(backward.spec->args.size()) {
    set_default_attributes(*backward.spec, values);
    for (size_t i = 0; i < values.size(); ++i) hand_on(i);
  }

  // Attributes that both have; a choice by its label.
  void hand_on(size_t index) {
    const Arg& to = backward.spec->args[index];
    const int source = find_arg(*forward.spec, to.name);
    if (to.role != Role::kAttribute || source < 0) return;
    const Arg& arg = forward.spec->args[source];
    if (arg.role != Role::kAttribute) return;
    EXPECT_EQ(arg.kind, to.kind) << to.name << " is another kind of attribute there";
    values[index] = from.values[source];
    if (to.kind == Kind::kChoice) {
      const auto label = choice_label(arg.choices, from.values[source].i);
      values[index].i = choice_index(to.choices, label);
      EXPECT_GE(values[index].i, 0) << to.name << " has no label " << label;
    }
  }

  void set(const std::string& name, std::string text) {
    const int index = find_arg(*backward.spec, name);
    ASSERT_GE(index, 0) << "the backward op has no argument " << name;
    if (backward.spec->args[index].role == Role::kAttribute) return set_attribute(index, text);
    ASSERT_EQ(backward.spec->args[index].role, Role::kInput) << name;
    const bool is_gradient = text.starts_with("grad(") && text.ends_with(")");
    if (is_gradient) text = text.substr(5, text.size() - 6);
    const int source = find_arg(*forward.spec, std::string(trim(text)));
    ASSERT_GE(source, 0) << "the op has no argument " << text;
    const Arg& arg = forward.spec->args[source];
    ASSERT_NE(arg.role, Role::kAttribute) << text << " is no tensor";
    EXPECT_TRUE(!is_gradient || arg.role == Role::kOutput) << text << " is no output";
    values[index] = from.values[source];
  }

  void set_attribute(int index, const std::string& text) {
    const int same = find_arg(*forward.spec, text);
    if (same >= 0 && forward.spec->args[same].role == Role::kAttribute) {
      values[index] = from.values[same];
      return;
    }
    const auto value = forward.contract.evaluate(text, from.scope);
    ASSERT_TRUE(value.ok()) << text << ": " << value.status().message();
    values[index].i = value.value();
    values[index].f = static_cast<double>(value.value());
  }

  // Gradients have their inputs' dtypes where the backward op leaves the choice.
  void ask_for_dtype(const Call& call, const std::string& input, const std::string& output) {
    const int source = find_arg(*forward.spec, input);
    const int index = find_arg(*backward.spec, output);
    ASSERT_GE(source, 0) << "the op has no argument " << input;
    ASSERT_GE(index, 0) << "the backward op has no argument " << output;
    ASSERT_EQ(forward.spec->args[source].role, Role::kInput) << input;
    ASSERT_EQ(backward.spec->args[index].role, Role::kOutput) << output;
    if (!from.values[source].present) return;
    const DType wanted = from.values[source].tensor.dtype;
    for (const DType allowed : backward.contract.allowed_dtypes(call, static_cast<size_t>(index))) {
      if (allowed == wanted) values[index].tensor.dtype = wanted;
    }
  }

  void expect_shape(const std::string& input, const std::string& output) {
    const Value& x = from.values[find_arg(*forward.spec, input)];
    const Value& gradient = values[find_arg(*backward.spec, output)];
    EXPECT_EQ(gradient.present, x.present) << output << " is there when " << input << " is not";
    if (!x.present || !gradient.present) return;
    EXPECT_EQ(describe(gradient.tensor), describe(x.tensor)) << output << " of " << input;
  }
};

// Does the call make every output whose gradient the backward op must have? One that makes codes in
// the place of values has no gradient to give.
bool has_gradient(const Op& op, const Op& backward, const TextCall& from) {
  for (const auto& [name, text] : read_pairs(op.spec->backward.call)) {
    if (!text.starts_with("grad(")) continue;
    const int output = find_arg(*op.spec, text.substr(5, text.size() - 6));
    const int gradient = find_arg(*backward.spec, name);
    if (output < 0 || gradient < 0) return true;  // the check that follows says so
    if (!from.values[output].present && !backward.spec->args[gradient].is_optional) return false;
  }
  return true;
}

void check_case(const Op& op, const Op& backward, const Case& small, int& checked) {
  SCOPED_TRACE(std::string(op.spec->name) + ": " + small.text);
  auto from = call_from_text(op, small.text, DeviceType::kCpu);
  ASSERT_TRUE(from.ok()) << from.status().message();
  if (!has_gradient(op, backward, from.value())) return;
  ++checked;
  BackwardCall made(op, backward, from.value());
  for (const auto& [name, text] : read_pairs(op.spec->backward.call)) made.set(name, text);
  Call call{.spec = backward.spec, .args = made.values};
  const Pairs gives = read_pairs(op.spec->backward.gives);
  for (const auto& [input, output] : gives) made.ask_for_dtype(call, input, output);
  if (testing::Test::HasFatalFailure()) return;
  Scope scope;
  const Status inferred = backward.contract.infer_outputs(call, scope);
  ASSERT_TRUE(inferred.ok()) << inferred.message();
  const Status checked = backward.contract.check(call, scope);
  EXPECT_TRUE(checked.ok()) << checked.message();
  for (const auto& [input, output] : gives) made.expect_shape(input, output);
}

TEST(Table, EveryBackwardIsACallThatItsOpTakes) {
  int ops = 0;
  for (const Op& op : all_ops()) {
    if (!op.spec->backward.op[0]) continue;
    const Op* backward = find_op(op.spec->backward.op);
    ASSERT_NE(backward, nullptr) << op.spec->name << " names " << op.spec->backward.op;
    EXPECT_FALSE(read_pairs(op.spec->backward.gives).empty()) << op.spec->name;
    int checked = 0;
    for (const Case& small : op.spec->cases) {
      if ((small.tags & (kSmoke | kEdge)) != 0) check_case(op, *backward, small, checked);
    }
    EXPECT_GT(checked, 0) << op.spec->name;
    ++ops;
  }
  EXPECT_GT(ops, 5);
}

}  // namespace
}  // namespace pestle
