// The HTML report: one page, styles and plots inside, nothing loaded from anywhere.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "files/quantize_report.h"
#include "files/text.h"

namespace pestle::files {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>pestle quantize</title><style>
:root{--ink:#1d2733;--soft:#5d6b7a;--line:#d8dee5;--bar:#3b76af;--bad:#c4572e;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ee;--soft:#9aa7b5;--line:#38424d;--bar:#6ea6dc;
--bad:#e8845c;--paper:#161b21}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);
margin:2rem auto;max-width:72rem;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;width:100%;font-size:.87rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;word-break:break-all}
.soft{color:var(--soft)}.plots{display:flex;flex-wrap:wrap;gap:1.5rem}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}svg .bar{fill:var(--bar)}
svg .bad{fill:var(--bad)}svg .axis{stroke:var(--line)}.scroll{overflow-x:auto}
</style></head><body>
)";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[1024];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string number(const char* pattern, double value) {
  return std::isfinite(value) ? format(pattern, value) : "exact";
}

// Height of a bar on a logarithmic axis from 1e-4 to 1.
double log_height(double error, double height) {
  const double decades = std::log10(std::max(error, 1e-4)) + 4;
  return std::clamp(decades / 4, 0.0, 1.0) * height;
}

std::string error_plot(const QuantizeReport& report) {
  std::vector<const LayerReport*> layers;
  for (const LayerReport& layer : report.layers) {
    if (layer.sums) layers.push_back(&layer);
  }
  if (layers.empty()) return "";
  constexpr double kWidth = 1080;
  constexpr double kHeight = 200;
  const double step = (kWidth - 60) / static_cast<double>(layers.size());
  std::string svg =
      "<h2>Relative error per layer</h2><div class=\"scroll\"><svg viewBox=\"0 0 1080 "
      "230\" width=\"100%\" role=\"img\">";
  for (int decade = 0; decade <= 4; ++decade) {
    const double y = 10 + kHeight - decade * kHeight / 4;
    svg += format(
        "<line class=\"axis\" x1=\"50\" x2=\"1080\" y1=\"%.1f\" y2=\"%.1f\"/>"
        "<text x=\"4\" y=\"%.1f\">%g</text>",
        y, y, y + 4, std::pow(10.0, decade - 4));
  }
  const std::vector<size_t> worst = report.worst_first();
  const double worst_error = report.layers[worst[0]].relative_error();
  for (size_t i = 0; i < layers.size(); ++i) {
    const double error = layers[i]->relative_error();
    const double height = log_height(error, kHeight);
    svg += format("<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\">",
                  error == worst_error ? "bad" : "bar", 55 + static_cast<double>(i) * step,
                  10 + kHeight - height, std::max(step * 0.85, 0.5), height);
    svg += "<title>" + escape(layers[i]->name) + " " + escape(layers[i]->format) + " " +
           number("%.5f", error) + "</title></rect>";
  }
  return svg +
         "<text x=\"55\" y=\"226\">layers in the model's order; the worst is marked</text>"
         "</svg></div>\n";
}

std::string histogram_svg(const Histogram& histogram, const char* caption) {
  const uint64_t most = *std::max_element(histogram.counts.begin(), histogram.counts.end());
  std::string svg = "<svg viewBox=\"0 0 330 130\" width=\"330\" role=\"img\">";
  for (int bin = 0; bin < kHistogramBins; ++bin) {
    const double share = most == 0
                             ? 0
                             : static_cast<double>(histogram.counts[static_cast<size_t>(bin)]) /
                                   static_cast<double>(most);
    svg += format("<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"4.6\" height=\"%.1f\"/>",
                  10 + bin * 5.0, 100 - share * 90, share * 90);
  }
  svg += format(
      "<line class=\"axis\" x1=\"10\" x2=\"315\" y1=\"100\" y2=\"100\"/>"
      "<text x=\"10\" y=\"114\">%.3g</text><text x=\"290\" y=\"114\">%.3g</text>"
      "<text x=\"110\" y=\"126\">%s</text></svg>",
      -histogram.limit, histogram.limit, caption);
  return svg;
}

