#include "files/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "files/comfy_detection.h"
#include "files/pattern.h"
#include "files/text.h"

namespace pestle::files {
namespace {

constexpr std::string_view kWeightEnd = ".weight";

bool is_source_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Embedding tables are gathered, not multiplied, and small errors in them reach every layer.
bool names_embedding(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kMarks = {"embed",   ".wte.",   ".wpe.",
                                                             "shared.", "tok_emb", "pos_emb"};
  const std::string dotted = "." + std::string(name);
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&](std::string_view mark) { return dotted.find(mark) != std::string::npos; });
}

// "blocks.12.attn.weight" -> "blocks.#.attn.weight"; empty when no part is a number.
std::string numbered_family(std::string_view name) {
  std::string family;
  bool numbered = false;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    numbered |= is_number;
    family += is_number ? "#" : std::string(part);
    family += '.';
    name = dot == name.npos ? "" : name.substr(dot + 1);
  }
  return numbered ? family : "";
}

// What the rules need to know about all names together.
class Structure {
 public:
  explicit Structure(const Model& model) {
    for (const ModelTensor& tensor : model.tensors()) {
      if (tensor.shape.size() != 2 || !tensor.name.ends_with(kWeightEnd)) continue;
      weights_.push_back(tensor.name);
      const std::string family = numbered_family(tensor.name);
      if (!family.empty() && ++families_[family] > 1) has_blocks_ = true;
    }
  }

  // Outside the repeated blocks lie the first and last layers; without blocks they are the first
  // and the last weight by name.
  bool is_first_or_last(const std::string& name) const {
    if (weights_.size() <= 2) return false;
    if (has_blocks_) {
      const auto family = families_.find(numbered_family(name));
      return family == families_.end() || family->second < 2;
    }
    return name == weights_.front() || name == weights_.back();
  }

 private:
  std::vector<std::string> weights_;
  std::map<std::string, int> families_;
  bool has_blocks_ = false;
};

// Why a tensor can't be quantised whatever is asked; empty: it can.
std::string unfit_reason(const Model& model, const ModelTensor& tensor) {
  if (!tensor.name.ends_with(kWeightEnd)) return "no weight of a linear layer (its name)";
  const std::string layer = tensor.name.substr(0, tensor.name.size() - kWeightEnd.size());
  for (const char* mark : {".comfy_quant", ".weight_scale", ".scale_weight", ".weight_s_rel"}) {
    if (model.find(layer + mark) != nullptr) return "already quantised";
  }
  if (!is_source_dtype(tensor.dtype)) {
    return "dtype " + std::string(tensor.dtype_name) + ", only F32, F16 and BF16 are quantised";
  }
  if (tensor.shape.size() != 2) return std::to_string(tensor.shape.size()) + "-D, no linear weight";
  return "";
}

std::string default_reason(const Structure& structure, const std::string& name) {
  if (names_embedding(name)) return "embedding (kept by default)";
  if (structure.is_first_or_last(name)) return "first or last layer (kept by default)";
  return "";
}

// Patterns may name the tensor or the layer.
bool matches_either(const std::string& pattern, const PlannedLayer& layer) {
  return matches(pattern, layer.tensor->name) || matches(pattern, layer.layer);
}

const std::string* matching_keep(const std::vector<std::string>& keep, const PlannedLayer& layer) {
  for (const std::string& pattern : keep) {
    if (matches_either(pattern, layer)) return &pattern;
  }
  return nullptr;
}

const LayerRule* matching_rule(const std::vector<LayerRule>& rules, const PlannedLayer& layer) {
  for (const LayerRule& rule : rules) {
    if (matches_either(rule.pattern, layer)) return &rule;
  }
  return nullptr;
}

std::vector<const LayerRule*> all_rules(const QuantizeOptions& options) {
  std::vector<const LayerRule*> rules;
  for (const LayerRule& rule : options.layers) rules.push_back(&rule);
  for (const LayerRule& rule : options.recipe_layers) rules.push_back(&rule);
  return rules;
}

