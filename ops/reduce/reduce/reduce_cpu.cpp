// reduce on the CPU.
// Map      pieces of 65,536 elements of the rows, or of 256 columns, over the threads; a row's
//          pieces are combined in order afterwards, so results do not depend on the threads
// Traffic  x once; logsumexp reads a piece of 2,048 elements twice, from the first cache
// Numerics f32 partial sums of up to 2,048 elements that keep what they lose (row_math.h), of 8 in
//          columns, added up in float64; one rounding
// Needs    reduced elements that are neighbours, or innermost kept ones that are
#include <cfloat>
#include <cmath>
#include <limits>

#include "backends/cpu/simd/row_math.h"
#include "core/op.h"
#include "ops/reduce/reduce/reduce_spec.h"
#include "ops/reduce/reduce_plan.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::reduce {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOp = arg_index(spec, "op");
constexpr int kDims = arg_index(spec, "dims");
constexpr int kKeepdim = arg_index(spec, "keepdim");

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What is known of some of the elements: their sum, product or largest; of logsumexp the sum of
// exp(x - base) too.
struct Partial {
  double value;
  double sum = 0;
};

Partial start_of(int64_t op) {
  switch (op) {
    case kAmax:
    case kMax: return {-kInfinity};
    case kAmin:
    case kMin: return {kInfinity};
    case kProd: return {1};
    case kLogsumexp: return {-double{FLT_MAX}};
    default: return {0};
  }
}

double largest(double a, double b) { return std::isnan(a) || b < a ? a : b; }

Partial combine(int64_t op, const Partial& a, const Partial& b) {
  switch (op) {
    case kAmax:
    case kMax: return {largest(a.value, b.value)};
    case kAmin:
    case kMin: return {-largest(-a.value, -b.value)};
    case kProd: return {a.value * b.value};
    case kLogsumexp: {
      const double base = std::fmax(a.value, b.value);
      return {base, a.sum * std::exp(a.value - base) + b.sum * std::exp(b.value - base)};
    }
    default: return {a.value + b.value};
  }
}

double finish(int64_t op, const Partial& p, int64_t count) {
  switch (op) {
    case kMean: return p.value / static_cast<double>(count);
    case kNorm: return std::sqrt(p.value);
    case kLogsumexp: return p.value + std::log(p.sum);
    default: return p.value;
  }
}

double product(const float* v, int64_t count) {
  constexpr int64_t kChains = 16;
  double chains[kChains];
  for (double& chain : chains) chain = 1;
  for (int64_t i = 0; i < count; ++i) chains[i % kChains] *= double{v[i]};
  double all = 1;
  for (double chain : chains) all *= chain;
  return all;
}

// Of up to kRowPiece values, which may be changed.
Partial of_values(int64_t op, float* v, int64_t count) {
  switch (op) {
    case kAmax:
    case kMax: return {cpu::row_max(v, count)};
    case kAmin:
    case kMin: cpu::row_scale(v, -1, v, count); return {-double{cpu::row_max(v, count)}};
    case kProd: return {product(v, count)};
    case kNorm: return {cpu::row_sum_squares(v, count)};
    case kLogsumexp: {
      const float top = cpu::row_max(v, count);
      const float base = std::isnan(top) ? 0 : std::fmin(std::fmax(top, -FLT_MAX), FLT_MAX);
      return {base, cpu::row_exp(v, base, v, count)};
    }
    default: return {cpu::row_sum(v, count)};
  }
}

Partial of_run(int64_t op, const char* x, DType dtype, int64_t count) {
  float v[cpu::kRowPiece];
  Partial all = start_of(op);
  for (int64_t i = 0; i < count; i += cpu::kRowPiece) {
    const int64_t n = std::min(cpu::kRowPiece, count - i);
    cpu::row_load(x + i * dtype_bytes(dtype), dtype, v, n);
    all = combine(op, all, of_values(op, v, n));
  }
  return all;
}

int64_t pieces_of(int64_t count) { return (count + kPieceElements - 1) / kPieceElements; }

Status run_rows(const Call& call, const ReducePlan& plan) {
  const int64_t op = call.integer(kOp);
  const int64_t pieces = pieces_of(plan.count);
  const auto store = [&](int64_t row, const Partial& p) {
    int64_t from, to;
    plan.place(row, from, to);
    store_f64(plan.out + to, plan.out_dtype, finish(op, p, plan.count));
  };
  auto* partials = static_cast<Partial*>(call.workspace);
  const int64_t grain = std::max<int64_t>(1, kPieceElements / plan.count);
  cpu::parallel_for(plan.outs * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces, start = task % pieces * kPieceElements;
      int64_t from, to;
      plan.place(row, from, to);
      const Partial p = of_run(op, plan.x + from + start * plan.x_bytes(), plan.x_dtype,
                               std::min(kPieceElements, plan.count - start));
      if (pieces == 1)
        store(row, p);
      else
        partials[task] = p;
    }
  });
  for (int64_t row = 0; pieces > 1 && row < plan.outs; ++row) {
    Partial all = start_of(op);
    for (int64_t i = 0; i < pieces; ++i) all = combine(op, all, partials[row * pieces + i]);
    store(row, all);
  }
  return {};
}

