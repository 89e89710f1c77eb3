// pestle why: every implementation's verdict on a call, for any machine, without a GPU.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/call_text.h"
#include "core/dispatch.h"
#include "core/json_text.h"
#include "core/text.h"

namespace pestle::cli {
namespace {

struct WhyOptions {
  std::string op;
  std::vector<std::string> items;
  int compute_capability = -1;
  std::string isa;
  std::string device;
  bool json = false;
};

Result<Machine> machine_of(const WhyOptions& options) {
  Machine machine = options.device == "cuda" ? machine_for({DeviceType::kCuda, 0}) : this_machine();
  if (options.compute_capability >= 0) machine.compute_capability = options.compute_capability;
  if (options.isa.empty()) return machine;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (options.isa != isa_name(isa)) continue;
    machine.isa = isa;
    return machine;
  }
  return invalid_argument("--isa is '" + options.isa + "', expected scalar, avx2 or avx512");
}

Result<DeviceType> device_of(const WhyOptions& options) {
  if (options.device == "cuda") return DeviceType::kCuda;
  if (options.device == "cpu") return DeviceType::kCpu;
  if (!options.device.empty()) {
    return invalid_argument("--device is '" + options.device + "', expected cpu or cuda");
  }
  return options.compute_capability > 0 ? DeviceType::kCuda : DeviceType::kCpu;
}

void print_verdicts_json(const Op& op, const TextCall& call,
                         const std::vector<Candidate>& verdicts) {
  nlohmann::ordered_json json = {{"op", op.spec->name}};
  for (size_t i = 0; i < op.spec->args.size(); ++i) {
    const Value& value = call.values[i];
    if (value.present && op.spec->args[i].kind == Kind::kTensor) {
      json["tensors"][op.spec->args[i].name] = describe(value.tensor);
    }
    for (const TensorView& item : value.list) {
      json["tensors"][op.spec->args[i].name].push_back(describe(item));
    }
  }
  json["chosen"] = nullptr;
  Scope scope;
  const bool is_whole = op.contract.check(call.call, scope).ok();
  for (const Candidate& verdict : verdicts) {
    json["candidates"].push_back({{"id", verdict.impl->id},
                                  {"takes_it", verdict.refusal.empty()},
                                  {"reason", verdict.refusal}});
    if (!verdict.plan.empty()) json["candidates"].back()["plan"] = verdict.plan;
    if (is_whole && verdict.refusal.empty()) {
      auto bytes = op.contract.evaluate(verdict.impl->workspace, scope);
      if (bytes.ok()) json["candidates"].back()["workspace_bytes"] = bytes.value();
    }
    if (json["chosen"].is_null() && verdict.refusal.empty()) json["chosen"] = verdict.impl->id;
  }
  std::printf("%s\n", print_json(json, 2).c_str());
}

// "bf16[8,16]", or "bf16[8,16],bf16[4,4],... (70)" of a list.
std::string tensors_text(const Op& op, const TextCall& call, size_t arg) {
  const Value& value = call.values[arg];
  if (op.spec->args[arg].kind == Kind::kTensor) return describe(value.tensor);
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, value.list.size()); ++i) {
    text += (i > 0 ? "," : "") + describe(value.list[i]);
  }
  return text + (value.list.size() > kShown ? ",... (" + std::to_string(value.list.size()) + ")"
                                            : std::string());
}

void print_text(const Op& op, const TextCall& call, const std::vector<Candidate>& verdicts) {
  std::printf("%s(", op.spec->name);
  const char* separator = "";
  for (size_t i = 0; i < op.spec->args.size(); ++i) {
    const Value& value = call.values[i];
    if (!value.present || op.spec->args[i].role == Role::kAttribute) continue;
    std::printf("%s%s=%s", separator, op.spec->args[i].name, tensors_text(op, call, i).c_str());
    separator = ", ";
  }
  std::printf(")\n");
  bool chosen = false;
  for (const Candidate& verdict : verdicts) {
    const bool takes = verdict.refusal.empty();
    const std::string plan = verdict.plan.empty() ? "" : ": " + verdict.plan;
    std::printf("  %s %-28s %s%s\n", takes && !chosen ? "->" : "  ", verdict.impl->id,
                takes ? (chosen ? "would take it" : "takes it") : verdict.refusal.c_str(),
                plan.c_str());
    chosen |= takes;
  }
  if (!chosen) std::printf("  no implementation takes this call\n");
}

int run_why(const WhyOptions& options) {
  auto op = require_op(options.op);
  if (!op.ok()) return fail(op.status());
  auto machine = machine_of(options);
  if (!machine.ok()) return fail(machine.status());
  auto device = device_of(options);
  if (!device.ok()) return fail(device.status());
  auto call = call_from_text(*op.value(), join(options.items, " "), device.value());
  if (!call.ok()) return fail(call.status());
  const auto verdicts = candidates(*op.value(), call.value().call, machine.value());
  if (options.json)
    print_verdicts_json(*op.value(), call.value(), verdicts);
  else
    print_text(*op.value(), call.value(), verdicts);
  return 0;
}

}  // namespace

void add_why(Program& program) {
  Command command = program.add_command(
      "why", "Say which implementation would serve a call, and why the others would not");
  auto options = std::make_shared<WhyOptions>();
  command.add_option("op", options->op, "an op").required();
  command.add_option("call", options->items,
                     "tensors (x=bf16[8,4096], scale=none), dimensions (M=8 K=4096), attributes");
  command.add_option("--cc", options->compute_capability,
                     "as if on a GPU of this compute capability, e.g. 90");
  command.add_option("--isa", options->isa, "as if on a CPU with scalar, avx2 or avx512");
  command.add_option("--device", options->device, "cpu or cuda; cuda when --cc is given");
  command.add_flag("--json", options->json, "for machines");
  command.run([=] { return run_why(*options); });
}

}  // namespace pestle::cli
