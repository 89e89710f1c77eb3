// A recipe: which tensor becomes what, as TOML that can be kept with a model and shared.
// docs/recipe.md lists the keys.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace pestle::files {

struct LayerRule {
  std::string pattern;
  std::string format;
};

struct Recipe {
  std::optional<std::string> format;        // of every tensor that no rule names
  std::vector<LayerRule> layers;            // the first that matches wins
  std::vector<std::string> keep;            // stored as they are; stronger than `layers`
  std::optional<bool> default_keep;         // false: also embeddings, first and last layers
  std::optional<double> target_error;       // above 0, below 1
  std::optional<std::string> scale_search;  // "amax" or "mse"
  std::optional<std::string> layout;        // "comfy" or "plain"
  std::optional<uint64_t> max_shard_bytes;
};

// Asked for each format name: ok, or the sentence that refuses it.
using FormatCheck = std::function<Status(std::string_view)>;

// `label` begins every message. Unknown keys are errors that name the nearest known one.
Result<Recipe> parse_recipe(std::string_view toml, const std::string& label,
                            const FormatCheck& check_format);

// "PATTERN=FORMAT", as --layer takes it; the last '=' divides.
Result<LayerRule> parse_layer_rule(std::string_view text, const FormatCheck& check_format);

// "5000000", "5GB", "512MiB"
Result<uint64_t> parse_bytes(std::string_view text);

}  // namespace pestle::files
