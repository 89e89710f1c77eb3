// Results and cases as JSON, one line each: what scripts and peers read.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/op_table.h"
#include "harness/bench.h"
#include "harness/check.h"

namespace pestle::harness {

nlohmann::ordered_json result_json(const BenchResult& result);
// Shapes, dtypes, attributes, bytes and flops of a case: all that a peer needs to run the same.
Result<nlohmann::ordered_json> case_json(const Op& op, const Case& row);

// CPU, commit, build and compiler, so that a line of results stands for itself.
nlohmann::ordered_json machine_json();
// Name, compute capability, driver and present clocks of a CUDA device.
nlohmann::ordered_json gpu_json(int device);
// What a check came to: counts, failures, refusals, skips, and what was not run and why.
nlohmann::ordered_json check_json(const CheckReport& report);

// Appends lines to a file; without a name, writes nothing.
class ResultFile {
 public:
  Status open(const std::string& path);
  void write(const nlohmann::ordered_json& line);

 private:
  std::ofstream file_;
};

}  // namespace pestle::harness
