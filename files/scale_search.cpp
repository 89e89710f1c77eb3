#include "files/scale_search.h"

#include <algorithm>
#include <array>
#include <vector>

namespace pestle::files {
namespace {

constexpr int kFactors = 21;

constexpr std::array<float, kFactors> make_factors() {
  std::array<float, kFactors> factors = {};
  for (int i = 0; i < kFactors; ++i) factors[static_cast<size_t>(i)] = 1.0f - 0.025f * i;
  return factors;
}
constexpr std::array<float, kFactors> kScaleFactors = make_factors();

// Noise under each scale of the chunk; scales form a grid over the weights.
void noise_by_scale(const Codec& codec, const TensorView& w, const TensorView& decoded,
                    std::vector<double>& noise) {
  const formats::FormatInfo& format = *codec.layout().format;
  const int64_t rows = w.shape[0];
  const int64_t k = w.shape[1];
  const int64_t block_n = format.block_n == 0 ? rows : format.block_n;
  const int64_t block_k = format.block_k == 0 ? k : format.block_k;
  const int64_t columns = (k + block_k - 1) / block_k;
  std::fill(noise.begin(), noise.end(), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t first = c * block_k;
      const auto* weights = w.as<std::byte>() + (r * k + first) * dtype_bytes(w.dtype);
      noise[static_cast<size_t>(r / block_n * columns + c)] +=
          error_sums_of_run(weights, w.dtype, decoded.as<float>() + r * decoded.shape[1] + first,
                            std::min(block_k, k - first))
              .noise;
    }
  }
}

}  // namespace

std::span<const float> scale_factors() { return kScaleFactors; }

Status encode_with_best_scales(const Codec& codec, const TensorView& w, const FieldViews& fields,
                               TensorView& decoded, double& amax_noise) {
  PESTLE_TRY(codec.encode(w, fields));
  const TensorView& scales = fields[static_cast<size_t>(codec.searchable_field())];
  const auto count = static_cast<size_t>(numel(scales));
  auto* scale = scales.as<float>();
  const std::vector<float> amax(scale, scale + count);
  std::vector<float> best = amax;
  std::vector<double> noise(count);
  std::vector<double> best_noise(count);
  for (const float factor : kScaleFactors) {
    for (size_t i = 0; i < count; ++i) scale[i] = amax[i] * factor;
    PESTLE_TRY(codec.encode(w, fields, true));
    PESTLE_TRY(codec.decode_slice(fields, decoded));
    noise_by_scale(codec, w, decoded, noise);
    for (size_t i = 0; i < count; ++i) {
      if (factor == 1) amax_noise += noise[i];
      if (factor != 1 && noise[i] >= best_noise[i]) continue;
      best_noise[i] = noise[i];
      best[i] = scale[i];
    }
  }
  std::copy(best.begin(), best.end(), scale);
  return codec.encode(w, fields, true);
}

}  // namespace pestle::files
