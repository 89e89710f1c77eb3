// One case of an op made ready to run: its inputs, its reference results, and fresh memory for
// every run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/call_text.h"
#include "harness/check.h"
#include "harness/compare.h"
#include "harness/slots.h"

namespace pestle::harness {

// What the reference says about a case on this data.
struct Truth {
  struct Output {
    std::vector<uint8_t> values;     // bounded: float64, else the output's dtype
    std::vector<uint8_t> magnitude;  // bounded: float64 sums of |terms|
    // By dimension, which indices the values above are of; empty: all of them.
    std::vector<int64_t> rows[kMaxRank];
    bool sampled = false;
    double c = 0;
    int64_t k = 1;
  };
  std::vector<Output> outputs;  // by slot; empty for the rest
};

class Trial {
 public:
  static Result<Trial> make(const Op& op, const Case& row, uint64_t seed, Memory& memory);

  const TextCall& text_call() const { return call_; }
  // Bytes that running one implementation takes at most on the host, for the decision whether to
  // try, and on a device. `sampled`: if bounded outputs are compared on sampled rows only.
  int64_t memory_needed(bool sampled) const;
  int64_t device_memory_needed() const;
  // How many arguments kNanFlavour's NaN can be in.
  size_t nan_args() const { return nan_args_.size(); }
  // By the reference, on the host.
  Status compute_truth();
  // For big cases: exact outputs by the best CPU implementation, which small cases hold to the
  // reference; bounded ones by the reference on sampled rows (sample.h), or, where rows hang
  // together, on everything, if `whole_fits` (else kOutOfMemory). `how` says what was done.
  Status compute_truth_of_big_case(std::string& how, const std::function<bool()>& whole_fits);

  struct Outcome {
    bool refused = false;
    std::string reason;               // of the refusal
    std::vector<std::string> faults;  // empty: as promised
    uint64_t hash = 0;                // of all outputs
    uint64_t codes_hash = 0;          // of those that are another op's codes
    double worst_bound = 0;
  };
  Outcome run(const Impl& impl, const Variant& variant);
  // Runs the plain variant again and again and compares hashes, taken where the outputs are.
  Outcome repeat(const Impl& impl, int runs);
  // Do all outputs that may lie in their input's memory fit there?
  bool can_run_in_place() const;

 private:
  struct Placed {
    std::vector<TestTensor> tensors;
    std::vector<size_t> owner;  // slot -> tensor
    OwnValues values;
    Call call;
    std::unique_ptr<TestTensor> workspace;
    std::unique_ptr<Recording> recording;
  };

  Result<Placed> place(Memory& memory, Layout layout, bool in_place, bool bounded_as_f64) const;
  Status place_workspace(Memory& memory, int64_t bytes, Placed& placed) const;
  Status call_impl(const Impl& impl, Launch launch, Placed& placed) const;
  // Chooses the implementation for this call, which may refuse.
  bool accepted(const Impl& impl, Placed& placed, int64_t& workspace_bytes, Outcome& outcome) const;
  void find_changes(Placed& placed, uint8_t poison, const std::vector<uint64_t>& before,
                    Outcome& outcome);
  void keep_outputs(Placed& placed, bool bounded, std::vector<uint8_t> Truth::Output::*kept);
  std::vector<bool> written_tensors(const Placed& placed) const;
  void reset(Placed& placed, uint8_t poison, bool again = false) const;
  bool is_output(size_t arg) const;
  bool is_bounded_output(size_t arg) const;
  // Of an argument that is one tensor and there.
  const TestTensor& tensor_of(const Placed& placed, size_t arg) const;
  void bring_results(Placed& placed) const;
  // Does the call allow other bits in each run, by an attribute `deterministic` that is false?
  bool bits_may_vary(const Call& call) const;
  // Runs once; adds faults; returns the hash of the outputs, 0 where their bits may vary.
  uint64_t run_once(Placed& placed, const Impl& impl, Launch launch, uint8_t poison,
                    Outcome& outcome);
  void compare(const Placed& placed, Outcome& outcome) const;
  // trial_codes.cpp: outputs that are another op's codes of this op's own output.
  Status find_codes();
  std::string coder() const;
  bool is_codes(size_t arg) const;
  // If it is this trial that holds codes to its own output; else the one that keeps it.
  bool compares_codes() const { return !codes_.empty() && with_output_ == nullptr; }
  void compare_codes(const Placed& placed, Outcome& outcome) const;
  uint64_t hash_codes(const Placed& placed) const;
  void run_with_kept_output(const Impl& impl, const Variant& variant, Outcome& outcome);
  Status run_reference(bool magnitudes);
  Status read_bounds(bool& any);
  void fill_input(const Slot& slot, const TensorView& shape, void* elements) const;
  Status run_best_on_host(std::string& how);
  Status sample_bounded(std::string& how);

  const Op* op_ = nullptr;
  std::string text_;
  Dist dist_ = Dist::kNormal;
  uint64_t seed_ = 0;
  Memory* memory_ = nullptr;
  TextCall call_;
  std::vector<Slot> slots_;       // its tensors
  std::vector<size_t> nan_args_;  // inputs of values, which have kNanFlavour's NaN in turn
  Truth truth_;
  std::string codes_;                   // what makes its codes: "quantize_fp8 x=out ..."
  std::unique_ptr<Trial> with_output_;  // the same call with the output that the codes are of
};

}  // namespace pestle::harness
