#include "harness/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace pestle::harness {

Timing summarize(std::vector<double> samples) {
  Timing timing;
  timing.samples = std::move(samples);
  if (timing.samples.empty()) return timing;
  std::vector<double> sorted = timing.samples;
  std::sort(sorted.begin(), sorted.end());
  const auto n = static_cast<double>(sorted.size());
  const auto at = [&](double rank) {
    return sorted[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))];
  };
  timing.median = (at(std::floor((n - 1) / 2)) + at(std::ceil((n - 1) / 2))) / 2;
  // Ranks n/2 -+ 0.98 sqrt(n): the normal approximation of the binomial's 95 %.
  timing.low = at(std::floor(n / 2 - 0.98 * std::sqrt(n)));
  timing.high = at(std::ceil(n / 2 + 0.98 * std::sqrt(n)) - 1);
  return timing;
}

std::vector<Timing> time_interleaved(const std::vector<std::function<double()>>& contenders,
                                     const TimingOptions& options) {
  std::vector<std::vector<double>> samples(contenders.size());
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0;; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const size_t who = round % 2 == 0 ? i : contenders.size() - 1 - i;
      samples[who].push_back(contenders[who]());
    }
    if (round + 1 < options.at_least) continue;
    const double used =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (used >= options.seconds) break;
    // Sorting every round would cost more than short calls do.
    if (round >= 100 && round % 50 != 0) continue;
    const bool narrow = std::all_of(samples.begin(), samples.end(), [&](const auto& taken) {
      return taken.size() >= 10 && summarize(taken).spread() <= options.spread;
    });
    if (narrow) break;
  }
  std::vector<Timing> timings;
  for (auto& taken : samples) timings.push_back(summarize(std::move(taken)));
  return timings;
}

Timing paired_ratio(const Timing& a, const Timing& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.samples.size(), b.samples.size()); ++i) {
    ratios.push_back(a.samples[i] / b.samples[i]);
  }
  return summarize(std::move(ratios));
}

}  // namespace pestle::harness
