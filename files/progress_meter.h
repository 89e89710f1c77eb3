#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "files/quantize_options.h"

namespace pestle::files {

// Calls options.progress at most ten times a second, from whichever thread is there.
class ProgressMeter {
 public:
  ProgressMeter(const QuantizeOptions& options, uint64_t total)
      : options_(options), total_(total) {}

  void restart(const char* stage) {
    stage_ = stage;
    done_ = 0;
  }
  void advance(uint64_t bytes) {
    done_ += bytes;
    if (!options_.progress) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const auto now = std::chrono::steady_clock::now();
    if (!lock || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    options_.progress({done_, total_, stage_});
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    if (options_.progress) options_.progress({total_, total_, stage_});
  }

 private:
  const QuantizeOptions& options_;
  const uint64_t total_;
  std::atomic<uint64_t> done_{0};
  const char* stage_ = "";
  std::mutex mutex_;
  std::chrono::steady_clock::time_point last_ = {};
};

}  // namespace pestle::files
