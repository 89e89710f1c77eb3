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

// "rows(x)" with "rows" gives "x"; "" if the text is no such call.
std::string inside(std::string_view function, const std::string& text) {
  const std::string start = std::string(function) + "(";
  if (!text.starts_with(start) || !text.ends_with(")")) return "";
  return std::string(
      trim(std::string_view(text).substr(start.size(), text.size() - start.size() - 1)));
}

Value as_rows(Value value) {
  TensorView& t = value.tensor;
  const int64_t columns = t.shape[t.rank - 1];
  int64_t rows = 1;
  for (int i = 0; i + 1 < t.rank; ++i) rows *= t.shape[i];
  const int64_t dims[] = {rows, columns};
  value.tensor = make_view(t.data, t.dtype, 2, dims);
  return value;
}

// "reduce(x=rows(grad(out)), dims=1) as x": a call of an op with one output, in the dtype of x.
struct Nested {
  std::string op;
  std::string call;
  std::string as;
};

Nested read_nested(const std::string& text) {
  const size_t open = text.find('(');
  const size_t as = text.rfind(") as ");
  const size_t close = as == std::string::npos ? text.size() - 1 : as;
  return {text.substr(0, open), text.substr(open + 1, close - open - 1),
          as == std::string::npos ? "" : text.substr(as + 5)};
}

// What a call can be given: the forward call's tensors, their gradients, these as matrices, and the
// outputs of other calls.
struct Known {
  const Op& forward;
  const TextCall& from;

  Value tensor(const std::string& text) const {
    if (const std::string of = inside("rows", text); !of.empty()) {
      const Value value = tensor(of);
      return value.present ? as_rows(value) : value;
    }
    const std::string output = inside("grad", text);
    if (output.empty() && text.find('(') != std::string::npos) return made_by(read_nested(text));
    const int source = find_arg(*forward.spec, output.empty() ? text : output);
    EXPECT_GE(source, 0) << "the op has no argument " << text;
    if (source < 0) return {};
    const Arg& arg = forward.spec->args[source];
    EXPECT_NE(arg.role, Role::kAttribute) << text << " is no tensor";
    EXPECT_TRUE(output.empty() || arg.role == Role::kOutput) << text << " is no output";
    return from.values[source];
  }

  Value made_by(const Nested& nested) const;
};

struct BackwardCall {
  const Op& backward;
  const Known& known;
  std::vector<Value> values;

  BackwardCall(const Op& backward, const Known& known)
      : backward(backward), known(known), values(backward.spec->args.size()) {
    set_default_attributes(*backward.spec, values);
    for (size_t i = 0; i < values.size(); ++i) hand_on(i);
  }

  // Attributes that both have; a choice by its label.
  void hand_on(size_t index) {
    const Arg& to = backward.spec->args[index];
    const int source = find_arg(*known.forward.spec, to.name);
    if (to.role != Role::kAttribute || source < 0) return;
    const Arg& arg = known.forward.spec->args[source];
    if (arg.role != Role::kAttribute) return;
    EXPECT_EQ(arg.kind, to.kind) << to.name << " is another kind of attribute there";
    values[index] = known.from.values[source];
    if (to.kind == Kind::kChoice) {
      const auto label = choice_label(arg.choices, known.from.values[source].i);
      values[index].i = choice_index(to.choices, label);
      EXPECT_GE(values[index].i, 0) << to.name << " has no label " << label;
    }
  }

  void set(const std::string& name, const std::string& text) {
    const int index = find_arg(*backward.spec, name);
    ASSERT_GE(index, 0) << backward.spec->name << " has no argument " << name;
    if (backward.spec->args[index].role == Role::kAttribute) return set_attribute(index, text);
    ASSERT_EQ(backward.spec->args[index].role, Role::kInput) << name;
    values[index] = known.tensor(text);
  }

  void set_attribute(int index, const std::string& text) {
    const Op& forward = known.forward;
    const Arg& to = backward.spec->args[index];
    if (to.kind == Kind::kChoice && choice_index(to.choices, text) >= 0) {
      values[index].i = choice_index(to.choices, text);
      return;
    }
    if (const std::string input = inside("wanted", text); !input.empty()) {
      const Value value = known.tensor(input);
      values[index].i = value.present && dtype_info(value.tensor.dtype).is_float;
      return;
    }
    const int same = find_arg(*forward.spec, text);
    if (same >= 0 && forward.spec->args[same].role == Role::kAttribute) {
      values[index] = known.from.values[same];
      return;
    }
    const auto value = forward.contract.evaluate(text, known.from.scope);
    ASSERT_TRUE(value.ok()) << text << ": " << value.status().message();
    values[index].i = value.value();
    values[index].f = static_cast<double>(value.value());
  }

  void ask_for_dtype(const Call& call, const std::string& output, DType wanted) {
    const int index = find_arg(*backward.spec, output);
    ASSERT_GE(index, 0) << backward.spec->name << " has no argument " << output;
    ASSERT_EQ(backward.spec->args[index].role, Role::kOutput) << output;
    for (const DType allowed : backward.contract.allowed_dtypes(call, static_cast<size_t>(index))) {
      if (allowed == wanted) values[index].tensor.dtype = wanted;
    }
  }

