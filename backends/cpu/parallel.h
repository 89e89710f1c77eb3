// Splitting loops over the cores. Results may not depend on how: every op gives the same bits for
// any thread count, so bodies write disjoint outputs or combine with order-free integer maxima.
#pragma once

#include <cstdint>
#include <functional>

namespace pestle::cpu {

inline constexpr int kMaxThreads = 1024;
// Threads that parallel_for uses, the caller included, kMaxThreads at most. 0 means the number of
// cores.
void set_threads(int count);
int threads();

using RangeBody = std::function<void(int64_t begin, int64_t end)>;

// Calls body(begin, end) over disjoint ranges that cover [0, count), each a multiple of `grain`
// long but for the last. Returns when all are done. Small counts and calls from inside another
// parallel_for run here and now.
void parallel_for(int64_t count, int64_t grain, const RangeBody& body);

}  // namespace pestle::cpu
