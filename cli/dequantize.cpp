// pestle dequantize: back to plain weights.
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/file_commands.h"
#include "files/dequantize_file.h"
#include "files/text.h"

namespace pestle::cli {
namespace {

struct DequantizeArguments {
  files::DequantizeOptions options;
  std::string dtype;
  std::string max_shard;
  bool quiet = false;
};

int run_dequantize(DequantizeArguments& arguments) {
  files::DequantizeOptions& options = arguments.options;
  if (!arguments.dtype.empty()) options.dtype = dtype_from_name(arguments.dtype);
  if (!arguments.max_shard.empty()) {
    const auto bytes = files::parse_bytes(arguments.max_shard);
    if (!bytes.ok()) return fail(bytes.status());
    options.max_shard_bytes = bytes.value();
  }
  options.progress = progress_bar(arguments.quiet);
  options.cancel = &stop_requested();
  const auto report = files::dequantize_file(options);
  if (!report.ok()) return fail(report.status());
  if (!arguments.quiet) {
    std::printf("%d layers decoded, %d tensors copied, %s -> %s\n", report.value().layers_decoded,
                report.value().tensors_copied,
                files::human_bytes(report.value().bytes_before).c_str(),
                files::human_bytes(report.value().bytes_after).c_str());
  }
  return 0;
}

}  // namespace

void add_dequantize(Program& program) {
  Command command = program.add_command("dequantize", "Turn a quantised model into plain weights");
  auto arguments = std::make_shared<DequantizeArguments>();
  files::DequantizeOptions& options = arguments->options;
  command.add_option("input", options.input, "a quantised safetensors model, or GGUF").required();
  command.add_option("output", options.output, "the safetensors file to write").required();
  command
      .add_option("--dtype", arguments->dtype,
                  "of the decoded weights; unset: what they were, else bf16")
      .one_of({"bf16", "f16", "f32"});
  command.add_option("--max-shard", arguments->max_shard, "split the output, e.g. 5GB");
  command.add_flag("--force", options.overwrite, "replace an existing output");
  command.add_flag("-q,--quiet", arguments->quiet, "no progress bar, no summary");
  command.run([=] { return run_dequantize(*arguments); });
}

}  // namespace pestle::cli
