// pestle env: what a bug report should carry.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "backends/cpu/parallel.h"
#include "backends/cuda/host/runtime.h"
#include "cli/commands.h"
#include "core/build_info.h"
#include "core/json_text.h"
#include "core/machine.h"

namespace pestle::cli {

namespace {

// "2: NVIDIA H200, sm_90, driver 580.159.04", or why there are none.
std::string gpus() {
  auto count = cuda::device_count();
  if (!count.ok()) return count.status().message();
  std::string text = std::to_string(count.value());
  for (int i = 0; i < count.value(); ++i) {
    const auto info = cuda::device_info(i);
    if (!info.ok()) return info.status().message();
    text += (i == 0 ? ": " : "; ") + info.value().name + ", sm_" +
            std::to_string(info.value().compute_capability) + ", driver " + info.value().driver;
  }
  return text;
}

}  // namespace

void add_env(Program& program) {
  Command command =
      program.add_command("env", "Print versions, build and machine for a bug report");
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "for machines");
  command.run([=] {
    nlohmann::ordered_json env = {
        {"version", build_version()},
        {"commit", build_commit()},
        {"build", build_type()},
        {"compiler", build_compiler()},
        {"isa", isa_name(this_machine().isa)},
        {"threads", cpu::threads()},
        {"ops", all_ops().size()},
    };
    if (cuda::compiled()) env["gpus"] = gpus();
    if (*json) {
      std::printf("%s\n", print_json(env, 2).c_str());
    } else {
      for (const auto& [key, value] : env.items()) {
        std::printf(
            "%-10s %s\n", key.c_str(),
            value.is_string() ? value.get<std::string>().c_str() : print_json(value).c_str());
      }
    }
    return 0;
  });
}

}  // namespace pestle::cli
