// argmax and argmin on the CPU: the reference, and rows and columns by pieces.
#include "ops/reduce/arg_reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/simd/row_math.h"
#include "ops/reduce/reduce_plan.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// An element and its place among the reduced ones.
struct Best {
  float value = kLowest;
  int64_t place = -1;  // none yet

  bool beaten_by(float v) const {
    if (place < 0) return true;
    return !std::isnan(value) && (std::isnan(v) || v > value);
  }
};

ReducePlan plan_of(const Call& call) {
  return {call.tensor(0), call.tensor(1), call.integer(2), call.integer(3) != 0};
}

// The first largest of `count` values times sign.
Best best_of_run(const char* x, DType dtype, int64_t count, int sign) {
  float v[cpu::kRowPiece];
  Best best;
  for (int64_t i = 0; i < count; i += cpu::kRowPiece) {
    const int64_t n = std::min(cpu::kRowPiece, count - i);
    cpu::row_load(x + i * dtype_bytes(dtype), dtype, v, n);
    if (sign < 0) cpu::row_scale(v, -1, v, n);
    const float top = cpu::row_max(v, n);
    if (!best.beaten_by(top)) continue;
    int64_t j = 0;
    while (!(v[j] == top) && !(std::isnan(v[j]) && std::isnan(top))) ++j;
    best = {top, i + j};
  }
  return best;
}

void run_rows(const Call& call, const ReducePlan& plan, int sign) {
  const int64_t pieces = (plan.count + kPieceElements - 1) / kPieceElements;
  auto* bests = static_cast<Best*>(call.workspace);
  const auto put = [&](int64_t row, const Best& best) {
    int64_t from, to;
    plan.place(row, from, to);
    store(plan.out + to, best.place);
  };
  const int64_t grain = std::max<int64_t>(1, kPieceElements / plan.count);
  cpu::parallel_for(plan.outs * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces, start = task % pieces * kPieceElements;
      int64_t from, to;
      plan.place(row, from, to);
      Best best = best_of_run(plan.x + from + start * plan.x_bytes(), plan.x_dtype,
                              std::min(kPieceElements, plan.count - start), sign);
      best.place += start;
      if (pieces == 1)
        put(row, best);
      else
        bests[task] = best;
    }
  });
  for (int64_t row = 0; pieces > 1 && row < plan.outs; ++row) {
    Best all;
    for (int64_t i = 0; i < pieces; ++i) {
      const Best& one = bests[row * pieces + i];
      if (all.beaten_by(one.value)) all = one;
    }
    put(row, all);
  }
}

void run_columns(const ReducePlan& plan, int sign) {
  constexpr int64_t kColumns = 256;
  const int64_t width = plan.kept.size[plan.kept.rank - 1];
  const int64_t step = plan.kept.out_stride[plan.kept.rank - 1];
  const int64_t tasks = (width + kColumns - 1) / kColumns;
  cpu::parallel_for(plan.outs / width * tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % tasks * kColumns;
      const int64_t count = std::min(kColumns, width - first);
      int64_t from, to;
      plan.place(task / tasks * width + first, from, to);
      float v[kColumns];
      Best best[kColumns];
      for (int64_t row = 0; row < plan.count; ++row) {
        cpu::row_load(plan.x + from + row * plan.gone.x_stride[0], plan.x_dtype, v, count);
        if (sign < 0) cpu::row_scale(v, -1, v, count);
        for (int64_t i = 0; i < count; ++i) {
          if (best[i].beaten_by(v[i])) best[i] = {v[i], row};
        }
      }
      for (int64_t i = 0; i < count; ++i) store(plan.out + to + i * step, best[i].place);
    }
  });
}

}  // namespace

Status reference_arg_reduce(const Call& call, int sign) {
  const TensorView& x = call.tensor(0);
  const TensorView& out = call.tensor(1);
  const int64_t dims = call.integer(2);
  std::vector<Best> bests(static_cast<size_t>(numel(out)));
  // Elements in row-major order: the place of each among those of its result, and which that is.
  for (int64_t element = 0; element < numel(x); ++element) {
    int64_t rest = element, offset = 0, result = 0, results = 1, place = 0, places = 1;
    for (int d = x.rank - 1; d >= 0; --d) {
      const int64_t index = rest % x.shape[d];
      rest /= x.shape[d];
      offset += index * x.strides[d];
      const bool goes = (dims >> d & 1) != 0;
      (goes ? place : result) += index * (goes ? places : results);
      (goes ? places : results) *= x.shape[d];
    }
    const float v =
        static_cast<float>(sign) * load_f32(x.as<char>() + offset * dtype_bytes(x.dtype), x.dtype);
    Best& best = bests[static_cast<size_t>(result)];
    if (best.beaten_by(v)) best = {v, place};
  }
  for (int64_t row = 0; numel(out) > 0 && row < row_count(out); ++row) {
    for (int64_t j = 0; j < row_length(out); ++j) {
      store(row_address(out, row) + j * last_stride_bytes(out),
            bests[static_cast<size_t>(row * row_length(out) + j)].place);
    }
  }
  return {};
}

Status cpu_arg_reduce(const Call& call, int sign) {
  const ReducePlan plan = plan_of(call);
  if (plan.is_rows())
    run_rows(call, plan, sign);
  else
    run_columns(plan, sign);
  return {};
}

std::string refuse_cpu_arg_reduce(const Call& call, const Machine&) {
  const ReducePlan plan = plan_of(call);
  if (plan.outs == 0 || plan.count == 0) return "x is empty";
  return plan.is_rows() || plan.is_columns()
             ? ""
             : "neither the reduced elements nor the innermost kept ones are neighbours";
}

}  // namespace pestle::ops
