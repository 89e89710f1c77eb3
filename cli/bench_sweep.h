// pestle bench --sweep.
#pragma once

#include <string>
#include <vector>

#include "harness/memory.h"
#include "harness/sweep.h"

namespace pestle::cli {

struct SweepArguments {
  std::vector<std::string> ops;
  std::string cases_file;  // forms in place of those derived from the contracts of the ops it names
  std::string out;
  bool json = false;
  bool list_forms = false;
  harness::SweepOptions options;
};

int bench_sweep(const SweepArguments& arguments, harness::Memory* memory);

}  // namespace pestle::cli
