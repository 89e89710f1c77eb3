// Checking calls against a contract, and inferring what they leave open.
#include "core/contract.h"

#include <algorithm>
#include <array>

#include "core/overlap.h"
#include "core/text.h"

namespace pestle {

Status Contract::error(size_t arg, const std::string& what) const {
  return invalid_argument(std::string(spec_->name) + ": " + spec_->args[arg].name + " " + what);
}

const Contract::Shape& Contract::shape_of(const Call& call, size_t index) const {
  const CompiledArg& arg = args_[index];
  return arg.shapes.size() == 1 ? arg.shapes[0]
                                : arg.shapes[static_cast<size_t>(call.args[arg.by].i)];
}

const Contract::DTypes& Contract::dtypes_of(const Call& call, size_t index) const {
  const CompiledArg& arg = args_[index];
  return arg.dtypes.size() == 1 ? arg.dtypes[0]
                                : arg.dtypes[static_cast<size_t>(call.args[arg.by].i)];
}

// " (granularity=row)" when the rule depends on a choice.
std::string Contract::alternative(const Call& call, size_t index) const {
  const int by = args_[index].by;
  if (by < 0) return "";
  const Arg& arg = spec_->args[by];
  return std::string(" (") + arg.name + "=" +
         std::string(choice_label(arg.choices, call.args[by].i)) + ")";
}

std::vector<DType> Contract::allowed_dtypes(const Call& call, size_t index) const {
  const DTypes& dtypes = dtypes_of(call, index);
  if (dtypes.same_as < 0) return dtypes.allowed;
  const DType same = call.tensor(dtypes.same_as).dtype;
  if (dtypes.allowed.empty()) return {same};
  std::vector<DType> allowed = dtypes.allowed;
  const auto found = std::find(allowed.begin(), allowed.end(), same);
  if (found != allowed.end()) std::rotate(allowed.begin(), found, found + 1);
  return allowed;
}

bool Contract::wanted(const Call& call, size_t index) const {
  Scope scope;
  scope.args = call.args;
  bind_attributes(call, scope);
  return wanted(call, index, scope);
}

bool Contract::wanted(const Call& call, size_t index, const Scope& attributes) const {
  const CompiledArg& arg = args_[index];
  if (!arg.present_if) return !spec_->args[index].is_optional || call.args[index].present;
  int64_t holds = 0;
  return arg.present_if->eval(attributes, holds) && holds != 0;
}

Status Contract::check_presence(const Call& call) const {
  Scope scope;
  scope.args = call.args;
  bind_attributes(call, scope);
  for (size_t i = 0; i < spec_->args.size(); ++i) {
    const Arg& arg = spec_->args[i];
    if (arg.role == Role::kAttribute || call.args[i].present == wanted(call, i, scope)) continue;
    if (!arg.present_if[0]) return error(i, std::string("is missing: ") + arg.doc);
    return error(i, std::string(call.args[i].present ? "is given, but belongs to a call only when "
                                                     : "is missing: it belongs to a call when ") +
                        arg.present_if + " (" + arg.doc + ")");
  }
  return {};
}

void Contract::bind_attributes(const Call& call, Scope& scope) const {
  for (size_t i = 0; i < spec_->args.size(); ++i) {
    if (args_[i].symbol < 0) continue;
    scope.values[args_[i].symbol] = call.args[i].i;
    scope.bound[args_[i].symbol] = true;
  }
}

Status Contract::check_attributes(const Call& call, Scope& scope) const {
  for (size_t i = 0; i < spec_->args.size(); ++i) {
    const Arg& arg = spec_->args[i];
    if (arg.role != Role::kAttribute) continue;
    if (arg.kind == Kind::kChoice &&
        (call.args[i].i < 0 || call.args[i].i >= choice_count(arg.choices))) {
      return error(i, "is choice number " + std::to_string(call.args[i].i) + ", expected one of " +
                          arg.choices);
    }
  }
  bind_attributes(call, scope);
  return {};
}

template <class Visit>
Status Contract::for_each_tensor(const Call& call, Role role, Visit&& visit) const {
  for (size_t i = 0; i < spec_->args.size(); ++i) {
    if (spec_->args[i].role != role || !call.args[i].present) continue;
    PESTLE_TRY(visit(i, call.args[i].tensor));
  }
  return {};
}

Status Contract::check_dtype(const Call& call, size_t index, const TensorView& tensor) const {
  const DTypes& dtypes = dtypes_of(call, index);
  if (dtypes.same_as >= 0 && dtypes.allowed.empty()) {
    const TensorView& other = call.tensor(dtypes.same_as);
    if (!call.has(dtypes.same_as) || other.dtype == tensor.dtype) return {};
    return error(index, "has dtype " + std::string(dtype_name(tensor.dtype)) + ", expected " +
                            std::string(dtype_name(other.dtype)) + ", that of " +
                            spec_->args[dtypes.same_as].name);
  }
  if (std::find(dtypes.allowed.begin(), dtypes.allowed.end(), tensor.dtype) !=
      dtypes.allowed.end()) {
    return {};
  }
  return error(index, "has dtype " + std::string(dtype_name(tensor.dtype)) + ", expected " +
                          dtypes.text + alternative(call, index));
}

Status Contract::check_devices(const Call& call) const {
  const TensorView* first = nullptr;
  size_t first_index = 0;
  for (Role role : {Role::kInput, Role::kOutput}) {
    PESTLE_TRY(for_each_tensor(call, role, [&](size_t i, const TensorView& tensor) -> Status {
      if (first == nullptr) {
        first = &tensor;
        first_index = i;
      }
      if (tensor.device == first->device) return {};
      return error(i, std::string("lies on another device than ") + spec_->args[first_index].name);
    }));
  }
  return {};
}

// Binds what the tensor's dimensions say directly: "M", "*S", and in the second pass "K/2", "2*K".
Status Contract::bind_shape(const Call& call, size_t index, const TensorView& tensor, Scope& scope,
                            Packs& packs, bool invert_ratios) const {
  const Shape& shape = shape_of(call, index);
  if (shape.is_reduced()) return {};  // says nothing of the dimensions that are gone
  const int fixed = static_cast<int>(shape.dims.size()) - shape.has_pack();
  if (tensor.rank < fixed || (!shape.has_pack() && tensor.rank != fixed)) {
    return error(index, "is " + describe(tensor) + ", expected shape [" + shape.text + "]" +
                            alternative(call, index));
  }
  const int lead = tensor.rank - fixed;
  if (shape.has_pack() && packs.rank[shape.dims[0].pack] < 0) {
    const int pack = shape.dims[0].pack;
    packs.rank[pack] = lead;
    int64_t product = 1;
    for (int d = 0; d < lead; ++d) product *= packs.dims[pack][d] = tensor.shape[d];
    const auto name = std::find(symbols_.begin(), symbols_.end(), packs_[pack]);
    scope.values[name - symbols_.begin()] = product;
    scope.bound[name - symbols_.begin()] = true;
  }
  for (int d = lead; d < tensor.rank; ++d) {
    const Expr& expr = shape.dims[static_cast<size_t>(d - lead + shape.has_pack())].expr;
    int symbol = expr.lone_symbol();
    int64_t value = tensor.shape[d];
    if (symbol < 0 && invert_ratios) {
      symbol = expr.lone_ratio().symbol;
      value *= expr.lone_ratio().divisor;
      if (symbol < 0) {
        symbol = expr.lone_multiple().symbol;
        value /= expr.lone_multiple().divisor;  // check_shape finds what is left over
      }
    }
    if (symbol < 0 || scope.bound[symbol]) continue;
    scope.values[symbol] = value;
    scope.bound[symbol] = true;
  }
  return {};
}

Status Contract::check_shape(const Call& call, size_t index, const TensorView& tensor,
                             const Scope& scope, const Packs& packs) const {
  TensorView expected;
  PESTLE_TRY(infer_tensor(call, index, scope, packs, expected));
  expected.dtype = tensor.dtype;
  if (tensor.rank == expected.rank &&
      std::equal(tensor.shape, tensor.shape + tensor.rank, expected.shape)) {
    return {};
  }
  return error(index, "is " + describe(tensor) + ", expected " + describe(expected) + " = [" +
                          shape_of(call, index).text + "]" + alternative(call, index));
}

// The dimensions of a pack, or what "reduced" leaves of them.
Status Contract::infer_pack(size_t index, const Dim& dim, const Scope& scope, const Packs& packs,
                            TensorView& tensor) const {
  const int count = packs.rank[dim.pack];
  int64_t gone = 0, keepdim = 0;
  if (dim.keepdim) {
    if (!dim.expr.eval(scope, gone) || !dim.keepdim->eval(scope, keepdim)) {
      return error(index, "has dimensions that nothing determines");
    }
    if (gone != -1 && (gone < 0 || gone >> std::max(count, 0) != 0)) {
      return error(index, "has no shape: " + dim.expr.text() + " is " + std::to_string(gone) +
                              ", expected a bit for each of " + std::to_string(count) +
                              " dimensions to reduce (bit 0 is the first), or -1 for all");
    }
  }
  for (int d = 0; d < count; ++d) {
    const bool reduced = (gone >> d & 1) != 0;
    if (reduced && keepdim == 0) continue;
    if (tensor.rank == kMaxRank) return error(index, "has more than 8 dimensions");
    tensor.shape[tensor.rank++] = reduced ? 1 : packs.dims[dim.pack][d];
  }
  return {};
}

// Shape by the contract; strides contiguous, no data.
Status Contract::infer_tensor(const Call& call, size_t index, const Scope& scope,
                              const Packs& packs, TensorView& tensor) const {
  const Shape& shape = shape_of(call, index);
  tensor.rank = 0;
  for (const Dim& dim : shape.dims) {
    if (dim.pack >= 0) {
      PESTLE_TRY(infer_pack(index, dim, scope, packs, tensor));
      continue;
    }
    if (tensor.rank == kMaxRank) return error(index, "has more than 8 dimensions");
    int64_t value = 0;
    if (!dim.expr.eval(scope, value)) {
      return error(index, "has dimension '" + dim.expr.text() + "', which nothing determines");
    }
    if (value < 0) return error(index, "has negative dimension '" + dim.expr.text() + "'");
    tensor.shape[tensor.rank++] = value;
  }
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] < 0) return error(index, "has a negative dimension");
  }
  set_contiguous_strides(tensor);
  return {};
}

