#include "cli/command_line.h"

#include "cli/commands.h"
#include "core/build_info.h"

int pestle_command_line(int argc, char** argv) {
  CLI::App app("Pestle: verified fast kernels for quantised models, and the tools that prove them.",
               "pestle");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(pestle::build_version()) + " (" +
                                        std::string(pestle::build_commit()) + ", " +
                                        std::string(pestle::build_type()) + ")");
  app.footer("Each command has its own --help. Exit codes: docs/cli.md.");
  int exit_code = 0;
  for (pestle::cli::AddCommand add : pestle::cli::kCommands) add(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int parsed = app.exit(error);
    return parsed == 0 ? 0 : pestle::cli::kExitUsage;
  }
  return pestle::cli::finish_output(exit_code);
}
