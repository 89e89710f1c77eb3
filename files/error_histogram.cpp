#include "files/error_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "files/encode_layer.h"

namespace pestle::files {
namespace {

constexpr int64_t kSampleElements = int64_t{1} << 18;

class Binning {
 public:
  explicit Binning(Histogram& histogram)
      : histogram_(histogram), scale_(static_cast<float>(kHistogramBins / 2.0 / histogram.limit)) {}
  void count(float value) {
    const float place = value * scale_ + kHistogramBins / 2.0f;
    const float bin = std::min(std::max(place, 0.0f), kHistogramBins - 1.0f);
    ++histogram_.counts[static_cast<size_t>(static_cast<int>(bin))];
  }

 private:
  Histogram& histogram_;
  float scale_;
};

}  // namespace

Status error_histograms(const ModelTensor& tensor, const LayerLayout& layout, bool mse_scales,
                        LayerReport& report) {
  // The sample is the layer's first rows, as a tensor of its own: enough for a picture.
  const int64_t k = tensor.shape[1];
  const int64_t rows = std::min(tensor.shape[0], std::max<int64_t>(128, kSampleElements / k));
  ModelTensor sample = tensor;
  sample.shape[0] = rows;
  sample.data = tensor.data.first(static_cast<size_t>(rows * k * dtype_bytes(tensor.dtype)));
  std::vector<std::byte> weight_bytes(sample.data.size());
  PESTLE_TRY(sample.data.read(0, weight_bytes));
  const Result<LayerLayout> target = layer_layout(*layout.format, layout.layout, rows, k);
  PESTLE_TRY(target.status());
  const Result<Codec> codec = Codec::make(target.value(), tensor.dtype);
  PESTLE_TRY(codec.status());

  const auto elements = static_cast<double>(report.sums->elements);
  report.weights.emplace().limit = std::max(4 * std::sqrt(report.sums->signal / elements), 1e-30);
  report.errors.emplace().limit = std::max(4 * std::sqrt(report.sums->noise / elements), 1e-30);

  // Decoded values of the sample, put together from the pieces that the encoder yields.
  std::vector<std::vector<std::byte>> fields(target.value().fields.size());
  for (size_t i = 0; i < fields.size(); ++i) fields[i].resize(target.value().fields[i].bytes());
  EncodeHooks hooks;
  hooks.sink = [&](int field, uint64_t offset, std::span<const std::byte> data) {
    std::memcpy(fields[static_cast<size_t>(field)].data() + offset, data.data(), data.size());
    return Status();
  };
  PESTLE_TRY(encode_layer(sample, target.value(), mse_scales, hooks).status());
  Result<FieldViews> views = codec.value().piece_views(rows);
  PESTLE_TRY(views.status());
  for (size_t i = 0; i < fields.size(); ++i) views.value()[i].data = fields[i].data();
  TensorView decoded =
      ChunkBuffers::of_thread().decoded(views.value()[0].shape[0], target.value().padded_k);
  PESTLE_TRY(codec.value().decode(views.value(), decoded));
  // Chunks may hold more rows than the sample needs: then some are passed over.
  const int64_t step = std::max<int64_t>(1, rows * k / kSampleElements);
  Binning weights(*report.weights);
  Binning errors(*report.errors);
  for (int64_t r = 0; r < rows; r += step) {
    const float* row = decoded.as<float>() + r * target.value().padded_k;
    for (int64_t c = 0; c < k; ++c) {
      const float w = load_weight(weight_bytes.data(), sample.dtype, r * k + c);
      weights.count(w);
      errors.count(row[c] - w);
    }
  }
  return {};
}

}  // namespace pestle::files
