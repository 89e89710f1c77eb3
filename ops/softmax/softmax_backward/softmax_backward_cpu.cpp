// softmax_backward on the CPU: pieces of rows as floats; threads over rows.
// Map      a row goes to one thread, in pieces of 2,048 elements
// Traffic  d_out and out twice (from the cache where a row fits it), d_x once
// Numerics f32, sums of a piece in lanes, pieces in double
#include "backends/cpu/simd/row_math.h"
#include "ops/softmax/softmax_backward/softmax_backward_spec.h"
#include "ops/softmax/softmax_cpu.h"

namespace pestle::ops::softmax_backward {
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

void do_row(const Rows& rows, int64_t row) {
  const int64_t n = row_length(rows.out);
  float g[cpu::kRowPiece];
  float y[cpu::kRowPiece];
  double sum = 0;
  for_pieces(n, [&](int64_t begin, int64_t count) {
    load_piece(rows.d_out, row, begin, count, g);
    load_piece(rows.out, row, begin, count, y);
    sum += cpu::row_dot(g, y, count);
  });
  for_pieces(n, [&](int64_t begin, int64_t count) {
    if (n > cpu::kRowPiece) load_piece(rows.d_out, row, begin, count, g);
    if (n > cpu::kRowPiece) load_piece(rows.out, row, begin, count, y);
    cpu::row_add_constant(g, -static_cast<float>(sum), g, count);
    cpu::row_multiply(g, y, g, count);
    if (rows.scale != 1) cpu::row_scale(g, rows.scale, g, count);
    store_piece(rows.d_x, row, begin, count, g);
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

constexpr Impl kImpls[] = {
    {.id = "cpu/softmax_backward_simd", .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::softmax_backward