std::string histograms(const QuantizeReport& report) {
  std::string html;
  for (const size_t index : report.worst_first()) {
    const LayerReport& layer = report.layers[index];
    if (!layer.weights || !layer.errors) continue;
    html += "<h3>" + escape(layer.name) + " <span class=\"soft\">" + escape(layer.format) +
            ", relative error " + number("%.5f", layer.relative_error()) +
            "</span></h3><div class=\"plots\">" + histogram_svg(*layer.weights, "weights") +
            histogram_svg(*layer.errors, "errors (decoded - weight)") + "</div>\n";
  }
  return html.empty() ? "" : "<h2>The worst layers</h2>\n" + html;
}

std::string size_plot(const QuantizeReport& report) {
  const double most =
      static_cast<double>(std::max<uint64_t>({report.bytes_before, report.bytes_after, 1}));
  std::string svg = "<h2>Size</h2><svg viewBox=\"0 0 720 90\" width=\"720\" role=\"img\">";
  const std::pair<const char*, uint64_t> rows[] = {{"before", report.bytes_before},
                                                   {"after", report.bytes_after}};
  double y = 10;
  for (const auto& [name, bytes] : rows) {
    const double width = 500 * static_cast<double>(bytes) / most;
    svg += format(
        "<text x=\"0\" y=\"%.0f\">%s</text><rect class=\"bar\" x=\"60\" y=\"%.0f\" "
        "width=\"%.1f\" height=\"24\"/><text x=\"%.1f\" y=\"%.0f\">%s</text>",
        y + 16, name, y, width, 68 + width, y + 16, human_bytes(bytes).c_str());
    y += 36;
  }
  return svg + "</svg>\n";
}

std::string shape_text(const LayerReport& layer) {
  return describe_shape(layer.source_dtype, layer.shape);
}

std::string layer_rows(const QuantizeReport& report) {
  std::string html =
      "<h2>Layers, the worst first</h2><div class=\"scroll\"><table><tr><th>layer"
      "<th>weight<th>format<th>before<th>after<th>SQNR dB<th>relative error"
      "<th>max error<th>clipped %<th>gain over amax</tr>\n";
  for (const size_t index : report.worst_first()) {
    const LayerReport& layer = report.layers[index];
    const bool has_gain = layer.amax_noise && layer.sums->noise > 0;
    html += "<tr><td>" + escape(layer.name) + "<td>" + escape(shape_text(layer)) + "<td>" +
            escape(layer.format) + "<td>" + human_bytes(layer.bytes_before) + "<td>" +
            human_bytes(layer.bytes_after) + "<td>" + number("%.2f", layer.sqnr_db()) + "<td>" +
            number("%.5f", layer.relative_error()) + "<td>" +
            number("%.3g", layer.sums->max_error) + "<td>" +
            (layer.counts_clipped ? number("%.4f", 100 * layer.clipped_fraction()) : "&ndash;") +
            "<td>" +
            (has_gain ? number("%+.2f dB", 10 * std::log10(*layer.amax_noise / layer.sums->noise))
                      : "&ndash;") +
            "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string kept_rows(const QuantizeReport& report) {
  std::string html;
  for (const LayerReport& layer : report.layers) {
    if (!layer.format.empty()) continue;
    html += "<tr><td>" + escape(layer.name) + "<td>" + escape(shape_text(layer)) + "<td>" +
            human_bytes(layer.bytes_after) + "<td>" + escape(layer.reason) + "</tr>\n";
  }
  if (html.empty()) return "";
  return "<h2>Stored as they were</h2><div class=\"scroll\"><table><tr><th>tensor<th>type<th>bytes"
         "<th>why</tr>\n" +
         html + "</table></div>\n";
}

}  // namespace

std::string report_html(const QuantizeReport& report) {
  std::string html = kHead;
  html += "<h1>" + escape(report.input) + "</h1><p>";
  for (const std::string& output : report.outputs) html += escape(output) + "<br>";
  html += human_bytes(report.bytes_before) + " &rarr; " + human_bytes(report.bytes_after) +
          ", layout " + escape(report.layout) +
          (report.dry_run ? ", dry run: nothing was written"
                          : ", " + number("%.2f", report.seconds) + " s") +
          "</p>\n";
  for (const std::string& note : report.notes)
    html += "<p class=\"soft\">" + escape(note) + "</p>\n";
  html += size_plot(report) + error_plot(report) + histograms(report) + layer_rows(report) +
          kept_rows(report);
  return html + "</body></html>\n";
}

}  // namespace pestle::files
