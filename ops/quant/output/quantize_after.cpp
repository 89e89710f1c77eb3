#include "ops/quant/output/quantize_after.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "core/call_text.h"
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

// An attribute of the named op: a label or a number as text.
void set_attribute(const Arg& arg, std::string_view text, Value& value) {
  value.present = true;
  if (arg.kind == Kind::kChoice)
    value.i = choice_index(arg.choices, text);
  else
    std::from_chars(text.data(), text.data() + text.size(), value.i);
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

// Leading dimensions as one; false where no single stride goes through them.
bool take_matrix(TensorView& t) {
  if (t.rank <= 2) return true;
  int64_t rows = 1, stride = 0;
  for (int d = t.rank - 2; d >= 0; --d) {
    if (t.shape[d] != 1 && rows > 1 && t.strides[d] != stride * rows) return false;
    if (t.shape[d] != 1 && rows == 1) stride = t.strides[d];
    rows *= t.shape[d];
  }
  t.shape[1] = t.shape[t.rank - 1];
  t.strides[1] = t.strides[t.rank - 1];
  t.shape[0] = rows;
  t.strides[0] = rows == 1 ? t.shape[1] : stride;
  t.rank = 2;
  return true;
}
bool is_matrix(TensorView t) { return take_matrix(t); }

int64_t round_up(int64_t n) { return (n + 255) / 256 * 256; }

// Does the op want one matrix where others take leading dimensions?
bool takes_matrices(const OpSpec& spec) { return spec.args[0].shape[0] != '*'; }

Status copy(const Call& call, TensorView from, const TensorView& to) {
  const Op* op = find_op("copy");
  if (op == nullptr) return {Code::kInternal, "there is no op that copies"};
  std::array<Value, 2> values{};
  from.device = to.device;
  for (Value& value : values) value.present = true;
  values[static_cast<size_t>(find_arg(*op->spec, "x"))].tensor = from;
  values[static_cast<size_t>(find_arg(*op->spec, "out"))].tensor = to;
  Call inner = call;
  inner.spec = op->spec;
  inner.args = values;
  inner.workspace_bytes = 0;
  return run(*op, inner);
}

}  // namespace

bool wants_quantized_output(const Call& call) {
  return call.integer(find(call, "out_format")) != 0;
}

Status codes_by_rule(const Call& call, const TensorView& y, void* workspace, int64_t bytes) {
  const std::string_view rule = rule_of(call);
  const Op* op = find_op(rule.substr(0, rule.find(' ')));
  if (op == nullptr) return {Code::kInternal, "the rule of q names no op"};
  const OpSpec& spec = *op->spec;
  std::array<Value, kMaxArgs> values{};
  const std::span<Value> all(values.data(), spec.args.size());
  set_default_attributes(spec, all);
  for (std::string_view item : split(rule, ' ')) set_argument(call, y, spec, item, all);
  for (const char* name : {"q", "scale_out"}) {
    const int own = find(call, name), theirs = find_arg(spec, name);
    if (call.has(own)) all[static_cast<size_t>(theirs)] = call.args[static_cast<size_t>(own)];
  }
  const TensorView q = call.tensor(find(call, "q"));
  auto* memory = static_cast<char*>(workspace);
  TensorView& codes = all[static_cast<size_t>(find_arg(spec, "q"))].tensor;
  if (takes_matrices(spec)) {
    if (!is_matrix(q)) {
      codes = make_view(memory, q.dtype, q.rank, q.shape);
      codes.device = q.device;
      memory += round_up(size_bytes(codes));
    }
    for (Value& value : all) {
      if (!take_matrix(value.tensor)) return {Code::kInternal, "what codes are of is not dense"};
    }
  }
  Call inner = call;
  inner.spec = op->spec;
  inner.args = all;
  inner.workspace = memory;
  inner.workspace_bytes = bytes - (memory - static_cast<char*>(workspace));
  PESTLE_TRY(run(*op, inner));
  if (codes.data == q.data) return {};
  const TensorView made = make_view(codes.data, q.dtype, q.rank, q.shape);
  return copy(call, made, q);
}

namespace {

// The call as if no codes were wanted.
struct PlainCall {
  std::array<Value, kMaxArgs> values{};
  Call call;

