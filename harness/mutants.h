// Are the checks worth anything? Each mutant runs the real implementation and then does what a
// wrong kernel does; the check must notice. Works wherever the memory is, on any op.
#pragma once

#include <string>
#include <vector>

#include "harness/check.h"

namespace pestle::harness {

struct MutantVerdict {
  std::string op, impl, mutant;
  bool applies = false;  // e.g. no wrong scale column where there is no scale
  bool caught = false;
  std::string by;  // the check's words
  bool survived() const { return applies && !caught; }
};

// The mutants' names, in order.
std::vector<std::string> mutant_names();

// Every mutant of the first implementation of the memory's device. Nothing when there is none.
std::vector<MutantVerdict> check_mutants(const Op& op, const CheckOptions& options);

}  // namespace pestle::harness
