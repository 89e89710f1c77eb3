// Every path that a run will write, looked at before any work: none is an input or another output,
// and each can be written. Paths are compared by the file that they lead to, not by their spelling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace pestle::files {

struct WrittenPath {
  std::string role;  // "output", "HTML report"
  std::string path;
  uint64_t bytes = 0;            // room it needs; 0: next to nothing
  bool may_replace = false;      // an existing file under the name
  bool is_planned_only = false;  // a dry run: it must be distinct, but nothing will be written
};

// kInvalidArgument for paths that are not distinct, kIoError for the others. PATH.partial, where
// bytes go first, counts as written too.
Status check_outputs(const std::vector<std::string>& inputs,
                     const std::vector<WrittenPath>& outputs);

}  // namespace pestle::files
