#include "ops/gemm/linear/linear_rows.h"

#include <string>

#include "core/expr.h"
#include "ops/shared/inner_call.h"

namespace pestle::ops {
namespace {

// Pieces of the workspace, each at a multiple of 256 bytes.
struct Pieces {
  char* at;
  char* end;

  explicit Pieces(const Call& call)
      : at(static_cast<char*>(call.workspace)), end(at + call.workspace_bytes) {}
  void* take(int64_t bytes) {
    auto* p = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at) + 255) & ~uintptr_t{255});
    at = p + bytes;
    return p;
  }
  void rest(Call* call) const {
    call->workspace = at;
    call->workspace_bytes = end - at;
  }
};

TensorView take_input(const Call& call, Pieces* pieces) {
  const DType dtype = call.tensor(find_arg(*call.spec, "x")).dtype;
  TensorView y = rows_like_x(call, nullptr, dtype, input_columns(call));
  y.data = pieces->take(size_bytes(y));
  return y;
}

// One scale for all as one for each row of the weight.
TensorView scales_of_rows(const TensorView& scale, int64_t rows) {
  if (row_count(scale) == rows && scale.rank == 2) return scale;
  const int64_t dims[2] = {rows, 1};
  TensorView t = make_view(scale.data, DType::kF32, 2, dims);
  t.strides[0] = 0;
  t.device = scale.device;
  return t;
}

Status quantize_x(const Call& call, std::string_view format, const TensorView* x, int64_t hadamard,
                  const TensorView& q, const TensorView& scale, const Pieces& pieces) {
  InnerCall inner(call, "quantize_" + std::string(format));
  inner.pass("x");
  if (x != nullptr) inner.set("x", *x);
  inner.set("granularity", std::string_view("row"));
  if (format == "int8") inner.set("hadamard", hadamard);
  inner.set("q", q);
  inner.set("scale_out", scale);
  return inner.run(pieces.at, pieces.end - pieces.at);
}

}  // namespace

Status run_linear_input(const Call& call, const LinearArgs& args, const cpu::QuantMatrix& weight,
                        int64_t hadamard) {
  Pieces pieces(call);
  const TensorView y = take_input(call, &pieces);
  PESTLE_TRY(run_input(call, y));
  Call rest = call;
  pieces.rest(&rest);
  return run_linear(rest, args, weight, hadamard, &y);
}

Status run_linear_rows(const Call& call, std::string_view format, DType codes, int64_t hadamard) {
  Pieces pieces(call);
  TensorView q = rows_like_x(call, nullptr, codes, input_columns(call));
  TensorView scale = rows_like_x(call, nullptr, DType::kF32, 1);
  q.data = pieces.take(size_bytes(q));
  scale.data = pieces.take(size_bytes(scale));
  if (!has_input_act(call)) {
    PESTLE_TRY(quantize_x(call, format, nullptr, hadamard, q, scale, pieces));
  } else if (codes == DType::kE5M2) {  // no op's quantised output
    const TensorView y = take_input(call, &pieces);
    PESTLE_TRY(run_input(call, y));
    PESTLE_TRY(quantize_x(call, format, &y, hadamard, q, scale, pieces));
  } else {
    PESTLE_TRY(run_input_quantized(call, std::string(format) + "_row", hadamard, q, scale));
  }
  const TensorView& weight = call.tensor(find_arg(*call.spec, "weight"));
  InnerCall product(call, "scaled_mm_" + std::string(format));
  product.set("a", q);
  product.set("b", weight);
  product.set("scale_a", scale);
  product.set("scale_b",
              scales_of_rows(call.tensor(find_arg(*call.spec, "scale")), row_count(weight)));
  product.set("granularity", std::string_view("row"));
  product.pass("out");
  for (const Arg& arg : kEpilogueArgs) product.pass(arg.name);
  return product.run(pieces.at, pieces.end - pieces.at);
}

}  // namespace pestle::ops
