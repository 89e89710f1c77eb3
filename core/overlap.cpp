#include "core/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace pestle {
namespace {

// Whether sum of step[i] * x[i] = target has a solution in integers with 0 <= x[i] <= most[i].
// Steps are positive. Sums of addresses: nothing here leaves 64 bits for views of real memory.
class Equation {
 public:
  void add(int64_t step, int64_t most) {
    if (most <= 0) return;
    for (int i = 0; i < count_; ++i) {
      if (terms_[i].step != step) continue;
      terms_[i].most += most;
      return;
    }
    int place = count_++;
    for (; place > 0 && terms_[place - 1].step < step; --place) terms_[place] = terms_[place - 1];
    terms_[place] = {step, most, 0, 0};
  }

  Overlap solve(int64_t target) {
    int64_t reach = 0, divisor = 0;
    for (int i = count_ - 1; i >= 0; --i) {
      reach += terms_[i].step * terms_[i].most;
      divisor = std::gcd(divisor, terms_[i].step);
      terms_[i].reach = reach;
      terms_[i].divisor = divisor;
    }
    return search(0, target);
  }

 private:
  static constexpr int kMostSteps = 20'000;
  struct Term {
    int64_t step, most;
    int64_t reach, divisor;  // of this term and those after it
  };

  // From the largest step down: what is left must be within the reach of the smaller ones, which
  // for the strides of a tensor leaves a few multiples at each.
  Overlap search(int first, int64_t target) {
    if (first == count_) return target == 0 ? Overlap::kYes : Overlap::kNo;
    const Term& term = terms_[first];
    if (target < 0 || target > term.reach || target % term.divisor != 0) return Overlap::kNo;
    const int64_t rest = term.reach - term.step * term.most;
    const int64_t least = std::max<int64_t>(0, (target - rest + term.step - 1) / term.step);
    const int64_t most = std::min(term.most, target / term.step);
    for (int64_t x = least; x <= most; ++x) {
      if (++steps_ > kMostSteps) return Overlap::kTooHard;
      const Overlap found = search(first + 1, target - x * term.step);
      if (found != Overlap::kNo) return found;
    }
    return Overlap::kNo;
  }

  Term terms_[2 * kMaxRank + 1];  // the largest step first
  int count_ = 0;
  int steps_ = 0;
};

// Dimensions of more than one element, with strides in bytes made positive.
struct Grid {
  uintptr_t first;  // the lowest element
  int64_t bytes;    // of an element
  int rank = 0;
  int64_t last[kMaxRank];  // index
  int64_t step[kMaxRank];

  explicit Grid(const TensorView& t)
      : first(reinterpret_cast<uintptr_t>(t.data)), bytes(dtype_bytes(t.dtype)) {
    for (int d = 0; d < t.rank; ++d) {
      if (t.shape[d] <= 1) continue;
      const int64_t step_bytes = t.strides[d] * bytes;
      last[rank] = t.shape[d] - 1;
      step[rank] = std::abs(step_bytes);
      if (step_bytes < 0) first -= static_cast<uintptr_t>(-step_bytes * last[rank]);
      ++rank;
    }
  }
};

// Each stride beyond what the smaller ones span: as in nearly all tensors.
bool is_nested(const Grid& g) {
  for (int d = 0; d < g.rank; ++d) {
    int64_t span = g.bytes;  // of what has smaller strides, or the same and comes first
    for (int other = 0; other < g.rank; ++other) {
      const bool inside = g.step[other] < g.step[d] || (g.step[other] == g.step[d] && other < d);
      if (inside) span += g.step[other] * g.last[other];
    }
    if (g.step[d] < span) return false;
  }
  return true;
}

}  // namespace

Overlap overlap_of(const TensorView& a, const TensorView& b) {
  const ByteRange one = byte_range(a), other = byte_range(b);
  if (one.begin == one.end || other.begin == other.end) return Overlap::kNo;
  if (one.end <= other.begin || other.end <= one.begin) return Overlap::kNo;
  const Grid x(a), y(b);
  // first of a + steps + byte of an element = first of b + steps + byte; b's terms change sides,
  // counted from their last.
  Equation equation;
  int64_t target = static_cast<int64_t>(y.first - x.first) + y.bytes - 1;
  equation.add(1, x.bytes + y.bytes - 2);
  for (int d = 0; d < x.rank; ++d) {
    if (x.step[d] != 0) equation.add(x.step[d], x.last[d]);
  }
  for (int d = 0; d < y.rank; ++d) {
    if (y.step[d] == 0) continue;
    equation.add(y.step[d], y.last[d]);
    target += y.step[d] * y.last[d];
  }
  return equation.solve(target);
}

Overlap overlap_within(const TensorView& tensor) {
  const Grid g(tensor);
  if (numel(tensor) <= 1 || is_nested(g)) return Overlap::kNo;
  if (std::find(g.step, g.step + g.rank, 0) != g.step + g.rank) return Overlap::kYes;
  // Two elements that differ in dimension d, by at least one step of it, and in the others by any
  // number of steps either way.
  for (int d = 0; d < g.rank; ++d) {
    Equation equation;
    int64_t target = g.bytes - 1 - g.step[d];
    equation.add(1, 2 * (g.bytes - 1));
    equation.add(g.step[d], g.last[d] - 1);
    for (int other = 0; other < g.rank; ++other) {
      if (other == d) continue;
      equation.add(g.step[other], 2 * g.last[other]);
      target += g.step[other] * g.last[other];
    }
    const Overlap found = equation.solve(target);
    if (found != Overlap::kNo) return found;
  }
  return Overlap::kNo;
}

}  // namespace pestle
