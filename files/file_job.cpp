#include "files/file_job.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "core/json_text.h"
#include "files/atomic_file.h"
#include "files/dequantize_file.h"
#include "files/diff_files.h"
#include "files/input_file.h"
#include "files/inspect_file.h"
#include "files/output_check.h"
#include "files/quantize_file.h"
#include "files/text.h"

namespace pestle::files {
namespace {

using Json = nlohmann::json;

// Options of one verb. Every key is asked for once; what is left at the end is unknown.
class OptionReader {
 public:
  OptionReader(std::string_view verb, Json json) : verb_(verb), json_(std::move(json)) {}

  void text(const char* key, std::string& value) {
    if (const Json* found = take(key, "a string", &Json::is_string)) {
      value = found->get<std::string>();
    }
  }
  void flag(const char* key, bool& value) {
    if (const Json* found = take(key, "true or false", &Json::is_boolean)) {
      value = found->get<bool>();
    }
  }
  void bytes(const char* key, uint64_t& value) {
    if (const Json* found = take(key, "a whole number of bytes", &Json::is_number_unsigned)) {
      value = found->get<uint64_t>();
    }
  }
  void number(const char* key, std::optional<double>& value) {
    if (const Json* found = take(key, "a number", &Json::is_number)) value = found->get<double>();
  }
  void texts(const char* key, std::vector<std::string>& values) {
    const Json* found = take(key, "an array of strings", &Json::is_array);
    for (size_t i = 0; found != nullptr && i < found->size(); ++i) {
      if (!(*found)[i].is_string()) return fail(key, "an array of strings");
      values.push_back((*found)[i].get<std::string>());
    }
  }
  Status finish() const {
    PESTLE_TRY(first_);
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::string near = nearest_name(key, known_);
      return invalid_argument(
          std::string(verb_) + ": unknown option " + quote(key) +
          (near.empty() ? "; docs/files.md lists them" : "; did you mean " + quote(near) + "?"));
    }
    return {};
  }

 private:
  const Json* take(const char* key, const char* expected, bool (Json::*is)() const noexcept) {
    known_.emplace_back(key);
    const auto found = json_.find(key);
    if (found == json_.end()) return nullptr;
    if (((*found).*is)()) return &*found;
    fail(key, expected);
    return nullptr;
  }
  void fail(const char* key, const char* expected) {
    if (!first_.ok()) return;
    first_ = invalid_argument(std::string(verb_) + ": option " + key + " must be " + expected);
  }

  std::string_view verb_;
  Json json_;
  std::vector<std::string> known_;
  Status first_;
};

// Joins a caller's progress function, which may stop the job, to the jobs' hooks.
class Hooks {
 public:
  explicit Hooks(const JobProgress& progress) : progress_(progress) {}
  template <class Options>
  void attach(Options& options) {
    options.cancel = &stop_;
    if (!progress_) return;
    options.progress = [this](const Progress& now) {
      if (!progress_(now.stage, now.bytes_done, now.bytes_total)) stop_ = true;
    };
  }

