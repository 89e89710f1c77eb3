// reduce_backward on the CPU.
// Map      sets (amax, amin, prod: what their gradients depend on), then pieces of x's rows, over
//          the threads
// Traffic  x and d_x once; amax, amin and prod read x twice
// Numerics f32; quotients of norm and prod in float64; one rounding
// Needs    nothing: any strides and dtypes
#include <cmath>

#include "core/op.h"
#include "ops/reduce/reduce_backward/reduce_backward_rule.h"
#include "ops/reduce/reduce_backward/reduce_backward_spec.h"
#include "ops/reduce/reduce_plan.h"
#include "ops/reduce/reduce_sets.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::reduce_backward {
namespace {

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kY = arg_index(spec, "y");
constexpr int kDX = arg_index(spec, "d_x");
constexpr int kOpArg = arg_index(spec, "op");
constexpr int kDims = arg_index(spec, "dims");
constexpr int kKeepdim = arg_index(spec, "keepdim");

void learn(const Call& call, Facts* facts) {
  const TensorView& x = call.tensor(kX);
  const int64_t op = call.integer(kOpArg);
  const ReducePlan plan(x, call.tensor(kY), call.integer(kDims), call.integer(kKeepdim) != 0);
  parallel_rows(plan.outs, plan.count, [&](int64_t begin, int64_t end) {
    for (int64_t set = begin; set < end; ++set) {
      int64_t from, to;
      plan.place(set, from, to);
      Facts all = no_facts(op);
      for (int64_t i = 0; i < plan.count; ++i) {
        int64_t rest = i, offset = from;
        for (int d = plan.gone.rank - 1; d >= 0; --d) {
          offset += rest % plan.gone.size[d] * plan.gone.x_stride[d];
          rest /= plan.gone.size[d];
        }
        all = join(op, all, facts_of(op, load_f32(plan.x + offset, x.dtype)));
      }
      facts[set] = all;
    }
  });
}

// Elements [begin, begin + count) of row `row`.
void run_piece(const Call& call, const ReduceSets& sets, const Facts* facts, int64_t row,
               int64_t begin, int64_t count) {
  const TensorView& g = call.tensor(kDOut);
  const TensorView& y = call.tensor(kY);
  const TensorView& in = call.tensor(kX);
  const TensorView& out = call.tensor(kDX);
  const int64_t op = call.integer(kOpArg);
  const int last = sets.rank - 1;
  int64_t from = 0, to = 0, at_g = 0, at_y = 0, set = 0;
  const auto move = [&](int d, int64_t index) {
    from += index * sets.x[d];
    to += index * sets.d_x[d];
    at_g += index * sets.d_out[d];
    at_y += index * sets.y[d];
    set += index * sets.set[d];
  };
  for (int d = last - 1; d >= 0; --d) {
    move(d, row % sets.shape[d]);
    row /= sets.shape[d];
  }
  if (last >= 0) move(last, begin);
  for (int64_t i = 0; i < count; ++i) {
    const float v = load_f32(in.as<char>() + from, in.dtype);
    const float result = load_f32(y.as<char>() + at_y, y.dtype);
    const float d = load_f32(g.as<char>() + at_g, g.dtype);
    const float gradient_of_v =
        op == kLogsumexp
            ? d * std::exp(v - result)
            : gradient(op, v, result, d, needs_facts(op) ? facts[set] : Facts{}, sets.count);
    store_f32(out.as<char>() + to, out.dtype, gradient_of_v);
    if (last >= 0) move(last, 1);
  }
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  if (numel(x) == 0) return {};
  auto* facts = static_cast<Facts*>(call.workspace);
  if (needs_facts(call.integer(kOpArg))) learn(call, facts);
  const ReduceSets sets(x, call.tensor(kDX), call.tensor(kDOut), call.tensor(kY),
                        call.integer(kDims), call.integer(kKeepdim) != 0);
  parallel_pieces(FlatRows(row_count(x), row_length(x)),
                  [&](int64_t row, int64_t begin, int64_t count) {
                    run_piece(call, sets, facts, row, begin, count);
                  });
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/reduce_backward_elements", .run = run, .workspace = "16 * numel(y)"},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::reduce_backward
