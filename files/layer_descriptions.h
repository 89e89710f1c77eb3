// What a model's metadata says of layers that were quantised before, carried over into another
// file.
#pragma once

#include <set>
#include <string>

#include "files/layer_layout.h"
#include "files/model.h"

namespace pestle::files {

// kCorruptFile when an entry that describes layers can't be read, and so would be lost.
Status check_descriptions(const Model& model);

// Members of the object "layers" of _quantization_metadata, as JSON without its braces, but those
// of the layers `made` anew. Empty when there are none.
std::string comfy_descriptions(const Model& model, const std::set<std::string>& made);

// The same of the entry pestle. Layers whose layout is not that of the new file say theirs.
std::string pestle_descriptions(const Model& model, const std::set<std::string>& made,
                                FileLayout layout);

}  // namespace pestle::files