Status Contract::check_constraints(const Scope& scope) const {
  for (const CompiledConstraint& constraint : constraints_) {
    int64_t holds = 0;
    if (constraint.condition.eval(scope, holds) && holds) continue;
    std::string values;
    for (size_t s = 0; s < symbols_.size(); ++s) {
      if (scope.bound[s])
        values += (values.empty() ? "" : " ") + symbols_[s] + "=" + std::to_string(scope.values[s]);
    }
    return invalid_argument(std::string(spec_->name) + ": " + constraint.sentence + " (needs " +
                            constraint.condition.text() + "; " + values + ")");
  }
  return {};
}

Status Contract::bind(const Call& call, Scope& scope, Packs& packs) const {
  scope.args = call.args;
  PESTLE_TRY(check_attributes(call, scope));
  for (bool invert : {false, true}) {
    PESTLE_TRY(for_each_tensor(call, Role::kInput, [&](size_t i, const TensorView& tensor) {
      return bind_shape(call, i, tensor, scope, packs, invert);
    }));
  }
  return for_each_tensor(call, Role::kInput, [&](size_t i, const TensorView& tensor) -> Status {
    PESTLE_TRY(check_dtype(call, i, tensor));
    return check_shape(call, i, tensor, scope, packs);
  });
}

struct Contract::ListPosition {
  Value values[kMaxArgs];
  Call call;
  ListPosition(const OpSpec& spec, std::span<const Value> args, size_t position) {
    std::copy(args.begin(), args.end(), values);
    for (size_t i = 0; i < args.size(); ++i) {
      if (spec.args[i].kind != Kind::kTensorList || !args[i].present) continue;
      values[i].tensor = args[i].list[position];
      values[i].list = {};
    }
    call.spec = &spec;
    call.args = std::span<Value>(values, args.size());
  }
};

