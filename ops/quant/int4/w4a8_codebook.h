// The codebook argument of the W4A8 ops.
#pragma once

#include <cmath>
#include <string>

#include "core/op.h"
#include "formats/w4a8.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// The 16 levels: the argument's, or the format's when it is absent.
inline void load_codebook(const Call& call, int arg, float levels[formats::kW4a8Levels]) {
  if (!call.has(arg)) return formats::w4a8_default_codebook(levels);
  for (int64_t i = 0; i < formats::kW4a8Levels; ++i) {
    levels[i] = load<float>(at(call.tensor(arg), i));
  }
}

// Quantising looks for the nearest level between neighbours, so there they must ascend and be
// finite.
inline Status check_ascending(const Call& call, const float levels[formats::kW4a8Levels]) {
  for (int i = 0; i + 1 < formats::kW4a8Levels; ++i) {
    if (levels[i] <= levels[i + 1] && std::isfinite(levels[i]) && std::isfinite(levels[i + 1])) {
      continue;
    }
    return invalid_argument(std::string(call.spec->name) + ": codebook[" + std::to_string(i) +
                            "] = " + std::to_string(levels[i]) + " and codebook[" +
                            std::to_string(i + 1) + "] = " + std::to_string(levels[i + 1]) +
                            ": the values must ascend and be finite; sort them");
  }
  return {};
}

}  // namespace pestle::ops
