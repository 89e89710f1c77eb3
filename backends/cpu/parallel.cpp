#include "backends/cpu/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace pestle::cpu {
namespace {

thread_local bool t_inside = false;

// One pool for the process, replaced when the thread count changes. Users of the old one keep it
// alive until their loop ends.
struct Pool {
  explicit Pool(int helper_count)
      : workers(static_cast<size_t>(helper_count)), size(helper_count) {}
  ~Pool() { workers.join(); }
  asio::thread_pool workers;
  int size;
};

std::mutex g_mutex;
std::shared_ptr<Pool> g_pool;
int g_threads = 0;

int default_threads() {
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// A forked child has none of the parent's threads: forget the pool there (its memory is leaked,
// since joining threads that do not exist would hang) and start a new one on first use.
void forget_pool_in_child() {
  new (&g_mutex) std::mutex;
  new (&g_pool) std::shared_ptr<Pool>;
}

std::shared_ptr<Pool> pool() {
  std::lock_guard lock(g_mutex);
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
  (void)registered;
  if (g_threads == 0) g_threads = default_threads();
  // Where the system gives fewer threads than asked for, the work is done by fewer.
  while (!g_pool && g_threads > 1) {
    try {
      g_pool = std::make_shared<Pool>(g_threads - 1);
    } catch (const std::system_error&) {
      g_threads /= 2;
    }
  }
  return g_pool;
}

// Work is taken in chunks from a shared counter; which thread takes which chunk is of no effect.
struct Loop {
  int64_t count;
  int64_t chunk;
  const RangeBody& body;
  int helpers_left;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::condition_variable done;

  void work() {
    t_inside = true;
    for (;;) {
      const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= count) break;
      body(begin, std::min(begin + chunk, count));
    }
    t_inside = false;
  }
};

}  // namespace

void set_threads(int count) {
  std::shared_ptr<Pool> old;  // joined outside the lock
  std::lock_guard lock(g_mutex);
  g_threads = count > 0 ? std::min(count, kMaxThreads) : default_threads();
  old.swap(g_pool);
}

int threads() {
  std::lock_guard lock(g_mutex);
  return g_threads == 0 ? default_threads() : g_threads;
}

void parallel_for(int64_t count, int64_t grain, const RangeBody& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const std::shared_ptr<Pool> workers = t_inside || count <= grain ? nullptr : pool();
  if (!workers) {
    body(0, count);
    return;
  }
  // About four chunks a thread, so that a slow core does not hold up the rest.
  const int64_t parts = int64_t{4} * (workers->size + 1);
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t chunk = (grains + parts - 1) / parts * grain;
  const int64_t chunks = (count + chunk - 1) / chunk;
  const int helpers = static_cast<int>(std::min<int64_t>(workers->size, chunks - 1));
  Loop loop{count, chunk, body, helpers, {}, {}, {}};
  for (int i = 0; i < helpers; ++i) {
    asio::post(workers->workers, [&loop] {
      loop.work();
      std::lock_guard lock(loop.mutex);
      if (--loop.helpers_left == 0) loop.done.notify_one();
    });
  }
  loop.work();
  std::unique_lock lock(loop.mutex);
  loop.done.wait(lock, [&loop] { return loop.helpers_left == 0; });
}

}  // namespace pestle::cpu