constexpr int64_t kColumns = 256;  // of a task
constexpr int64_t kRun = 8;        // rows that are added up in f32

// Columns that are reduced side by side: f32 over kRun rows, then float64.
struct Columns {
  double value[kColumns];
  double sum[kColumns];  // logsumexp
  float recent[kColumns];
  int64_t op;
  int64_t count;

  void begin() {
    const Partial start = start_of(op);
    std::fill_n(value, count, start.value);
    std::fill_n(sum, count, 0.0);
    clear();
  }
  void clear() { std::fill_n(recent, count, static_cast<float>(start_of(op).value)); }
  void add(float* v) {
    switch (op) {
      case kAmax:
      case kMax:
        for (int64_t i = 0; i < count; ++i) {
          recent[i] = v[i] > recent[i] || v[i] != v[i] ? v[i] : recent[i];
        }
        break;
      case kAmin:
      case kMin:
        for (int64_t i = 0; i < count; ++i) {
          recent[i] = v[i] < recent[i] || v[i] != v[i] ? v[i] : recent[i];
        }
        break;
      case kProd:
        for (int64_t i = 0; i < count; ++i) value[i] *= double{v[i]};
        break;
      case kNorm: cpu::row_multiply(v, v, v, count); [[fallthrough]];
      case kSum:
      case kMean: cpu::row_add(recent, v, recent, count); break;
      default:
        for (int64_t i = 0; i < count; ++i) {
          const float base = std::isnan(v[i]) ? 0 : std::fmin(std::fmax(v[i], -FLT_MAX), FLT_MAX);
          const Partial p =
              combine(op, {value[i], sum[i]}, {base, std::exp(double{v[i]} - double{base})});
          value[i] = p.value;
          sum[i] = p.sum;
        }
    }
  }
  // Takes what the last kRun rows gave into the totals.
  void settle() {
    if (op == kProd || op == kLogsumexp) return;
    if (op == kSum || op == kMean || op == kNorm) {
      for (int64_t i = 0; i < count; ++i) value[i] += double{recent[i]};
      return clear();
    }
    for (int64_t i = 0; i < count; ++i) {
      value[i] = combine(op, {value[i]}, {double{recent[i]}}).value;
    }
    clear();
  }
};

Status run_columns(const Call& call, const ReducePlan& plan) {
  const int64_t op = call.integer(kOp);
  const int64_t width = plan.kept.size[plan.kept.rank - 1];
  const int64_t tasks = (width + kColumns - 1) / kColumns;
  const int64_t out_step = plan.kept.out_stride[plan.kept.rank - 1];
  cpu::parallel_for(plan.outs / width * tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % tasks * kColumns;
      int64_t from, to;
      plan.place(task / tasks * width + first, from, to);
      Columns columns;
      columns.op = op;
      columns.count = std::min(kColumns, width - first);
      columns.begin();
      float v[kColumns];
      for (int64_t row = 0; row < plan.count; ++row) {
        cpu::row_load(plan.x + from + row * plan.gone.x_stride[0], plan.x_dtype, v, columns.count);
        columns.add(v);
        if (row % kRun == kRun - 1 || row + 1 == plan.count) columns.settle();
      }
      for (int64_t i = 0; i < columns.count; ++i) {
        const Partial p{columns.value[i], columns.sum[i]};
        store_f64(plan.out + to + i * out_step, plan.out_dtype, finish(op, p, plan.count));
      }
    }
  });
  return {};
}

ReducePlan plan_of(const Call& call) {
  return {call.tensor(kX), call.tensor(kOut), call.integer(kDims), call.integer(kKeepdim) != 0};
}

Status run(const Call& call) {
  const ReducePlan plan = plan_of(call);
  return plan.is_rows() ? run_rows(call, plan) : run_columns(call, plan);
}

std::string refuses(const Call& call, const Machine&) {
  const ReducePlan plan = plan_of(call);
  if (plan.outs == 0 || plan.count == 0) return "x is empty";
  return plan.is_rows() || plan.is_columns()
             ? ""
             : "neither the reduced elements nor the innermost kept ones are neighbours";
}

constexpr Impl kImpls[] = {
    {.id = "cpu/reduce_rows",
     .refuses = refuses,
     .run = run,
     .workspace = "16 * (numel(x) / 65536 + numel(out))"},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::reduce
