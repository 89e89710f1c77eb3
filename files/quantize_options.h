// What `pestle quantize` is asked to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "files/layer_layout.h"
#include "files/output_check.h"
#include "files/recipe.h"

namespace pestle::files {

struct Progress {
  uint64_t bytes_done = 0;  // of the source
  uint64_t bytes_total = 0;
  const char* stage = "";  // "choosing formats", "quantising"
};

struct QuantizeOptions {
  std::string input;
  std::string output;
  std::string format;                    // empty only with target_error
  std::vector<LayerRule> layers;         // the first that matches wins
  std::vector<std::string> keep;         // stronger than layers
  std::vector<LayerRule> recipe_layers;  // asked after `keep` and `layers`
  std::vector<std::string> recipe_keep;  // stronger than recipe_layers
  bool default_keep = true;              // keep embeddings, first and last layers
  std::optional<FileLayout> layout;      // unset: ComfyUI's if it has every format asked for
  std::optional<double> target_error;
  bool mse_scales = false;
  bool is_scale_search_given = false;  // by the command line, so a recipe does not change it
  bool allow_non_finite = false;       // tensors with NaN or infinities are stored as they are
  bool dry_run = false;
  bool overwrite = false;
  bool resume = false;
  uint64_t max_shard_bytes = 0;        // 0: one file
  bool histograms = false;             // of the worst layers, for the HTML report
  std::vector<std::string> also_read;  // files beside the model that outputs must not replace
  std::vector<WrittenPath> reports;    // what the caller will write afterwards, checked before

  std::function<void(const Progress&)> progress;  // from any thread, not two at once
  const std::atomic<bool>* cancel = nullptr;
};

// What a job that was cancelled ends with.
inline Status interrupted() { return {Code::kInterrupted, "interrupted; nothing was left behind"}; }

// Ok, or the sentence that refuses the name and lists the formats.
Status check_format_name(std::string_view name);

// Values of the recipe where the options do not say otherwise; its patterns follow theirs.
void apply_recipe(const Recipe& recipe, QuantizeOptions& options);

}  // namespace pestle::files
