// What choosing an implementation costs.
#include <chrono>

#include "core/call_text.h"
#include "core/dispatch.h"
#include "harness/bench.h"

namespace pestle::harness {
namespace {

using Clock = std::chrono::steady_clock;

double ns_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::nano>(b - a).count();
}

// Time of reading the clock itself, which single calls would otherwise be charged.
double clock_ns() {
  std::vector<double> samples;
  for (int i = 0; i < 2000; ++i) {
    const auto start = Clock::now();
    samples.push_back(ns_between(start, Clock::now()));
  }
  return summarize(std::move(samples)).median;
}

// Dispatch looks at addresses but never at what they hold.
void give_addresses(TextCall& call) {
  uintptr_t next = uintptr_t{1} << 40;
  const auto place = [&](TensorView& tensor) {
    tensor.data = reinterpret_cast<void*>(next);
    next += static_cast<uintptr_t>(size_bytes(tensor)) / 4096 * 4096 + 8192;
  };
  for (Value& value : call.values) {
    if (value.present) place(value.tensor);
  }
  for (auto& list : call.lists) {
    for (TensorView& tensor : list) place(tensor);
  }
}

}  // namespace

std::vector<DispatchCost> bench_dispatch() {
  // Short batches: the median of many does not see the scheduler.
  constexpr int kSeenCalls = 50;
  constexpr int kSeenBatches = 500;
  constexpr int kFreshCalls = 2'000;
  const double overhead = clock_ns();
  std::vector<DispatchCost> costs;
  for (const Op& op : all_ops()) {
    if (op.spec->cases.empty()) continue;
    auto made = call_from_text(op, op.spec->cases[0].text, DeviceType::kCpu);
    if (!made.ok()) continue;  // the checks report a case that is no call
    TextCall& call = made.value();
    give_addresses(call);
    // Remembered before the first batch; the checks report a case that nothing takes.
    if (!choose(op, call.call).ok()) continue;
    bool chosen = true;
    std::vector<double> seen;
    for (int repeat = 0; repeat < kSeenBatches; ++repeat) {
      const auto start = Clock::now();
      for (int i = 0; i < kSeenCalls; ++i) chosen &= choose(op, call.call).ok();
      seen.push_back(ns_between(start, Clock::now()) / kSeenCalls);
    }
    std::vector<double> fresh;
    for (int i = 0; i < kFreshCalls; ++i) {
      // Forgets every remembered choice.
      (void)set_isa("best").ok();
      const auto start = Clock::now();
      chosen &= choose(op, call.call).ok();
      fresh.push_back(ns_between(start, Clock::now()) - overhead);
    }
    if (!chosen) continue;  // never: the same call was chosen for above
    costs.push_back({op.spec->name, op.spec->cases[0].text, summarize(std::move(seen)).median,
                     summarize(std::move(fresh)).median});
  }
  return costs;
}

}  // namespace pestle::harness
