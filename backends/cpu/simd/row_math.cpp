// The one file that holds SIMD code for every target so that a new op's CPU path needs none.
#include "backends/cpu/simd/row_math.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/simd/row_math.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kLanes = kN;
constexpr int64_t kRun = 4096;  // elements that are added up in f32

HWY_INLINE VF set(float v) { return hn::Set(DF(), v); }
HWY_INLINE VF load_rest(const float* p, int64_t rest) {
  return load_n<F32>(p, static_cast<size_t>(rest));
}

// A sum in each lane, and what its additions lost.
struct LongSum {
  VF sum, lost;

  HWY_INLINE void add(VF v) {
    const VF all = hn::Add(sum, v);
    const VF taken = hn::Sub(all, sum);
    lost = hn::Add(lost, hn::Add(hn::Sub(sum, hn::Sub(all, taken)), hn::Sub(v, taken)));
    sum = all;
  }
  // An infinite sum has lost no number.
  HWY_INLINE double total() const {
    const float all = hn::GetLane(hn::SumOfLanes(DF(), sum));
    const float rest = hn::GetLane(hn::SumOfLanes(DF(), lost));
    return std::isfinite(all) ? double{all} + double{rest} : double{all};
  }
};

// Sum of term(a, b) over [begin, end).
template <class Term>
HWY_INLINE double sum_run(const float* a, const float* b, int64_t begin, int64_t end, Term&& term) {
  LongSum sum{set(0), set(0)};
  const auto at = [&](int64_t i) HWY_ATTR { return term(F32::load(a + i), F32::load(b + i)); };
  const auto two = [&](int64_t i) HWY_ATTR { return hn::Add(at(i), at(i + kLanes)); };
  const auto four = [&](int64_t i) HWY_ATTR { return hn::Add(two(i), two(i + 2 * kLanes)); };
  int64_t i = begin;
  for (; i + 8 * kLanes <= end; i += 8 * kLanes) sum.add(hn::Add(four(i), four(i + 4 * kLanes)));
  for (; i + kLanes <= end; i += kLanes) sum.add(at(i));
  if (i < end) {
    const auto inside = hn::FirstN(DF(), static_cast<size_t>(end - i));
    const VF last = term(load_rest(a + i, end - i), load_rest(b + i, end - i));
    sum.add(hn::IfThenElseZero(inside, last));
  }
  return sum.total();
}

template <class Term>
HWY_INLINE double sum_of(const float* a, const float* b, int64_t count, Term&& term) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    total += sum_run(a, b, begin, std::min(begin + kRun, count), term);
  }
  return total;
}

// out = f(a, b, c).
template <class F>
HWY_INLINE void map(const float* a, const float* b, const float* c, float* out, int64_t count,
                    F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    F32::store(f(F32::load(a + i), F32::load(b + i), F32::load(c + i)), out + i);
  }
  const int64_t rest = count - i;
  if (rest == 0) return;
  const VF v = f(load_rest(a + i, rest), load_rest(b + i, rest), load_rest(c + i, rest));
  store_n<F32>(v, out + i, static_cast<size_t>(rest));
}

// exp(x) = 2^n * e^r with r in +-ln 2 / 2 (two-step reduction, polynomial of degree 6), n halved so
// that results down to the subnormals and up to the largest float are reached by two products.
HWY_INLINE VF exp_of(VF x) {
  const VF clamped = hn::Min(hn::Max(x, set(-104.5f)), set(89.0f));
  const VF n = hn::Round(hn::Mul(clamped, set(1.44269504f)));
  VF r = hn::NegMulAdd(n, set(0.693359375f), clamped);
  r = hn::NegMulAdd(n, set(-2.12194440e-4f), r);
  VF p = set(1.9875691500e-4f);
  p = hn::MulAdd(p, r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), set(1.0f));
  const VI whole = hn::ConvertTo(DI(), n);
  const VI half = hn::ShiftRight<1>(whole);
  const auto power = [](VI e) HWY_ATTR {
    return hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(e, hn::Set(DI(), 127))));
  };
  const VF y = hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(whole, half)));
  return hn::IfThenElse(nan_lanes(x), x, y);
}

