// pestle env: what a bug report should carry.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "backends/cpu/parallel.h"
#include "cli/commands.h"
#include "core/build_info.h"
#include "core/machine.h"

namespace pestle::cli {

void add_env(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("env", "Print versions, build and machine for a bug report");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "for machines");
  command->callback([=] {
    const nlohmann::ordered_json env = {
        {"version", build_version()},
        {"commit", build_commit()},
        {"build", build_type()},
        {"compiler", build_compiler()},
        {"isa", isa_name(this_machine().isa)},
        {"threads", cpu::threads()},
        {"ops", all_ops().size()},
    };
    if (*json) {
      std::printf("%s\n", env.dump(2).c_str());
    } else {
      for (const auto& [key, value] : env.items()) {
        std::printf("%-10s %s\n", key.c_str(),
                    value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
      }
    }
    *exit_code = 0;
  });
}

}  // namespace pestle::cli
