#include "core/call_text.h"

#include <algorithm>
#include <charconv>

#include "core/text.h"

namespace pestle {
namespace {

bool parse_int(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!(text = trim(text)).empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

// "bf16[8,16],f32" has two parts: commas between brackets are a shape's.
std::vector<std::string_view> split_positions(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += (c == '[') - (c == ']');
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    parts.push_back(text.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

constexpr int64_t kMostPositions = 4096;

class TextCallBuilder {
 public:
  TextCallBuilder(const Op& op, DeviceType device) : op_(op), spec_(*op.spec), device_(device) {
    result_.values.resize(spec_.args.size());
    result_.call.spec = op.spec;
    result_.call.args = result_.values;
    result_.scope.args = result_.values;
    shape_given_.resize(spec_.args.size());
    transposed_.resize(spec_.args.size());
    named_.resize(spec_.args.size());
    set_default_attributes(spec_, result_.values);
  }

  Result<TextCall> build(std::string_view text) {
    PESTLE_TRY(infer(text));
    Scope checked;
    PESTLE_TRY(op_.contract.check(result_.call, checked));
    return finish(checked);
  }

  // One position of lists, whose tensors stand alone; not checked yet.
  Result<TextCall> build_position(std::string_view text) {
    PESTLE_TRY(infer(text));
    return std::move(result_);
  }

  // The call whose lists have these positions.
  Result<TextCall> join(std::vector<TextCall>& positions) {
    result_.values = positions[0].values;
    result_.call.args = result_.values;
    result_.lists.resize(spec_.args.size());
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      Value& value = result_.values[i];
      if (spec_.args[i].kind != Kind::kTensorList || !value.present) continue;
      value.tensor = {};
      for (TextCall& one : positions) result_.lists[i].push_back(one.values[i].tensor);
      value.list = result_.lists[i];
    }
    Scope checked;
    PESTLE_TRY(op_.contract.check(result_.call, checked));
    return finish(checked);
  }

 private:
  Result<TextCall> finish(const Scope& checked) {
    result_.scope = checked;
    result_.scope.args = result_.values;
    return std::move(result_);
  }

  Status infer(std::string_view text) {
    for (std::string_view item : split_words(text)) PESTLE_TRY(assign(item));
    bind_attributes();
    // Shapes that were written out bind symbols for the inputs that were not.
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (shape_given_[i]) bind_from(i);
    }
    for (size_t i = 0; i < spec_.args.size(); ++i) PESTLE_TRY(complete_input(i));
    Scope scope;
    PESTLE_TRY(op_.contract.infer_outputs(result_.call, scope));
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      if (transposed_[i]) PESTLE_TRY(transpose(i));
    }
    for (Value& value : result_.values) value.tensor.device = {device_, 0};
    return {};
  }

  Status error(std::string_view item, const std::string& what) const {
    return invalid_argument(std::string(spec_.name) + ": '" + std::string(item) + "': " + what);
  }

  Status assign(std::string_view item) {
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) return error(item, "expected key=value");
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    const int arg = find_arg(spec_, key);
    if (arg < 0) return assign_symbol(item, key, value);
    named_[static_cast<size_t>(arg)] = true;
    return spec_.args[static_cast<size_t>(arg)].role == Role::kAttribute
               ? assign_attribute(item, static_cast<size_t>(arg), value)
               : assign_tensor(item, static_cast<size_t>(arg), value);
  }

