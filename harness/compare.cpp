#include "harness/compare.h"

#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "backends/cpu/parallel.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/e8m0.h"

namespace pestle::harness {
namespace {

uint64_t word_at(const void* data, int64_t index, int bytes) {
  uint64_t word = 0;
  std::memcpy(&word, static_cast<const char*>(data) + index * bytes, static_cast<size_t>(bytes));
  return word;
}

double value_of(DType dtype, uint64_t word) {
  switch (dtype) {
    case DType::kF32: return formats::f32_from_bits(static_cast<uint32_t>(word));
    case DType::kF16: return formats::f32_from_f16(static_cast<uint16_t>(word));
    case DType::kBF16: return formats::f32_from_bf16(static_cast<uint16_t>(word));
    case DType::kF64: return __builtin_bit_cast(double, word);
    case DType::kE4M3: return formats::f32_from_code<formats::E4m3>(static_cast<uint8_t>(word));
    case DType::kE5M2: return formats::f32_from_code<formats::E5m2>(static_cast<uint8_t>(word));
    case DType::kE8M0: return formats::f32_from_e8m0(static_cast<uint8_t>(word));
    case DType::kI8: return static_cast<int8_t>(word);
    case DType::kI16: return static_cast<int16_t>(word);
    case DType::kI32: return static_cast<int32_t>(word);
    case DType::kI64: return static_cast<double>(static_cast<int64_t>(word));
    default: return static_cast<double>(word);
  }
}

bool nan_equals_nan(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

// Steps between two values of a sign-magnitude dtype; of integers, their difference.
int64_t ulps_between(DType dtype, uint64_t a, uint64_t b) {
  if (!dtype_info(dtype).is_float || dtype == DType::kE8M0) {
    const double difference = std::fabs(value_of(dtype, a) - value_of(dtype, b));
    // E8M0 has a NaN and reaches 2^127.
    return difference < 0x1p62 ? static_cast<int64_t>(difference) : INT64_MAX;
  }
  const int bits = dtype_bytes(dtype) * 8;
  const auto ordered = [&](uint64_t word) {
    const auto magnitude = static_cast<int64_t>(word & ((uint64_t{1} << (bits - 1)) - 1));
    return word >> (bits - 1) ? -magnitude : magnitude;
  };
  return std::llabs(ordered(a) - ordered(b));
}

// Distance from |x| to the next larger value of the dtype.
double ulp_at(DType dtype, double x) {
  struct Grid {
    int mantissa;
    int smallest_exponent;
  };
  const Grid grid = dtype == DType::kF32    ? Grid{23, -126}
                    : dtype == DType::kF16  ? Grid{10, -14}
                    : dtype == DType::kBF16 ? Grid{7, -126}
                                            : Grid{52, -1022};
  int exponent = grid.smallest_exponent;
  if (x != 0 && std::isfinite(x)) exponent = std::max(exponent, std::ilogb(x));
  return std::ldexp(1.0, exponent - grid.mantissa);
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::kF32: return FLT_MAX;
    case DType::kF16: return 65504;
    case DType::kBF16: return formats::f32_from_bf16(0x7F7F);
    default: return DBL_MAX;
  }
}

std::string coordinate(const char* name, const TensorView& shape, int64_t index) {
  std::string text = "]";
  for (int d = shape.rank - 1; d >= 0; --d) {
    text = (d > 0 ? "," : "") + std::to_string(index % shape.shape[d]) + text;
    index /= shape.shape[d];
  }
  return name + std::string("[") + text;
}

std::string print(double value) {
  if (std::isnan(value)) return "NaN";
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

std::string print(DType dtype, uint64_t word) {
  char bits[32];
  std::snprintf(bits, sizeof(bits), " (0x%0*llX)", dtype_bytes(dtype) * 2,
                static_cast<unsigned long long>(word));
  return print(value_of(dtype, word)) + bits;
}

// Joins what threads find in their ranges.
class Collector {
 public:
  void add(int64_t different, int64_t first, double worst) {
    std::lock_guard lock(mutex_);
    result_.different += different;
    if (first >= 0 && (result_.first < 0 || first < result_.first)) result_.first = first;
    result_.worst = std::max(result_.worst, worst);
  }
  Comparison take() { return std::move(result_); }

 private:
  std::mutex mutex_;
  Comparison result_;
};

constexpr int64_t kGrain = 1 << 15;

std::string count_of(const Comparison& result, int64_t total) {
  return "; " + std::to_string(result.different) + " of " + std::to_string(total) +
         " elements differ";
}

// |got - want| / allowed; 0 when both are the same NaN or infinity, infinite when one only is.
double relative_error(DType dtype, double got, double want, double magnitude, double factor,
                      double underflow) {
  // Beyond f32's range partial sums may overflow, to an infinity or to the NaN of two of them.
  const bool may_overflow = !(magnitude <= FLT_MAX / 2);
  if (std::isnan(want)) return std::isnan(got) ? 0 : INFINITY;
  if (std::isnan(got)) return may_overflow ? 0 : INFINITY;
  if (std::isinf(want)) return got == want ? 0 : INFINITY;
  const double allowed = ulp_at(dtype, want) + factor * magnitude + underflow;
  if (std::isinf(got)) {
    if (may_overflow) return 0;
    // The dtype's largest value may round up to infinity when the true one is that near.
    return std::fabs(want) + allowed > largest(dtype) && std::signbit(got) == std::signbit(want)
               ? 0
               : INFINITY;
  }
  if (may_overflow && !(magnitude <= DBL_MAX)) return 0;
  return std::fabs(got - want) / allowed;
}

}  // namespace

Comparison compare_exact(const char* name, const TensorView& shape, const void* got,
                         const void* want) {
  const DType dtype = shape.dtype;
  const int bytes = dtype_bytes(dtype);
  const int64_t total = numel(shape);
  Collector collector;
  cpu::parallel_for(total, kGrain, [&](int64_t begin, int64_t end) {
    const auto at = [&](const void* p) { return static_cast<const char*>(p) + begin * bytes; };
    if (std::memcmp(at(got), at(want), static_cast<size_t>((end - begin) * bytes)) == 0) return;
    int64_t different = 0;
    int64_t first = -1;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t a = word_at(got, i, bytes);
      const uint64_t b = word_at(want, i, bytes);
      if (a == b) continue;
      if (nan_equals_nan(dtype) && std::isnan(value_of(dtype, a)) &&
          std::isnan(value_of(dtype, b))) {
        continue;
      }
      if (different++ == 0) first = i;
    }
    collector.add(different, first, 0);
  });
  Comparison result = collector.take();
  if (result.ok()) return result;
  const uint64_t a = word_at(got, result.first, bytes);
  const uint64_t b = word_at(want, result.first, bytes);
  result.what = coordinate(name, shape, result.first) + " is " + print(dtype, a) +
                ", the reference has " + print(dtype, b) + ", " +
                std::to_string(ulps_between(dtype, a, b)) + " ulp apart" + count_of(result, total);
  return result;
}

Comparison compare_bounded(const char* name, const TensorView& shape, const void* got,
                           const double* want, const double* magnitude, double c, int64_t k) {
  const DType dtype = shape.dtype;
  const int bytes = dtype_bytes(dtype);
  const double factor = c * std::sqrt(static_cast<double>(k)) * 0x1p-24;
  const double underflow = static_cast<double>(k) * 0x1p-149;
  Collector collector;
  cpu::parallel_for(numel(shape), kGrain, [&](int64_t begin, int64_t end) {
    int64_t different = 0;
    int64_t first = -1;
    double worst = 0;
    for (int64_t i = begin; i < end; ++i) {
      const double error = relative_error(dtype, value_of(dtype, word_at(got, i, bytes)), want[i],
                                          magnitude[i], factor, underflow);
      worst = std::max(worst, error);
      if (error <= 1) continue;
      if (different++ == 0) first = i;
    }
    collector.add(different, first, worst);
  });
  Comparison result = collector.take();
  if (result.ok()) return result;
  const int64_t i = result.first;
  const uint64_t word = word_at(got, i, bytes);
  const double ulp = ulp_at(dtype, want[i]);
  result.what = coordinate(name, shape, i) + " is " + print(dtype, word) +
                ", the float64 reference " + print(want[i]);
  if (std::isfinite(want[i])) {
    result.what += ": " + print(std::fabs(value_of(dtype, word) - want[i]) / ulp) +
                   " ulp apart, allowed " + print(1 + (factor * magnitude[i] + underflow) / ulp);
  }
  result.what += count_of(result, numel(shape));
  return result;
}

}  // namespace pestle::harness
