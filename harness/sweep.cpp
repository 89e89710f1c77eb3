#include "harness/sweep.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>
#include <sstream>

#include "core/call_text.h"
#include "harness/slots.h"
#include "harness/sweep_case.h"

namespace pestle::harness {
namespace {

// More flops for each byte than this, and arithmetic takes part in what bounds an op.
constexpr int64_t kMostFlopsPerByte = 64;

bool is_argument(const OpSpec& spec, std::string_view name) {
  return std::any_of(spec.args.begin(), spec.args.end(),
                     [&](const Arg& arg) { return name == arg.name; });
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "4x128x64" as its numbers; empty when it is something else.
std::vector<std::string> extents_of(std::string_view value) {
  std::vector<std::string> extents;
  while (true) {
    const size_t end = std::min(value.find('x'), value.size());
    if (!is_number(value.substr(0, end))) return {};
    extents.emplace_back(value.substr(0, end));
    if (end == value.size()) return extents;
    value.remove_prefix(end + 1);
  }
}

// The first two extents of a case become rows and width; those in front of them become 1.
std::string form_of_case(const OpSpec& spec, std::string_view text) {
  std::istringstream words{std::string(text)};
  std::string form;
  bool has_rows = false;
  bool has_width = false;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    auto extents = extents_of(std::string_view(word).substr(equals + 1));
    if (!has_width && !is_argument(spec, name) && !extents.empty()) {
      const size_t count = extents.size();
      std::fill(extents.begin(), extents.end(), "1");
      if (count >= 2) extents[count - 2] = "{rows}";
      extents[count - 1] = count >= 2 || has_rows ? "{width}" : "{rows}";
      has_width = count >= 2 || has_rows;
      has_rows = true;
      word = name + "=" + extents[0];
      for (size_t i = 1; i < count; ++i) word += "x" + extents[i];
    }
    form += (form.empty() ? "" : " ") + word;
  }
  // One extent alone is all elements.
  const size_t rows = form.find("{rows}");
  if (!has_width && rows != std::string::npos) form.replace(rows, 6, "{rows*width}");
  return form;
}

// "width/32*34", from left to right.
std::optional<int64_t> place_value(std::string_view text, int64_t rows, int64_t width) {
  int64_t value = 1;
  char sign = '*';
  while (true) {
    const size_t end = std::min(text.find_first_of("*/"), text.size());
    const std::string_view factor = text.substr(0, end);
    int64_t number = factor == "rows" ? rows : width;
    if (factor != "rows" && factor != "width") {
      if (!is_number(factor)) return {};
      std::from_chars(factor.data(), factor.data() + factor.size(), number);
    }
    if (sign == '/' && (number == 0 || value % number != 0)) return {};
    value = sign == '/' ? value / number : value * number;
    if (end == text.size()) return value;
    sign = text[end];
    text.remove_prefix(end + 1);
  }
}

struct Shape {
  int64_t rows, width;
};

// Steps of a share of the golden ratio, so that any stretch of the order is spread over all shapes.
std::vector<Shape> spread_shapes(const SweepOptions& options) {
  std::vector<Shape> sorted;
  for (int64_t width : options.widths) {
    for (int64_t rows : options.rows) sorted.push_back({rows, width});
  }
  const size_t count = sorted.size();
  size_t step = std::max<size_t>(1, count * 618 / 1000);
  while (std::gcd(step, count) != 1) ++step;
  std::vector<Shape> shapes;
  for (size_t i = 0; i < count; ++i) shapes.push_back(sorted[i * step % count]);
  return shapes;
}

}  // namespace

bool is_sweepable(const Op& op) {
  if (std::string_view(op.family) == "gemm") return false;
  bool any = false;
  for (const Case& row : op.spec->cases) {
    if (!(row.tags & kBar)) continue;
    auto call = call_from_text(op, row.text, DeviceType::kCpu);
    if (!call.ok()) return false;
    auto bytes = op.contract.bytes(call.value().scope);
    auto flops = op.contract.evaluate(op.spec->flops, call.value().scope);
    if (!bytes.ok() || !flops.ok()) return false;
    if (flops.value() > kMostFlopsPerByte * bytes.value()) return false;
    any = true;
  }
  return any;
}

std::vector<SweepForm> sweep_forms(const Op& op) {
  std::vector<SweepForm> forms;
  for (const Case& row : op.spec->cases) {
    if (!(row.tags & kBar)) continue;
    std::string text = form_of_case(*op.spec, row.text);
    const bool known = std::any_of(forms.begin(), forms.end(),
                                   [&](const SweepForm& form) { return form.text == text; });
    if (!known && text.find("width") != std::string::npos) forms.push_back({&op, std::move(text)});
  }
  return forms;
}

std::optional<std::string> text_at(std::string_view form, int64_t rows, int64_t width) {
  std::string text;
  while (true) {
    const size_t open = std::min(form.find('{'), form.size());
    text += form.substr(0, open);
    if (open == form.size()) return text;
    const size_t close = form.find('}', open);
    if (close == std::string_view::npos) return {};
    const auto value = place_value(form.substr(open + 1, close - open - 1), rows, width);
    if (!value || *value == 0) return {};
    text += std::to_string(*value);
    form.remove_prefix(close + 1);
  }
}

std::string sweep_class(const Op& op, const TextCall& call) {
  bool values_in = false;
  bool codes_out = false;
  bool rotated = std::string_view(op.family).find("hadamard") != std::string_view::npos;
  for (size_t i = 0; i < call.values.size(); ++i) {
    const Arg& arg = op.spec->args[i];
    const Value& value = call.values[i];
    if (!value.present) continue;
    if (arg.role == Role::kInput && std::string_view(arg.name).starts_with("d_")) return "gradient";
    if (std::string_view(arg.name) == "hadamard" && value.i != 0) rotated = true;
  }
  for (const Slot& slot : slots_of(*op.spec, call.values)) {
    const Arg& arg = op.spec->args[slot.arg];
    const Meaning meaning = meaning_of(arg, tensor_at(call.values, slot).dtype);
    if (arg.role == Role::kInput && are_values(meaning)) values_in = true;
    if (arg.role == Role::kOutput && meaning == Meaning::kCodes &&
        dtype_bytes(tensor_at(call.values, slot).dtype) == 1)
      codes_out = true;
  }
  if (rotated) return "rotated";
  return values_in && codes_out ? "quantised" : "plain";
}

Result<SweepCounts> run_sweep(
    const std::vector<SweepForm>& forms, const SweepOptions& options, Memory* memory,
    const std::function<bool(const SweepForm&, int64_t rows, int64_t width)>& known,
    const std::function<void(const SweepPoint&, const SweepCounts&)>& report) {
  auto made = SweepBench::make(options, memory);
  PESTLE_TRY(made.status());
  SweepBench& bench = *made.value();
  const std::vector<Shape> shapes = spread_shapes(options);
  SweepCounts counts;
  counts.points = static_cast<int64_t>(forms.size() * shapes.size());
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // A form begins where the one before it does not, so that forms differ in their first shapes.
  constexpr size_t kApart = 7;
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (size_t f = 0; f < forms.size(); ++f) {
      const Shape shape = shapes[(i + kApart * f) % shapes.size()];
      if (options.budget_seconds > 0 && spent() >= options.budget_seconds) {
        counts.left = counts.points - counts.measured - counts.known - counts.not_calls;
        for (const auto& [sentence, count] : counts.refused) counts.left -= count;
        return counts;
      }
      if (known(forms[f], shape.rows, shape.width)) {
        ++counts.known;
        continue;
      }
      const auto text = text_at(forms[f].text, shape.rows, shape.width);
      if (!text || !bench.is_call(forms[f], *text)) {
        ++counts.not_calls;
        continue;
      }
      auto point = bench.measure(forms[f], *text);
      if (!point.ok() && point.status().code() == Code::kUnsupported) {
        ++counts.refused[point.status().message()];
        continue;
      }
      PESTLE_TRY(point.status());
      point.value().rows = shape.rows;
      point.value().width = shape.width;
      ++counts.measured;
      report(point.value(), counts);
    }
  }
  return counts;
}

}  // namespace pestle::harness
