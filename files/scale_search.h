// --scale-search mse: scales below amax clip the largest weights and round all others finer; the
// best of a fixed list of factors is taken for every scale on its own.
#pragma once

#include <span>

#include "files/codec.h"

namespace pestle::files {

// Tried in this order; the first is 1, which is amax. A later one wins only if it is better.
std::span<const float> scale_factors();

// Encodes a chunk whose scales belong to its rows, groups or blocks. `amax_noise`: what amax scales
// would have cost. `decoded` is room.
Status encode_with_best_scales(const Codec& codec, const TensorView& w, const FieldViews& fields,
                               TensorView& decoded, double& amax_noise);

}  // namespace pestle::files
