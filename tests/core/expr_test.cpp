#include "core/expr.h"

#include <gtest/gtest.h>

namespace pestle {
namespace {

constexpr Arg kArgs[] = {
    input("x", "bf16|f32", "M, K", ""),
    input("scale", "f32", "1", "").optional(),
    choice("mode", "a|b|c", ""),
    int_attr("group", 32, ""),
};
constexpr OpSpec kSpec{.name = "test", .doc = "", .source = "", .args = kArgs};

struct Evaluated {
  bool parsed;
  bool evaluated;
  int64_t value;
};

Evaluated evaluate(const char* text) {
  std::vector<std::string> symbols = {"mode", "group", "M", "K", "unbound"};
  auto expr = Expr::parse(text, {&kSpec, &symbols, false});
  if (!expr.ok()) return {false, false, 0};
  Value values[4];
  values[0].present = true;
  const int64_t dims[] = {7, 33};
  values[0].tensor = make_view(nullptr, DType::kBF16, 2, dims);
  Scope scope;
  scope.args = values;
  const int64_t bound[] = {1, 32, 7, 33};
  for (int i = 0; i < 4; ++i) {
    scope.values[i] = bound[i];
    scope.bound[i] = true;
  }
  int64_t value = 0;
  const bool ok = expr.value().eval(scope, value);
  return {true, ok, value};
}

TEST(Expr, Values) {
  const std::pair<const char*, int64_t> rows[] = {
      {"1 + 2 * 3", 7},
      {"(1 + 2) * 3", 9},
      {"M - 8 - 1", -2},
      {"K / 2", 16},
      {"K % 16", 1},
      {"cdiv(K,16)", 3},
      {"round_up(M,128)", 128},
      {"round_up(128,128)", 128},
      {"cdiv(0,4)", 0},
      {"min(M,K)", 7},
      {"max(M,K)", 33},
      {"if(M == 7, 5, 6)", 5},
      {"!has(scale)", 1},
      {"has(x) && M < K", 1},
      {"M >= 8 || K <= 33", 1},
      {"mode == b", 1},
      {"mode != b", 0},
      {"bytes(x)", 2},
      {"numel(x)", 231},
      {"rank(x)", 2},
      {"size(x, 0)", 7},
      {"size(x, -1) + 1", 34},
      {"size(x, 1 - 2)", 33},
      {"broadcasts(x, x)", 1},
      {"broadcasts(scale, x)", 1},
      {"broadcasts(x, scale)", 0},
      {"-M + 1", -6},
      {"group*2", 64},
      {"1 < 2 == 1", 1},
      {"!has(scale) || unbound == 2", 1},
      {"has(scale) && unbound == 2", 0},
      {"if(has(scale), unbound, 5)", 5},
  };
  for (auto [text, value] : rows) {
    const Evaluated result = evaluate(text);
    EXPECT_TRUE(result.parsed && result.evaluated) << text;
    EXPECT_EQ(result.value, value) << text;
  }
}

TEST(Expr, RefusesWhatItCannotRead) {
  for (const char* text : {"", "1 +", "(1", "Q", "cdiv(1)", "has(nothing)", "mode == d", "f(1)",
                           "1 2", "M..K", "size(x)", "size(1, 0)", "broadcasts(x)", "rank()"}) {
    EXPECT_FALSE(evaluate(text).parsed) << text;
  }
}

TEST(Expr, UnboundSymbolsAndZeroDivisorsHaveNoValue) {
  for (const char* text : {"unbound", "M / (K - 33)", "M % 0", "cdiv(M,0)", "size(x, 2)",
                           "size(x, -3)", "size(x, unbound)"}) {
    EXPECT_TRUE(evaluate(text).parsed) << text;
    EXPECT_FALSE(evaluate(text).evaluated) << text;
  }
}

}  // namespace
}  // namespace pestle
