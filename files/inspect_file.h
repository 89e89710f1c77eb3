// `pestle inspect`: what is in a model file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"

namespace pestle::files {

struct InspectedLayer {
  std::string name;
  std::string format;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  bool is_quantized = false;
  std::string note;  // why it can't be decoded
};

struct InspectReport {
  std::vector<std::string> files;
  std::string container;  // "safetensors" or "GGUF"
  uint64_t bytes = 0;
  uint64_t weights = 0;  // elements of all layers, unpadded
  std::map<std::string, std::string> metadata;
  std::vector<InspectedLayer> layers;
};

Result<InspectReport> inspect_file(const std::string& path);
std::string inspect_json(const InspectReport& report);
std::string inspect_text(const InspectReport& report, bool every_layer);

}  // namespace pestle::files
