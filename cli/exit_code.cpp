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

int finish_output(int exit_code) {
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || exit_code != 0) return exit_code;
  return fail({Code::kIoError,
               "standard output: cannot write to it; check the disk or the program that reads it"});
}

}  // namespace pestle::cli
