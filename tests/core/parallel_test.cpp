#include "backends/cpu/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace pestle::cpu {
namespace {

TEST(Parallel, CoversEveryIndexOnceForAnyThreadCount) {
  for (int count : {1, 2, 3, 7}) {
    set_threads(count);
    for (int64_t n : {0, 1, 5, 64, 1000, 4097}) {
      for (int64_t grain : {1, 16, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
      }
    }
  }
  set_threads(0);
}

TEST(Parallel, NestsAndRunsFromSeveralThreads) {
  set_threads(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      parallel_for(100, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          parallel_for(10, 1, [&](int64_t b, int64_t e) { sum += e - b; });
        }
      });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 100 * 10);
  set_threads(0);
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not follow threads into a fork
TEST(Parallel, WorksInAForkedChild) {
  set_threads(3);
  parallel_for(100, 1, [](int64_t, int64_t) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int64_t> sum{0};
    parallel_for(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    _exit(sum == 1000 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  set_threads(0);
}
#endif

}  // namespace
}  // namespace pestle::cpu
