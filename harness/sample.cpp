#include "harness/sample.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "core/text.h"
#include "harness/data.h"
#include "harness/test_tensor.h"

namespace pestle::harness {
namespace {

// What needs no further cutting: so few output elements, made with so little arithmetic.
constexpr int64_t kEnough = int64_t{1} << 18;
constexpr int64_t kEnoughFlops = int64_t{1} << 29;
// Where cutting leaves more arithmetic than this, fewer rows are kept.
constexpr int64_t kManyFlops = int64_t{1} << 30;
constexpr int64_t kFewerRows = 4;
// Independence is tried with the other symbols cut to this, where the contract lets them be: which
// results depend on one another does not depend on how many there are.
constexpr int64_t kOthersTried = 512;
// What a symbol is cut to, and the sizes on which its rows' independence is tried; later ones where
// the contract wants multiples.
struct Cut {
  int64_t kept, tried, tried_kept;
};
constexpr Cut kCuts[] = {{32, 8, 3}, {32, 32, 16}, {64, 64, 32}, {256, 512, 256}};

// Symbols of one value that are cut at once; mostly one alone.
struct Symbols {
  std::vector<std::string> names;
  int64_t value;
};

// The largest first; those of equal value each alone, then together, since a contract may tie them.
std::vector<Symbols> symbols_of(const std::string& text) {
  std::vector<Symbols> symbols;
  for (std::string_view item : split(text, ' ')) {
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view value = item.substr(equals + 1);
    // Of several leading dimensions ("S=32760x5120") the first.
    const std::string_view first = value.substr(0, value.find('x'));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), number);
    if (error != std::errc() || end != first.data() + first.size()) continue;
    symbols.push_back({{std::string(item.substr(0, equals))}, number});
  }
  const size_t single = symbols.size();
  for (size_t i = 0; i < single; ++i) {
    Symbols tied{{}, symbols[i].value};
    for (size_t j = 0; j < single; ++j) {
      if (symbols[j].value == tied.value) tied.names.push_back(symbols[j].names[0]);
    }
    if (tied.names.size() > 1 && tied.names[0] == symbols[i].names[0]) symbols.push_back(tied);
  }
  std::sort(symbols.begin(), symbols.end(), [](const auto& a, const auto& b) {
    return a.value != b.value ? a.value > b.value : a.names.size() < b.names.size();
  });
  return symbols;
}

std::string with_symbols(const std::string& text, const std::vector<std::string>& names,
                         int64_t value) {
  std::string changed;
  for (std::string_view item : split(text, ' ')) {
    if (!changed.empty()) changed += ' ';
    const std::string name(item.substr(0, item.find('=')));
    const bool among = std::find(names.begin(), names.end(), name) != names.end();
    const size_t more = std::min(item.find('x', name.size()), item.size());
    changed += among ? name + "=" + std::to_string(value) + std::string(item.substr(more))
                     : std::string(item);
  }
  return changed;
}

uint64_t next_random(uint64_t seed) { return seed * 6364136223846793005u + 1442695040888963407u; }