// 1 / (1 + exp(-x)) and its distance from 1, both without loss for any x.
struct Sigmoid {
  VF value, rest;
};
HWY_INLINE Sigmoid sigmoid_pair(VF x) {
  const VF e = exp_of(hn::Neg(hn::Abs(x)));
  const VF large = hn::Div(set(1), hn::Add(set(1), e));
  const VF small = hn::Mul(e, large);
  const auto positive = hn::Ge(x, set(0));
  return {hn::IfThenElse(positive, large, small), hn::IfThenElse(positive, small, large)};
}
// Phi(x) of the normal distribution.
HWY_INLINE VF normal_of(VF x) {
  const VF z = hn::Abs(x);
  VF p = hn::MulAdd(set(kTail8), z, set(kTail7));
  for (float c : {kTail6, kTail5, kTail4, kTail3, kTail2, kTail1}) p = hn::MulAdd(p, z, set(c));
  const VF tail = exp_of(hn::Mul(hn::MulAdd(p, z, set(-1)), set(0.6931471806f)));
  return hn::IfThenElse(hn::Ge(x, set(0)), hn::Sub(set(1), tail), tail);
}
HWY_INLINE VF tanh_argument(VF x) {
  return hn::Mul(x, hn::MulAdd(hn::Mul(x, x), set(kTanhCubic), set(kTanhLinear)));
}

HWY_INLINE VF silu_slope(VF x) {
  const Sigmoid s = sigmoid_pair(x);
  const VF near = hn::Min(hn::Max(x, set(-kSlopeEnd)), set(kSlopeEnd));
  return hn::Mul(s.value, hn::MulAdd(near, s.rest, set(1)));
}
HWY_INLINE VF gelu_slope(VF x) {
  const VF near = hn::Min(hn::Max(x, set(-kSlopeEnd)), set(kSlopeEnd));
  const VF density = hn::Mul(exp_of(hn::Mul(hn::Mul(near, near), set(-0.5f))), set(kNormalDensity));
  return hn::MulAdd(near, density, normal_of(x));
}
HWY_INLINE VF gelu_tanh_slope(VF x) {
  const Sigmoid s = sigmoid_pair(tanh_argument(x));
  const VF near = hn::Min(hn::Max(x, set(-kSlopeEnd)), set(kSlopeEnd));
  const VF inner = hn::MulAdd(hn::Mul(near, near), set(3 * kTanhCubic), set(kTanhLinear));
  return hn::MulAdd(hn::Mul(hn::Mul(near, s.value), s.rest), inner, s.value);
}

HWY_INLINE VF sigmoid_of(VF x) { return hn::Div(set(1), hn::Add(set(1), exp_of(hn::Neg(x)))); }

}  // namespace

void load(const void* in, DType dtype, float* out, int64_t count) {
  with_element(dtype, [&]<class T>(T) { load_floats<T>(in, out, count); });
}
void store(const float* in, void* out, DType dtype, int64_t count, bool stream) {
  with_element(dtype, [&]<class T>(T) { store_floats<T>(in, out, count, stream); });
}
void round(float* x, DType dtype, int64_t count) {
  if (dtype == DType::kF32) return;
  HWY_ALIGN uint16_t buffer[256];
  for (int64_t i = 0; i < count; i += 256) {
    const int64_t n = std::min<int64_t>(256, count - i);
    store(x + i, buffer, dtype, n, false);
    load(buffer, dtype, x + i, n);
  }
}
void flush() { hwy::FlushStream(); }

double sum(const float* x, int64_t n) {
  return sum_of(x, x, n, [](VF a, VF) HWY_ATTR { return a; });
}
double sum_squares(const float* x, int64_t n) {
  return sum_of(x, x, n, [](VF a, VF) HWY_ATTR { return hn::Mul(a, a); });
}
double sum_squared_differences(const float* x, float mean, int64_t n) {
  const VF m = set(mean);
  return sum_of(x, x, n, [&](VF a, VF) HWY_ATTR {
    const VF d = hn::Sub(a, m);
    return hn::Mul(d, d);
  });
}
double dot(const float* a, const float* b, int64_t n) {
  return sum_of(a, b, n, [](VF u, VF v) HWY_ATTR { return hn::Mul(u, v); });
}

