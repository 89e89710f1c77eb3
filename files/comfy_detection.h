// Which layers ComfyUI must find with the shape of the float model: before it has read any
// description of a format, its detection takes sizes of the model from the shapes of some tensors.
#pragma once

#include <string_view>

#include "core/status.h"
#include "files/layer_layout.h"

namespace pestle::files {

// `layer` is the weight's name without ".weight", with any prefix such as "model.diffusion_model.".
bool comfy_detection_reads(std::string_view layer);

// layer_layout, and kUnsupported with the reason where that layout stores a layer that detection
// reads in another shape than [n,k]: such a file would be taken for another model, or for none.
Result<LayerLayout> loadable_layout(std::string_view layer, const formats::FormatInfo& format,
                                    FileLayout layout, int64_t n, int64_t k);

}  // namespace pestle::files
