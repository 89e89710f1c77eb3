// Cases of a file: {"cases": [{"op": "softmax", "case": "S=4608x3072"}]}; "impl" forces one.
#pragma once

#include <string>
#include <vector>

#include "core/op_table.h"

namespace pestle::cli {

struct FileCase {
  const Op* op;
  std::string text;
  std::string impl;  // "": the one that is chosen
};

// Those of these ops; "" as path gives none.
Result<std::vector<FileCase>> cases_of_file(const std::string& path,
                                            const std::vector<const Op*>& ops);

}  // namespace pestle::cli
