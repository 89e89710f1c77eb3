#include "files/recipe.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "files/pattern.h"
#include "files/text.h"
#include "files/toml.h"

namespace pestle::files {
namespace {

const std::vector<std::string> kKeys = {"format",       "layer",        "keep",   "default_keep",
                                        "target_error", "scale_search", "layout", "max_shard"};
const std::vector<std::string> kLayerKeys = {"pattern", "format"};

using Kind = TomlValue::Kind;

class RecipeReader {
 public:
  RecipeReader(const std::string& label, const FormatCheck& check_format)
      : label_(label), check_format_(check_format) {}

  Result<Recipe> read(const TomlValue& table) {
    for (const auto& [key, value] : table.members) PESTLE_TRY(read_key(key, value));
    return std::move(recipe_);
  }

 private:
  Status error(const TomlValue& node, const std::string& what) const {
    return invalid_argument(label_ + ":" + std::to_string(node.line) + ": " + what);
  }

  Status unknown_key(const TomlValue& node, const std::string& key,
                     const std::vector<std::string>& known) const {
    std::string text = "unknown key " + quote(key);
    if (const std::string near = nearest_name(key, known); !near.empty()) {
      return error(node, text + "; did you mean " + quote(near) + "?");
    }
    text += "; known are";
    for (const std::string& name : known) text += " " + name;
    return error(node, text);
  }

  Status read_text(const TomlValue& node, const std::string& key, std::string& text) const {
    if (node.kind != Kind::kString) return error(node, key + " must be a string");
    text = node.text;
    return {};
  }

  Status read_format(const TomlValue& node, std::string& format) const {
    PESTLE_TRY(read_text(node, "format", format));
    if (Status status = check_format_(format); !status.ok()) return error(node, status.message());
    return {};
  }

  Status read_pattern(const TomlValue& node, const std::string& key, std::string& pattern) const {
    PESTLE_TRY(read_text(node, key, pattern));
    if (Status status = check_pattern(pattern); !status.ok()) return error(node, status.message());
    return {};
  }

  Status read_choice(const TomlValue& node, const std::string& key,
                     std::initializer_list<std::string_view> choices,
                     std::optional<std::string>& choice) const {
    std::string text;
    PESTLE_TRY(read_text(node, key, text));
    std::string all;
    for (const std::string_view allowed : choices) {
      if (text == allowed) {
        choice = text;
        return {};
      }
      all += (all.empty() ? "\"" : " or \"") + std::string(allowed) + "\"";
    }
    return error(node, key + " is " + quote(text) + ", expected " + all);
  }

  Status read_key(const std::string& key, const TomlValue& node) {
    if (key == "format") return read_format(node, recipe_.format.emplace());
    if (key == "layer") return read_layers(node);
    if (key == "keep") return read_keep(node);
    if (key == "target_error") return read_target_error(node);
    if (key == "scale_search") {
      return read_choice(node, key, {"amax", "mse"}, recipe_.scale_search);
    }
    if (key == "layout") return read_choice(node, key, {"comfy", "plain"}, recipe_.layout);
    if (key == "default_keep") {
      if (node.kind != Kind::kBool) return error(node, "default_keep must be true or false");
      recipe_.default_keep = node.boolean;
      return {};
    }
    if (key == "max_shard") {
      std::string text;
      PESTLE_TRY(read_text(node, key, text));
      const Result<uint64_t> bytes = parse_bytes(text);
      if (!bytes.ok()) return error(node, bytes.status().message());
      recipe_.max_shard_bytes = bytes.value();
      return {};
    }
    return unknown_key(node, key, kKeys);
  }

  Status read_keep(const TomlValue& node) {
    if (node.kind != Kind::kArray) return error(node, "keep must be an array of patterns");
    for (const TomlValue& item : node.items) {
      PESTLE_TRY(read_pattern(item, "each pattern of keep", recipe_.keep.emplace_back()));
    }
    return {};
  }

  Status read_layers(const TomlValue& node) {
    if (node.kind != Kind::kArray) return error(node, "layer must be tables: write [[layer]]");
    for (const TomlValue& item : node.items) {
      if (item.kind != Kind::kTable) return error(item, "layer must be tables: write [[layer]]");
      LayerRule rule;
      for (const auto& [key, value] : item.members) {
        if (key == "pattern") {
          PESTLE_TRY(read_pattern(value, key, rule.pattern));
        } else if (key == "format") {
          PESTLE_TRY(read_format(value, rule.format));
        } else {
          return unknown_key(value, key, kLayerKeys);
        }
      }
      if (rule.pattern.empty()) return error(item, "this [[layer]] has no pattern");
      if (rule.format.empty()) return error(item, "this [[layer]] has no format");
      recipe_.layers.push_back(std::move(rule));
    }
    return {};
  }

  Status read_target_error(const TomlValue& node) {
    const double value = node.kind == Kind::kReal ? node.real : -1;  // no whole number is in range
    if (!(value > 0) || !(value < 1)) {
      return error(node, "target_error must be a number above 0 and below 1, such as 0.02");
    }
    recipe_.target_error = value;
    return {};
  }

  const std::string& label_;
  const FormatCheck& check_format_;
  Recipe recipe_;
};

}  // namespace

Result<Recipe> parse_recipe(std::string_view text, const std::string& label,
                            const FormatCheck& check_format) {
  const Result<TomlValue> table = parse_toml(text, label);
  if (!table.ok()) return table.status();
  return RecipeReader(label, check_format).read(table.value());
}

Result<LayerRule> parse_layer_rule(std::string_view text, const FormatCheck& check_format) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos) {
    return invalid_argument("--layer " + quote(text) + " has no '='; write it as 'PATTERN=FORMAT'");
  }
  LayerRule rule{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
  PESTLE_TRY(check_pattern(rule.pattern));
  PESTLE_TRY(check_format(rule.format));
  return rule;
}

Result<uint64_t> parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    uint64_t bytes;
  };
  static constexpr Unit kUnits[] = {
      {"", 1},          {"B", 1},         {"KB", 1000},    {"MB", 1000'000}, {"GB", 1000'000'000},
      {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  const Status refused = invalid_argument("size " + quote(text) +
                                          " is no whole number with B, KB, MB, GB, KiB, MiB or "
                                          "GiB, such as 5GB");
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || number == 0) return refused;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& known : kUnits) {
    if (known.name == unit && number <= (uint64_t{1} << 62) / known.bytes) {
      return number * known.bytes;
    }
  }
  return refused;
}

}  // namespace pestle::files
