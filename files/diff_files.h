// `pestle diff`: how far the weights of two models lie apart, whatever formats they are in.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "files/error_sums.h"
#include "files/quantize_options.h"

namespace pestle::files {

struct DiffOptions {
  std::string a;  // errors are relative to this one
  std::string b;
  std::function<void(const Progress&)> progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct LayerDiff {
  std::string name;
  std::string format_a;
  std::string format_b;
  ErrorSums sums;
  double relative_error() const;
  double sqnr_db() const;
};

struct DiffReport {
  std::vector<LayerDiff> layers;  // the largest relative error first, NaN before all
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<std::string> skipped;  // "NAME: why"
};

Result<DiffReport> diff_files(const DiffOptions& options);
std::string diff_json(const DiffReport& report);
std::string diff_text(const DiffReport& report, size_t limit);

}  // namespace pestle::files
