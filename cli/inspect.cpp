// pestle inspect: what is in a model file.
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "files/inspect_file.h"

namespace pestle::cli {
namespace {

struct InspectArguments {
  std::string path;
  bool layers = false;
  bool json = false;
};

int run_inspect(const InspectArguments& arguments) {
  const auto report = files::inspect_file(arguments.path);
  if (!report.ok()) return fail(report.status());
  const std::string text = arguments.json ? files::inspect_json(report.value())
                                          : files::inspect_text(report.value(), arguments.layers);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

void add_inspect(Program& program) {
  Command command =
      program.add_command("inspect", "Say what is in a model: formats, sizes, metadata");
  auto arguments = std::make_shared<InspectArguments>();
  command.add_option("model", arguments->path, "safetensors, an index, a folder, or GGUF")
      .required();
  command.add_flag("--layers", arguments->layers, "list every layer");
  command.add_flag("--json", arguments->json, "for machines");
  command.run([=] { return run_inspect(*arguments); });
}

}  // namespace pestle::cli
