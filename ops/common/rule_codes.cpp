#include "ops/common/rule_codes.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/dispatch.h"
#include "core/expr.h"
#include "core/text.h"

namespace pestle::ops {
namespace {

int find(const Call& call, std::string_view name) { return find_arg(*call.spec, name); }

std::string_view label_of(const Call& call, int arg) {
  return choice_label(call.spec->args[static_cast<size_t>(arg)].choices, call.integer(arg));
}

// "quantize_fp8 x=out granularity=row", or nothing.
std::string_view rule_of(const Call& call) {
  const Arg& q = call.spec->args[static_cast<size_t>(find(call, "q"))];
  const std::string_view label = label_of(call, find(call, q.by));
  for (std::string_view part : split(q.bound.k, ';')) {
    const size_t colon = part.find(':');
    if (colon != std::string_view::npos && trim(part.substr(0, colon)) == label)
      return trim(part.substr(colon + 1));
  }
  return "";
}

int64_t index_of_label(std::string_view choices, std::string_view label) {
  int64_t index = 0;
  for (std::string_view one : split(choices, '|')) {
    if (one == label) return index;
    ++index;
  }
  return 0;
}

// An attribute of the named op: a label or a number as text.
void set_attribute(const Arg& arg, std::string_view text, Value& value) {
  value.present = true;
  if (arg.kind == Kind::kChoice)
    value.i = index_of_label(arg.choices, text);
  else
    std::from_chars(text.data(), text.data() + text.size(), value.i);
}

void set_defaults(const OpSpec& spec, std::span<Value> values) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (spec.args[i].role != Role::kAttribute) continue;
    values[i].present = true;
    values[i].i = static_cast<int64_t>(spec.args[i].default_value);
    values[i].f = spec.args[i].default_value;
  }
}

// One "name=value" of the rule.
void set_argument(const Call& call, const TensorView& y, const OpSpec& spec, std::string_view item,
                  std::span<Value> values) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) return;
  const auto to = static_cast<size_t>(find_arg(spec, item.substr(0, equals)));
  const std::string_view from = item.substr(equals + 1);
  const int own = find(call, from);
  if (from == "out") {
    values[to].present = true;
    values[to].tensor = y;
  } else if (own < 0) {
    set_attribute(spec.args[to], from, values[to]);
  } else if (call.spec->args[static_cast<size_t>(own)].kind == Kind::kChoice) {
    set_attribute(spec.args[to], label_of(call, own), values[to]);
  } else {
    values[to] = call.args[static_cast<size_t>(own)];
  }
}

// Without leading dimensions, which have one element each here.
void take_matrix(Value& value) {
  TensorView& t = value.tensor;
  for (int d = 0; d < 2 && t.rank > 2; ++d) {
    t.shape[d] = t.shape[t.rank - 2 + d];
    t.strides[d] = t.strides[t.rank - 2 + d];
  }
  t.rank = std::min(t.rank, 2);
}

int64_t round_up(int64_t n) { return (n + 255) / 256 * 256; }

}  // namespace

bool wants_codes(const Call& call) { return call.integer(find(call, "out_format")) != 0; }

Status codes_by_rule(const Call& call, const TensorView& y, void* workspace, int64_t bytes) {
  const std::string_view rule = rule_of(call);
  const Op* op = find_op(rule.substr(0, rule.find(' ')));
  if (op == nullptr) return {Code::kInternal, "the rule of q names no op"};
  const OpSpec& spec = *op->spec;
  std::array<Value, kMaxArgs> values{};
  const std::span<Value> all(values.data(), spec.args.size());
  set_defaults(spec, all);
  for (std::string_view item : split(rule, ' ')) set_argument(call, y, spec, item, all);
  for (const char* name : {"q", "scale_out"}) {
    const int own = find(call, name), theirs = find_arg(spec, name);
    if (call.has(own)) all[static_cast<size_t>(theirs)] = call.args[static_cast<size_t>(own)];
  }
  if (spec.args[0].shape[0] != '*')
    for (Value& value : all) take_matrix(value);
  Call inner = call;
  inner.spec = op->spec;
  inner.args = all;
  inner.workspace = workspace;
  inner.workspace_bytes = bytes;
  return run(*op, inner);
}

Status run_with_codes(const Call& call) {
  const OpSpec& spec = *call.spec;
  std::array<Value, kMaxArgs> values{};
  const std::span<Value> all(values.data(), spec.args.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = call.args[i];
  Call plain = call;
  plain.args = all;
  for (const char* name : {"q_scale", "global_scale", "q", "scale_out"})
    all[static_cast<size_t>(find(call, name))] = {};
  for (const char* name : {"out_format", "keep_out", "hadamard", "nibbles", "scale_layout"})
    all[static_cast<size_t>(find(call, name))].i = 0;
  Value& out = all[static_cast<size_t>(find(call, "out"))];
  auto* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(call.workspace) + 255) &
                                         ~uintptr_t{255});
  if (!out.present) {
    const TensorView& q = call.tensor(find(call, "q"));
    int64_t dims[kMaxRank];
    for (int d = 0; d < q.rank; ++d) dims[d] = q.shape[d];
    if (label_of(call, find(call, "out_format")) == "nvfp4") dims[q.rank - 1] *= 2;
    out.present = true;
    out.tensor = make_view(memory, DType::kBF16, q.rank, dims);
    out.tensor.device = q.device;
    memory += round_up(size_bytes(out.tensor));
  }
  plain.workspace = memory;
  plain.workspace_bytes = static_cast<char*>(call.workspace) + call.workspace_bytes - memory;
  PESTLE_TRY(run(*find_op(spec.name), plain));
  return codes_by_rule(call, out.tensor, plain.workspace, plain.workspace_bytes);
}

}  // namespace pestle::ops
