// The installed library, as a project elsewhere uses it; exit 0 when header and library agree.
#include <pestle/pestle.h>

#include <cstdio>
#include <cstring>

extern "C" size_t walk_ops(void);

int main() {
  const bool same_abi = pestle_abi_version() == PESTLE_ABI_VERSION;
  const bool refuses = pestle_call(nullptr, nullptr, 0, nullptr) == PESTLE_INVALID_ARGUMENT &&
                       std::strlen(pestle_last_error()) > 0;
  const size_t ops = walk_ops();
  std::printf("pestle %s, %zu ops\n", pestle_version(), ops);
  return same_abi && refuses && ops > 0 && ops == pestle_op_count() ? 0 : 1;
}
