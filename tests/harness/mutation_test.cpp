// The checks are checked: an op of this test's own, right in every way, passes; with each fault
// that a kernel may have, it fails.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backends/cpu/parallel.h"
#include "harness/check.h"

namespace pestle::harness {
namespace {

enum class Fault {
  kNone,
  kNoOp,
  kStale,
  kShortTail,
  kSwappedNibbles,
  kWrongScaleColumn,
  kSwallowedNan,
  kSwallowedNegativeZero,
  kWritePastEnd,
  kWriteBeforeStart,
  kWriteIntoGaps,
  kInputChanged,
  kStridesIgnored,
  kAlignmentAssumed,
  kSumTooCoarse,
  kSumKeepsNoNan,
  kDiffersByRun,
  kDiffersByThreads,
  kDiffersByIsa,
  kWorkspaceOverrun,
  kErrorReturned,
};
Fault g_fault = Fault::kNone;

// ---- the op: packs x / scale to 4 bits, and sums rows ------------------------------------------

constexpr Arg kArgs[] = {
    input("x", "f32", "M, K", "values"),
    input("scale", "f32", "K", "one a column"),
    output("q", "u8", "M, K/2", "codes, the even column low"),
    output("sum", "f32", "M", "of each row").within(2, "K"),
    output("negated", "=x", "M, K", "-x").in_place_of("x"),
    bool_attr("deterministic", true, "false: sums may have other bits in each run"),
};
constexpr Constraint kConstraints[] = {{"K % 2 == 0", "K must be even: two codes share a byte"}};
constexpr Case kCases[] = {
    {"M=3 K=10"},
    {"M=7 K=64"},
    {"M=4 K=6 deterministic=false"},
    {"M=1 K=2", kEdge},
    {"M=0 K=4", kEdge},
    {"M=5 K=18", kEdge, Dist::kSpecial},
    {"M=5 K=18", kEdge, Dist::kZeros},
};
constexpr OpSpec kSpec{.name = "pack_columns",
                       .doc = "Packs.",
                       .source = "this test",
                       .args = kArgs,
                       .constraints = kConstraints,
                       .cases = kCases};

struct Columns {
  const TensorView& t;
  bool ignore_strides = false;
  template <class T>
  char* address(int64_t row, int64_t column) const {
    const int64_t offset =
        ignore_strides ? row * t.shape[1] + column : row * t.strides[0] + column * t.strides[1];
    return t.as<char>() + offset * static_cast<int64_t>(sizeof(T));
  }
  float load(int64_t row, int64_t column) const {
    float value;
    std::memcpy(&value, address<float>(row, column), 4);
    return value;
  }
};

uint8_t code_of(float quotient, Fault fault) {
  if (std::isnan(quotient)) return fault == Fault::kSwallowedNan ? 0 : 8;
  return static_cast<uint8_t>(std::lrint(std::fmin(7.0f, std::fmax(-7.0f, quotient)))) & 15;
}

float scale_at(const TensorView& scale, int64_t column) {
  float value;
  std::memcpy(&value, scale.as<char>() + column * scale.strides[0] * 4, 4);
  return value;
}

void pack(const Call& call, Fault fault) {
  const Columns x{call.tensor(0)};
  const Columns q{call.tensor(2), fault == Fault::kStridesIgnored};
  const int64_t shift = fault == Fault::kWrongScaleColumn ? 1 : 0;
  const int64_t columns = x.t.shape[1];
  const int64_t tail = fault == Fault::kShortTail ? 2 : 0;
  for (int64_t m = 0; m < x.t.shape[0]; ++m) {
    for (int64_t k = 0; k < columns - tail; k += 2) {
      const auto code = [&](int64_t column) -> unsigned {
        return code_of(x.load(m, column) / scale_at(call.tensor(1), (column + shift) % columns),
                       fault);
      };
      const unsigned low = code(k);
      const unsigned high = code(k + 1);
      *q.address<uint8_t>(m, k / 2) =
          static_cast<char>(fault == Fault::kSwappedNibbles ? high | low << 4 : low | high << 4);
    }
  }
}

// A sum's last bit depends on something that it may not depend on.
bool last_bit(Fault fault) {
  static int runs = 0;
  return (fault == Fault::kDiffersByRun && ++runs % 2 == 1) ||
         (fault == Fault::kDiffersByThreads && cpu::threads() == 3);
}

void sum(const Call& call, Fault fault) {
  const Columns x{call.tensor(0)};
  const TensorView& out = call.tensor(3);
  for (int64_t m = 0; m < x.t.shape[0]; ++m) {
    double total = 0;
    for (int64_t k = 0; k < x.t.shape[1]; ++k) {
      double term = x.load(m, k);
      if (fault == Fault::kSumTooCoarse) term = std::ldexp(std::rint(std::ldexp(term, 12)), -12);
      if (fault == Fault::kSumKeepsNoNan && std::isnan(term)) term = 0;
      total += call.sum_magnitudes ? std::fabs(term) : term;
    }
    char* address = out.as<char>() + m * out.strides[0] * dtype_bytes(out.dtype);
    float narrow = static_cast<float>(total);
    if (last_bit(fault)) narrow = std::nextafter(narrow, 1e30f);
    if (out.dtype == DType::kF64)
      std::memcpy(address, &total, 8);
    else
      std::memcpy(address, &narrow, 4);
  }
}

// Last, since it may overwrite x.
void negate(const Call& call, Fault fault) {
  const Columns x{call.tensor(0)};
  const Columns out{call.tensor(4)};
  for (int64_t m = 0; m < x.t.shape[0]; ++m) {
    for (int64_t k = 0; k < x.t.shape[1]; ++k) {
      const float value = x.load(m, k);
      const float negated = fault == Fault::kSwallowedNegativeZero ? 0.0f - value : -value;
      std::memcpy(out.address<float>(m, k), &negated, 4);
    }
  }
}

void misbehave(const Call& call, Fault fault) {
  const TensorView& x = call.tensor(0);
  const TensorView& q = call.tensor(2);
  if (numel(q) == 0) return;
  const ByteRange range = byte_range(q);
  if (fault == Fault::kWritePastEnd) *reinterpret_cast<uint8_t*>(range.end) = 0;
  if (fault == Fault::kWriteBeforeStart) *reinterpret_cast<uint8_t*>(range.begin - 1) = 0;
  if (fault == Fault::kWriteIntoGaps && q.shape[1] > 1 && std::abs(q.strides[1]) == 2) {
    q.as<uint8_t>()[q.strides[1] / 2] = 0;
  }
  if (fault == Fault::kInputChanged && x.data != call.tensor(4).data) x.as<uint8_t>()[0] ^= 1;
  if (fault == Fault::kWorkspaceOverrun) {
    static_cast<uint8_t*>(call.workspace)[call.workspace_bytes] = 1;
  }
  if (fault == Fault::kAlignmentAssumed) {
    const auto address = reinterpret_cast<uintptr_t>(q.data);
    if (address % 64 != 0) *reinterpret_cast<uint8_t*>(address / 64 * 64) = 0;
  }
}

Status run_reference(const Call& call) {
  pack(call, Fault::kNone);
  sum(call, Fault::kNone);
  negate(call, Fault::kNone);
  return {};
}

// Gives the codes of the first call with this shape again.
void replay(const Call& call) {
  static std::map<std::pair<int64_t, int64_t>, std::vector<uint8_t>> kept;
  const TensorView& q = call.tensor(2);
  const Columns codes{q};
  auto& old = kept[{q.shape[0], q.shape[1]}];
  const bool first = old.empty();
  for (int64_t m = 0; m < q.shape[0]; ++m) {
    for (int64_t k = 0; k < q.shape[1]; ++k) {
      char* address = codes.address<uint8_t>(m, k);
      if (first)
        old.push_back(static_cast<uint8_t>(*address));
      else
        *address = static_cast<char>(old[static_cast<size_t>(m * q.shape[1] + k)]);
    }
  }
}

Status run_tested(const Call& call) {
  if (g_fault == Fault::kNoOp) return {};
  if (g_fault == Fault::kErrorReturned) return {Code::kInternal, "gave up"};
  const bool other_isa = g_fault == Fault::kDiffersByIsa && this_machine().isa == Isa::kAvx2;
  pack(call, other_isa ? Fault::kWrongScaleColumn : g_fault);
  sum(call, g_fault);
  misbehave(call, g_fault);
  negate(call, g_fault);
  if (g_fault == Fault::kStale) replay(call);
  return {};
}

const Op& tested_op() {
  static const Op op = [] {
    Op made;
    made.spec = &kSpec;
    made.contract = Contract::compile(kSpec).value();
    made.impls = {{.id = "cpu/pack_columns_tested", .run = run_tested, .workspace = "8*M"},
                  {.id = "reference", .run = run_reference}};
    return made;
  }();
  return op;
}

CheckReport check_with(Fault fault) {
  g_fault = fault;
  CheckReport report;
  CheckOptions options;
  options.impl = "cpu/pack_columns_tested";
  check_op(tested_op(), options, report);
  g_fault = Fault::kNone;
  return report;
}

// Fails, and says so in these words.
void expect_caught(Fault fault, const std::string& words) {
  const CheckReport report = check_with(fault);
  ASSERT_FALSE(report.ok()) << "the fault was not noticed";
  bool said = false;
  for (const Failure& failure : report.failures) {
    said |= failure.what.find(words) != std::string::npos;
    EXPECT_NE(failure.repeat.find("pestle check pack_columns --impl cpu/pack_columns_tested "
                                  "--case \"M="),
              std::string::npos);
  }
  EXPECT_TRUE(said) << "expected '" << words << "', first was: " << report.failures[0].what;
}

TEST(Mutations, RightImplementationPasses) {
  const CheckReport report = check_with(Fault::kNone);
  for (const Failure& failure : report.failures) ADD_FAILURE() << failure.what;
  EXPECT_GT(report.by_tag.at("smoke").run, 20);
  EXPECT_GT(report.by_tag.at("edge").run, 40);
  EXPECT_TRUE(report.refusals.empty());
  EXPECT_TRUE(report.skips.empty());
}

TEST(Mutations, RightContractPasses) {
  CheckReport report;
  check_contract(tested_op(), report);
  for (const Failure& failure : report.failures) ADD_FAILURE() << failure.what;
  EXPECT_GT(report.by_tag.at("contract").run, 50);
}

TEST(Mutations, WrongResults) {
  expect_caught(Fault::kNoOp, "elements differ");
  expect_caught(Fault::kStale, "q[");
  expect_caught(Fault::kShortTail, "q[0,4]");
  expect_caught(Fault::kSwappedNibbles, "q[0,");
  expect_caught(Fault::kWrongScaleColumn, "q[0,");
  expect_caught(Fault::kSwallowedNan, "q[");
  expect_caught(Fault::kSwallowedNegativeZero, "negated[");
  expect_caught(Fault::kStridesIgnored, "q[");
  expect_caught(Fault::kErrorReturned, "gave up");
}

TEST(Mutations, SumsOutsideTheirBound) {
  expect_caught(Fault::kSumTooCoarse, "sum[0]");
  expect_caught(Fault::kSumKeepsNoNan, "the float64 reference NaN");
}

TEST(Mutations, WritesWhereItMayNot) {
  expect_caught(Fault::kWritePastEnd, "wrote outside q");
  expect_caught(Fault::kWriteBeforeStart, "wrote outside q");
  expect_caught(Fault::kWriteIntoGaps, "wrote between the elements of q");
  expect_caught(Fault::kAlignmentAssumed, "wrote outside q");
  expect_caught(Fault::kInputChanged, "input x was changed");
  expect_caught(Fault::kWorkspaceOverrun, "outside its workspace");
}

TEST(Mutations, ResultsThatVary) {
  expect_caught(Fault::kDiffersByRun, "two runs on the same inputs");
  expect_caught(Fault::kDiffersByThreads, "another number of threads");
  if (best_isa() >= Isa::kAvx2) expect_caught(Fault::kDiffersByIsa, "q[0,");
}

TEST(Mutations, ResultsThatMayVary) {
  const CheckReport report = check_with(Fault::kDiffersByRun);
  for (const Failure& failure : report.failures)
    EXPECT_EQ(failure.where.find("deterministic=false"), std::string::npos) << failure.what;
}

}  // namespace
}  // namespace pestle::harness