  // "M=128", or "S=2x3" for a pack of leading dimensions ("S=" is none).
  Status assign_symbol(std::string_view item, std::string_view key, std::string_view value) {
    const auto& symbols = op_.contract.symbols();
    const auto symbol = std::find(symbols.begin(), symbols.end(), key);
    if (symbol == symbols.end()) {
      std::vector<std::string> names(symbols.begin(), symbols.end());
      for (const Arg& arg : spec_.args) names.emplace_back(arg.name);
      const std::string near = nearest(key, names);
      return error(item, "no argument or dimension '" + std::string(key) + "'" +
                             (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
    const auto& packs = op_.contract.packs();
    const auto pack = std::find(packs.begin(), packs.end(), key);
    int64_t number = 1;
    if (pack != packs.end()) {
      const auto index = static_cast<size_t>(pack - packs.begin());
      packs_.rank[index] = 0;
      for (std::string_view part : split(value, 'x')) {
        int64_t dim = 0;
        if (!parse_int(part, dim) || packs_.rank[index] == kMaxRank) {
          return error(item, "expected dimensions as in 2x3");
        }
        packs_.dims[index][packs_.rank[index]++] = dim;
        number *= dim;
      }
    } else if (!parse_int(value, number)) {
      return error(item, "expected a whole number");
    }
    result_.scope.values[symbol - symbols.begin()] = number;
    result_.scope.bound[symbol - symbols.begin()] = true;
    return {};
  }

  Status assign_attribute(std::string_view item, size_t arg, std::string_view text) {
    const Arg& spec = spec_.args[arg];
    Value& value = result_.values[arg];
    switch (spec.kind) {
      case Kind::kChoice:
        value.i = choice_index(spec.choices, text);
        if (value.i < 0) return error(item, std::string("expected one of ") + spec.choices);
        return {};
      case Kind::kFloat: {
        char* end = nullptr;
        const std::string copy(text);
        value.f = std::strtod(copy.c_str(), &end);
        if (copy.empty() || *end) return error(item, "expected a number");
        return {};
      }
      case Kind::kBool:
        if (text == "true" || text == "1")
          value.i = 1;
        else if (text == "false" || text == "0")
          value.i = 0;
        else
          return error(item, "expected true or false");
        return {};
      default: return parse_int(text, value.i) ? Status() : error(item, "expected a whole number");
    }
  }

  // A matrix whose columns are dense.
  Status transpose(size_t arg) {
    TensorView& t = result_.values[arg].tensor;
    if (t.rank != 2) return error(spec_.args[arg].name, ".mT is for matrices");
    t.strides[0] = 1;
    t.strides[1] = t.shape[0];
    return {};
  }

  // "bf16", "bf16[8,4096]", "bf16.mT" for a matrix that lies transposed, or "none".
  Status assign_tensor(std::string_view item, size_t arg, std::string_view text) {
    Value& value = result_.values[arg];
    if (text == "none") {
      value.present = false;
      return {};
    }
    const size_t bracket = std::min(text.find('['), text.size());
    std::string_view dtype = text.substr(0, bracket);
    constexpr std::string_view kTransposed = ".mT";
    transposed_[arg] = dtype.ends_with(kTransposed);
    if (transposed_[arg]) dtype.remove_suffix(kTransposed.size());
    value.tensor.dtype = dtype_from_name(dtype);
    if (value.tensor.dtype == DType::kNone) {
      return error(item, "no dtype '" + std::string(dtype) + "'");
    }
    value.present = true;
    if (bracket == text.size()) return {};
    if (!text.ends_with(']')) return error(item, "expected a closing ]");
    const std::string_view dims = text.substr(bracket + 1, text.size() - bracket - 2);
    for (std::string_view part : split(dims, ',')) {
      if (value.tensor.rank == kMaxRank ||
          !parse_int(part, value.tensor.shape[value.tensor.rank])) {
        return error(item, "expected up to 8 whole numbers between [ and ]");
      }
      ++value.tensor.rank;
    }
    set_contiguous_strides(value.tensor);
    shape_given_[arg] = true;
    return {};
  }

  void bind_attributes() {
    const auto& symbols = op_.contract.symbols();
    for (size_t i = 0; i < spec_.args.size(); ++i) {
      const auto found = std::find(symbols.begin(), symbols.end(), spec_.args[i].name);
      if (spec_.args[i].role != Role::kAttribute || found == symbols.end()) continue;
      result_.scope.values[found - symbols.begin()] = result_.values[i].i;
      result_.scope.bound[found - symbols.begin()] = true;
    }
  }

  void bind_from(size_t arg) {
    op_.contract.bind_symbols(result_.call, arg, result_.scope, packs_);
  }

  Status complete_input(size_t i) {
    const Arg& spec = spec_.args[i];
    Value& value = result_.values[i];
    if (spec.role != Role::kInput) return {};
    if (!named_[i]) value.present = op_.contract.wanted(result_.call, i);
    if (!value.present) return {};
    if (value.tensor.dtype == DType::kNone) {
      value.tensor.dtype = op_.contract.allowed_dtypes(result_.call, i)[0];
    }
    if (shape_given_[i]) return {};
    return op_.contract.shape_for(result_.call, i, result_.scope, packs_, value.tensor);
  }

  const Op& op_;
  const OpSpec& spec_;
  DeviceType device_;
  TextCall result_;
  Contract::Packs packs_;
  std::vector<bool> shape_given_;
  std::vector<bool> transposed_;
  std::vector<bool> named_;
};

}  // namespace

void set_default_attributes(const OpSpec& spec, std::span<Value> values) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (spec.args[i].role != Role::kAttribute) continue;
    values[i].present = true;
    values[i].f = spec.args[i].default_value;
    values[i].i = static_cast<int64_t>(spec.args[i].default_value);
  }
}

namespace {

struct ListText {
  size_t length = 1;
  std::vector<std::pair<std::string_view, std::vector<std::string_view>>> words;  // key, values

  std::string position(size_t index) const {
    std::string text;
    for (const auto& [key, values] : words) {
      text += std::string(key) + "=" + std::string(values[index % values.size()]) + " ";
    }
    return text;
  }
};

Result<ListText> read_list_text(const Op& op, std::string_view text) {
  ListText result;
  int64_t wanted = 0;
  for (std::string_view item : split_words(text)) {
    const size_t equals = item.find('=');
    const std::string start = std::string(op.spec->name) + ": '" + std::string(item) + "': ";
    if (equals == std::string_view::npos) return invalid_argument(start + "expected key=value");
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (key == "length") {
      if (!parse_int(value, wanted) || wanted < 1 || wanted > kMostPositions) {
        return invalid_argument(start + "expected a number of positions from 1 to " +
                                std::to_string(kMostPositions));
      }
      continue;
    }
    result.words.emplace_back(key, split_positions(value));
    result.length = std::max(result.length, result.words.back().second.size());
  }
  if (wanted > 0) result.length = static_cast<size_t>(wanted);
  return result;
}

}  // namespace

Result<TextCall> call_from_text(const Op& op, std::string_view text, DeviceType device) {
  if (!op.contract.has_lists()) return TextCallBuilder(op, device).build(text);
  auto lists = read_list_text(op, text);
  PESTLE_TRY(lists.status());
  std::vector<TextCall> positions;
  for (size_t i = 0; i < lists.value().length; ++i) {
    auto one = TextCallBuilder(op, device).build_position(lists.value().position(i));
    PESTLE_TRY(one.status());
    positions.push_back(std::move(one.value()));
  }
  return TextCallBuilder(op, device).join(positions);
}

}  // namespace pestle
