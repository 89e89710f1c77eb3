// The contract of an op, as data. Everything else (validation, dispatch, C ABI, documentation,
// checks, benches, bindings) walks these records and knows no op by name.
//
// Three small languages appear as strings; docs/contract.md defines them:
//   shapes      "M, cdiv(K,16)"      symbols bind from inputs, expressions are checked (of inputs)
//                                    or inferred (of outputs)
//               "*S, K"              *S is any number of leading dimensions
//               "row: M,1; tensor:"  one shape per label of the choice argument named in `by`
//   dtypes      "f32|bf16|f16"       allowed, the first is the default; "=x": as argument x
//   conditions  "K % 16 == 0"        integer expressions over symbols, attributes, has(arg)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace pestle {

enum class Kind : uint8_t { kTensor, kTensorList, kInt, kFloat, kBool, kChoice };
enum class Role : uint8_t { kInput, kOutput, kAttribute };

// How near an output must come to the float64 reference.
// exact: bit for bit (codes, and everything that is defined operation by operation).
// else : |out - ref| <= 1 ulp of the output dtype + c * sqrt(k) * 2^-24 * sum|terms|.
struct Bound {
  bool exact = true;
  double c = 0;
  const char* k = "1";  // expression: length of the longest sum behind one element
};

struct Arg {
  const char* name = "";
  Kind kind = Kind::kTensor;
  Role role = Role::kInput;
  const char* dtypes = "";
  const char* shape = "";
  const char* by = "";       // choice argument whose labels select the alternative of dtypes/shape
  const char* doc = "";      // one sentence with units
  const char* choices = "";  // kChoice: "a|b|c"
  bool is_optional = false;
  const char* present_if = "";  // condition: the tensor is part of the call exactly when it holds
  const char* alias = "";       // output that may be exactly this argument's memory (in place)
  double default_value = 0;     // attributes; a choice stores the index of its label
  Bound bound = {};             // outputs

  constexpr Arg with_default(double value) const {
    Arg a = *this;
    a.default_value = value;
    a.is_optional = true;
    return a;
  }
  constexpr Arg optional() const {
    Arg a = *this;
    a.is_optional = true;
    return a;
  }
  constexpr Arg selected_by(const char* choice_arg) const {
    Arg a = *this;
    a.by = choice_arg;
    return a;
  }
  // E.g. "!has(scale)", "mode == asymmetric": over attributes and the presence of other arguments.
  constexpr Arg only_if(const char* condition) const {
    Arg a = *this;
    a.present_if = condition;
    a.is_optional = true;
    return a;
  }
  constexpr Arg in_place_of(const char* arg) const {
    Arg a = *this;
    a.alias = arg;
    return a;
  }
  constexpr Arg within(double c, const char* k) const {
    Arg a = *this;
    a.bound = {false, c, k};
    return a;
  }
};

constexpr Arg input(const char* name, const char* dtypes, const char* shape, const char* doc) {
  return {.name = name, .dtypes = dtypes, .shape = shape, .doc = doc};
}
constexpr Arg output(const char* name, const char* dtypes, const char* shape, const char* doc) {
  return {.name = name, .role = Role::kOutput, .dtypes = dtypes, .shape = shape, .doc = doc};
}
// As many tensors as the caller likes; all lists of a call have one length.
constexpr Arg list_of(Arg one) {
  one.kind = Kind::kTensorList;
  return one;
}
constexpr Arg attribute(Kind kind, const char* name, double default_value, const char* doc) {
  return {.name = name,
          .kind = kind,
          .role = Role::kAttribute,
          .doc = doc,
          .is_optional = true,
          .default_value = default_value};
}
constexpr Arg int_attr(const char* name, int64_t def, const char* doc) {
  return attribute(Kind::kInt, name, static_cast<double>(def), doc);
}
constexpr Arg float_attr(const char* name, double def, const char* doc) {
  return attribute(Kind::kFloat, name, def, doc);
}
constexpr Arg bool_attr(const char* name, bool def, const char* doc) {
  return attribute(Kind::kBool, name, def ? 1 : 0, doc);
}
// The first label is the default.
constexpr Arg choice(const char* name, const char* labels, const char* doc) {
  Arg a = attribute(Kind::kChoice, name, 0, doc);
  a.choices = labels;
  return a;
}

struct Constraint {
  const char* condition;  // must be non-zero
  const char* sentence;   // why, for people: completes "OP: ..."
};

enum Tag : unsigned {
  kSmoke = 1,  // seconds, in every test run
  kEdge = 2,   // odd sizes, empty, one, extreme values; in every test run
  kBar = 4,    // the sizes that performance bars are stated for
  kHuge = 8,   // beyond 2^31 or 2^32 elements; run by request
};

// Named distributions of the seeded test data (harness/data.cpp).
// kOffset: normal values far from 0, by a power of two of 2^7 (bf16) to 2^20 (f32), so that what
// the contract says of differences shows. kConstant: one odd value all over, so that the errors of a
// sum all have one sign.
enum class Dist : uint8_t {
  kNormal,
  kOutliers,
  kZeros,
  kSubnormal,
  kSpecial,
  kBytes,
  kOffset,
  kConstant
};

// "M=128 K=256 x=bf16 granularity=row": symbols, dtypes of tensors ("scale=none" leaves an optional
// one out), attributes. What is not named takes its default.
struct Case {
  const char* text;
  unsigned tags = kSmoke;
  Dist dist = Dist::kNormal;
};

// The gradients of an op's inputs: one call of another op of the table (or the same one).
// call   "d_out=grad(out), y=out, x=x, inverse=!inverse": what each argument of the backward op
//        is: the gradient of an output, an argument of the forward call (then kept for it), or for
//        an attribute an expression over the forward's. Attributes that both have are handed
//        on unnamed. What is absent in the forward call is absent in the backward call.
// gives  "x=d_x, weight=d_weight": which output of the backward op is the gradient of which input.
//        Inputs that are not named have none.
struct Backward {
  const char* op = "";
  const char* call = "";
  const char* gives = "";
  const char* why_not = "";  // when op is empty: the reason, a sentence
};

struct OpSpec {
  const char* name;
  const char* doc;     // one sentence
  const char* source;  // where the maths or the layout is defined
  std::span<const Arg> args;
  std::span<const Constraint> constraints = {};
  std::span<const Case> cases = {};
  const char* flops = "0";
  const char* bytes = "";  // empty: every present tensor once
  Backward backward = {};
};

// Position of an argument, checked at compile time: `constexpr int kX = arg_index(spec, "x");`
consteval int arg_index(const OpSpec& spec, std::string_view name) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (name == spec.args[i].name) return static_cast<int>(i);
  }
  throw "no argument of this name in the contract";
}

}  // namespace pestle