Status Contract::list_length(std::span<const Value> args, size_t& length) const {
  bool found = false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (spec_->args[i].kind != Kind::kTensorList || !args[i].present) continue;
    if (args[i].list.empty()) return error(i, "has no tensors: a list has at least one");
    if (found && args[i].list.size() != length) {
      return error(i, "has " + std::to_string(args[i].list.size()) + " tensors, the other lists " +
                          std::to_string(length));
    }
    length = args[i].list.size();
    found = true;
  }
  return {};
}

Status Contract::check(const Call& call, Scope& scope) const {
  if (!has_lists_) return check_one(call, scope);
  PESTLE_TRY(check_attributes(call, scope));
  PESTLE_TRY(check_presence(call));
  size_t length = 0;
  PESTLE_TRY(list_length(call.args, length));
  for (size_t position = 0; position < length; ++position) {
    ListPosition one(*spec_, call.args, position);
    scope = {};
    const Status status = check_one(one.call, scope);
    if (!status.ok()) {
      return {status.code(),
              status.message() + " (position " + std::to_string(position) + " of the lists)"};
    }
  }
  scope.args = call.args;
  PESTLE_TRY(check_list_devices(call));
  return check_overlaps(call);
}

// Positions are on one device, as the tensors of each are.
Status Contract::check_list_devices(const Call& call) const {
  for (size_t i = 0; i < call.args.size(); ++i) {
    for (const TensorView& item : call.args[i].list) {
      if (item.device == call.args[i].list[0].device) continue;
      return error(i, "has tensors on several devices");
    }
  }
  return {};
}