  explicit PlainCall(const Call& from) : call(from) {
    for (size_t i = 0; i < from.args.size(); ++i) values[i] = from.args[i];
    call.args = std::span<Value>(values.data(), from.args.size());
    for (const char* name : {"q_scale", "global_scale", "q", "scale_out"}) set(name, {});
    Value zero;
    zero.present = true;
    const char* rotation = find(call, "out_hadamard") < 0 ? "hadamard" : "out_hadamard";
    for (const char* name : {"out_format", "keep_out", rotation, "nibbles", "scale_layout"})
      set(name, zero);
  }
  PlainCall(const PlainCall&) = delete;
  PlainCall& operator=(const PlainCall&) = delete;

  Value& out() { return values[static_cast<size_t>(find(call, "out"))]; }

 private:
  void set(const char* name, const Value& value) {
    const int arg = find(call, name);
    if (arg >= 0) values[static_cast<size_t>(arg)] = value;
  }
};

// The dtype of an output that is not kept: x's if the contract leaves no choice, else bf16.
DType output_dtype(const Call& call) {
  const std::string_view dtypes = call.spec->args[static_cast<size_t>(find(call, "out"))].dtypes;
  const bool is_fixed = dtypes[0] == '=' && dtypes.find('|') == std::string_view::npos;
  return is_fixed ? call.tensor(find(call, dtypes.substr(1))).dtype : DType::kBF16;
}

// An output in `memory`, in the shape of the call's codes.
TensorView product_at(const Call& call, void* memory) {
  const TensorView& q = call.tensor(find(call, "q"));
  int64_t dims[kMaxRank];
  for (int d = 0; d < q.rank; ++d) dims[d] = q.shape[d];
  if (label_of(call, find(call, "out_format")) == "nvfp4") dims[q.rank - 1] *= 2;
  TensorView y = make_view(memory, output_dtype(call), q.rank, dims);
  y.device = q.device;
  return y;
}

}  // namespace

namespace {

Status reference_codes(const Call& call, const TensorView& y) {
  std::vector<float> workspace(static_cast<size_t>(4 * row_count(y) + numel(y) + 64));
  return codes_by_rule(call, y, workspace.data(), static_cast<int64_t>(workspace.size() * 4));
}

}  // namespace

Status reference_with_quantized_output(const Call& call, Status (*run)(const Call&)) {
  const int out = find(call, "out");
  if (call.has(out)) PESTLE_TRY(run(call));
  if (!wants_quantized_output(call)) return {};
  // As truth of the checks out is f64, and codes are compared with those of what was stored.
  if (call.has(out) && call.tensor(out).dtype != DType::kF64)
    return reference_codes(call, call.tensor(out));
  PlainCall plain(call);
  TensorView y = product_at(call, nullptr);
  std::vector<uint16_t> values(static_cast<size_t>(numel(y)) + 1);
  y.data = values.data();
  plain.out().present = true;
  plain.out().tensor = y;
  plain.call.sum_magnitudes = false;
  PESTLE_TRY(run(plain.call));
  return reference_codes(call, y);
}

Status run_with_quantized_output(const Call& call) {
  PlainCall plain(call);
  auto* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(call.workspace) + 255) &
                                         ~uintptr_t{255});
  Value& out = plain.out();
  const Op* coder = find_op(rule_of(call).substr(0, rule_of(call).find(' ')));
  const bool apart =
      out.present && coder != nullptr && takes_matrices(*coder->spec) && !is_matrix(out.tensor);
  const TensorView kept = out.tensor;
  if (!out.present || apart) {
    out.present = true;
    out.tensor = product_at(call, memory);
    memory += round_up(size_bytes(out.tensor));
  }
  const int64_t left = static_cast<char*>(call.workspace) + call.workspace_bytes - memory;
  plain.call.workspace = memory;
  plain.call.workspace_bytes = left;
  PESTLE_TRY(run_within(*find_op(call.spec->name), plain.call));
  if (apart) PESTLE_TRY(copy(call, out.tensor, kept));
  return codes_by_rule(call, out.tensor, memory, left);
}

}  // namespace pestle::ops
