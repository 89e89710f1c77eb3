// What this binary was built from; for --version and the headers of result files.
#pragma once

#include <string_view>

namespace pestle {

std::string_view build_version();  // "0.1.0"
std::string_view build_commit();   // "2da93ba01234", with "-dirty" appended if edited, or "unknown"
std::string_view build_type();     // "Release", "RelWithDebInfo+address,undefined"
std::string_view build_compiler();  // "gcc 12.2.0"

}  // namespace pestle
