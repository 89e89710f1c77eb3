// `pestle quantize`: a model in, a smaller one out, and what that cost.
#pragma once

#include "core/status.h"
#include "files/quantize_options.h"
#include "files/quantize_report.h"

namespace pestle::files {

// Nothing is left under the output's name, or beside it, unless this succeeds.
Result<QuantizeReport> quantize_file(const QuantizeOptions& options);

}  // namespace pestle::files
