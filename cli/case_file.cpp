#include "cli/case_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cli/commands.h"
#include "core/json_text.h"

namespace pestle::cli {

Result<std::vector<FileCase>> cases_of_file(const std::string& path,
                                            const std::vector<const Op*>& ops) {
  std::vector<FileCase> cases;
  if (path.empty()) return cases;
  std::ifstream file(path);
  const auto parsed = parse_json(std::string{std::istreambuf_iterator<char>(file), {}});
  if (!parsed.is_object() || !parsed.contains("cases") || !parsed["cases"].is_array()) {
    return Status{Code::kIoError, path + ": can't be read, or has no list 'cases'"};
  }
  for (const auto& entry : parsed["cases"]) {
    const auto is_text = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_string();
    };
    if (!is_text("op") || !is_text("case") || (entry.contains("impl") && !is_text("impl"))) {
      return Status{
          Code::kCorruptFile,
          path + ": a case is no object with the texts 'op' and 'case': " + print_json(entry)};
    }
    auto op = require_op(entry.at("op").get<std::string>());
    PESTLE_TRY(op.status());
    if (std::find(ops.begin(), ops.end(), op.value()) == ops.end()) continue;
    cases.push_back(
        {op.value(), entry.at("case").get<std::string>(), entry.value("impl", std::string())});
  }
  return cases;
}

}  // namespace pestle::cli