// The command line's patterns before the recipe's, and in each --keep before --layer.
void apply_patterns(const QuantizeOptions& options, PlannedLayer& planned) {
  if (const auto* keep = matching_keep(options.keep, planned)) {
    planned.reason = "--keep " + *keep;
    planned.is_kept_by_pattern = true;
    return;
  }
  planned.rule = matching_rule(options.layers, planned);
  if (planned.rule != nullptr) return;
  if (const auto* keep = matching_keep(options.recipe_keep, planned)) {
    planned.reason = "keep " + *keep + " of the recipe";
    planned.is_kept_by_pattern = true;
    return;
  }
  planned.rule = matching_rule(options.recipe_layers, planned);
}

// A rule of which nothing comes is a mistyped pattern more often than not. A recipe's rule may find
// all of its layers taken by what was asked for before it.
Status check_rules_take_layers(const Plan& plan, const QuantizeOptions& options) {
  for (const LayerRule* rule : all_rules(options)) {
    const bool is_recipe = std::any_of(options.recipe_layers.begin(), options.recipe_layers.end(),
                                       [&](const LayerRule& one) { return &one == rule; });
    const PlannedLayer* first = nullptr;
    bool is_served = false;
    for (const PlannedLayer& planned : plan.layers) {
      if (!matches_either(rule->pattern, planned)) continue;
      if (first == nullptr || (first->rule != rule && planned.rule == rule)) first = &planned;
      is_served |= planned.rule == rule && planned.target.has_value();
      is_served |= is_recipe && planned.rule != rule && planned.is_taken();
    }
    if (is_served || first == nullptr) continue;
    return invalid_argument("--layer " + quote(rule->pattern + "=" + rule->format) +
                            " takes no layer: " + quote(first->tensor->name) + " " +
                            (first->reason.empty()
                                 ? "is taken by the pattern " + quote(first->rule->pattern)
                                 : "is kept: " + first->reason));
  }
  return {};
}

Status check_patterns_used(const Model& model, const QuantizeOptions& options) {
  std::vector<std::string> patterns = options.keep;
  patterns.insert(patterns.end(), options.recipe_keep.begin(), options.recipe_keep.end());
  for (const LayerRule* rule : all_rules(options)) patterns.push_back(rule->pattern);
  for (const std::string& pattern : patterns) {
    PESTLE_TRY(check_pattern(pattern));
    const bool used =
        std::any_of(model.tensors().begin(), model.tensors().end(), [&](const ModelTensor& tensor) {
          const std::string& name = tensor.name;
          return matches(pattern, name) ||
                 (name.ends_with(kWeightEnd) &&
                  matches(pattern, name.substr(0, name.size() - kWeightEnd.size())));
        });
    if (!used) {
      return invalid_argument("pattern " + quote(pattern) +
                              " matches no tensor of the model; pestle inspect lists them");
    }
  }
  return {};
}

Result<FileLayout> choose_layout(const QuantizeOptions& options, std::vector<std::string>& notes) {
  if (options.layout) return *options.layout;
  std::vector<std::string> names;
  if (!options.format.empty()) names.push_back(options.format);
  for (const LayerRule* rule : all_rules(options)) names.push_back(rule->format);
  for (const std::string& name : names) {
    if (!formats::find_format(name)->comfy.empty()) continue;
    notes.push_back("plain layout, since ComfyUI's layout has no " + name);
    return FileLayout::kPlain;
  }
  return FileLayout::kComfy;
}

Status check_options(const QuantizeOptions& options) {
  const std::vector<const LayerRule*> rules = all_rules(options);
  if (options.format.empty() && !options.target_error && rules.empty()) {
    return invalid_argument(
        "nothing says which format to use; pass --format, --layer, --recipe or "
        "--target-error");
  }
  if (!options.format.empty() && options.target_error) {
    return invalid_argument(
        "--format and --target-error both choose the format of every layer; "
        "pass one, and --layer for exceptions");
  }
  if (!options.format.empty()) PESTLE_TRY(check_format_name(options.format));
  for (const LayerRule* rule : rules) PESTLE_TRY(check_format_name(rule->format));
  if (options.target_error && !(*options.target_error > 0 && *options.target_error < 1)) {
    return invalid_argument("--target-error must be above 0 and below 1, such as 0.02");
  }
  return {};
}

