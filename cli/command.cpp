#include "cli/command.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <utility>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "core/build_info.h"

namespace pestle::cli {

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::not_negative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

Option Option::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Option Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Option Option::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::separated_by(char delimiter) {
  option_->delimiter(delimiter);
  return *this;
}

template <class T>
Option Command::add_option(const std::string& names, T& value, const std::string& help) {
  return Option(app_->add_option(names, value, help));
}

using Strings = std::vector<std::string>;
using Integers = std::vector<int64_t>;
template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, Strings&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, int64_t&, const std::string&);
template Option Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, Integers&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<double>&, const std::string&);

void Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  app_->add_flag(names, value, help);
}

void Command::footer(std::function<std::string()> text) { app_->footer(std::move(text)); }

void Command::run(std::function<int()> body) {
  app_->callback([body = std::move(body), exit_code = exit_code_] { *exit_code = body(); });
}

Command Program::add_command(const std::string& name, const std::string& purpose) {
  return {app_->add_subcommand(name, purpose), exit_code_};
}

}  // namespace pestle::cli

int pestle_command_line(int argc, char** argv) {
  CLI::App app("Pestle: verified fast kernels for quantised models, and the tools that prove them.",
               "pestle");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(pestle::build_version()) + " (" +
                                        std::string(pestle::build_commit()) + ", " +
                                        std::string(pestle::build_type()) + ")");
  app.footer("Each command has its own --help. Exit codes: docs/cli.md.");
  int exit_code = 0;
  pestle::cli::Program program(&app, &exit_code);
  for (pestle::cli::AddCommand add : pestle::cli::kCommands) add(program);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int parsed = app.exit(error);
    return parsed == 0 ? 0 : pestle::cli::kExitUsage;
  }
  return pestle::cli::finish_output(exit_code);
}
