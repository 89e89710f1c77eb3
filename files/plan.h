// Which tensor becomes what, and why: the whole of a run that can be said without reading weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "files/model.h"
#include "files/quantize_options.h"

namespace pestle::files {

struct PlannedLayer {
  const ModelTensor* tensor = nullptr;
  std::string layer;                  // name without ".weight"
  std::optional<LayerLayout> target;  // unset: stored as it is
  std::string reason;                 // why it is stored as it is
  const LayerRule* rule = nullptr;    // that decided, of the options
  bool wants_choice = false;          // the format is still to be chosen by target_error
  bool is_kept_by_pattern = false;    // by --keep or a recipe's

  // By some pattern, rather than unfit or left over.
  bool is_taken() const { return rule != nullptr || is_kept_by_pattern; }
};

struct Plan {
  FileLayout layout = FileLayout::kComfy;
  std::vector<PlannedLayer> layers;  // one per tensor of the model, in its order
  std::vector<std::string> notes;    // for the report
};

// An error when the options contradict each other, a pattern matches nothing or a rule takes no
// layer.
Result<Plan> make_plan(const Model& model, const QuantizeOptions& options);

// Formats that `layout` has, the smallest first.
std::vector<const formats::FormatInfo*> formats_by_size(FileLayout layout);

}  // namespace pestle::files
