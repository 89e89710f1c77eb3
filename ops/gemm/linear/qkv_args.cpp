#include "ops/gemm/linear/qkv_args.h"

#include <algorithm>

#include "core/expr.h"
#include "ops/gemm/reference/quant_rows.h"
#include "ops/shared/inner_call.h"

namespace pestle::ops {
namespace {

int64_t number(const Call& call, std::string_view name) {
  return call.integer(find_arg(*call.spec, name));
}

// What the op of one weight calls its scales and attributes.
void set_format(const Call& call, const QkvPart& part, InnerCall* inner) {
  inner->set("scale", call.tensor(part.scale));
  switch (qkv_format(call)) {
    case QkvFormat::kInt8Row: inner->set("granularity", std::string_view("row")); [[fallthrough]];
    case QkvFormat::kInt8Tensor: inner->pass("hadamard"); return;
    case QkvFormat::kInt4:
      for (const char* name : {"hadamard", "group_size", "mode"}) inner->pass(name);
      if (call.has(part.zero)) inner->set("zero", call.tensor(part.zero));
      return;
    default:
      for (const char* name : {"nibbles", "scale_layout"}) inner->pass(name);
      inner->set("global_scale", call.tensor(part.global_scale));
  }
}

std::string format_name(const Call& call) {
  switch (qkv_format(call)) {
    case QkvFormat::kInt4: return "int4";
    case QkvFormat::kNvfp4: return "nvfp4";
    default: return "int8";
  }
}

}  // namespace

QkvFormat qkv_format(const Call& call) { return static_cast<QkvFormat>(number(call, "format")); }

bool as_matrix(const TensorView& t, TensorView* matrix) {
  int64_t rows = 1, stride = row_length(t);  // any would do for a single row
  for (int d = t.rank - 2; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (rows == 1)
      stride = t.strides[d];
    else if (t.strides[d] != stride * rows)
      return false;
    rows *= t.shape[d];
  }
  *matrix = t;
  matrix->rank = 2;
  matrix->shape[0] = rows;
  matrix->shape[1] = t.shape[t.rank - 1];
  matrix->strides[0] = stride;
  matrix->strides[1] = t.strides[t.rank - 1];
  return true;
}

Status run_qkv_linear(const Call& call, const QkvPart& part) {
  if (numel(call.tensor(part.out)) == 0) return {};
  InnerCall inner(call, "linear_" + format_name(call));
  inner.pass("x");
  inner.set("weight", call.tensor(part.weight));
  set_format(call, part, &inner);
  if (call.has(part.bias)) inner.set("bias", call.tensor(part.bias));
  inner.set("out", call.tensor(part.out));
  return inner.run(call.workspace, call.workspace_bytes);
}

Status decode_qkv_weight(const Call& call, const QkvPart& part, const TensorView& out,
                         void* workspace, int64_t bytes) {
  InnerCall inner(call, "dequantize_" + format_name(call));
  inner.set("q", call.tensor(part.weight));
  set_format(call, part, &inner);
  inner.set("out", out);
  return inner.run(workspace, bytes);
}

void read_qkv_row(const Call& call, const QkvPart& part, int64_t n, double* values) {
  const TensorView& weight = call.tensor(part.weight);
  const int64_t k = row_length(weight);
  switch (qkv_format(call)) {
    case QkvFormat::kFloat:
      for (int64_t i = 0; i < k; ++i)
        values[i] = load_f64(row_address(weight, n) + i * last_stride_bytes(weight), weight.dtype);
      return;
    case QkvFormat::kInt8Tensor:
    case QkvFormat::kInt8Row: {
      const bool one = qkv_format(call) == QkvFormat::kInt8Tensor;
      return Int8Rows{weight, call.tensor(part.scale), one, std::max<int64_t>(k, 1)}(n, values);
    }
    case QkvFormat::kInt4: {
      const int64_t group = int4_group(number(call, "group_size"), 2 * k);
      const TensorView* zero = call.has(part.zero) ? &call.tensor(part.zero) : nullptr;
      return Int4Rows{weight, call.tensor(part.scale), zero, group}(n, values);
    }
    case QkvFormat::kNvfp4:
      return Nvfp4Rows{weight, call.tensor(part.scale),
                       load<float>(call.tensor(part.global_scale).data),
                       number(call, "nibbles") == 0, number(call, "scale_layout") == 0}(n, values);
  }
}

}  // namespace pestle::ops
