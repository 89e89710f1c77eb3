// Timings that can be trusted: medians with an interval, contenders interleaved.
#pragma once

#include <functional>
#include <vector>

namespace pestle::harness {

struct Timing {
  std::vector<double> samples;  // microseconds, in the order taken
  double median = 0;
  double low = 0, high = 0;  // 95 % interval of the median, by order statistics
  // Half the interval over the median.
  double spread() const { return median > 0 ? (high - low) / 2 / median : 0; }
};
Timing summarize(std::vector<double> samples);

struct TimingOptions {
  double spread = 0.01;  // enough when every contender's interval is as narrow
  double seconds = 2;    // or when this time is used up
  int at_least = 5;      // rounds, also beyond that time
};

// Runs the contenders in turn, order reversed every other round, each returning its microseconds.
std::vector<Timing> time_interleaved(const std::vector<std::function<double()>>& contenders,
                                     const TimingOptions& options);

// Median and interval of a[i] / b[i]: neighbours in time, so that a slow phase of the machine
// touches both.
Timing paired_ratio(const Timing& a, const Timing& b);

}  // namespace pestle::harness
