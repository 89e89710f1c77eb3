// Times implementations of ops on their contracts' cases. Names no op.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/call_text.h"
#include "harness/ceiling.h"
#include "harness/slots.h"
#include "harness/test_tensor.h"
#include "harness/timing.h"

namespace pestle::harness {

// A case with as many sets of tensors as it takes to keep every run out of the caches.
class BenchCase {
 public:
  static Result<BenchCase> make(const Op& op, const Case& row, int64_t footprint_bytes,
                                Memory& memory);

  // Queues one call on the next set.
  Status queue(const Impl& impl, void* stream);
  // Do all sets that ran hold the same results, being copies of one another? Ask after timing: a
  // call that did not do its work on each shows here. poison_outputs() first.
  bool results_agree() const;
  void poison_outputs();
  // What a call must read and write at least; reads grow where the contract counts passes.
  int64_t read_bytes() const { return std::max<int64_t>(0, bytes_ - write_bytes_); }
  int64_t write_bytes() const { return write_bytes_; }
  // The inputs of a set, for the copy that is timed beside it.
  std::vector<Region> inputs(int64_t set) const;

  // Microseconds of one call, on the next set. Fails only before the first one: prepare() asks.
  double run(const Impl& impl);
  // The call on the first set of tensors.
  const Call& first_call() const { return sets_[0]->call; }
  // Why the implementation can't run this; else makes its workspace and warms it up.
  Status prepare(const Impl& impl);
  // One call, to its end.
  Status warm_up(const Impl& impl);
  Memory& memory() { return *memory_; }

  const TextCall& text_call() const { return call_; }
  int64_t bytes() const { return bytes_; }
  int64_t flops() const { return flops_; }
  int64_t sets() const { return static_cast<int64_t>(sets_.size()); }

 private:
  struct Set {
    std::vector<TestTensor> tensors;  // by slot
    OwnValues values;
    Call call;
  };
  Status add_set();

  const Op* op_ = nullptr;
  Memory* memory_ = nullptr;
  TextCall call_;
  std::vector<Slot> slots_;  // its tensors
  std::vector<std::unique_ptr<Set>> sets_;
  std::unique_ptr<TestTensor> workspace_;
  size_t next_ = 0;
  std::vector<bool> ran_;  // by set, since poison_outputs()
  int64_t bytes_ = 0;
  int64_t write_bytes_ = 0;
  int64_t flops_ = 0;
  int batch_ = 1;  // calls a sample, so that short ones are not the clock's noise
};

struct BenchOptions {
  TimingOptions timing;
  int64_t footprint_bytes = int64_t{1} << 30;
  std::string impl;  // empty: the one that dispatch chooses
  std::string versus;
  std::string isa = "best";
  int threads = 0;
  std::string graph = "auto";  // on a device: calls in a graph: on, off, or when they are short
};

struct BenchResult {
  std::string op, impl, case_text, dtype, isa;
  int device = -1;  // a CUDA device, or the CPU
  bool graph = false;
  bool forced = false;  // the implementation was named, not chosen
  bool results_agree = true;
  int64_t reads = 0, writes = 0;
  std::string copy_method, throttled;
  std::vector<std::string> launches;  // of one call: kernels, copies and clears, in order
  int sm_mhz = 0, memory_mhz = 0;
  std::map<std::string, double> peers;  // microseconds of other libraries on the same case
  int threads = 0;
  int64_t sets = 0;
  int64_t bytes = 0;
  int64_t flops = 0;
  Timing time;
  Timing copy;  // samples of the ceiling, taken in turn with the above
  double copy_gb_per_s = 0;
  double compute_gflops = 0;
  std::string bound;  // "memory" or "compute": which ceiling is nearer for this many flops a byte
  double percent_of_ceiling = 0;
  // With BenchOptions::versus: its time, and time / versus_time of neighbouring samples.
  std::string versus;
  Timing versus_time;
  Timing ratio;

  double gb_per_s() const { return static_cast<double>(bytes) / time.median * 1e-3; }
  double gflops() const { return static_cast<double>(flops) / time.median * 1e-3; }
};

std::string main_dtype(const Op& op, const TextCall& call);
// The implementation that `options` name, or the first that takes the case, made ready; likewise
// the one to compare with, null if none is named.
Status pick_impls(const Op& op, const BenchOptions& options, BenchCase& bench, const Impl*& impl,
                  const Impl*& versus);

// "faster by 12 % (95 %: 10 to 13 %)", "slower ...", or "no difference shown".
std::string versus_verdict(const BenchResult& result);

Result<BenchResult> bench_case(const Op& op, const Case& row, const BenchOptions& options,
                               CopyCeiling& ceiling, double compute_gflops);

// Cost of choosing an implementation, in nanoseconds, over the first case of every op.
struct DispatchCost {
  std::string op, case_text;
  double seen_ns = 0;
  double fresh_ns = 0;
};
std::vector<DispatchCost> bench_dispatch();

}  // namespace pestle::harness
