#include "cli/case_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace pestle::cli {

Result<std::vector<FileCase>> cases_of_file(const std::string& path,
                                            const std::vector<const Op*>& ops) {
  std::vector<FileCase> cases;
  if (path.empty()) return cases;
  std::ifstream file(path);
  const auto parsed = nlohmann::json::parse(file, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("cases")) {
    return Status{Code::kIoError, path + ": can't be read, or has no list 'cases'"};
  }
  for (const auto& entry : parsed["cases"]) {
    auto op = require_op(entry.at("op").get<std::string>());
    PESTLE_TRY(op.status());
    if (std::find(ops.begin(), ops.end(), op.value()) == ops.end()) continue;
    cases.push_back(
        {op.value(), entry.at("case").get<std::string>(), entry.value("impl", std::string())});
  }
  return cases;
}

}  // namespace pestle::cli