namespace {

// Why a view can't be written to by itself, or empty.
const char* refuse_own_overlap(const TensorView& t) {
  switch (overlap_within(t)) {
    case Overlap::kNo: return "";
    case Overlap::kYes:
      return "has several elements in the same memory (strides of 0, or too small for its shape): "
             "an output needs memory for each";
    case Overlap::kTooHard: break;
  }
  return "has strides too odd to tell whether its elements share memory: give other strides";
}

}  // namespace

Status Contract::check_one(const Call& call, Scope& scope) const {
  if (call.args.size() != spec_->args.size()) {
    return {Code::kInternal, std::string(spec_->name) + ": wrong number of values"};
  }
  PESTLE_TRY(check_attributes(call, scope));
  PESTLE_TRY(check_presence(call));
  Packs packs;
  PESTLE_TRY(bind(call, scope, packs));
  PESTLE_TRY(for_each_tensor(call, Role::kOutput, [&](size_t i, const TensorView& t) -> Status {
    PESTLE_TRY(check_dtype(call, i, t));
    return check_shape(call, i, t, scope, packs);
  }));
  PESTLE_TRY(check_devices(call));
  PESTLE_TRY(check_constraints(scope));
  // Strides say it, so remembered calls need not be looked at again.
  PESTLE_TRY(for_each_tensor(call, Role::kOutput, [&](size_t i, const TensorView& t) -> Status {
    const char* why = refuse_own_overlap(t);
    return *why ? error(i, why) : Status();
  }));
  return has_lists_ ? Status() : check_overlaps(call);  // of all positions at once
}

Status Contract::infer_outputs(Call& call, Scope& scope) const {
  Packs packs;
  PESTLE_TRY(bind(call, scope, packs));
  PESTLE_TRY(check_constraints(scope));
  for (size_t i = 0; i < spec_->args.size(); ++i) {
    if (spec_->args[i].role != Role::kOutput) continue;
    if (!wanted(call, i)) continue;
    TensorView& tensor = call.args[i].tensor;
    const DTypes& dtypes = dtypes_of(call, i);
    const bool chosen = tensor.dtype != DType::kNone && !dtypes.allowed.empty();
    if (!chosen) tensor.dtype = allowed_dtypes(call, i)[0];
    PESTLE_TRY(infer_tensor(call, i, scope, packs, tensor));
    call.args[i].present = true;
  }
  return {};
}

Status Contract::infer_outputs(Call& call, Scope& scope,
                               std::vector<std::vector<TensorView>>& lists) const {
  if (!has_lists_) return infer_outputs(call, scope);
  PESTLE_TRY(check_attributes(call, scope));
  size_t length = 0;
  PESTLE_TRY(list_length(call.args, length));
  lists.resize(call.args.size());
  for (size_t position = 0; position < length; ++position) {
    ListPosition one(*spec_, call.args, position);
    scope = {};
    const Status status = infer_outputs(one.call, scope);
    if (!status.ok()) {
      return {status.code(),
              status.message() + " (position " + std::to_string(position) + " of the lists)"};
    }
    for (size_t i = 0; i < call.args.size(); ++i) {
      const bool made = spec_->args[i].role == Role::kOutput && one.values[i].present;
      if (made) lists[i].push_back(one.values[i].tensor);
    }
  }
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (lists[i].empty() || spec_->args[i].role != Role::kOutput) continue;
    call.args[i].present = true;
    call.args[i].list = lists[i];
  }
  scope.args = call.args;
  return {};
}

namespace {

std::string overlap_words(Overlap overlap, const char* other) {
  if (overlap == Overlap::kYes) return std::string("overlaps ") + other + " in memory";
  return std::string("may overlap ") + other + " in memory (strides too odd to tell)";
}

}  // namespace

Status Contract::check_overlaps(const Call& call) const {
  if (has_lists_) return check_list_overlaps(call);
  ByteRange ranges[kMaxArgs];
  for (size_t i = 0; i < spec_->args.size(); ++i) {
    if (spec_->args[i].kind == Kind::kTensor && call.args[i].present) {
      ranges[i] = byte_range(call.args[i].tensor);
    }
  }
  for (size_t out = 0; out < spec_->args.size(); ++out) {
    if (spec_->args[out].role != Role::kOutput || ranges[out].begin == ranges[out].end) continue;
    for (size_t other = 0; other < spec_->args.size(); ++other) {
      if (other == out || ranges[other].begin == ranges[other].end) continue;
      if (ranges[out].end <= ranges[other].begin || ranges[other].end <= ranges[out].begin)
        continue;
      const TensorView& a = call.args[out].tensor;
      const TensorView& b = call.args[other].tensor;
      const bool same = a.data == b.data && dtype_bytes(a.dtype) == dtype_bytes(b.dtype) &&
                        a.rank == b.rank && std::equal(a.strides, a.strides + a.rank, b.strides);
      if (same && args_[out].alias == static_cast<int>(other)) continue;
      const Overlap overlap = overlap_of(a, b);
      if (overlap == Overlap::kNo) continue;
      return error(out, overlap_words(overlap, spec_->args[other].name) +
                            ": an output needs memory of its own" +
                            (args_[out].alias == static_cast<int>(other)
                                 ? ", or exactly that argument's view for the in-place form"
                                 : ""));
    }
  }
  return {};
}

