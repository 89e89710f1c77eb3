// Sampled rows: where the rows of an op's outputs don't depend on one another, a few of them say
// whether all are right. That they don't is not believed but tried, on the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/call_text.h"
#include "core/op_table.h"

namespace pestle::harness {

// The elements of a row-major array whose indices are among `rows` in every dimension (an empty
// list stands for all), and `shape` changed to theirs.
std::vector<uint8_t> take_rows(const void* elements, const std::vector<int64_t> (&rows)[kMaxRank],
                               TensorView& shape);

// A call cut down to some values of some of its symbols.
struct SampledCall {
  std::string text;                          // the case with smaller symbols
  std::vector<std::vector<uint8_t>> inputs;  // by argument, row-major
  struct Rows {
    std::vector<int64_t> of[kMaxRank];
  };
  std::vector<Rows> rows;  // by argument: which of the full tensor's
};

// `inputs` are those of the case. An error (kUnsupported) when nothing can be cut.
Result<SampledCall> sample_call(const Op& op, const std::string& text,
                                std::vector<std::vector<uint8_t>> inputs, uint64_t seed);

// Runs the reference on the host. Outputs by argument, row-major; bounded ones in float64.
Result<std::vector<std::vector<uint8_t>>> run_reference_on(
    const Op& op, const std::string& text, const std::vector<std::vector<uint8_t>>& inputs,
    bool magnitudes);

}  // namespace pestle::harness