// First, last, and between them anywhere.
std::vector<int64_t> pick(int64_t full, int64_t kept, uint64_t seed) {
  std::vector<int64_t> rows = {0, full - 1};
  while (static_cast<int64_t>(rows.size()) < kept) {
    seed = next_random(seed);
    const auto row = static_cast<int64_t>((seed >> 20) % static_cast<uint64_t>(full));
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// The one dimension in which the shapes differ, as full and kept do; -1: none; nothing: it is not
// so.
std::optional<int> cut_dimension(const TensorView& large, const TensorView& small, int64_t full,
                                 int64_t kept) {
  if (large.rank != small.rank) return std::nullopt;
  int found = -1;
  for (int d = 0; d < large.rank; ++d) {
    if (large.shape[d] == small.shape[d]) continue;
    if (found >= 0 || large.shape[d] != full || small.shape[d] != kept) return std::nullopt;
    found = d;
  }
  return found;
}

struct Step {
  TextCall large, small;
  std::vector<int> dimension;  // by argument
};

Result<Step> make_step(const Op& op, const std::string& large, const std::string& small,
                       int64_t full, int64_t kept) {
  auto a = call_from_text(op, large, DeviceType::kCpu);
  PESTLE_TRY(a.status());
  auto b = call_from_text(op, small, DeviceType::kCpu);
  PESTLE_TRY(b.status());
  Step step{std::move(a.value()), std::move(b.value()), {}};
  for (size_t i = 0; i < op.spec->args.size(); ++i) {
    int dimension = -1;
    if (op.spec->args[i].kind == Kind::kTensor && step.large.values[i].present) {
      if (!step.small.values[i].present) return unsupported("an argument goes");
      const auto found =
          cut_dimension(step.large.values[i].tensor, step.small.values[i].tensor, full, kept);
      if (!found) return unsupported("a shape changes otherwise");
      dimension = *found;
    }
    step.dimension.push_back(dimension);
  }
  return step;
}

std::vector<uint8_t> cut(const std::vector<uint8_t>& elements, TensorView shape, int dimension,
                         const std::vector<int64_t>& rows) {
  if (dimension < 0) return elements;
  std::vector<int64_t> by_dimension[kMaxRank];
  by_dimension[dimension] = rows;
  return take_rows(elements.data(), by_dimension, shape);
}

bool is_tensor(const Op& op, const TextCall& call, size_t i, Role role) {
  return op.spec->args[i].role == role && op.spec->args[i].kind == Kind::kTensor &&
         call.values[i].present;
}

std::vector<std::vector<uint8_t>> random_inputs(const Op& op, const TextCall& call, uint64_t seed) {
  std::vector<std::vector<uint8_t>> inputs(op.spec->args.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_tensor(op, call, i, Role::kInput)) continue;
    const TensorView& t = call.values[i].tensor;
    inputs[i].resize(static_cast<size_t>(size_bytes(t)));
    fill(inputs[i].data(), t.dtype, numel(t), meaning_of(op.spec->args[i], t.dtype), Dist::kNormal,
         seed + i);
  }
  return inputs;
}

// Do rows alone give the bits that they give among the others? All of them are tried, in groups: a
// maximum over all rows, say, changes the results of each group that lacks its row.
bool rows_are_independent(const Op& op, const std::string& text, const Symbols& symbols,
                          const Cut& sizes, uint64_t seed) {
  const std::string large = with_symbols(text, symbols.names, sizes.tried);
  const std::string small = with_symbols(text, symbols.names, sizes.tried_kept);
  auto made = make_step(op, large, small, sizes.tried, sizes.tried_kept);
  if (!made.ok()) return false;
  const Step& step = made.value();
  const auto inputs = random_inputs(op, step.large, seed);
  const auto all = run_reference_on(op, large, inputs, false);
  if (!all.ok()) return false;
  // Anywhere, as the sample will be: neighbours may share a tile that strangers do not.
  std::vector<int64_t> order(static_cast<size_t>(sizes.tried));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (size_t i = order.size(); i > 1; --i) {
    seed = next_random(seed);
    std::swap(order[i - 1], order[(seed >> 20) % i]);
  }
  bool cuts_an_output = false;
  for (int64_t end = sizes.tried_kept;; end = std::min(end + sizes.tried_kept, sizes.tried)) {
    std::vector<int64_t> rows(order.begin() + (end - sizes.tried_kept), order.begin() + end);
    std::sort(rows.begin(), rows.end());
    std::vector<std::vector<uint8_t>> taken(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!is_tensor(op, step.large, i, Role::kInput)) continue;
      taken[i] = cut(inputs[i], step.large.values[i].tensor, step.dimension[i], rows);
    }
    const auto some = run_reference_on(op, small, taken, false);
    if (!some.ok()) return false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!is_tensor(op, step.large, i, Role::kOutput)) continue;
      TensorView shape = step.large.values[i].tensor;
      if (!op.spec->args[i].bound.exact) shape.dtype = DType::kF64;
      cuts_an_output |= step.dimension[i] >= 0;
      if (cut(all.value()[i], shape, step.dimension[i], rows) != some.value()[i]) return false;
    }
    if (end == sizes.tried) return cuts_an_output;
  }
}