  void expect_that_the_op_takes_it(Call& call) {
    Scope scope;
    const Status inferred = backward.contract.infer_outputs(call, scope);
    ASSERT_TRUE(inferred.ok()) << inferred.message();
    const Status checked = backward.contract.check(call, scope);
    EXPECT_TRUE(checked.ok()) << checked.message();
  }
};

// Does the call make every output whose gradient the backward op must have? One that makes codes in
// the place of values has no gradient to give.
bool has_gradient(const Op& op, const Op& backward, const TextCall& from) {
  if (const std::string_view why_not = op.spec->backward.why_not; !why_not.empty()) {
    EXPECT_TRUE(why_not.starts_with("unless ")) << why_not;
    const std::string condition(why_not.substr(7, why_not.find(':') - 7));
    const auto holds = op.contract.evaluate(condition, from.scope);
    EXPECT_TRUE(holds.ok()) << holds.status().message();
    if (holds.ok() && holds.value() == 0) return false;
  }
  for (const auto& [name, text] : read_pairs(op.spec->backward.call)) {
    // An optional output that the backward needs: autograd always asks for it.
    const int kept = find_arg(*op.spec, text);
    if (kept >= 0 && op.spec->args[kept].role == Role::kOutput && !from.values[kept].present)
      return false;
    const std::string of = inside("grad", text);
    if (of.empty()) continue;
    const int output = find_arg(*op.spec, of);
    const int gradient = find_arg(*backward.spec, name);
    if (output < 0 || gradient < 0) return true;  // the check that follows says so
    if (!from.values[output].present && !backward.spec->args[gradient].is_optional) return false;
  }
  return true;
}

Value Known::made_by(const Nested& nested) const {
  SCOPED_TRACE(nested.op);
  const Op* op = find_op(nested.op);
  EXPECT_NE(op, nullptr) << nested.op;
  if (!op) return {};
  BackwardCall made(*op, *this);
  for (const auto& [name, text] : read_pairs(nested.call)) made.set(name, text);
  if (testing::Test::HasFatalFailure()) return {};
  Call call{.spec = op->spec, .args = made.values};
  int output = -1;
  for (size_t i = 0; i < op->spec->args.size(); ++i) {
    if (op->spec->args[i].role != Role::kOutput) continue;
    EXPECT_EQ(output, -1) << nested.op << " has several outputs";
    output = static_cast<int>(i);
  }
  if (!nested.as.empty())
    made.ask_for_dtype(call, op->spec->args[output].name, tensor(nested.as).tensor.dtype);
  made.expect_that_the_op_takes_it(call);
  return made.values[output];
}

// A gradient has its input's shape, and its dtype unless it is no output of the last call, when
// autograd converts it; one of a matrix is reshaped.
void expect_gradient(const Value& x, const Value& gradient, bool converted) {
  if (x.present && !dtype_info(x.tensor.dtype).is_float) return;  // has none
  EXPECT_EQ(gradient.present, x.present);
  if (!x.present || !gradient.present) return;
  EXPECT_EQ(numel(gradient.tensor), numel(x.tensor));
  if (converted) return;
  EXPECT_EQ(gradient.tensor.dtype, x.tensor.dtype);
}

void check_case(const Op& op, const Op& backward, const Case& small, int& checked) {
  SCOPED_TRACE(std::string(op.spec->name) + ": " + small.text);
  auto from = call_from_text(op, small.text, DeviceType::kCpu);
  ASSERT_TRUE(from.ok()) << from.status().message();
  if (!has_gradient(op, backward, from.value())) return;
  ++checked;
  const Known known{op, from.value()};
  BackwardCall made(backward, known);
  const Pairs call_pairs = read_pairs(op.spec->backward.call);
  for (const auto& [name, text] : call_pairs) made.set(name, text);
  if (testing::Test::HasFatalFailure()) return;
  Call call{.spec = backward.spec, .args = made.values};
  const Pairs gives = read_pairs(op.spec->backward.gives);
  const auto is_known = [](const std::string& text) { return text.find('(') != text.npos; };
  for (const auto& [input, output] : gives) {
    const Value x = known.tensor(input);
    if (x.present && !is_known(output)) made.ask_for_dtype(call, output, x.tensor.dtype);
  }
  if (testing::Test::HasFatalFailure()) return;
  made.expect_that_the_op_takes_it(call);
  bool by_rows = false;
  for (const auto& [name, text] : call_pairs) by_rows |= !inside("rows", text).empty();
  for (const auto& [input, output] : gives) {
    SCOPED_TRACE(output + " of " + input);
    const Value x = known.tensor(input);
    const Value gradient = is_known(output) ? (x.present ? known.tensor(output) : Value{})
                                            : made.values[find_arg(*backward.spec, output)];
    expect_gradient(x, gradient, is_known(output));
    if (!by_rows && x.present && gradient.present) {
      EXPECT_EQ(describe(gradient.tensor), describe(x.tensor));
    }
  }
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
