// reduce, reference: float64, elements in the order of the logical tensor.
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "core/op.h"
#include "ops/reduce/reduce/reduce_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::reduce {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOp = arg_index(spec, "op");
constexpr int kDims = arg_index(spec, "dims");

// body(index of the result, value) for every element of x.
template <class Body>
void for_each(const TensorView& x, int64_t dims, Body&& body) {
  int64_t step[kMaxRank] = {};  // in results
  int64_t results = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    if (dims >> d & 1) continue;
    step[d] = results;
    results *= x.shape[d];
  }
  if (numel(x) == 0) return;
  for (int64_t row = 0; row < row_count(x); ++row) {
    int64_t result = 0, rest = row;
    for (int d = x.rank - 2; d >= 0; --d) {
      result += rest % x.shape[d] * step[d];
      rest /= x.shape[d];
    }
    const char* from = row_address(x, row);
    for (int64_t j = 0; j < row_length(x); ++j) {
      body(result, load_f64(from + j * last_stride_bytes(x), x.dtype));
      if (x.rank > 0) result += step[x.rank - 1];
    }
  }
}

bool is_max(int64_t op) { return op == kAmax || op == kMax; }
bool is_min(int64_t op) { return op == kAmin || op == kMin; }

double start_of(int64_t op) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return is_max(op) || op == kLogsumexp ? -kInfinity : is_min(op) ? kInfinity : op == kProd ? 1 : 0;
}

double step_of(int64_t op, double so_far, double v, bool magnitudes) {
  switch (op) {
    case kSum:
    case kMean: return so_far + (magnitudes ? std::fabs(v) : v);
    case kProd: return so_far * v;
    // The squares are f32's: they over- and underflow as those do.
    case kNorm: return so_far + double{static_cast<float>(v) * static_cast<float>(v)};
    case kAmin:
    case kMin: return std::isnan(so_far) || !(std::isnan(v) || v < so_far) ? so_far : v;
    default: return std::isnan(so_far) || !(std::isnan(v) || v > so_far) ? so_far : v;
  }
}

double end_of(int64_t op, double value, double count, bool magnitudes) {
  // Sums beyond f32's range are infinite there, whatever is made of them: the magnitude says so.
  const bool overflows = magnitudes && value > FLT_MAX / 2;
  if (op == kMean) return overflows ? value : value / count;
  if (op == kProd) return magnitudes ? std::fabs(value) : value;
  if (is_max(op) || is_min(op)) return magnitudes ? 0 : value;
  return op != kNorm || overflows ? value : std::sqrt(value);
}

// base + log(sum of exp(x - base)), base the largest element within the finite f32s: so infinities
// and NaN need no cases of their own.
void finish_logsumexp(const Call& call, std::vector<double>& values) {
  std::vector<double> sums(values.size());
  for (double& base : values) {
    base = std::isnan(base) ? 0 : std::fmin(std::fmax(base, -double{FLT_MAX}), double{FLT_MAX});
  }
  for_each(call.tensor(kX), call.integer(kDims), [&](int64_t i, double v) {
    sums[static_cast<size_t>(i)] += std::exp(v - values[static_cast<size_t>(i)]);
  });
  for (size_t i = 0; i < values.size(); ++i) {
    // Beside the base, which is exact.
    values[i] =
        call.sum_magnitudes ? std::fabs(std::log(sums[i])) + 1 : values[i] + std::log(sums[i]);
  }
}

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const int64_t op = call.integer(kOp);
  std::vector<double> values(static_cast<size_t>(numel(out)), start_of(op));
  for_each(call.tensor(kX), call.integer(kDims), [&](int64_t i, double v) {
    double& value = values[static_cast<size_t>(i)];
    value = step_of(op, value, v, call.sum_magnitudes);
  });
  if (op == kLogsumexp) {
    finish_logsumexp(call, values);
  } else {
    const double count = values.empty() ? 0
                                        : static_cast<double>(numel(call.tensor(kX))) /
                                              static_cast<double>(values.size());
    for (double& value : values) value = end_of(op, value, count, call.sum_magnitudes);
  }
  for (int64_t row = 0; numel(out) > 0 && row < row_count(out); ++row) {
    for (int64_t j = 0; j < row_length(out); ++j) {
      store_f64(row_address(out, row) + j * last_stride_bytes(out), out.dtype,
                values[static_cast<size_t>(row * row_length(out) + j)]);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::reduce