// The text with every symbol but `kept` at most kOthersTried, as far as that is still a call.
std::string with_small_others(const Op& op, std::string text, const Symbols& kept) {
  for (const Symbols& other : symbols_of(text)) {
    const bool is_kept =
        std::find_first_of(other.names.begin(), other.names.end(), kept.names.begin(),
                           kept.names.end()) != other.names.end();
    if (is_kept || other.value <= kOthersTried) continue;
    const std::string smaller = with_symbols(text, other.names, kOthersTried);
    if (call_from_text(op, smaller, DeviceType::kCpu).ok()) text = smaller;
  }
  return text;
}

int64_t output_elements(const Op& op, const TextCall& call) {
  int64_t most = 0;
  for (size_t i = 0; i < op.spec->args.size(); ++i) {
    if (is_tensor(op, call, i, Role::kOutput)) most = std::max(most, numel(call.values[i].tensor));
  }
  return most;
}

bool is_enough(const Op& op, const TextCall& call) {
  if (output_elements(op, call) > kEnough) return false;
  const auto flops = op.contract.evaluate(op.spec->flops, call.scope);
  return flops.ok() && flops.value() <= kEnoughFlops;
}

struct PlannedCut {
  std::string text;  // after it
  int64_t value, kept;
};
struct Plan {
  std::vector<PlannedCut> cuts;
  bool cheap = false;
};

bool cuts_again(const Step& step, std::vector<std::vector<bool>>& is_cut) {
  for (size_t i = 0; i < step.dimension.size(); ++i) {
    if (step.dimension[i] >= 0 && is_cut[i][static_cast<size_t>(step.dimension[i])]) return true;
  }
  for (size_t i = 0; i < step.dimension.size(); ++i) {
    if (step.dimension[i] >= 0) is_cut[i][static_cast<size_t>(step.dimension[i])] = true;
  }
  return false;
}

// Which symbols are cut, one after the other, each to its kept rows over `fewer`.
Result<Plan> plan_cuts(const Op& op, const std::string& text, int64_t fewer, uint64_t seed) {
  Plan plan;
  std::string now = text;
  std::vector<std::vector<bool>> is_cut(op.spec->args.size(), std::vector<bool>(kMaxRank));
  for (const Symbols& symbol : symbols_of(text)) {
    auto call = call_from_text(op, now, DeviceType::kCpu);
    PESTLE_TRY(call.status());
    if (!plan.cuts.empty() && is_enough(op, call.value())) break;
    const std::string tried = with_small_others(op, now, symbol);
    for (const Cut& sizes : kCuts) {
      const int64_t kept = sizes.kept / fewer;
      if (symbol.value <= 2 * kept) break;
      const std::string small = with_symbols(now, symbol.names, kept);
      auto made = make_step(op, now, small, symbol.value, kept);
      if (!made.ok() || !rows_are_independent(op, tried, symbol, sizes, seed)) continue;
      if (cuts_again(made.value(), is_cut)) continue;
      plan.cuts.push_back({small, symbol.value, kept});
      now = small;
      break;
    }
  }
  auto call = call_from_text(op, now, DeviceType::kCpu);
  PESTLE_TRY(call.status());
  const auto flops = op.contract.evaluate(op.spec->flops, call.value().scope);
  PESTLE_TRY(flops.status());
  plan.cheap = flops.value() <= kManyFlops;
  return plan;
}

}  // namespace

