// One point of a sweep: a call on several sets of tensors in memory that all points share, filled
// from data that is made once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/call_text.h"
#include "harness/slots.h"
#include "harness/sweep.h"

namespace pestle::harness {

// Memory that grows and is kept: allocating for every point would take longer than measuring it.
class Arena {
 public:
  explicit Arena(Memory& memory) : memory_(memory) {}
  ~Arena() { memory_.release(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // At least so many bytes; what they were is lost. nullptr when there is not so much.
  uint8_t* take(int64_t bytes);

 private:
  Memory& memory_;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The first kPeriod elements of each kind of tensor, where calls can copy them from.
class DataPool {
 public:
  explicit DataPool(Memory& memory) : memory_(memory) {}
  ~DataPool();
  DataPool(const DataPool&) = delete;
  DataPool& operator=(const DataPool&) = delete;

  // Writes `count` elements; `place` tells tensors of one call apart.
  Status write(void* to, DType dtype, int64_t count, Meaning meaning, Values values, size_t place);
  // The largest magnitude of what write() gives for values.
  Result<float> amax(DType dtype, Values values, size_t place);

 private:
  struct Entry {
    void* data = nullptr;
    int64_t bytes = 0;
    float amax = 0;
  };
  Result<Entry*> entry(DType dtype, Meaning meaning, Values values, size_t place);
  Memory& memory_;
  std::map<std::tuple<DType, Meaning, Values, size_t>, Entry> entries_;
};

class SweepCase {
 public:
  struct Arenas {
    explicit Arenas(Memory& memory) : inputs(memory), outputs(memory), workspace(memory) {}
    Arena inputs, outputs, workspace;
  };
  static Result<std::unique_ptr<SweepCase>> make(const Op& op, const std::string& text, Memory&,
                                                 Arenas& arenas, DataPool& pool);

  // The same values in all sets.
  Status fill(Values values);
  // The kinds of data that make a difference: of ops whose first input holds codes, one.
  std::vector<Values> kinds() const;
  Status queue(void* stream);  // on the next set
  // Do the first two sets hold the same results?
  bool results_agree() const;

  const Impl& impl() const { return *impl_; }
  const TextCall& text_call() const { return call_; }
  int64_t sets() const { return static_cast<int64_t>(sets_.size()); }
  int64_t bytes() const { return bytes_; }
  int64_t read_bytes() const { return bytes_ > write_bytes_ ? bytes_ - write_bytes_ : 0; }
  int64_t write_bytes() const { return write_bytes_; }

 private:
  struct Set {
    OwnValues values;
    Call call;
  };
  Status place_sets(Arenas& arenas);
  // The scale that the caller gives for its codes, amax / largest code; 0: the input is none.
  Result<float> given_scale(const Slot& slot, Values values) const;
  float largest_code(const Slot& scale) const;

  const Op* op_ = nullptr;
  const Impl* impl_ = nullptr;
  Memory* memory_ = nullptr;
  DataPool* pool_ = nullptr;
  TextCall call_;
  std::vector<Slot> slots_;
  std::vector<Set> sets_;
  size_t next_ = 0;
  int64_t bytes_ = 0, write_bytes_ = 0;
  uint8_t* inputs_ = nullptr;
  uint8_t* outputs_ = nullptr;
  int64_t input_step_ = 0, output_step_ = 0;  // from set to set
};

// Measures points, on a CUDA device or the CPU.
class SweepBench {
 public:
  static Result<std::unique_ptr<SweepBench>> make(const SweepOptions& options, Memory* memory);
  virtual ~SweepBench() = default;

  // Does the contract allow it, and is it no larger than the options say?
  bool is_call(const SweepForm& form, const std::string& text) const;
  Result<SweepPoint> measure(const SweepForm& form, const std::string& text);

 protected:
  SweepBench(const SweepOptions& options, Memory& memory)
      : options_(options), memory_(memory), arenas_(memory), pool_(memory) {}
  // Times the filled case and the copy beside it.
  virtual Status time(SweepCase& one, bool first_kind, SweepPoint& point,
                      const std::string& kind) = 0;

  const SweepOptions& options_;
  Memory& memory_;
  SweepCase::Arenas arenas_;
  DataPool pool_;
};

// sweep_cuda.cpp
Result<std::unique_ptr<SweepBench>> cuda_sweep_bench(const SweepOptions& options, Memory& memory);

}  // namespace pestle::harness
