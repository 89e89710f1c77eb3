// Starting other programs: to time them, to see their memory, to talk with one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace pestle::harness {

struct ProcessRun {
  int exit_code = 0;
  double seconds = 0;
  int64_t peak_private_bytes = 0;  // anonymous pages, the largest of samples a millisecond apart
};
// Runs to the end, output discarded. An error if it can't be started.
Result<ProcessRun> run_process(const std::vector<std::string>& argv, bool watch_memory = false);

// A program that answers each line on its standard input with one line on its standard output.
class LineWorker {
 public:
  LineWorker() = default;
  LineWorker(const LineWorker&) = delete;
  LineWorker& operator=(const LineWorker&) = delete;
  ~LineWorker();

  Status start(const std::vector<std::string>& argv);
  bool running() const { return pid_ > 0; }
  Result<std::string> ask(const std::string& line);

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string rest_;
};

// This program's own file.
std::string own_executable();

}  // namespace pestle::harness
