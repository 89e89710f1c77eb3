// One case of an op made ready to run: its inputs, its reference results, and fresh memory for
// every run.
#pragma once

#include <string>
#include <vector>

#include "core/call_text.h"
#include "harness/check.h"
#include "harness/compare.h"

namespace pestle::harness {

// What the reference says about a case on this data.
struct Truth {
  struct Output {
    std::vector<uint8_t> values;     // bounded: float64, else the output's dtype
    std::vector<uint8_t> magnitude;  // bounded: float64 sums of |terms|
    double c = 0;
    int64_t k = 1;
  };
  std::vector<Output> outputs;  // by argument; empty for the rest
};

class Trial {
 public:
  static Result<Trial> make(const Op& op, const Case& row, uint64_t seed, Memory& memory);

  const TextCall& text_call() const { return call_; }
  // Bytes that running one implementation takes at most, for the decision whether to try.
  int64_t memory_needed() const;
  Status compute_truth();

  struct Outcome {
    bool refused = false;
    std::string reason;               // of the refusal
    std::vector<std::string> faults;  // empty: as promised
    uint64_t hash = 0;                // of all outputs
    double worst_bound = 0;
  };
  Outcome run(const Impl& impl, const Variant& variant);
  // Do all outputs that may lie in their input's memory fit there?
  bool can_run_in_place() const;

 private:
  struct Placed {
    std::vector<TestTensor> tensors;
    std::vector<int> owner;  // argument -> tensor, -1 if absent
    std::vector<Value> values;
    Call call;
  };

  Result<Placed> place(Layout layout, bool in_place, bool bounded_as_f64) const;
  void reset(Placed& placed, uint8_t poison) const;
  bool is_output(size_t arg) const;
  bool is_bounded_output(size_t arg) const;
  // Runs once; adds faults; returns the hash of the outputs.
  uint64_t run_once(Placed& placed, const Impl& impl, uint8_t poison, Outcome& outcome);
  void compare(const Placed& placed, Outcome& outcome) const;
  Status run_reference(bool magnitudes);

  const Op* op_ = nullptr;
  Dist dist_ = Dist::kNormal;
  uint64_t seed_ = 0;
  Memory* memory_ = nullptr;
  TextCall call_;
  Truth truth_;
};

}  // namespace pestle::harness
