// Data far from 0 and constant data find what a bound on the terms' sizes lets pass: results that
// lose an offset's rounding, and sums whose error grows with their length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "harness/check.h"

namespace pestle::harness {
namespace {

constexpr Arg kArgs[] = {
    input("x", "f32", "M, K", "values"),
    output("loss", "f32", "M", "log(sum of exp(x)) - the first x").within(4, "K"),
    output("sum", "f32", "M", "of each row").within(4, "1"),
};
constexpr Case kCases[] = {
    {"M=3 K=40"},
    {"M=3 K=8", kEdge, Dist::kOffset},
    {"M=2 K=20011", kEdge, Dist::kConstant},
};
constexpr OpSpec kSpec{.name = "row_numbers",
                       .doc = "Two numbers of each row.",
                       .source = "this test",
                       .args = kArgs,
                       .cases = kCases};

std::vector<float> row_of(const Call& call, int64_t row) {
  const TensorView& x = call.tensor(0);
  std::vector<float> values(static_cast<size_t>(x.shape[1]));
  for (int64_t i = 0; i < x.shape[1]; ++i) {
    const char* at = x.as<char>() + (row * x.strides[0] + i * x.strides[1]) * 4;
    std::memcpy(&values[static_cast<size_t>(i)], at, 4);
  }
  return values;
}

void put(const TensorView& t, int64_t row, double value) {
  const auto rounded = static_cast<float>(value);
  char* at = t.as<char>() + row * t.strides[0] * dtype_bytes(t.dtype);
  if (t.dtype == DType::kF64)
    std::memcpy(at, &value, 8);
  else
    std::memcpy(at, &rounded, 4);
}

struct Logs {
  double largest, sum, spread;
};
Logs logs_of(const std::vector<float>& x) {
  Logs logs{*std::max_element(x.begin(), x.end()), 0, 0};
  for (float v : x) {
    logs.sum += std::exp(v - logs.largest);
    logs.spread += std::fabs(v - logs.largest) * std::exp(v - logs.largest);
  }
  return logs;
}

Status reference(const Call& call) {
  for (int64_t row = 0; row < call.tensor(0).shape[0]; ++row) {
    const std::vector<float> x = row_of(call, row);
    const Logs logs = logs_of(x);
    const double below = logs.largest - double{x[0]};
    double total = 0, sizes = 0;
    for (float v : x) total += v, sizes += std::fabs(v);
    const double size = below + std::log(logs.sum) + 2 + logs.spread / logs.sum;
    put(call.tensor(1), row, call.sum_magnitudes ? size : below + std::log(logs.sum));
    put(call.tensor(2), row, call.sum_magnitudes ? sizes : total);
  }
  return {};
}

bool g_rounds_lse = false, g_adds_one_by_one = false;

Status implementation(const Call& call) {
  for (int64_t row = 0; row < call.tensor(0).shape[0]; ++row) {
    const std::vector<float> x = row_of(call, row);
    const Logs logs = logs_of(x);
    const auto lse = static_cast<float>(logs.largest + std::log(logs.sum));
    const double loss = (logs.largest - double{x[0]}) + std::log(logs.sum);
    put(call.tensor(1), row, g_rounds_lse ? double{lse - x[0]} : loss);
    const float serial = std::accumulate(x.begin(), x.end(), 0.0f);
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    put(call.tensor(2), row, g_adds_one_by_one ? double{serial} : sum);
  }
  return {};
}

CheckReport check() {
  Op op;
  op.spec = &kSpec;
  op.contract = std::move(Contract::compile(kSpec).value());
  op.impls.push_back({.id = "cpu/row_numbers", .run = implementation});
  op.impls.push_back({.id = "reference", .run = reference});
  CheckReport report;
  check_op(op, {}, report);
  return report;
}

// All failures are of this distribution and this output.
void expect_only(const CheckReport& report, const std::string& dist, const std::string& output) {
  EXPECT_FALSE(report.ok());
  for (const Failure& f : report.failures) {
    EXPECT_NE(f.where.find("' " + dist), std::string::npos) << f.where << ": " << f.what;
    EXPECT_NE(f.what.find(output + "["), std::string::npos) << f.what;
  }
}

TEST(Invariance, ExactDifferencesAndLongSumsPass) {
  const CheckReport report = check();
  for (const Failure& f : report.failures) ADD_FAILURE() << f.where << ": " << f.what;
}

TEST(Invariance, ALogSumThatIsRoundedBeforeItIsSubtractedFails) {
  g_rounds_lse = true;
  expect_only(check(), "offset", "loss");
  g_rounds_lse = false;
}

TEST(Invariance, AnErrorThatGrowsWithTheLengthOfASumFails) {
  g_adds_one_by_one = true;
  expect_only(check(), "constant", "sum");
  g_adds_one_by_one = false;
}

}  // namespace
}  // namespace pestle::harness
