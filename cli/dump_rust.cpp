// pestle dump rust: the table as rows of a macro, from which the Rust crate makes a typed call for
// each op (bindings/rust/pestle/src/op_macro.rs).
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "core/text.h"

namespace pestle::cli {
namespace {

// A name that Rust keeps for itself gets a trailing underscore.
std::string identifier(std::string_view name) {
  for (std::string_view taken : {"type", "in", "mod", "ref", "match", "move", "where", "as"}) {
    if (name == taken) return std::string(name) + "_";
  }
  return std::string(name);
}

// "block_1x128" becomes "Block1x128".
std::string camel(std::string_view name) {
  std::string result;
  bool capital = true;
  for (char c : name) {
    if (c == '_') {
      capital = true;
      continue;
    }
    result += capital ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    capital = false;
  }
  return result;
}

std::string rust_text(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string kind_of(const Arg& arg) {
  const std::string tensor = arg.role == Role::kOutput ? "out" : "read";
  switch (arg.kind) {
    case Kind::kTensor: return tensor;
    case Kind::kTensorList: return tensor + "_list";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kBool: return "flag";
    case Kind::kChoice: return "choice";
  }
  return "";
}

std::string doc_of(const Arg& arg) {
  std::string text = arg.doc;
  if (arg.role != Role::kAttribute) {
    text += std::string(". `") + arg.dtypes + "` of `[" + arg.shape + "]`";
  }
  if (arg.present_if[0] != 0) text += std::string("; exactly when `") + arg.present_if + "`";
  return rust_text(text);
}

void print_labels(const Arg& arg) {
  std::printf("%s {", camel(arg.name).c_str());
  std::string_view rest = arg.choices;
  while (!rest.empty()) {
    const std::string_view label = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(rest.size(), label.size() + 1));
    std::printf(" %s c%s,", camel(label).c_str(), rust_text(label).c_str());
  }
  std::printf(" } ");
}

// What every call must have, in the order of the contract, or what it may have.
void print_args(const OpSpec& spec, bool optional) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    const Arg& arg = spec.args[i];
    if (arg.is_optional != optional) continue;
    std::printf("    %s %zu %s %s ", optional ? "may" : "must", i, kind_of(arg).c_str(),
                identifier(arg.name).c_str());
    if (arg.kind == Kind::kChoice) print_labels(arg);
    std::printf("%s;\n", doc_of(arg).c_str());
  }
}

void print_op(const OpSpec& spec) {
  const std::string doc = std::string(spec.doc) + " Source: " + spec.source;
  std::printf("\nop! {\n    %s %s %zu\n", spec.name, rust_text(doc).c_str(), spec.args.size());
  print_args(spec, false);
  print_args(spec, true);
  std::printf("}\n");
}

}  // namespace

void print_rust() {
  std::printf(
      "//! A typed call for every op. Made from the table by `pestle dump rust`: do not edit.\n"
      "//!\n"
      "//! `OP(inputs, outputs)` takes what every call must have; the rest are methods, in any\n"
      "//! order, and `run()` makes the call. Shapes and dtypes are the contract's notation.\n"
      "#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]\n"
      "#![cfg_attr(rustfmt, rustfmt_skip)]\n\nuse crate::op_macro::op;\n");
  for (const Op& op : all_ops()) print_op(*op.spec);
}

}  // namespace pestle::cli
