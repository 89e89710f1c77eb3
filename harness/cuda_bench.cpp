#include "harness/cuda_bench.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "backends/cuda/host/runtime.h"
#include "backends/cuda/measure/launched.h"
#include "core/dispatch.h"
#include "harness/cuda_timer.h"

namespace pestle::harness {
namespace {

// Arithmetic for so long that power holds the clocks: long samples back to back, after a load that
// lets them settle (for the first tenth of a second they are higher). Nothing waits in between,
// for power is held on average: a pause of 2 ms in 30 is 3 % of speed. run_peers.py does the same.
constexpr int64_t kSustainedFlops = int64_t{1} << 36;
constexpr double kSustainedUs = 30000;
constexpr double kSettleUs = 150000;
constexpr int64_t kMostSustained = 250;
constexpr int64_t kFewestSets = 4;
constexpr int64_t kLargestSet = int64_t{4} << 30;
constexpr int64_t kAligned = 256;

// The copy of the same size: its own memory, as much a call, with the case's data.
class CopyOf {
 public:
  CopyOf(const BenchCase& bench, Memory& memory)
      : bench_(bench),
        memory_(memory),
        sets_(bench.sets()),
        read_step_(padded(bench.read_bytes())),
        write_step_(padded(bench.write_bytes())),
        from_(memory, sets_ * read_step_),
        to_(memory, sets_ * write_step_) {}

  Status start() {
    if (from_.data == nullptr || to_.data == nullptr) {
      return {Code::kOutOfMemory, "no memory for the copy that results are compared with"};
    }
    const std::vector<Region> inputs = bench_.inputs(0);
    int64_t at = 0;
    // An op without inputs reads nothing, so its copy's content does not matter.
    while (at < from_.bytes && !inputs.empty()) {
      const int64_t before = at;
      for (const Region& region : inputs) {
        const int64_t bytes = std::min(region.bytes, from_.bytes - at);
        if (bytes > 0) memory_.copy(from_.data + at, region.memory, bytes);
        at += bytes;
      }
      if (at == before) break;
    }
    return {};
  }
  Status queue(void* stream) {
    const int64_t set = next_;
    next_ = (next_ + 1) % sets_;
    return cuda::copy_like(memory_.device().index, to_.data + set * write_step_,
                           bench_.write_bytes(), from_.data + set * read_step_, bench_.read_bytes(),
                           config_, stream);
  }
  void set_config(int config) { config_ = config; }
  int config() const { return config_; }

