#include "core/build_info.h"

#include "pestle_build_info.inc"

namespace pestle {

std::string_view build_version() { return PESTLE_BUILD_VERSION; }
std::string_view build_commit() { return PESTLE_BUILD_COMMIT; }
std::string_view build_type() { return PESTLE_BUILD_TYPE; }

std::string_view build_compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

}  // namespace pestle
