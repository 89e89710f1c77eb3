#include "files/inspect_file.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "files/stored_layers.h"
#include "files/text.h"

namespace pestle::files {
namespace {

using Json = nlohmann::ordered_json;

std::string shortened(const std::string& value) {
  constexpr size_t kLimit = 100;
  return value.size() <= kLimit
             ? quote(value)
             : std::to_string(value.size()) + " bytes: " + quote(value.substr(0, kLimit)) + "...";
}

}  // namespace

Result<InspectReport> inspect_file(const std::string& path) {
  const Result<Model> model = Model::open(path);
  PESTLE_TRY(model.status());
  const auto layers = stored_layers(model.value());
  PESTLE_TRY(layers.status());
  InspectReport report;
  for (const auto& file : model.value().files()) report.files.push_back(file->path());
  report.container = model.value().is_gguf() ? "GGUF" : "safetensors";
  report.bytes = model.value().bytes();
  report.metadata = model.value().metadata();
  for (const StoredLayer& layer : layers.value()) {
    uint64_t elements = 1;
    for (const int64_t dim : layer.shape) elements *= static_cast<uint64_t>(dim);
    report.weights += elements;
    report.layers.push_back({layer.name, layer.format, layer.shape, layer.bytes, layer.is_quantized,
                             layer.is_quantized ? layer.cannot_decode : ""});
  }
  return report;
}

std::string inspect_json(const InspectReport& report) {
  Json json = {
      {"version", 1},           {"files", report.files},     {"container", report.container},
      {"bytes", report.bytes},  {"weights", report.weights}, {"metadata", report.metadata},
      {"layers", Json::array()}};
  for (const InspectedLayer& layer : report.layers) {
    Json row = {{"name", layer.name},
                {"format", layer.format},
                {"shape", layer.shape},
                {"bytes", layer.bytes},
                {"quantized", layer.is_quantized}};
    if (!layer.note.empty()) row["note"] = layer.note;
    json["layers"].push_back(row);
  }
  return print_json(json, 2, true) + "\n";
}

std::string inspect_text(const InspectReport& report, bool every_layer) {
  std::string text;
  for (const std::string& file : report.files) text += printable(file) + "\n";
  text += report.container + ", " + human_bytes(report.bytes) + ", " +
          std::to_string(report.layers.size()) + " tensors and layers, " +
          std::to_string(report.weights) + " weights\n";
  for (const auto& [key, value] : report.metadata)
    text += "  " + printable(key) + " = " + shortened(value) + "\n";
  struct Sum {
    int count = 0;
    uint64_t bytes = 0;
    std::string note;
  };
  std::map<std::string, Sum> sums;
  size_t width = 4;
  for (const InspectedLayer& layer : report.layers) {
    Sum& sum = sums[layer.format];
    ++sum.count;
    sum.bytes += layer.bytes;
    if (!layer.note.empty()) sum.note = layer.note;
    width = std::max(width, std::min<size_t>(layer.name.size(), 72));
  }
  for (const auto& [format, sum] : sums) {
    char line[160];
    std::snprintf(line, sizeof line, "%-14s %6d  %10s", printable(format).c_str(), sum.count,
                  human_bytes(sum.bytes).c_str());
    text += line + (sum.note.empty() ? "" : "  " + printable(sum.note)) + "\n";
  }
  for (const InspectedLayer& layer : report.layers) {
    if (!every_layer) break;
    std::string name = printable(layer.name);
    name.resize(std::max(width, name.size()), ' ');
    text += name + "  " + describe_shape(printable(layer.format), layer.shape) + "  " +
            human_bytes(layer.bytes) + "\n";
  }
  return text;
}

}  // namespace pestle::files