void plan_layer(const Model& model, const Structure& structure, const QuantizeOptions& options,
                FileLayout layout, PlannedLayer& planned) {
  const std::string& name = planned.tensor->name;
  planned.reason = unfit_reason(model, *planned.tensor);
  if (!planned.reason.empty()) return;
  apply_patterns(options, planned);
  if (!planned.reason.empty()) return;
  const LayerRule* rule = planned.rule;
  if (rule == nullptr && options.default_keep) {
    planned.reason = default_reason(structure, name);
    if (!planned.reason.empty()) return;
  }
  if (rule == nullptr && options.format.empty()) {
    planned.wants_choice = options.target_error.has_value();
    if (!planned.wants_choice)
      planned.reason = "no --layer pattern matches and no --format is given";
    return;
  }
  const auto* format = formats::find_format(rule != nullptr ? rule->format : options.format);
  const auto& shape = planned.tensor->shape;
  Result<LayerLayout> target = loadable_layout(planned.layer, *format, layout, shape[0], shape[1]);
  if (target.ok()) {
    planned.target = std::move(target.value());
  } else {
    planned.reason = target.status().message();
  }
}

}  // namespace

Status check_format_name(std::string_view name) {
  if (formats::find_format(name) != nullptr) return {};
  std::vector<std::string> names;
  std::string list;
  for (const formats::FormatInfo& info : formats::all_formats()) {
    names.emplace_back(info.name);
    list += (list.empty() ? "" : ", ") + std::string(info.name);
  }
  const std::string near = nearest_name(name, names);
  return invalid_argument("unknown format " + quote(name) +
                          (near.empty() ? "" : "; did you mean " + quote(near) + "?") +
                          "; formats are " + list);
}

void apply_recipe(const Recipe& recipe, QuantizeOptions& options) {
  if (options.format.empty() && !options.target_error) {
    if (recipe.format) options.format = *recipe.format;
    options.target_error = recipe.target_error;
  }
  options.recipe_layers = recipe.layers;
  options.recipe_keep = recipe.keep;
  if (recipe.default_keep) options.default_keep = options.default_keep && *recipe.default_keep;
  if (!options.is_scale_search_given) options.mse_scales = recipe.scale_search == "mse";
  if (!options.layout && recipe.layout) {
    options.layout = *recipe.layout == "comfy" ? FileLayout::kComfy : FileLayout::kPlain;
  }
  if (options.max_shard_bytes == 0) options.max_shard_bytes = recipe.max_shard_bytes.value_or(0);
}

std::vector<const formats::FormatInfo*> formats_by_size(FileLayout layout) {
  std::vector<const formats::FormatInfo*> found;
  for (const formats::FormatInfo& info : formats::all_formats()) {
    if (layout == FileLayout::kPlain || !info.comfy.empty()) found.push_back(&info);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto* a, const auto* b) {
    return formats::nominal_bits_per_weight(*a) < formats::nominal_bits_per_weight(*b);
  });
  return found;
}

Result<Plan> make_plan(const Model& model, const QuantizeOptions& options) {
  PESTLE_TRY(check_options(options));
  PESTLE_TRY(check_patterns_used(model, options));
  Plan plan;
  const Result<FileLayout> layout = choose_layout(options, plan.notes);
  PESTLE_TRY(layout.status());
  plan.layout = layout.value();
  // A format that was asked for by name and that the layout lacks is a wrong call, not an odd
  // layer.
  for (const LayerRule* rule : all_rules(options)) {
    PESTLE_TRY(layer_layout(*formats::find_format(rule->format), plan.layout, 4096, 4096).status());
  }
  if (!options.format.empty()) {
    const auto* format = formats::find_format(options.format);
    PESTLE_TRY(layer_layout(*format, plan.layout, 4096, 4096).status());
  }
  const Structure structure(model);
  for (const ModelTensor& tensor : model.tensors()) {
    PlannedLayer planned;
    planned.tensor = &tensor;
    planned.layer = tensor.name;
    if (tensor.name.ends_with(kWeightEnd)) {
      planned.layer.resize(tensor.name.size() - kWeightEnd.size());
    }
    plan_layer(model, structure, options, plan.layout, planned);
    plan.layers.push_back(std::move(planned));
  }
  PESTLE_TRY(check_rules_take_layers(plan, options));
  return plan;
}

}  // namespace pestle::files