float max(const float* x, int64_t n) {
  VF largest = set(-INFINITY);
  VF odd = set(0);  // NaN once one was seen
  int64_t i = 0;
  const auto take = [&](VF v) HWY_ATTR {
    odd = hn::Add(odd, hn::IfThenElseZero(nan_lanes(v), v));
    largest = hn::Max(largest, v);
  };
  for (; i + kLanes <= n; i += kLanes) take(F32::load(x + i));
  if (i < n) {
    const auto inside = hn::FirstN(DF(), static_cast<size_t>(n - i));
    take(hn::IfThenElse(inside, load_rest(x + i, n - i), set(-INFINITY)));
  }
  const float nan = hn::GetLane(hn::SumOfLanes(DF(), odd));
  return nan != nan ? nan : hn::GetLane(hn::MaxOfLanes(DF(), largest));
}

double exp_and_sum(const float* x, float m, float* out, int64_t n) {
  const VF shift = set(m);
  map(x, x, x, out, n, [&](VF v, VF, VF) HWY_ATTR { return exp_of(hn::Sub(v, shift)); });
  return sum(out, n);
}
void exp_scaled(const float* x, float m, float factor, float* out, int64_t n) {
  const VF shift = set(m), by = set(factor);
  map(x, x, x, out, n,
      [&](VF v, VF, VF) HWY_ATTR { return hn::Mul(exp_of(hn::Sub(v, shift)), by); });
}

void scale(const float* x, float factor, float* out, int64_t n) {
  const VF by = set(factor);
  map(x, x, x, out, n, [&](VF v, VF, VF) HWY_ATTR { return hn::Mul(v, by); });
}
void normalize(const float* x, float mean, float factor, float* out, int64_t n) {
  const VF m = set(mean), by = set(factor);
  map(x, x, x, out, n, [&](VF v, VF, VF) HWY_ATTR { return hn::Mul(hn::Sub(v, m), by); });
}
void affine(const float* x, float factor, float shift, float* out, int64_t n) {
  const VF by = set(factor), plus = set(shift);
  map(x, x, x, out, n, [&](VF v, VF, VF) HWY_ATTR { return hn::Add(hn::Mul(v, by), plus); });
}
void add(const float* a, const float* b, float* out, int64_t n) {
  map(a, b, b, out, n, [](VF u, VF v, VF) HWY_ATTR { return hn::Add(u, v); });
}
void subtract(const float* a, const float* b, float* out, int64_t n) {
  map(a, b, b, out, n, [](VF u, VF v, VF) HWY_ATTR { return hn::Sub(u, v); });
}
void multiply(const float* a, const float* b, float* out, int64_t n) {
  map(a, b, b, out, n, [](VF u, VF v, VF) HWY_ATTR { return hn::Mul(u, v); });
}
void multiply_add(const float* a, const float* b, const float* c, float* out, int64_t n) {
  map(a, b, c, out, n, [](VF u, VF v, VF w) HWY_ATTR { return hn::Add(hn::Mul(u, v), w); });
}
void add_scaled(const float* a, const float* b, float factor, float* out, int64_t n) {
  const VF by = set(factor);
  map(a, b, b, out, n, [&](VF u, VF v, VF) HWY_ATTR { return hn::Add(u, hn::Mul(v, by)); });
}
void add_constant(const float* x, float constant, float* out, int64_t n) {
  const VF plus = set(constant);
  map(x, x, x, out, n, [&](VF v, VF, VF) HWY_ATTR { return hn::Add(v, plus); });
}
void sigmoid(const float* x, float* out, int64_t n) {
  map(x, x, x, out, n, [](VF v, VF, VF) HWY_ATTR { return sigmoid_of(v); });
}
void silu(const float* x, float* out, int64_t n) {
  map(x, x, x, out, n,
      [](VF v, VF, VF) HWY_ATTR { return hn::Div(v, hn::Add(set(1), exp_of(hn::Neg(v)))); });
}

