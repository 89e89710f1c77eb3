#include <cstdio>

#include "cli/commands.h"

namespace pestle::cli {

int exit_code_of(const Status& status) {
  return status.ok() ? 0 : 10 + static_cast<int>(status.code());
}

int fail(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "pestle: %s\n", status.message().c_str());
  return exit_code_of(status);
}

}  // namespace pestle::cli
