#include "files/diff_files.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "backends/cpu/parallel.h"
#include "core/json_text.h"
#include "files/stored_layers.h"
#include "files/text.h"

namespace pestle::files {
namespace {

using Json = nlohmann::ordered_json;

// Rows of one chunk of both layers: both readers' buffers are the same, so a's values move first.
Status compare_rows(const LayerReader& a, const LayerReader& b, int64_t row, int64_t rows,
                    ErrorSums& sums) {
  const Result<TensorView> left = a.read(row, rows);
  PESTLE_TRY(left.status());
  thread_local std::vector<float> values;
  values.resize(static_cast<size_t>(rows * a.columns()));
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(values.data() + r * a.columns(),
                left.value().as<float>() + r * left.value().strides[0],
                static_cast<size_t>(a.columns()) * sizeof(float));
  }
  const Result<TensorView> right = b.read(row, rows);
  PESTLE_TRY(right.status());
  const int64_t shape[] = {rows, a.columns()};
  sums = error_sums(make_view(values.data(), DType::kF32, 2, shape), right.value().as<float>(),
                    right.value().strides[0]);
  return {};
}

Status compare_layers(const StoredLayer& a, const StoredLayer& b, const std::atomic<bool>* cancel,
                      ErrorSums& total) {
  const Result<LayerReader> left = LayerReader::make(a);
  PESTLE_TRY(left.status());
  const Result<LayerReader> right = LayerReader::make(b);
  PESTLE_TRY(right.status());
  const LayerReader& x = left.value();
  const LayerReader& y = right.value();
  const int64_t unit = std::max(x.row_step(), y.row_step());  // each is 1 or 128
  const int64_t step = std::max<int64_t>(1, std::max(x.chunk_rows(), y.chunk_rows()) / unit) * unit;
  const int64_t chunks = (x.rows() + step - 1) / step;
  std::vector<ErrorSums> sums(static_cast<size_t>(chunks));
  std::mutex mutex;
  Status first;
  cpu::parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t row = chunk * step;
      Status status = cancel != nullptr && cancel->load()
                          ? Status(Code::kInterrupted, "interrupted")
                          : compare_rows(x, y, row, std::min(step, x.rows() - row),
                                         sums[static_cast<size_t>(chunk)]);
      const std::lock_guard lock(mutex);
      if (first.ok()) first = std::move(status);
      if (!first.ok()) return;
    }
  });
  for (const ErrorSums& chunk : sums) total.add(chunk);
  return first;
}

std::string number(const char* format, double value) {
  if (!std::isfinite(value)) return value > 0 ? "inf" : "nan";
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// An error that is NaN is the farthest.
bool is_farther(const LayerDiff& x, const LayerDiff& y) {
  const double a = x.relative_error();
  const double b = y.relative_error();
  return std::isnan(a) ? !std::isnan(b) : a > b;
}

}  // namespace

double LayerDiff::relative_error() const {
  if (sums.noise == 0) return 0;
  return sums.signal == 0 ? std::numeric_limits<double>::infinity()
                          : std::sqrt(sums.noise / sums.signal);
}

double LayerDiff::sqnr_db() const {
  return sums.noise == 0 ? std::numeric_limits<double>::infinity()
                         : 10 * std::log10(sums.signal / sums.noise);
}

Result<DiffReport> diff_files(const DiffOptions& options) {
  const Result<Model> model_a = Model::open(options.a);
  PESTLE_TRY(model_a.status());
  const Result<Model> model_b = Model::open(options.b);
  PESTLE_TRY(model_b.status());
  const auto layers_a = stored_layers(model_a.value());
  PESTLE_TRY(layers_a.status());
  const auto layers_b = stored_layers(model_b.value());
  PESTLE_TRY(layers_b.status());
  std::map<std::string, const StoredLayer*> in_b;
  for (const StoredLayer& layer : layers_b.value()) in_b[layer.name] = &layer;
  DiffReport report;
  uint64_t done = 0;
  for (const StoredLayer& layer : layers_a.value()) {
    const auto other = in_b.find(layer.name);
    done += layer.bytes;
    if (options.progress) options.progress({done, model_a.value().bytes(), "comparing"});
    if (other == in_b.end()) {
      report.only_in_a.push_back(layer.name);
      continue;
    }
    const StoredLayer& twin = *other->second;
    const std::string& why = layer.cannot_decode.empty() ? twin.cannot_decode : layer.cannot_decode;
    if (layer.shape != twin.shape || !why.empty()) {
      report.skipped.push_back(layer.name + ": " +
                               (why.empty() ? describe_shape(layer.format, layer.shape) + " and " +
                                                  describe_shape(twin.format, twin.shape)
                                            : why));
    } else {
      LayerDiff diff{layer.name, layer.format, twin.format, {}};
      PESTLE_TRY(compare_layers(layer, twin, options.cancel, diff.sums));
      report.layers.push_back(std::move(diff));
    }
    in_b.erase(other);
  }
  for (const auto& [name, layer] : in_b) report.only_in_b.push_back(name);
  std::stable_sort(report.layers.begin(), report.layers.end(),
                   [](const LayerDiff& x, const LayerDiff& y) { return is_farther(x, y); });
  return report;
}

std::string diff_json(const DiffReport& report) {
  Json json = {{"version", 1},
               {"layers", Json::array()},
               {"only_in_a", report.only_in_a},
               {"only_in_b", report.only_in_b},
               {"skipped", report.skipped}};
  for (const LayerDiff& layer : report.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"format_a", layer.format_a},
                              {"format_b", layer.format_b},
                              {"relative_error", layer.relative_error()},
                              {"sqnr_db", layer.sqnr_db()},
                              {"max_error", layer.sums.max_error},
                              {"elements", layer.sums.elements}});
  }
  return print_json(json, 2, true) + "\n";
}

std::string diff_text(const DiffReport& report, size_t limit) {
  size_t width = 5;
  size_t equal = 0;
  for (const LayerDiff& layer : report.layers) {
    width = std::max(width, std::min<size_t>(layer.name.size(), 72));
    equal += layer.sums.noise == 0;
  }
  std::string text;
  size_t shown = 0;
  for (const LayerDiff& layer : report.layers) {
    if (layer.sums.noise == 0 || (limit > 0 && shown == limit)) break;
    std::string name = printable(layer.name);
    name.resize(std::max(width, name.size()), ' ');
    text += name + "  " + printable(layer.format_a) + " / " + printable(layer.format_b) +
            "  rel.err " + number("%.6f", layer.relative_error()) + "  SQNR " +
            number("%.2f dB", layer.sqnr_db()) + "  max " + number("%.3g", layer.sums.max_error) +
            "\n";
    ++shown;
  }
  text += std::to_string(report.layers.size()) + " layers compared, " + std::to_string(equal) +
          " equal\n";
  for (const std::string& name : report.only_in_a)
    text += "only in the first: " + printable(name) + "\n";
  for (const std::string& name : report.only_in_b)
    text += "only in the second: " + printable(name) + "\n";
  for (const std::string& reason : report.skipped)
    text += "not compared: " + printable(reason) + "\n";
  return text;
}

}  // namespace pestle::files
