// The one place that reads the environment.
#include <cstdio>
#include <cstdlib>

#include "core/tuned.h"

namespace pestle {

void load_tuned_of_environment() {
  const char* path = std::getenv("PESTLE_TUNED");
  if (path == nullptr || *path == '\0') return;
  const Status status = load_tuned(path);
  if (!status.ok())
    std::fprintf(stderr, "pestle: PESTLE_TUNED is left out: %s\n", status.message().c_str());
}

}  // namespace pestle
