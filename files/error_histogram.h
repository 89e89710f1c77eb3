// Distributions of a layer's weights and of their errors, from its first rows (a million weights).
#pragma once

#include "files/layer_layout.h"
#include "files/model.h"
#include "files/quantize_report.h"

namespace pestle::files {

// Fills report.weights and report.errors; report.sums is known.
Status error_histograms(const ModelTensor& tensor, const LayerLayout& layout, bool mse_scales,
                        LayerReport& report);

}  // namespace pestle::files
