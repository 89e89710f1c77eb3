// `pestle dequantize`: any model that can be read, back to plain weights in safetensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "core/status.h"
#include "files/quantize_options.h"

namespace pestle::files {

struct DequantizeOptions {
  std::string input;
  std::string output;
  std::optional<DType> dtype;  // of decoded weights; unset: what they were, else bf16
  bool overwrite = false;
  uint64_t max_shard_bytes = 0;
  std::function<void(const Progress&)> progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct DequantizeReport {
  std::vector<std::string> outputs;
  int layers_decoded = 0;
  int tensors_copied = 0;
  uint64_t bytes_before = 0;
  uint64_t bytes_after = 0;
};

Result<DequantizeReport> dequantize_file(const DequantizeOptions& options);

}  // namespace pestle::files
