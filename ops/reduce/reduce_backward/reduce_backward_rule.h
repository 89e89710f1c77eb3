// The gradient of one element, on host and device.
#pragma once

#include <cstdint>

#include "formats/float_bits.h"
#include "ops/reduce/reduce_backward/reduce_backward_spec.h"

namespace pestle::ops::reduce_backward {

PESTLE_HD inline bool is_extreme(int64_t op) { return op >= kAmax && op <= kMin; }
PESTLE_HD inline bool is_largest(int64_t op) { return op == kAmax || op == kMax; }
PESTLE_HD inline bool needs_facts(int64_t op) { return is_extreme(op) || op == kProd; }

// What the gradient of every element of a set depends on: of an extreme its value (times the sign
// of is_largest) and how often it occurs, of a product that of the elements other than 0 and how
// many are 0.
struct Facts {
  double value;
  int64_t count;
};

PESTLE_HD inline Facts no_facts(int64_t op) { return {op == kProd ? 1.0 : 0.0, 0}; }

// Both are of some elements of one set.
PESTLE_HD inline Facts join(int64_t op, const Facts& a, const Facts& b) {
  if (op == kProd) return {a.value * b.value, a.count + b.count};
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a.value == b.value || (a_nan && b_nan)) return {a.value, a.count + b.count};
  return a_nan || (!b_nan && a.value > b.value) ? a : b;
}
PESTLE_HD inline Facts facts_of(int64_t op, float x) {
  if (op == kProd) return {x == 0 ? 1.0 : double{x}, x == 0 ? 1 : 0};
  return {is_largest(op) ? double{x} : -double{x}, 1};
}

// All but logsumexp's, whose exponential is the caller's.
PESTLE_HD inline float gradient(int64_t op, float x, float y, float g, const Facts& facts,
                                int64_t n) {
  switch (op) {
    case kSum: return g;
    case kMean: return g / static_cast<float>(n);
    case kNorm: return y == 0 ? 0 : static_cast<float>(double{g} * (double{x} / double{y}));
    case kProd:
      if (facts.count > 1 || (facts.count == 1 && x != 0)) return 0;
      return static_cast<float>(double{g} * (x == 0 ? facts.value : facts.value / double{x}));
    default: break;
  }
  const double v = is_largest(op) ? double{x} : -double{x};
  const bool same = v == facts.value || (v != v && facts.value != facts.value);
  return same ? g / static_cast<float>(facts.count) : 0;
}

}  // namespace pestle::ops::reduce_backward