 private:
  static int64_t padded(int64_t bytes) {
    return std::max<int64_t>(1, (bytes + kAligned - 1) / kAligned) * kAligned;
  }
  const BenchCase& bench_;
  Memory& memory_;
  int64_t sets_;
  int64_t read_step_, write_step_;
  Allocation from_, to_;
  int64_t next_ = 0;
  int config_ = 0;
};

// The fastest way to copy so much, in the mode that will be timed.
Status choose_config(CopyOf& copy, Contender& contender, bool graph) {
  int best = 0;
  double best_us = INFINITY;
  for (int config = 0; config < cuda::copy_configs(); ++config) {
    copy.set_config(config);
    if (graph) PESTLE_TRY(contender.use_graph());
    const double us = contender.best_of(4);
    if (us < best_us) best = config;
    best_us = std::min(best_us, us);
  }
  copy.set_config(best);
  return graph ? contender.use_graph() : Status();
}

// What a call launches, behind one that has its kernels loaded.
Result<std::vector<std::string>> launches_of(BenchCase& bench, const Impl& impl, Timer& timer) {
  Contender(timer, 1, [&](void* stream) { return bench.queue(impl, stream); }).best_of(1);
  return cuda::launched(timer.device(), timer.stream(),
                        [&] { return bench.queue(impl, timer.stream()); });
}

// Calls in a sample, of so many launches each: all fit in the stream's queue.
int64_t calls_of(BenchCase& bench, const Impl& impl, Timer& timer, int64_t launches) {
  if (bench.flops() < kSustainedFlops)
    return std::clamp(kMostLaunches / std::max(launches, int64_t{1}), int64_t{1},
                      std::min(bench.sets(), kMostCalls));
  Contender one(timer, 1, [&](void* stream) { return bench.queue(impl, stream); });
  const double us = one.best_of(2);
  return std::clamp(static_cast<int64_t>(kSustainedUs / us), int64_t{1}, kMostSustained);
}

int64_t footprint_of(const Op& op, const Case& row, int64_t wanted) {
  auto call = call_from_text(op, row.text, DeviceType::kCuda);
  if (!call.ok()) return wanted;
  auto bytes = op.contract.bytes(call.value().scope);
  if (!bytes.ok() || bytes.value() > kLargestSet) return wanted;
  return std::max(wanted, kFewestSets * bytes.value());
}

void rate(BenchResult& r) {
  r.copy_gb_per_s = static_cast<double>(r.bytes) / r.copy.median * 1e-3;
  r.bound = "memory";
  r.percent_of_ceiling = r.copy.median / r.time.median * 100;
}

}  // namespace

Result<BenchResult> bench_case_on_cuda(const Op& op, const Case& row, const BenchOptions& options,
                                       Memory& memory) {
  auto made = BenchCase::make(op, row, footprint_of(op, row, options.footprint_bytes), memory);
  PESTLE_TRY(made.status());
  BenchCase& bench = made.value();
  const Impl* impl = nullptr;
  const Impl* versus = nullptr;
  memory.set_context(std::string(op.spec->name) + " '" + row.text + "'");
  PESTLE_TRY(pick_impls(op, options, bench, impl, versus));
  memory.synchronize();

  Timer timer(memory);
  PESTLE_TRY(timer.start());
  CopyOf copy(bench, memory);
  PESTLE_TRY(copy.start());
  auto launches = launches_of(bench, *impl, timer);
  PESTLE_TRY(launches.status());
  const int64_t calls = calls_of(bench, *impl, timer, std::ssize(launches.value()));
  const bool sustained = bench.flops() >= kSustainedFlops;
  // Never the same set twice in a sample: with the flush, each call finds nothing in L2. (Sustained
  // ones come to a set again when a gigabyte of others has passed.)
  Contender ours(timer, calls, [&](void* stream) { return bench.queue(*impl, stream); }, sustained);
  Contender theirs(
      timer, calls, [&](void* stream) { return bench.queue(*versus, stream); }, sustained);
  Contender copies(timer, std::min(bench.sets(), kMostCalls),
                   [&](void* stream) { return copy.queue(stream); });

  const bool graph = options.graph == "on" ||
                     (options.graph == "auto" && !sustained && ours.best_of(5) < kShortUs);
  PESTLE_TRY(timer.status());
  bench.poison_outputs();
  if (graph) PESTLE_TRY(ours.use_graph());
  if (graph && versus != nullptr) PESTLE_TRY(theirs.use_graph());
  PESTLE_TRY(choose_config(copy, copies, graph));
  if (sustained && versus != nullptr) theirs.load_for(kSettleUs);
  if (sustained) ours.load_for(kSettleUs);

  std::vector<std::function<double()>> contenders = {[&] { return ours.sample(); }};
  if (versus != nullptr) contenders.push_back([&] { return theirs.sample(); });
  const std::function<double()> one_copy = [&] { return copies.sample(); };
  if (!sustained) contenders.push_back(one_copy);
  std::vector<Timing> timings = time_interleaved(contenders, options.timing);
  const cuda::Clocks clocks = cuda::clocks(timer.device());
  if (sustained) timings.push_back(time_interleaved({one_copy}, options.timing)[0]);
  PESTLE_TRY(timer.status());
  memory.synchronize();

  BenchResult result;
  result.op = op.spec->name;
  result.impl = impl->id;
  result.case_text = row.text;
  result.dtype = main_dtype(op, bench.text_call());
  result.device = timer.device();
  result.graph = graph;
  result.forced = !options.impl.empty();
  result.launches = std::move(launches.value());
  // Two implementations in turn may leave different ones, within their bounds.
  result.results_agree = versus != nullptr || bench.results_agree();
  result.reads = bench.read_bytes();
  result.writes = bench.write_bytes();
  result.copy_method = cuda::copy_config_name(copy.config());
  result.sm_mhz = clocks.sm_mhz;
  result.memory_mhz = clocks.memory_mhz;
  result.throttled = clocks.throttled();
  result.sets = bench.sets();
  result.bytes = bench.bytes();
  result.flops = bench.flops();
  result.time = std::move(timings[0]);
  result.copy = std::move(timings.back());
  rate(result);
  if (versus != nullptr) {
    result.versus = versus->id;
    result.versus_time = std::move(timings[1]);
    result.ratio = paired_ratio(result.time, result.versus_time);
  }
  return result;
}

namespace {

// The choices of one way alone, and the implementation that then serves the case.
struct OneWay {
  TunedFile file;
  const Impl* impl = nullptr;
};

Status take_way(const Op& op, BenchCase& bench, OneWay& way) {
  PESTLE_TRY(use_tuned(way.file));
  auto choice = choose(op, bench.first_call());
  PESTLE_TRY(choice.status());
  way.impl = choice.value().impl;
  return bench.prepare(*way.impl);
}

// Each contender alone, after `settle`, forwards and backwards: of ways that draw unlike power, one
// that draws less gives the clock away to the others when they are timed in turn, as it would not
// in a model. The better of both times, since machines have slow phases of a tenth of a second.
std::vector<Timing> time_one_by_one(const std::vector<std::function<double()>>& contenders,
                                    const std::function<void(size_t)>& settle,
                                    TimingOptions options) {
  const size_t count = contenders.size();
  options.seconds /= 2 * static_cast<double>(count);
  options.at_least = 4;
  std::vector<Timing> best(count);
  for (size_t turn = 0; turn < 2 * count; ++turn) {
    const size_t i = turn < count ? turn : 2 * count - 1 - turn;
    settle(i);
    Timing timing = time_interleaved({contenders[i]}, options)[0];
    if (turn < count || timing.median < best[i].median) best[i] = std::move(timing);
  }
  return best;
}

// Times each way; fills the choices' times.
Status time_all(BenchCase& bench, std::vector<OneWay>& ways, const BenchOptions& options,
                Timer& timer) {
  PESTLE_TRY(timer.start());
  PESTLE_TRY(use_tuned(ways[0].file));
  const auto launches = launches_of(bench, *ways[0].impl, timer);
  PESTLE_TRY(launches.status());
  const int64_t calls = calls_of(bench, *ways[0].impl, timer, std::ssize(launches.value()));
  const bool sustained = bench.flops() >= kSustainedFlops;
  std::vector<std::unique_ptr<Contender>> contenders;
  for (OneWay& way : ways) {
    contenders.push_back(std::make_unique<Contender>(
        timer, calls, [&](void* stream) { return bench.queue(*way.impl, stream); }, sustained));
    PESTLE_TRY(use_tuned(way.file));
    const double us = contenders.back()->best_of(3);
    if (!sustained && us < kShortUs) PESTLE_TRY(contenders.back()->use_graph());
  }
  std::vector<std::function<double()>> turns;
  for (size_t i = 0; i < ways.size(); ++i) {
    turns.push_back([&, i] {
      (void)use_tuned(ways[i].file).ok();  // take_way() has seen it succeed
      return contenders[i]->sample();
    });
  }
  const auto settle = [&](size_t i) {
    (void)use_tuned(ways[i].file).ok();
    contenders[i]->load_for(kSettleUs);
  };
  const std::vector<Timing> times = sustained ? time_one_by_one(turns, settle, options.timing)
                                              : time_interleaved(turns, options.timing);
  for (size_t i = 0; i < ways.size(); ++i) ways[i].file.choices[0].us = times[i].median;
  return timer.status();
}

}  // namespace

Result<TunedWays> time_ways_on_cuda(const Op& op, const Case& row, const BenchOptions& options,
                                    Memory& memory) {
  auto made = BenchCase::make(op, row, footprint_of(op, row, options.footprint_bytes), memory);
  PESTLE_TRY(made.status());
  BenchCase& bench = made.value();
  auto info = cuda::device_info(memory.device().index);
  PESTLE_TRY(info.status());
  TunedWays result;
  result.machine = {info.value().name, info.value().compute_capability, info.value().sm_count, {}};
  PESTLE_TRY(use_tuned({}));
  const Machine machine = machine_for(memory.device());
  const Advice* advice = advice_of(op);
  if (advice && advice->ways) result.ways = advice->ways(bench.first_call(), machine);
  if (result.ways.empty())
    return unsupported(std::string(op.spec->name) + " '" + row.text + "' goes one way only");
  auto untuned = choose(op, bench.first_call());
  PESTLE_TRY(untuned.status());
  const std::string_view chosen = untuned.value().impl->id;
  const std::string plan = advice->plan(bench.first_call(), machine, chosen);
  std::vector<OneWay> ways;
  for (const TunedChoice& choice : result.ways) {
    ways.push_back({result.machine, nullptr});
    ways.back().file.choices = {choice};
    PESTLE_TRY(take_way(op, bench, ways.back()));
    // The same implementation in the same words, but for who chose it.
    const bool same = chosen == ways.back().impl->id &&
                      advice->plan(bench.first_call(), machine, chosen).starts_with(plan);
    if (same) result.untuned = ways.size() - 1;
  }
  Timer timer(memory);
  PESTLE_TRY(time_all(bench, ways, options, timer));
  PESTLE_TRY(use_tuned({}));
  for (size_t i = 0; i < ways.size(); ++i) {
    result.ways[i] = ways[i].file.choices[0];
    result.impls.emplace_back(ways[i].impl->id);
    if (result.ways[i].us < result.ways[result.best].us) result.best = i;
  }
  return result;
}

}  // namespace pestle::harness
