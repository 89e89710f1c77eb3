// Turning a contract's strings into a Contract.
#include "core/contract.h"

#include <algorithm>

#include "core/text.h"

namespace pestle {

Result<Contract> Contract::compile(const OpSpec& spec) {
  Contract contract;
  contract.spec_ = &spec;
  if (spec.args.size() > kMaxArgs) return Status{Code::kInternal, "more than 32 arguments"};
  contract.args_.resize(spec.args.size());
  // Attributes first, so that shapes may name them in any order.
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (spec.args[i].role != Role::kAttribute || spec.args[i].kind == Kind::kFloat) continue;
    contract.args_[i].symbol = static_cast<int>(contract.symbols_.size());
    contract.symbols_.emplace_back(spec.args[i].name);
  }
  for (size_t i = 0; i < spec.args.size(); ++i) PESTLE_TRY(contract.compile_arg(i));
  for (const Constraint& constraint : spec.constraints) {
    auto condition = contract.parse(constraint.condition, false);
    PESTLE_TRY(condition.status());
    contract.constraints_.push_back({std::move(condition.value()), constraint.sentence});
  }
  if (contract.symbols_.size() > kMaxSymbols) return Status{Code::kInternal, "too many symbols"};
  return contract;
}

Result<Expr> Contract::parse(std::string_view text, bool may_add) {
  auto expr = Expr::parse(text, {spec_, &symbols_, may_add});
  if (!expr.ok()) {
    return Status{Code::kInternal, std::string(spec_->name) + ": " + expr.status().message()};
  }
  return expr;
}

int Contract::pack_index(std::string_view name) {
  auto found = std::find(packs_.begin(), packs_.end(), name);
  if (found == packs_.end()) {
    packs_.emplace_back(name);
    found = packs_.end() - 1;
    // The pack's name stands for its number of elements in expressions.
    if (std::find(symbols_.begin(), symbols_.end(), name) == symbols_.end()) {
      symbols_.emplace_back(name);
    }
  }
  return static_cast<int>(found - packs_.begin());
}

Status Contract::compile_shape(std::string_view text, Shape& shape) {
  shape.text = std::string(trim(text));
  for (std::string_view part : split(text, ',')) {
    Dim dim;
    const bool reduced = part.starts_with("reduced(");
    if (reduced || part.starts_with('*')) {
      if (!shape.dims.empty()) {
        return {Code::kInternal,
                std::string(spec_->name) + ": '*' must lead in '" + shape.text + "'"};
      }
      if (reduced) PESTLE_TRY(compile_reduced(part, dim));
      if (!reduced) dim.pack = pack_index(part.substr(1));
      if (dim.pack >= 4) return {Code::kInternal, std::string(spec_->name) + ": too many packs"};
    } else {
      auto expr = parse(part, true);
      PESTLE_TRY(expr.status());
      dim.expr = std::move(expr.value());
    }
    shape.dims.push_back(std::move(dim));
  }
  return {};
}

// "reduced(*S, dims, keepdim)": S without the dimensions whose bits are set in dims, or with ones.
Status Contract::compile_reduced(std::string_view text, Dim& dim) {
  const size_t open = text.find('(');
  const auto parts = split(text.substr(open + 1, text.size() - open - 2), ',');
  if (!text.ends_with(')') || parts.size() != 3 || !parts[0].starts_with('*')) {
    return {Code::kInternal, std::string(spec_->name) +
                                 ": expected reduced(*S, dims, keepdim), not '" +
                                 std::string(text) + "'"};
  }
  dim.pack = pack_index(parts[0].substr(1));
  auto dims = parse(parts[1], false);
  PESTLE_TRY(dims.status());
  auto keepdim = parse(parts[2], false);
  PESTLE_TRY(keepdim.status());
  dim.expr = std::move(dims.value());
  dim.keepdim = std::move(keepdim.value());
  return {};
}

Status Contract::compile_dtypes(std::string_view text, DTypes& dtypes) const {
  dtypes.text = std::string(trim(text));
  if (dtypes.text.starts_with('=')) {
    const std::string_view same = split(dtypes.text, '|')[0];
    dtypes.same_as = find_arg(*spec_, same.substr(1));
    if (dtypes.same_as < 0) {
      return {Code::kInternal,
              std::string(spec_->name) + ": dtype '" + std::string(same) + "' names no argument"};
    }
    text = std::string_view(dtypes.text).substr(std::min(same.size() + 1, dtypes.text.size()));
    if (text.empty()) return {};
  }
  for (std::string_view name : split(text, '|')) {
    const DType dtype = dtype_from_name(name);
    if (dtype == DType::kNone) {
      return {Code::kInternal, std::string(spec_->name) + ": no dtype '" + std::string(name) + "'"};
    }
    dtypes.allowed.push_back(dtype);
  }
  return {};
}

namespace {

// "a: x; b: y" ordered by the labels of a choice; one text without labels serves all of them.
Result<std::vector<std::string_view>> alternatives(std::string_view text, const Arg* by) {
  std::vector<std::string_view> result;
  if (text.find(':') == std::string_view::npos) return std::vector<std::string_view>{text};
  if (by == nullptr) return Status{Code::kInternal, "alternatives without selected_by"};
  result.resize(split(by->choices, '|').size());
  std::vector<bool> seen(result.size());
  for (std::string_view part : split(text, ';')) {
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) return Status{Code::kInternal, "alternative lacks ':'"};
    for (std::string_view label : split(part.substr(0, colon), '|')) {
      const int index = choice_index(by->choices, label);
      if (index < 0) return Status{Code::kInternal, "no label '" + std::string(label) + "'"};
      result[static_cast<size_t>(index)] = trim(part.substr(colon + 1));
      seen[static_cast<size_t>(index)] = true;
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) {
    return Status{Code::kInternal, "an alternative is missing"};
  }
  return result;
}

}  // namespace

Status Contract::compile_arg(size_t index) {
  const Arg& arg = spec_->args[index];
  CompiledArg& compiled = args_[index];
  if (arg.role == Role::kAttribute) return {};
  has_lists_ |= arg.kind == Kind::kTensorList;
  compiled.by = arg.by[0] ? find_arg(*spec_, arg.by) : -1;
  if (arg.present_if[0]) {
    auto condition = parse(arg.present_if, false);
    PESTLE_TRY(condition.status());
    compiled.present_if = std::move(condition.value());
  }
  compiled.alias = arg.alias[0] ? find_arg(*spec_, arg.alias) : -1;
  if ((arg.by[0] && compiled.by < 0) || (arg.alias[0] && compiled.alias < 0)) {
    return error(index, "selected_by or in_place_of names no argument");
  }
  const Arg* by = compiled.by >= 0 ? &spec_->args[compiled.by] : nullptr;
  auto shapes = alternatives(arg.shape, by);
  if (!shapes.ok()) return error(index, "shape: " + shapes.status().message());
  for (std::string_view text : shapes.value()) {
    PESTLE_TRY(compile_shape(text, compiled.shapes.emplace_back()));
  }
  auto dtypes = alternatives(arg.dtypes, by);
  if (!dtypes.ok()) return error(index, "dtypes: " + dtypes.status().message());
  for (std::string_view text : dtypes.value()) {
    PESTLE_TRY(compile_dtypes(text, compiled.dtypes.emplace_back()));
  }
  return {};
}

}  // namespace pestle
