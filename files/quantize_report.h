// What a run of quantize did to each layer, as data; printing is elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/error_sums.h"

namespace pestle::files {

inline constexpr int kHistogramBins = 61;

// Counts over [-limit, limit] in equal bins; what lies outside is in the first and last bin.
struct Histogram {
  double limit = 0;
  std::array<uint64_t, kHistogramBins> counts = {};
};

struct LayerReport {
  std::string name;
  std::vector<int64_t> shape;
  std::string source_dtype;
  std::string format;  // empty: stored as it is
  std::string reason;  // why it is stored as it is
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
  std::optional<ErrorSums> sums;  // unset in a dry run and for kept layers
  bool counts_clipped = false;
  std::optional<double> amax_noise;  // with --scale-search mse: noise that amax would give
  std::optional<Histogram> weights;  // of the worst layers
  std::optional<Histogram> errors;
  std::vector<std::string> candidates;  // with --target-error: what was tried, with its error

  double relative_error() const;  // |W - deq(W)| / |W|
  double sqnr_db() const;
  double clipped_fraction() const;
};

struct QuantizeReport {
  std::string input;
  std::vector<std::string> outputs;
  std::string layout;
  bool dry_run = false;
  int layers_resumed = 0;
  double seconds = 0;
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
  std::vector<LayerReport> layers;  // in the model's order
  std::vector<std::string> notes;

  // Indexes of the quantised layers, the largest relative error first.
  std::vector<size_t> worst_first() const;
};

std::string report_json(const QuantizeReport& report);
// A table for a terminal, at most `limit` quantised layers (0: all), then why others were kept.
std::string report_text(const QuantizeReport& report, size_t limit);
// One page with its plots inside; it loads nothing.
std::string report_html(const QuantizeReport& report);

}  // namespace pestle::files