std::vector<uint8_t> take_rows(const void* elements, const std::vector<int64_t> (&rows)[kMaxRank],
                               TensorView& shape) {
  const int bytes = dtype_bytes(shape.dtype);
  TensorView full = shape;
  set_contiguous_strides(full);
  for (int d = 0; d < shape.rank; ++d) {
    if (!rows[d].empty()) shape.shape[d] = static_cast<int64_t>(rows[d].size());
  }
  set_contiguous_strides(shape);
  std::vector<uint8_t> taken(static_cast<size_t>(size_bytes(shape)));
  const int64_t count = numel(shape);
  for (int64_t place = 0; place < count; ++place) {
    int64_t rest = place;
    int64_t from = 0;
    for (int d = shape.rank - 1; d >= 0; --d) {
      const int64_t index = rest % shape.shape[d];
      rest /= shape.shape[d];
      from += (rows[d].empty() ? index : rows[d][static_cast<size_t>(index)]) * full.strides[d];
    }
    std::memcpy(taken.data() + place * bytes, static_cast<const uint8_t*>(elements) + from * bytes,
                static_cast<size_t>(bytes));
  }
  return taken;
}

Result<SampledCall> sample_call(const Op& op, const std::string& text,
                                std::vector<std::vector<uint8_t>> inputs, uint64_t seed) {
  auto planned = plan_cuts(op, text, 1, seed);
  PESTLE_TRY(planned.status());
  if (!planned.value().cheap) {
    planned = plan_cuts(op, text, kFewerRows, seed);
    PESTLE_TRY(planned.status());
  }
  if (planned.value().cuts.empty()) return unsupported("no rows of it stand alone");
  SampledCall sampled{text, std::move(inputs), {}};
  sampled.rows.resize(op.spec->args.size());
  for (const PlannedCut& cut_now : planned.value().cuts) {
    auto made = make_step(op, sampled.text, cut_now.text, cut_now.value, cut_now.kept);
    PESTLE_TRY(made.status());
    const Step& step = made.value();
    const std::vector<int64_t> rows = pick(cut_now.value, cut_now.kept, seed + 1);
    for (size_t i = 0; i < step.dimension.size(); ++i) {
      if (step.dimension[i] >= 0) sampled.rows[i].of[step.dimension[i]] = rows;
      if (is_tensor(op, step.large, i, Role::kInput)) {
        sampled.inputs[i] =
            cut(sampled.inputs[i], step.large.values[i].tensor, step.dimension[i], rows);
      }
    }
    sampled.text = cut_now.text;
  }
  return sampled;
}

Result<std::vector<std::vector<uint8_t>>> run_reference_on(
    const Op& op, const std::string& text, const std::vector<std::vector<uint8_t>>& inputs,
    bool magnitudes) {
  auto made = call_from_text(op, text, DeviceType::kCpu);
  PESTLE_TRY(made.status());
  TextCall& call = made.value();
  std::vector<std::vector<uint8_t>> outputs(op.spec->args.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    TensorView& tensor = call.values[i].tensor;
    if (is_tensor(op, call, i, Role::kInput)) {
      tensor.data = const_cast<uint8_t*>(inputs[i].data());
    } else if (is_tensor(op, call, i, Role::kOutput)) {
      if (!op.spec->args[i].bound.exact) tensor.dtype = DType::kF64;
      outputs[i].resize(static_cast<size_t>(size_bytes(tensor)));
      tensor.data = outputs[i].data();
    }
  }
  auto bytes = op.contract.evaluate(op.reference().workspace, call.scope);
  PESTLE_TRY(bytes.status());
  std::vector<uint64_t> workspace(static_cast<size_t>(bytes.value() / 8 + 1));
  call.call.workspace = workspace.data();
  call.call.workspace_bytes = bytes.value();
  call.call.sum_magnitudes = magnitudes;
  PESTLE_TRY(op.reference().run(call.call));
  return outputs;
}

}  // namespace pestle::harness
