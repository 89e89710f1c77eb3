// Mutants of an implementation that takes few of the cases, as kernels do that are made for long
// rows or for one size: what is left must show them all the same. Here the CPU's code, which
// refuses what such a kernel refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "core/op_table.h"
#include "harness/mutants.h"

namespace pestle::harness {
namespace {

const Impl* g_real = nullptr;
bool (*g_takes)(const Call&) = nullptr;

std::string refuses(const Call& call, const Machine& machine) {
  if (!g_takes(call)) return "another implementation's";
  return g_real->refuses != nullptr ? g_real->refuses(call, machine) : "";
}

bool is_long_row(const Call& call) {
  const TensorView& t = call.tensor(0);
  return t.rank > 0 && t.shape[t.rank - 1] >= 200'000;
}

// Rotated by 64 or 256, its own codebook: whole groups that one NaN, or an overflow, takes over.
bool is_rotated(const Call& call) {
  const int64_t rotation = call.args.back().i;
  return !call.has(1) && (rotation == 64 || rotation == 256) && numel(call.tensor(0)) > 0;
}

struct Narrow {
  const char* op;
  bool (*takes)(const Call&);
};
std::ostream& operator<<(std::ostream& out, const Narrow& narrow) { return out << narrow.op; }

class NarrowMutants : public testing::TestWithParam<Narrow> {};

TEST_P(NarrowMutants, AreCaught) {
  const Op& real = *find_op(GetParam().op);
  ASSERT_GT(real.impls.size(), 1u);
  const auto on_cpu = [](const Impl& impl) { return impl.device == DeviceType::kCpu; };
  g_real = &*std::find_if(real.impls.begin(), real.impls.end(), on_cpu);
  g_takes = GetParam().takes;
  Op op = real;
  op.impls = {*g_real, real.reference()};
  op.impls[0].refuses = refuses;
  bool nan = false, stale = false;
  CheckOptions options;
  options.variant = "contiguous";
  for (const MutantVerdict& v : check_mutants(op, options)) {
    EXPECT_FALSE(v.survived()) << v.mutant;
    nan |= v.caught && v.mutant == "swallowed NaN";
    stale |= v.caught && v.mutant == "stale buffer";
  }
  EXPECT_TRUE(nan);
  EXPECT_TRUE(stale);
}

INSTANTIATE_TEST_SUITE_P(Ops, NarrowMutants,
                         testing::Values(Narrow{"softmax_backward", is_long_row},
                                         Narrow{"log_softmax", is_long_row},
                                         Narrow{"quantize_w4a8", is_rotated}),
                         [](const auto& info) { return std::string(info.param.op); });

}  // namespace
}  // namespace pestle::harness
