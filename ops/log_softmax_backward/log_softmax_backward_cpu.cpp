// log_softmax_backward on the CPU: pieces of rows as floats; threads over rows.
// Map      a row goes to one thread, in pieces of 2,048 elements
// Traffic  d_out and out twice (from the cache where a row fits it), d_x once
// Numerics f32, sums of a piece in lanes, pieces in double
#include "backends/cpu/simd/row_math.h"
#include "ops/common/softmax_cpu.h"
#include "ops/log_softmax_backward/log_softmax_backward_spec.h"

namespace pestle::ops::log_softmax_backward {
namespace {

constexpr int kGrad = arg_index(spec, "d_out");
constexpr int kOut = arg_index(spec, "out");
constexpr int kDx = arg_index(spec, "d_x");
constexpr int kDim = arg_index(spec, "dim");
constexpr int kScale = arg_index(spec, "scale");

struct Rows {
  TensorView d_out, out, d_x;
  float scale;
};

void load(const TensorView& t, int64_t row, int64_t begin, int64_t count, float* v) {
  cpu::row_load(row_address(t, row) + begin * dtype_bytes(t.dtype), t.dtype, v, count);
}

void do_row(const Rows& rows, int64_t row) {
  const int64_t n = row_length(rows.out);
  char* to = row_address(rows.d_x, row);
  float g[cpu::kRowPiece];
  float y[cpu::kRowPiece];
  double sum = 0;
  for_pieces(n, [&](int64_t begin, int64_t count) {
    load(rows.d_out, row, begin, count, g);
    sum += cpu::row_sum(g, count);
  });
  for_pieces(n, [&](int64_t begin, int64_t count) {
    if (n > cpu::kRowPiece) load(rows.d_out, row, begin, count, g);
    load(rows.out, row, begin, count, y);
    cpu::row_exp(y, 0, y, count);
    cpu::row_add_scaled(g, y, -static_cast<float>(sum), g, count);
    if (rows.scale != 1) cpu::row_scale(g, rows.scale, g, count);
    cpu::row_store(g, to + begin * dtype_bytes(rows.d_x.dtype), rows.d_x.dtype, count);
  });
}

Status run(const Call& call) {
  const int64_t dim = call.integer(kDim);
  const Rows rows{rows_along(call.tensor(kGrad), dim), rows_along(call.tensor(kOut), dim),
                  rows_along(call.tensor(kDx), dim), call.number(kScale)};
  parallel_rows(row_count(rows.out), row_length(rows.out), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) do_row(rows, row);
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  for (int index : {kGrad, kOut, kDx}) {
    std::string why = refuse_row_strides(spec.args[static_cast<size_t>(index)].name,
                                         call.tensor(index), call.integer(kDim));
    if (!why.empty()) return why;
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/log_softmax_backward_simd", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::log_softmax_backward
