// pestle dump: prints the files that are made from the table and checked in: the typed C wrappers,
// the op reference and the rows of the Rust crate (dump_rust.cpp). A test compares them with a
// fresh print.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "core/text.h"

namespace pestle::cli {
namespace {

// ---- include/pestle/ops.h ---------------------------------------------------------------------

std::string parameter(const Arg& arg) {
  const std::string name = arg.name;
  switch (arg.kind) {
    case Kind::kTensor: return "const pestle_tensor* " + name;
    case Kind::kTensorList: return "const pestle_tensor* " + name + ", int32_t " + name + "_count";
    case Kind::kInt: return "int64_t " + name;
    case Kind::kFloat: return "double " + name;
    case Kind::kBool: return "int " + name;
    case Kind::kChoice: return "const char* " + name;
  }
  return "";
}

std::string initializer(const Arg& arg) {
  const std::string name = arg.name;
  switch (arg.kind) {
    case Kind::kTensor: return "pestle_tensor_arg(" + name + ")";
    case Kind::kTensorList: return "pestle_list_arg(" + name + ", " + name + "_count)";
    case Kind::kInt: return "pestle_int_arg(" + name + ")";
    case Kind::kFloat: return "pestle_float_arg(" + name + ")";
    case Kind::kBool: return "pestle_bool_arg(" + name + ")";
    case Kind::kChoice: return "pestle_choice_arg(" + name + ")";
  }
  return "";
}

std::string parameter_doc(const Arg& arg) {
  std::string text = std::string(" *   ") + arg.name + ": ";
  if (arg.role != Role::kAttribute) {
    text += std::string(arg.dtypes) + " [" + arg.shape + "] ";
  } else if (arg.kind == Kind::kChoice) {
    text += std::string(arg.choices) + "; ";
  }
  if (arg.role == Role::kOutput) text += "(output) ";
  if (arg.is_optional && arg.role != Role::kAttribute) text += "(may be NULL) ";
  return text + arg.doc + "\n";
}

void print_wrapper(const OpSpec& spec) {
  std::printf("\n/* %s\n", spec.doc);
  for (const Arg& arg : spec.args) std::fputs(parameter_doc(arg).c_str(), stdout);
  std::printf(" */\nstatic inline pestle_status pestle_%s(\n", spec.name);
  for (const Arg& arg : spec.args) std::printf("    %s,\n", parameter(arg).c_str());
  std::printf("    const pestle_call_options* options) {\n  pestle_arg args[%zu];\n",
              spec.args.size());
  for (size_t i = 0; i < spec.args.size(); ++i) {
    std::printf("  args[%zu] = %s;\n", i, initializer(spec.args[i]).c_str());
  }
  std::printf("  return pestle_call(pestle_find_op(\"%s\"), args, %zu, options);\n}\n", spec.name,
              spec.args.size());
}

void print_c_wrappers() {
  std::printf(
      "/* Typed C functions, one per op. Made from the table by `pestle dump c`: do not edit. */\n"
      "/* clang-format off */\n"
      "#ifndef PESTLE_OPS_H_\n#define PESTLE_OPS_H_\n\n#include \"pestle/pestle.h\"\n\n"
      "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
  for (auto [kind, type, name, member] :
       {std::tuple{"INT", "int64_t", "int", "i"}, {"FLOAT", "double", "float", "f"}}) {
    std::printf(
        "static inline pestle_arg pestle_%s_arg(%s value) {\n  pestle_arg arg;\n"
        "  arg.kind = PESTLE_%s;\n  arg.count = 0;\n  arg.value.%s = value;\n"
        "  return arg;\n}\n",
        name, type, kind, member);
  }
  std::printf(
      "static inline pestle_arg pestle_bool_arg(int value) {\n  pestle_arg arg;\n"
      "  arg.kind = PESTLE_BOOL_VALUE;\n  arg.count = 0;\n  arg.value.i = value != 0;\n"
      "  return arg;\n}\n"
      "/* NULL takes the contract's default. */\n"
      "static inline pestle_arg pestle_choice_arg(const char* label) {\n  pestle_arg arg;\n"
      "  arg.kind = label ? PESTLE_CHOICE : PESTLE_ABSENT;\n  arg.count = 0;\n"
      "  arg.value.choice = label;\n  return arg;\n}\n"
      "static inline pestle_arg pestle_list_arg(const pestle_tensor* first, int32_t count) {\n"
      "  pestle_arg arg;\n  arg.kind = first ? PESTLE_TENSOR_LIST : PESTLE_ABSENT;\n"
      "  arg.count = count;\n  arg.value.tensor = first;\n  return arg;\n}\n"
      "static inline pestle_arg pestle_tensor_arg(const pestle_tensor* tensor) {\n"
      "  pestle_arg arg;\n  arg.kind = tensor ? PESTLE_TENSOR : PESTLE_ABSENT;\n"
      "  arg.count = 0;\n  arg.value.tensor = tensor;\n  return arg;\n}\n");
  for (const Op& op : all_ops()) print_wrapper(*op.spec);
  std::printf("\n#ifdef __cplusplus\n} /* extern \"C\" */\n#endif\n\n#endif /* PESTLE_OPS_H_ */\n");
}

// ---- docs/ops.md ------------------------------------------------------------------------------

std::string escaped(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

void print_op_reference(const Op& op) {
  const OpSpec& spec = *op.spec;
  std::printf("\n## %s\n\n%s Source: %s. [Notes](../ops/%s/%s/%s.md)\n\n", spec.name, spec.doc,
              spec.source, op.family, spec.name, spec.name);
  std::printf("| argument | role | type | shape | meaning |\n|---|---|---|---|---|\n");
  for (const Arg& arg : spec.args) {
    const char* role = arg.role == Role::kInput    ? (arg.is_optional ? "input, optional" : "input")
                       : arg.role == Role::kOutput ? "output"
                                                   : "attribute";
    const char* type = arg.role != Role::kAttribute ? arg.dtypes
                       : arg.kind == Kind::kChoice  ? arg.choices
                       : arg.kind == Kind::kInt     ? "int"
                       : arg.kind == Kind::kBool    ? "bool"
                                                    : "float";
    std::printf("| `%s` | %s | %s | %s | %s%s%s |\n", arg.name, role, escaped(type).c_str(),
                escaped(arg.shape).c_str(), arg.doc, arg.present_if[0] ? "; exactly when " : "",
                escaped(arg.present_if).c_str());
  }
  for (const Constraint& c : spec.constraints) {
    std::printf("\n- %s: `%s`", c.sentence, c.condition);
  }
  const Backward& backward = spec.backward;
  const char* none = backward.op[0] == 0 ? "none, " : backward.why_not[0] ? ", none " : "";
  std::printf("\n\nFlops `%s`. Backward: %s%s%s. Implementations:", spec.flops, backward.op, none,
              backward.why_not);
  for (const Impl& impl : op.impls) std::printf(" `%s`", impl.id);
  std::printf(".\n");
}

void print_markdown() {
  std::printf(
      "# Ops\n\nMade from the table by `pestle dump markdown`: do not edit. The notation of "
      "shapes, dtypes and conditions is in [contract.md](contract.md).\n");
  for (const Op& op : all_ops()) print_op_reference(op);
}

}  // namespace

void add_dump(Program& program) {
  Command command = program.add_command(
      "dump",
      "Print what is made from the op table: include/pestle/ops.h, docs/ops.md, the Rust ops");
  auto what = std::make_shared<std::string>();
  command.add_option("what", *what, "c, markdown or rust")
      .required()
      .one_of({"c", "markdown", "rust"});
  command.run([=] {
    if (*what == "c") print_c_wrappers();
    if (*what == "markdown") print_markdown();
    if (*what == "rust") print_rust();
    return 0;
  });
}

}  // namespace pestle::cli
