// Times implementations on a CUDA device: device events around calls that were queued behind a
// closed gate, cold L2, short calls in graphs, next to a copy of the same ratio of reads to writes.
#pragma once

#include <string>
#include <vector>

#include "core/tuned.h"
#include "harness/bench.h"

namespace pestle::harness {

// A case on the device that `memory` is of.
Result<BenchResult> bench_case_on_cuda(const Op& op, const Case& row, const BenchOptions& options,
                                       Memory& memory);

// Every way that the op says may be tuned for the case, timed in turn. Leaves no tuned choice
// behind.
struct TunedWays {
  TunedFile machine;  // without choices
  std::vector<TunedChoice> ways;
  std::vector<std::string> impls;  // of each way
  size_t best = 0;
  size_t untuned = 0;  // what is taken without a file
};
Result<TunedWays> time_ways_on_cuda(const Op& op, const Case& row, const BenchOptions& options,
                                    Memory& memory);

// What a call through the C ABI costs the host, next to the barest launch, over the first case of
// every op that runs on the device.
struct HostCost {
  std::string op, impl, case_text;
  double call_ns = 0;
  double launch_ns = 0;
};
// Of all ops when none is named.
std::vector<HostCost> bench_host_cost(Memory& memory, const std::vector<std::string>& ops);

}  // namespace pestle::harness