void activation(Activation act, const float* x, float* out, int64_t n) {
  switch (act) {
    case Activation::kSilu:
      return map(x, x, x, out, n,
                 [](VF a, VF, VF) HWY_ATTR { return hn::Mul(a, sigmoid_pair(a).value); });
    case Activation::kGelu:
      return map(x, x, x, out, n, [](VF a, VF, VF) HWY_ATTR { return hn::Mul(a, normal_of(a)); });
    case Activation::kGeluTanh:
      return map(x, x, x, out, n, [](VF a, VF, VF) HWY_ATTR {
        return hn::Mul(a, sigmoid_pair(tanh_argument(a)).value);
      });
  }
}
void activation_slope(Activation act, const float* x, float* out, int64_t n) {
  switch (act) {
    case Activation::kSilu:
      return map(x, x, x, out, n, [](VF a, VF, VF) HWY_ATTR { return silu_slope(a); });
    case Activation::kGelu:
      return map(x, x, x, out, n, [](VF a, VF, VF) HWY_ATTR { return gelu_slope(a); });
    case Activation::kGeluTanh:
      return map(x, x, x, out, n, [](VF a, VF, VF) HWY_ATTR { return gelu_tanh_slope(a); });
  }
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::cpu {

HWY_EXPORT(load);
HWY_EXPORT(store);
HWY_EXPORT(flush);
HWY_EXPORT(round);
HWY_EXPORT(sum);
HWY_EXPORT(sum_squares);
HWY_EXPORT(sum_squared_differences);
HWY_EXPORT(dot);
HWY_EXPORT(max);
HWY_EXPORT(exp_and_sum);
HWY_EXPORT(exp_scaled);
HWY_EXPORT(scale);
HWY_EXPORT(normalize);
HWY_EXPORT(affine);
HWY_EXPORT(add);
HWY_EXPORT(subtract);
HWY_EXPORT(multiply);
HWY_EXPORT(multiply_add);
HWY_EXPORT(add_scaled);
HWY_EXPORT(add_constant);
HWY_EXPORT(sigmoid);
HWY_EXPORT(silu);
HWY_EXPORT(activation);
HWY_EXPORT(activation_slope);

void row_load(const void* in, DType dtype, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(load)(in, dtype, out, count);
}
void row_store(const float* in, void* out, DType dtype, int64_t count, bool stream) {
  HWY_DYNAMIC_DISPATCH(store)(in, out, dtype, count, stream);
}
void row_flush() { HWY_DYNAMIC_DISPATCH(flush)(); }
void row_round(float* x, DType dtype, int64_t count) {
  HWY_DYNAMIC_DISPATCH(round)(x, dtype, count);
}
double row_sum(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(sum)(x, count); }
double row_sum_squares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_squares)(x, count);
}
double row_sum_squared_differences(const float* x, float mean, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_squared_differences)(x, mean, count);
}
double row_dot(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(dot)(a, b, count);
}
float row_max(const float* x, int64_t count) { return HWY_DYNAMIC_DISPATCH(max)(x, count); }
double row_exp(const float* x, float m, float* out, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(exp_and_sum)(x, m, out, count);
}
void row_exp_scaled(const float* x, float m, float factor, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(exp_scaled)(x, m, factor, out, count);
}
void row_scale(const float* x, float factor, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(scale)(x, factor, out, count);
}
void row_normalize(const float* x, float mean, float factor, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(normalize)(x, mean, factor, out, count);
}
void row_affine(const float* x, float factor, float shift, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(affine)(x, factor, shift, out, count);
}
void row_add(const float* a, const float* b, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add)(a, b, out, count);
}
void row_subtract(const float* a, const float* b, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(subtract)(a, b, out, count);
}
void row_multiply(const float* a, const float* b, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(multiply)(a, b, out, count);
}
void row_multiply_add(const float* a, const float* b, const float* c, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_add)(a, b, c, out, count);
}
void row_add_scaled(const float* a, const float* b, float factor, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_scaled)(a, b, factor, out, count);
}
void row_add_constant(const float* x, float constant, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_constant)(x, constant, out, count);
}
void row_sigmoid(const float* x, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(sigmoid)(x, out, count);
}
void row_silu(const float* x, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(silu)(x, out, count);
}
void row_activation(Activation act, const float* x, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(activation)(act, x, out, count);
}
void row_activation_slope(Activation act, const float* x, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(activation_slope)(act, x, out, count);
}

}  // namespace pestle::cpu
#endif  // HWY_ONCE
