// What this machine can do at most, measured in the same run as what is compared with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"

namespace pestle::harness {

// Copies between two buffers far beyond the caches, by all threads; a stretch a sample, the next
// stretch each time.
class CopyCeiling {
 public:
  static constexpr int64_t kBufferBytes = int64_t{512} << 20;
  static constexpr int64_t kStretchBytes = int64_t{64} << 20;

  // Allocates, and picks the faster of memcpy and streaming stores.
  static Result<std::unique_ptr<CopyCeiling>> make();
  ~CopyCeiling();
  CopyCeiling(const CopyCeiling&) = delete;
  CopyCeiling& operator=(const CopyCeiling&) = delete;

  // Microseconds of one stretch.
  double sample();
  // Bytes read and written by one.
  static constexpr int64_t bytes_per_sample() { return 2 * kStretchBytes; }
  const char* method() const { return streaming_ ? "streaming stores" : "memcpy"; }

 private:
  CopyCeiling() = default;
  char* from_ = nullptr;
  char* to_ = nullptr;
  int64_t next_ = 0;
  bool streaming_ = false;
};

// f32 multiply-adds of all threads in registers, in GFLOP/s.
double compute_ceiling_gflops();

std::string cpu_name();

}  // namespace pestle::harness
