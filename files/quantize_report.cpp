#include "files/quantize_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/json_text.h"
#include "files/text.h"

namespace pestle::files {
namespace {

using Json = nlohmann::ordered_json;

Json layer_json(const LayerReport& layer) {
  Json json = {{"name", layer.name},
               {"shape", layer.shape},
               {"source_dtype", layer.source_dtype},
               {"format", layer.format.empty() ? Json(nullptr) : Json(layer.format)},
               {"bytes_before", layer.bytes_before},
               {"bytes_after", layer.bytes_after}};
  if (!layer.reason.empty()) json["kept_because"] = layer.reason;
  if (!layer.candidates.empty()) json["candidates"] = layer.candidates;
  if (!layer.sums) return json;
  json["relative_error"] = layer.relative_error();
  const double sqnr = layer.sqnr_db();
  json["sqnr_db"] = std::isfinite(sqnr) ? Json(sqnr) : Json(nullptr);  // no error at all
  json["max_error"] = layer.sums->max_error;
  json["clipped_percent"] =
      layer.counts_clipped ? Json(100 * layer.clipped_fraction()) : Json(nullptr);
  if (layer.amax_noise) {
    LayerReport amax = layer;
    amax.sums->noise = *layer.amax_noise;
    json["relative_error_amax"] = amax.relative_error();
  }
  return json;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t dim : shape) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

std::string number(const char* format, double value) {
  if (!std::isfinite(value)) return "exact";
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string layer_line(const LayerReport& layer, int name_width, bool searched) {
  char text[512];
  std::snprintf(
      text, sizeof text, "%-*s %13s %-12s %10s %10s %8s %9s %9s %8s", name_width,
      layer.name.c_str(), shape_text(layer.shape).c_str(), layer.format.c_str(),
      human_bytes(layer.bytes_before).c_str(), human_bytes(layer.bytes_after).c_str(),
      number("%.2f", layer.sqnr_db()).c_str(), number("%.5f", layer.relative_error()).c_str(),
      number("%.3g", layer.sums->max_error).c_str(),
      layer.counts_clipped ? number("%.4f", 100 * layer.clipped_fraction()).c_str() : "-");
  std::string line = text;
  if (searched) {
    line += layer.amax_noise && layer.sums->noise > 0
                ? number("  %+.2f dB", 10 * std::log10(*layer.amax_noise / layer.sums->noise))
                : "  -";
  }
  return line + "\n";
}

std::string layers_table(const QuantizeReport& report, size_t limit) {
  const std::vector<size_t> order = report.worst_first();
  size_t shown = limit == 0 ? order.size() : std::min(limit, order.size());
  if (shown == 0) return "";
  int width = 5;
  bool searched = false;
  for (size_t i = 0; i < shown; ++i) {
    const LayerReport& layer = report.layers[order[i]];
    width = std::max(width, static_cast<int>(std::min<size_t>(layer.name.size(), 60)));
    searched |= layer.amax_noise.has_value();
  }
  char head[512];
  std::snprintf(head, sizeof head, "%-*s %13s %-12s %10s %10s %8s %9s %9s %8s", width, "layer",
                "shape", "format", "before", "after", "SQNR dB", "rel.err", "max.err", "clipped%");
  std::string text = head + std::string(searched ? "  gain" : "") + "\n";
  for (size_t i = 0; i < shown; ++i) {
    text += layer_line(report.layers[order[i]], width, searched);
  }
  if (shown < order.size()) {
    text += "... and " + std::to_string(order.size() - shown) + " more, all with smaller errors\n";
  }
  return text;
}

}  // namespace

double LayerReport::relative_error() const {
  if (!sums || sums->noise == 0) return 0;
  return sums->signal == 0 ? std::numeric_limits<double>::infinity()
                           : std::sqrt(sums->noise / sums->signal);
}

double LayerReport::sqnr_db() const {
  return sums && sums->noise > 0 ? 10 * std::log10(sums->signal / sums->noise)
                                 : std::numeric_limits<double>::infinity();
}

double LayerReport::clipped_fraction() const {
  return sums && sums->elements > 0
             ? static_cast<double>(sums->clipped) / static_cast<double>(sums->elements)
             : 0;
}

std::vector<size_t> QuantizeReport::worst_first() const {
  std::vector<size_t> order;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].sums) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    return layers[a].relative_error() > layers[b].relative_error();
  });
  return order;
}

std::string report_json(const QuantizeReport& report) {
  Json json = {{"version", 1},
               {"input", report.input},
               {"outputs", report.outputs},
               {"layout", report.layout},
               {"dry_run", report.dry_run},
               {"seconds", report.seconds},
               {"layers_resumed", report.layers_resumed},
               {"bytes_before", report.bytes_before},
               {"bytes_after", report.bytes_after},
               {"notes", report.notes},
               {"layers", Json::array()}};
  for (const LayerReport& layer : report.layers) json["layers"].push_back(layer_json(layer));
  return print_json(json, 2, true) + "\n";
}

std::string report_text(const QuantizeReport& report, size_t limit) {
  std::string text = layers_table(report, limit);
  std::map<std::string, std::pair<int, uint64_t>> kept;
  std::map<std::string, std::pair<int, uint64_t>> formats;
  for (const LayerReport& layer : report.layers) {
    auto& [count, bytes] = layer.format.empty() ? kept[layer.reason] : formats[layer.format];
    ++count;
    bytes += layer.bytes_after;
  }
  if (report.dry_run) {
    for (const LayerReport& layer : report.layers) {
      text += printable(layer.name) + " " + describe_shape(layer.source_dtype, layer.shape) +
              " -> " + (layer.format.empty() ? "kept: " + printable(layer.reason) : layer.format) +
              ", " + human_bytes(layer.bytes_after) + "\n";
    }
  }
  for (const auto& [name, sum] : formats) {
    text += name + ": " + std::to_string(sum.first) + " layers, " + human_bytes(sum.second) + "\n";
  }
  for (const auto& [reason, sum] : kept) {
    text += "kept: " + std::to_string(sum.first) + " tensors, " + human_bytes(sum.second) + ": " +
            printable(reason) + "\n";
  }
  for (const std::string& note : report.notes) text += "note: " + printable(note) + "\n";
  if (report.layers_resumed > 0) {
    text += "resumed: " + std::to_string(report.layers_resumed) + " layers were already written\n";
  }
  const double share = report.bytes_before == 0 ? 0
                                                : 100.0 * static_cast<double>(report.bytes_after) /
                                                      static_cast<double>(report.bytes_before);
  text += human_bytes(report.bytes_before) + " -> " + human_bytes(report.bytes_after) + " (" +
          number("%.1f", share) + " %)";
  if (!report.dry_run) text += " in " + number("%.2f", report.seconds) + " s";
  return text + "\n";
}

}  // namespace pestle::files