// Any tensor of any list against any other: no output of a list may touch another tensor.
Status Contract::check_list_overlaps(const Call& call) const {
  struct Item {
    size_t arg;
    ByteRange range;
    const TensorView* view;
  };
  std::vector<Item> items;
  size_t count = 0;
  for (size_t i = 0; i < call.args.size(); ++i) {
    const Value& value = call.args[i];
    if (!value.present || spec_->args[i].role == Role::kAttribute) continue;
    count += 1 + value.list.size();
  }
  items.reserve(count);
  for (size_t i = 0; i < call.args.size(); ++i) {
    const Value& value = call.args[i];
    if (!value.present || spec_->args[i].role == Role::kAttribute) continue;
    if (spec_->args[i].kind == Kind::kTensor)
      items.push_back({i, byte_range(value.tensor), &value.tensor});
    for (const TensorView& item : value.list) items.push_back({i, byte_range(item), &item});
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.range.begin < b.range.begin; });
  const auto is_output = [&](size_t arg) { return spec_->args[arg].role == Role::kOutput; };
  // Those whose range reaches into a later one's; mostly none.
  std::vector<const Item*> open;
  for (const Item& item : items) {
    if (item.range.begin == item.range.end) continue;
    std::erase_if(open, [&](const Item* before) { return before->range.end <= item.range.begin; });
    for (const Item* before : open) {
      if (!is_output(item.arg) && !is_output(before->arg)) continue;
      const Overlap overlap = overlap_of(*item.view, *before->view);
      if (overlap == Overlap::kNo) continue;
      const size_t out = is_output(item.arg) ? item.arg : before->arg;
      const size_t other = out == item.arg ? before->arg : item.arg;
      const std::string name = std::string("a tensor of ") + spec_->args[other].name;
      return error(out,
                   overlap_words(overlap, name.c_str()) + ": an output needs memory of its own");
    }
    open.push_back(&item);
  }
  return {};
}

Result<int64_t> Contract::evaluate(std::string_view text, const Scope& scope) const {
  // Choosing an implementation asks for the same few workspaces again and again: what was parsed is
  // kept, by the place of its text. The contract's record tells what its symbols mean.
  struct Parsed {
    const OpSpec* spec = nullptr;
    Expr expr;
  };
  thread_local std::array<Parsed, 64> kept;
  Parsed& parsed = kept[reinterpret_cast<uintptr_t>(text.data()) / 2 % kept.size()];
  if (parsed.spec != spec_ || parsed.expr.text() != text) {
    std::vector<std::string> symbols = symbols_;
    auto expr = Expr::parse(text, {spec_, &symbols, false});
    PESTLE_TRY(expr.status());
    parsed = {spec_, std::move(expr.value())};
  }
  size_t length = 1;
  if (has_lists_) PESTLE_TRY(list_length(scope.args, length));
  int64_t value = 0;
  bool known = true;
  for (size_t position = 0; position < length && known; ++position) {
    int64_t term = 0;
    if (has_lists_) {
      ListPosition one(*spec_, scope.args, position);
      Scope own;
      Packs packs;
      PESTLE_TRY(bind(one.call, own, packs));
      known = parsed.expr.eval(own, term);
    } else {
      known = parsed.expr.eval(scope, term);
    }
    value += term;
  }
  if (!known) {
    return Status{Code::kInternal,
                  std::string(spec_->name) + ": '" + std::string(text) + "' cannot be evaluated"};
  }
  return value;
}

Result<int64_t> Contract::bytes(const Scope& scope) const {
  if (spec_->bytes[0]) return evaluate(spec_->bytes, scope);
  int64_t total = 0;
  for (const Value& value : scope.args) {
    if (value.present && value.list.empty()) total += size_bytes(value.tensor);
    for (const TensorView& item : value.list) total += size_bytes(item);
  }
  return total;
}

}  // namespace pestle
