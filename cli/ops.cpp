// pestle ops: the table, or the contract of one op.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/contract_json.h"
#include "core/json_text.h"
#include "core/text.h"

namespace pestle::cli {
namespace {

void print_table() {
  for (const Op& op : all_ops()) std::printf("%-22s %s\n", op.spec->name, op.spec->doc);
  std::printf("\n%zu ops. `pestle ops NAME` prints a contract.\n", all_ops().size());
}

void print_arg(const Arg& arg) {
  std::string type = arg.role == Role::kAttribute ? std::string(arg.choices) : arg.dtypes;
  if (type.empty()) {
    type = arg.kind == Kind::kInt ? "int" : arg.kind == Kind::kBool ? "bool" : "float";
  }
  std::printf("  %-16s %-9s %s", arg.name,
              arg.role == Role::kInput    ? "input"
              : arg.role == Role::kOutput ? "output"
                                          : "attr",
              type.c_str());
  if (arg.role != Role::kAttribute) std::printf("  [%s]", arg.shape);
  if (arg.role == Role::kAttribute && arg.kind != Kind::kChoice) {
    std::printf("  default %g", arg.default_value);
  }
  if (arg.role == Role::kInput && arg.is_optional && !arg.present_if[0]) {
    std::printf("  optional");
  }
  if (arg.present_if[0]) std::printf("  exactly when %s", arg.present_if);
  if (arg.alias[0]) std::printf("  may be %s's memory", arg.alias);
  std::printf("\n  %-16s   %s", "", arg.doc);
  if (arg.role == Role::kOutput) {
    if (arg.bound.exact)
      std::printf(" (exact, bit for bit)");
    else
      std::printf(" (within 1 ulp + %g*sqrt(%s)*2^-24*sum|terms|)", arg.bound.c, arg.bound.k);
  }
  std::printf("\n");
}

void print_contract(const Op& op) {
  const OpSpec& spec = *op.spec;
  std::printf("%s: %s\n  source: %s\n\narguments\n", spec.name, spec.doc, spec.source);
  for (const Arg& arg : spec.args) print_arg(arg);
  if (!spec.constraints.empty()) std::printf("\nconstraints\n");
  for (const Constraint& c : spec.constraints)
    std::printf("  %s\n    %s\n", c.sentence, c.condition);
  std::printf("\ncost\n  flops %s\n  bytes %s\n", spec.flops,
              spec.bytes[0] ? spec.bytes : "every present tensor once");
  if (spec.backward.op[0]) {
    std::printf("\nbackward\n  %s(%s)\n  gives %s\n", spec.backward.op, spec.backward.call,
                spec.backward.gives);
    if (spec.backward.why_not[0]) std::printf("  none %s\n", spec.backward.why_not);
  } else {
    std::printf("\nbackward\n  none: %s\n", spec.backward.why_not);
  }
  std::printf("\nimplementations, best first\n");
  for (const Impl& impl : op.impls) {
    std::printf("  %s (%s%s)\n", impl.id, impl.device == DeviceType::kCpu ? "cpu" : "cuda",
                impl.min_compute_capability
                    ? (", sm_" + std::to_string(impl.min_compute_capability) + " and later").c_str()
                    : "");
  }
  std::printf("\n%zu cases; `pestle check %s` runs them.\n", spec.cases.size(), spec.name);
}

int run_ops(const std::string& name, bool json) {
  if (name.empty()) {
    if (!json) {
      print_table();
      return 0;
    }
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Op& op : all_ops()) all.push_back(contract_json(op));
    std::printf("%s\n", print_json(all, 2).c_str());
    return 0;
  }
  auto op = require_op(name);
  if (!op.ok()) return fail(op.status());
  if (json)
    std::printf("%s\n", print_json(contract_json(*op.value()), 2).c_str());
  else
    print_contract(*op.value());
  return 0;
}

}  // namespace

Result<const Op*> require_op(const std::string& name) {
  if (const Op* op = find_op(name)) return op;
  std::vector<std::string> names;
  for (const Op& op : all_ops()) names.emplace_back(op.spec->name);
  const std::string near = nearest(name, names);
  return invalid_argument(
      "no op '" + name + "'" +
      (near.empty() ? "; `pestle ops` lists them all" : "; did you mean '" + near + "'?"));
}

void add_ops(Program& program) {
  Command command = program.add_command("ops", "List the ops, or print one op's contract");
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command.add_option("name", *name, "an op; all when left out");
  command.add_flag("--json", *json, "for machines");
  command.run([=] { return run_ops(*name, *json); });
}

}  // namespace pestle::cli
