// Any text: a one-line message, or a recipe whose values are within the documented ranges.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "files/pattern.h"
#include "files/recipe.h"

using namespace pestle;
using namespace pestle::files;

namespace {

Status check_format(std::string_view name) {
  return name == "fp8" || name == "nvfp4" ? Status() : invalid_argument("unknown format");
}

void check(const Recipe& recipe) {
  const std::string name = "model.layers.0.mlp.weight";
  for (const LayerRule& rule : recipe.layers) {
    if (!check_format(rule.format).ok()) std::abort();
    matches(rule.pattern, name);
  }
  for (const std::string& pattern : recipe.keep) matches(pattern, name);
  if (recipe.target_error && !(*recipe.target_error > 0 && *recipe.target_error < 1)) std::abort();
  if (recipe.max_shard_bytes && *recipe.max_shard_bytes == 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recipe = parse_recipe(text, "fuzz", check_format);
  if (recipe.ok()) {
    check(recipe.value());
  } else {
    if (recipe.status().code() != Code::kInvalidArgument) std::abort();
    if (recipe.status().message().find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
