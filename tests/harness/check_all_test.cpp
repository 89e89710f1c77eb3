// Every implementation of every op on every smoke and edge case, and every broken call.
#include <gtest/gtest.h>

#include <cstdlib>

#include "harness/check.h"

namespace pestle::harness {
namespace {

#ifdef __SANITIZE_THREAD__  // threads share a case's work in the same way at any edge
constexpr bool kWithEdges = false;
#else
constexpr bool kWithEdges = true;
#endif

class CheckAll : public testing::TestWithParam<const Op*> {};

TEST_P(CheckAll, KeepsItsContract) {
  const Op& op = *GetParam();
  CheckOptions options;
  options.for_sanitizer = std::getenv("PESTLE_SANITIZED") != nullptr;
  if (!kWithEdges) options.tags = kSmoke;
  CheckReport report;
  check_op(op, options, report);
  check_contract(op, report);
  for (const Failure& f : report.failures) {
    ADD_FAILURE() << f.impl << " " << f.where << "\n  " << f.what << "\n  again: " << f.repeat;
  }
  for (const Refusal& skip : report.skips) ADD_FAILURE() << skip.where << ": " << skip.reason;
  EXPECT_GT(report.by_tag["smoke"].run, 0) << op.spec->name << " has no smoke case";
  if (!kWithEdges) return;
  EXPECT_GT(report.by_tag["edge"].run, 0) << op.spec->name << " has no edge case";
  // What nothing else serves in any variant would be a fast path in name only.
  for (const Impl& impl : op.impls) {
    if (impl.device != DeviceType::kCpu) continue;
    EXPECT_GT(report.by_impl[std::string(op.spec->name) + " " + impl.id].run, 0)
        << impl.id << " refuses every case";
  }
}

std::vector<const Op*> ops() {
  std::vector<const Op*> result;
  for (const Op& op : all_ops()) result.push_back(&op);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Ops, CheckAll, testing::ValuesIn(ops()),
                         [](const auto& info) { return std::string(info.param->spec->name); });

}  // namespace
}  // namespace pestle::harness
