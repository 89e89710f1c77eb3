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
  bool wants_choice = false;          // the format is still to be chosen by target_error
};

struct Plan {
  FileLayout layout = FileLayout::kComfy;
  std::vector<PlannedLayer> layers;  // one per tensor of the model, in its order
  std::vector<std::string> notes;    // for the report
};

// An error when the options contradict each other or a pattern matches nothing.
Result<Plan> make_plan(const Model& model, const QuantizeOptions& options);

// Formats that `layout` has, the smallest first.
std::vector<const formats::FormatInfo*> formats_by_size(FileLayout layout);

}  // namespace pestle::files
