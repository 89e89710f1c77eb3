#include <algorithm>
#include <cmath>

#include "harness/cuda_timer.h"
#include "harness/sweep_case.h"

namespace pestle::harness {
namespace {

// The copy of as many bytes, on memory of its own. Which way of copying is fastest is found once for
// all points of about the same size.
class SweepCopy {
 public:
  SweepCopy(Memory& memory, Timer& timer) : timer_(timer), from_(memory), to_(memory) {}

  Status start(const SweepCase& one) {
    reads_ = one.read_bytes();
    writes_ = one.write_bytes();
    sets_ = one.sets();
    read_at_ = from_.take(sets_ * step(reads_));
    write_at_ = to_.take(sets_ * step(writes_));
    next_ = 0;
    return read_at_ && write_at_ ? Status() : Status{Code::kOutOfMemory, "no memory for the copy"};
  }
  Status queue(void* stream) {
    const int64_t set = next_;
    next_ = (next_ + 1) % sets_;
    return cuda::copy_like(timer_.device(), write_at_ + set * step(writes_), writes_,
                           read_at_ + set * step(reads_), reads_, config_, stream);
  }
  Status choose(Contender& contender, bool graph) {
    const auto total = static_cast<double>(reads_ + writes_);
    const auto size = static_cast<int>(std::lround(2 * std::log2(total)));
    const auto ratio = static_cast<int>(std::lround(4 * static_cast<double>(reads_) / total));
    const auto [found, is_new] = best_.try_emplace({size, ratio, graph}, 0);
    double best_us = INFINITY;
    for (config_ = 0; is_new && config_ < cuda::copy_configs(); ++config_) {
      if (graph) PESTLE_TRY(contender.use_graph());
      const double us = contender.best_of(3);
      if (us < best_us) found->second = config_;
      best_us = std::min(best_us, us);
    }
    config_ = found->second;
    return graph ? contender.use_graph() : Status();
  }

 private:
  static int64_t step(int64_t bytes) { return std::max<int64_t>(1, (bytes + 255) / 256) * 256; }
  Timer& timer_;
  Arena from_, to_;
  uint8_t* read_at_ = nullptr;
  uint8_t* write_at_ = nullptr;
  int64_t reads_ = 0, writes_ = 0, sets_ = 1, next_ = 0;
  int config_ = 0;
  std::map<std::tuple<int, int, bool>, int> best_;
};

class CudaSweepBench final : public SweepBench {
 public:
  CudaSweepBench(const SweepOptions& options, Memory& memory)
      : SweepBench(options, memory), timer_(memory), copy_(memory, timer_) {}
  Status start() { return timer_.start(); }

 protected:
  // Calls and copies are recorded at a point's first kind of data; the tensors stay where they are.
  Status time(SweepCase& one, bool first_kind, SweepPoint& point,
              const std::string& kind) override {
    if (first_kind) PESTLE_TRY(begin(one, point));
    (void)ours_->sample();
    const std::vector<Timing> timings =
        time_interleaved({[&] { return ours_->sample(); }, [&] { return copies_->sample(); }},
                         options_.bench.timing);
    point.us[kind] = timings[0].median;
    point.copy_us[kind] = timings[1].median;
    return timer_.status();
  }

 private:
  Status begin(SweepCase& one, SweepPoint& point) {
    PESTLE_TRY(one.queue(nullptr));
    memory_.synchronize();
    const int64_t calls = std::min(one.sets(), kMostCalls);
    ours_ =
        std::make_unique<Contender>(timer_, calls, [&](void* stream) { return one.queue(stream); });
    PESTLE_TRY(copy_.start(one));
    copies_ = std::make_unique<Contender>(timer_, calls,
                                          [&](void* stream) { return copy_.queue(stream); });
    point.graph = options_.bench.graph == "on" ||
                  (options_.bench.graph == "auto" && ours_->best_of(2) < kShortUs);
    PESTLE_TRY(timer_.status());
    if (point.graph) PESTLE_TRY(ours_->use_graph());
    return copy_.choose(*copies_, point.graph);
  }

  Timer timer_;
  SweepCopy copy_;
  std::unique_ptr<Contender> ours_, copies_;
};

}  // namespace

Result<std::unique_ptr<SweepBench>> cuda_sweep_bench(const SweepOptions& options, Memory& memory) {
  auto bench = std::make_unique<CudaSweepBench>(options, memory);
  PESTLE_TRY(bench->start());
  return std::unique_ptr<SweepBench>(std::move(bench));
}

}  // namespace pestle::harness