 private:
  const JobProgress& progress_;
  std::atomic<bool> stop_{false};
};

Status read_layer_rules(const std::vector<std::string>& texts, std::vector<LayerRule>& rules) {
  for (const std::string& text : texts) {
    const auto rule = parse_layer_rule(text, check_format_name);
    PESTLE_TRY(rule.status());
    rules.push_back(rule.value());
  }
  return {};
}

Status read_choices(const std::string& layout, const std::string& scale_search,
                    QuantizeOptions& options) {
  if (layout == "comfy") options.layout = FileLayout::kComfy;
  if (layout == "plain") options.layout = FileLayout::kPlain;
  if (!layout.empty() && !options.layout) {
    return invalid_argument("quantize: layout is " + quote(layout) + ", expected comfy or plain");
  }
  options.mse_scales = scale_search == "mse";
  options.is_scale_search_given = !scale_search.empty();
  if (!scale_search.empty() && scale_search != "mse" && scale_search != "amax") {
    return invalid_argument("quantize: scale_search is " + quote(scale_search) +
                            ", expected amax or mse");
  }
  return {};
}

Status read_recipe_file(const std::string& path, QuantizeOptions& options) {
  const auto text = read_text_file(path);
  PESTLE_TRY(text.status());
  const auto recipe = parse_recipe(text.value(), path, check_format_name);
  PESTLE_TRY(recipe.status());
  apply_recipe(recipe.value(), options);
  options.also_read.push_back(path);
  return {};
}

Result<std::string> quantize_job(OptionReader& reader, Hooks& hooks) {
  QuantizeOptions options;
  std::vector<std::string> layers;
  std::string layout;
  std::string scale_search;
  std::string recipe;
  std::string html;
  reader.text("input", options.input);
  reader.text("output", options.output);
  reader.text("format", options.format);
  reader.texts("layers", layers);
  reader.texts("keep", options.keep);
  reader.flag("default_keep", options.default_keep);
  reader.text("layout", layout);
  reader.number("target_error", options.target_error);
  reader.text("scale_search", scale_search);
  reader.text("recipe", recipe);
  reader.flag("dry_run", options.dry_run);
  reader.flag("force", options.overwrite);
  reader.flag("resume", options.resume);
  reader.flag("allow_non_finite", options.allow_non_finite);
  reader.bytes("max_shard_bytes", options.max_shard_bytes);
  reader.text("html", html);
  PESTLE_TRY(reader.finish());
  PESTLE_TRY(read_layer_rules(layers, options.layers));
  PESTLE_TRY(read_choices(layout, scale_search, options));
  if (!recipe.empty()) PESTLE_TRY(read_recipe_file(recipe, options));
  options.histograms = !html.empty();
  if (!html.empty()) options.reports.push_back({"HTML report", html, 0, options.overwrite, false});
  hooks.attach(options);
  const auto report = quantize_file(options);
  PESTLE_TRY(report.status());
  if (!html.empty()) PESTLE_TRY(write_text_file(html, report_html(report.value())));
  return report_json(report.value());
}

Result<std::string> dequantize_job(OptionReader& reader, Hooks& hooks) {
  DequantizeOptions options;
  std::string dtype;
  reader.text("input", options.input);
  reader.text("output", options.output);
  reader.text("dtype", dtype);
  reader.flag("force", options.overwrite);
  reader.bytes("max_shard_bytes", options.max_shard_bytes);
  PESTLE_TRY(reader.finish());
  if (!dtype.empty() && dtype != "bf16" && dtype != "f16" && dtype != "f32") {
    return invalid_argument("dequantize: dtype is " + quote(dtype) + ", expected bf16, f16 or f32");
  }
  if (!dtype.empty()) options.dtype = dtype_from_name(dtype);
  hooks.attach(options);
  const auto report = dequantize_file(options);
  PESTLE_TRY(report.status());
  const nlohmann::ordered_json json = {{"version", 1},
                                       {"outputs", report.value().outputs},
                                       {"layers_decoded", report.value().layers_decoded},
                                       {"tensors_copied", report.value().tensors_copied},
                                       {"bytes_before", report.value().bytes_before},
                                       {"bytes_after", report.value().bytes_after}};
  return print_json(json, 2, true) + "\n";
}

Result<std::string> inspect_job(OptionReader& reader) {
  std::string input;
  reader.text("input", input);
  PESTLE_TRY(reader.finish());
  const auto report = inspect_file(input);
  PESTLE_TRY(report.status());
  return inspect_json(report.value());
}

Result<std::string> diff_job(OptionReader& reader, Hooks& hooks) {
  DiffOptions options;
  reader.text("a", options.a);
  reader.text("b", options.b);
  PESTLE_TRY(reader.finish());
  hooks.attach(options);
  const auto report = diff_files(options);
  PESTLE_TRY(report.status());
  return diff_json(report.value());
}

}  // namespace

Result<std::string> run_file_job(std::string_view verb, std::string_view options_json,
                                 const JobProgress& progress) {
  Json json = parse_json(options_json);
  if (!json.is_object()) {
    return invalid_argument(std::string(verb) + ": the options are no JSON object");
  }
  OptionReader reader(verb, std::move(json));
  Hooks hooks(progress);
  if (verb == "quantize") return quantize_job(reader, hooks);
  if (verb == "dequantize") return dequantize_job(reader, hooks);
  if (verb == "inspect") return inspect_job(reader);
  if (verb == "diff") return diff_job(reader, hooks);
  return invalid_argument("no file job " + quote(verb) +
                          "; there are quantize, dequantize, inspect and diff");
}

Status write_text_file(const std::string& path, const std::string& text) {
  AtomicFileOptions options;
  options.bytes = text.size();
  options.overwrite = true;
  options.fingerprint = "text";
  auto file = AtomicFile::create(path, options);
  PESTLE_TRY(file.status());
  PESTLE_TRY(file.value()->write_at(0, std::as_bytes(std::span(text))));
  return file.value()->commit();
}

}  // namespace pestle::files
