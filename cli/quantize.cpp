// pestle quantize: a model in, a smaller one out, and what that cost.
#include <cstdio>
#include <memory>

#include "backends/cpu/parallel.h"
#include "cli/commands.h"
#include "cli/file_commands.h"
#include "files/file_job.h"
#include "files/input_file.h"
#include "files/quantize_file.h"
#include "formats/format_table.h"

namespace pestle::cli {
namespace {

struct QuantizeArguments {
  files::QuantizeOptions options;
  std::vector<std::string> layers;
  std::string recipe;
  std::string layout;
  std::string max_shard;
  std::string json;
  std::string html;
  std::string scale_search;
  int threads = 0;
  size_t rows = 20;
  bool quantize_all = false;
  bool quiet = false;
};

std::string format_list() {
  std::string text = "Formats (bits per weight at 4096 x 4096; * in ComfyUI's layout too):\n";
  for (const formats::FormatInfo& info : formats::all_formats()) {
    char line[160];
    std::snprintf(line, sizeof line, "  %-13s%c %7.3f  %s\n", info.name.data(),
                  info.comfy.empty() ? ' ' : '*', formats::nominal_bits_per_weight(info),
                  info.doc.data());
    text += line;
  }
  return text + "Exit codes: docs/cli.md.";
}

Status read_recipe(QuantizeArguments& arguments) {
  if (arguments.recipe.empty()) return {};
  const auto text = files::read_text_file(arguments.recipe);
  PESTLE_TRY(text.status());
  const auto recipe = files::parse_recipe(text.value(), arguments.recipe, files::check_format_name);
  PESTLE_TRY(recipe.status());
  files::apply_recipe(recipe.value(), arguments.options);
  arguments.options.also_read.push_back(arguments.recipe);
  return {};
}

// What is written after the model, so that it can be refused before.
void add_reports(QuantizeArguments& arguments) {
  files::QuantizeOptions& options = arguments.options;
  const bool force = options.overwrite;
  if (!arguments.html.empty()) {
    options.reports.push_back({"HTML report", arguments.html, 0, force, false});
  }
  if (!arguments.json.empty() && arguments.json != "-") {
    options.reports.push_back({"JSON report", arguments.json, 0, force, false});
  }
}

Status complete_options(QuantizeArguments& arguments) {
  files::QuantizeOptions& options = arguments.options;
  for (const std::string& text : arguments.layers) {
    const auto rule = files::parse_layer_rule(text, files::check_format_name);
    PESTLE_TRY(rule.status());
    options.layers.push_back(rule.value());
  }
  if (arguments.layout == "comfy") options.layout = files::FileLayout::kComfy;
  if (arguments.layout == "plain") options.layout = files::FileLayout::kPlain;
  options.mse_scales = arguments.scale_search == "mse";
  options.is_scale_search_given = !arguments.scale_search.empty();
  options.default_keep = !arguments.quantize_all;
  if (!arguments.max_shard.empty()) {
    const auto bytes = files::parse_bytes(arguments.max_shard);
    PESTLE_TRY(bytes.status());
    options.max_shard_bytes = bytes.value();
  }
  options.histograms = !arguments.html.empty();
  add_reports(arguments);
  PESTLE_TRY(read_recipe(arguments));
  options.progress = progress_bar(arguments.quiet);
  options.cancel = &stop_requested();
  return {};
}

Status write_reports(const QuantizeArguments& arguments, const files::QuantizeReport& report) {
  if (!arguments.html.empty()) {
    PESTLE_TRY(files::write_text_file(arguments.html, files::report_html(report)));
  }
  if (!arguments.json.empty() && arguments.json != "-") {
    PESTLE_TRY(files::write_text_file(arguments.json, files::report_json(report)));
  }
  return {};
}

int run_quantize(QuantizeArguments& arguments) {
  if (Status status = complete_options(arguments); !status.ok()) return fail(status);
  if (arguments.threads > 0) cpu::set_threads(arguments.threads);
  const auto report = files::quantize_file(arguments.options);
  if (!report.ok()) return fail(report.status());
  if (arguments.json == "-") {
    std::fputs(files::report_json(report.value()).c_str(), stdout);
  } else if (!arguments.quiet) {
    std::fputs(files::report_text(report.value(), arguments.rows).c_str(), stdout);
  }
  return fail(write_reports(arguments, report.value()));
}

void add_choice_options(Command& command, QuantizeArguments& arguments) {
  files::QuantizeOptions& options = arguments.options;
  command.add_option("-f,--format", options.format, "format of every layer that no --layer names");
  command
      .add_option("-l,--layer", arguments.layers,
                  "'PATTERN=FORMAT' for the layers that match; the first that matches wins")
      .one_value_each();
  command.add_option("-k,--keep", options.keep, "store the tensors that match as they are")
      .one_value_each();
  command.add_flag("--all", arguments.quantize_all,
                   "also embeddings, first and last layers, which are kept by default");
  command.add_option("--recipe", arguments.recipe,
                     "a TOML file with these choices (docs/recipe.md)");
  command.add_option("--target-error", options.target_error,
                     "for each layer the smallest format whose relative error is below this");
  command
      .add_option("--scale-search", arguments.scale_search,
                  "mse: search for better scales than amax, where the format allows")
      .one_of({"amax", "mse"});
  command
      .add_option("--layout", arguments.layout,
                  "comfy or plain (docs/file-layouts.md); comfy where it has the formats")
      .one_of({"comfy", "plain"});
}

void add_run_options(Command& command, QuantizeArguments& arguments) {
  files::QuantizeOptions& options = arguments.options;
  command.add_option("--max-shard", arguments.max_shard, "split the output, e.g. 5GB");
  command.add_flag("--allow-non-finite", options.allow_non_finite,
                   "store tensors with NaN or infinities as they are, instead of refusing");
  command.add_flag("--dry-run", options.dry_run, "say what would happen and write nothing");
  command.add_flag("--force", options.overwrite, "replace an existing output");
  command.add_flag("--resume", options.resume,
                   "go on where a killed run of the same command ended");
  command.add_option("--json", arguments.json,
                     "write the report as JSON to this file, or - for stdout");
  command.add_option("--html", arguments.html, "write the report with plots to this file");
  command.add_option("--rows", arguments.rows, "layers in the printed table, 0 for all")
      .not_negative();
  command.add_option("--threads", arguments.threads, "threads, 0 for one per core").not_negative();
  command.add_flag("-q,--quiet", arguments.quiet, "no progress bar and no table");
}

}  // namespace

void add_quantize(Program& program) {
  Command command = program.add_command("quantize", "Make a model smaller and say what that cost");
  auto arguments = std::make_shared<QuantizeArguments>();
  command
      .add_option("input", arguments->options.input,
                  "a safetensors file, an index of shards, or a Hugging Face folder")
      .required();
  command.add_option("output", arguments->options.output, "the safetensors file to write");
  add_choice_options(command, *arguments);
  add_run_options(command, *arguments);
  command.footer(format_list);
  command.run([=] { return run_quantize(*arguments); });
}

}  // namespace pestle::cli
