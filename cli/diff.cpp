// pestle diff: how far two models' weights lie apart.
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/file_commands.h"
#include "files/diff_files.h"
#include "files/text.h"

namespace pestle::cli {
namespace {

struct DiffArguments {
  files::DiffOptions options;
  size_t rows = 20;
  std::optional<double> max_error;
  bool json = false;
};

// A gate that did not see a layer does not let it pass.
bool passes(const files::DiffReport& report, double max_error) {
  const size_t unseen = report.only_in_a.size() + report.skipped.size();
  if (unseen > 0) {
    const std::string first =
        report.only_in_a.empty() ? report.skipped[0] : report.only_in_a[0] + ": not in the second";
    std::fprintf(stderr,
                 "pestle: --max-error fails: %zu layers of the first were not compared: %s\n",
                 unseen, files::printable(first).c_str());
    return false;
  }
  return report.layers[0].relative_error() <= max_error;
}

int run_diff(DiffArguments& arguments) {
  arguments.options.progress = progress_bar(arguments.json);
  arguments.options.cancel = &stop_requested();
  const auto report = files::diff_files(arguments.options);
  if (!report.ok()) return fail(report.status());
  const std::string text = arguments.json ? files::diff_json(report.value())
                                          : files::diff_text(report.value(), arguments.rows);
  std::fputs(text.c_str(), stdout);
  const auto& layers = report.value().layers;
  if (layers.empty()) {
    std::fputs(
        "pestle: nothing was compared: the models have no layer in common that both can be read\n",
        stderr);
    return kExitFailed;
  }
  return arguments.max_error && !passes(report.value(), *arguments.max_error) ? kExitFailed : 0;
}

}  // namespace

void add_diff(Program& program) {
  Command command =
      program.add_command("diff", "Error per layer between two models of any formats");
  auto arguments = std::make_shared<DiffArguments>();
  command.add_option("a", arguments->options.a, "the model that errors are relative to").required();
  command.add_option("b", arguments->options.b, "the other one").required();
  command.add_option("--rows", arguments->rows, "layers in the printed table, 0 for all")
      .not_negative();
  command
      .add_option("--max-error", arguments->max_error,
                  "exit with 1 if a layer's relative error is larger")
      .not_negative();
  command.add_flag("--json", arguments->json, "for machines");
  command.run([=] { return run_diff(*arguments); });
}

}  // namespace pestle::cli
