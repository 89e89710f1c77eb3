// reduce_backward, reference: float64, two passes over x in the order of the logical tensor.
#include <cmath>
#include <vector>

#include "core/op.h"
#include "ops/reduce/reduce_backward/reduce_backward_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::reduce_backward {
namespace {

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kY = arg_index(spec, "y");
constexpr int kDX = arg_index(spec, "d_x");
constexpr int kOpArg = arg_index(spec, "op");
constexpr int kDims = arg_index(spec, "dims");

// What is known of a set: of amax and amin the extreme and how often it occurs; of prod the product
// without zeros and how many there are.
struct Set {
  double value = 0;
  double count = 0;
};

// body(set, x, address of d_x) for every element.
template <class Body>
void for_each(const Call& call, Body&& body) {
  const TensorView& x = call.tensor(kX);
  const TensorView& d_x = call.tensor(kDX);
  for (int64_t element = 0; element < numel(x); ++element) {
    int64_t rest = element, set = 0, sets = 1, from = 0, to = 0;
    for (int d = x.rank - 1; d >= 0; --d) {
      const int64_t index = rest % x.shape[d];
      rest /= x.shape[d];
      from += index * x.strides[d];
      to += index * d_x.strides[d];
      if (call.integer(kDims) >> d & 1) continue;
      set += index * sets;
      sets *= x.shape[d];
    }
    body(static_cast<size_t>(set), load_f64(x.as<char>() + from * dtype_bytes(x.dtype), x.dtype),
         d_x.as<char>() + to * dtype_bytes(d_x.dtype));
  }
}

std::vector<double> values_of(const TensorView& t) {
  std::vector<double> values;
  for (int64_t row = 0; numel(t) > 0 && row < row_count(t); ++row) {
    for (int64_t j = 0; j < row_length(t); ++j) {
      values.push_back(load_f64(row_address(t, row) + j * last_stride_bytes(t), t.dtype));
    }
  }
  return values;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void learn(int64_t op, Set& set, double x) {
  if (op == kProd) {
    if (set.count == 0 && set.value == 0) set.value = 1;
    if (x == 0)
      ++set.count;
    else
      set.value *= x;
    return;
  }
  const bool max = op == kAmax || op == kMax;
  const bool first = set.count == 0;
  const bool beats =
      !std::isnan(set.value) && (std::isnan(x) || (max ? x > set.value : x < set.value));
  if (first || beats)
    set = {x, 1};
  else if (same(x, set.value))
    ++set.count;
}

// `magnitude` is what an error of one rounding is measured by.
double gradient(int64_t op, double x, double y, double g, const Set& set, double n,
                double& magnitude) {
  double result = 0;
  magnitude = 1;
  switch (op) {
    case kSum: result = g; break;
    case kMean: result = g / n; break;
    case kNorm: result = y == 0 ? 0 : g * (x / y); break;
    case kLogsumexp:
      result = g * std::exp(x - y);
      magnitude = 1 + std::fabs(x - y);
      break;
    case kProd:
      result = set.count > 1 || (set.count == 1 && x != 0)
                   ? 0
                   : g * (x == 0 ? set.value : set.value / x);
      break;
    default: result = same(x, set.value) ? g / set.count : 0;
  }
  magnitude *= std::fabs(result);
  return result;
}

Status run(const Call& call) {
  const TensorView& d_x = call.tensor(kDX);
  const int64_t op = call.integer(kOpArg);
  const std::vector<double> g = values_of(call.tensor(kDOut)), y = values_of(call.tensor(kY));
  std::vector<Set> sets(g.size());
  if (op == kProd || (op >= kAmax && op <= kMin)) {
    for_each(call, [&](size_t set, double x, char*) { learn(op, sets[set], x); });
  }
  const double n = g.empty() ? 0 : static_cast<double>(numel(d_x)) / static_cast<double>(g.size());
  for_each(call, [&](size_t set, double x, char* to) {
    double magnitude = 0;
    const double v = gradient(op, x, y[set], g[set], sets[set], n, magnitude);
    store_f64(to, d_x.dtype, call.sum_magnitudes ? magnitude : v);
  });
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::reduce_backward
