#include "python/csrc/torch_abi.h"

#include <dlfcn.h>

#include <mutex>

namespace pestle::torch {
namespace {

TorchAbi g_abi;

// Only what is loaded already: `import torch`, or a C++ program, decides which libtorch it is.
void* loaded_library(const char* name) { return dlopen(name, RTLD_NOLOAD | RTLD_LAZY); }

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const TorchAbi& torch_abi() { return g_abi; }

std::string load_torch_abi() {
  void* library = loaded_library("libtorch_cpu.so");
  if (library == nullptr) {
    return "libtorch_cpu.so is not loaded: import torch (or link it) before this library";
  }
  const char* missing = nullptr;
#define PESTLE_LOOK_UP(result, name, arguments) \
  if (!look_up(library, #name, g_abi.name) && missing == nullptr) missing = #name;
  PESTLE_TORCH_FUNCTIONS(PESTLE_LOOK_UP)
#undef PESTLE_LOOK_UP
  if (missing != nullptr) {
    return std::string("this torch is too old: its stable ABI lacks ") + missing +
           "; Pestle's compiled ops need torch 2.11 or later";
  }
#define PESTLE_LOOK_UP(result, name, arguments) look_up(library, #name, g_abi.name);
  PESTLE_TORCH_OPTIONAL_FUNCTIONS(PESTLE_LOOK_UP)
#undef PESTLE_LOOK_UP
  return "";
}

bool load_torch_cuda() {
  static std::once_flag once;
  static bool found = false;
  std::call_once(once, [] {
    void* library = loaded_library("libtorch_cuda.so");
    if (library == nullptr) return;
    found = true;
#define PESTLE_LOOK_UP(result, name, arguments) found &= look_up(library, #name, g_abi.name);
    PESTLE_TORCH_CUDA_FUNCTIONS(PESTLE_LOOK_UP)
#undef PESTLE_LOOK_UP
  });
  return found;
}

}  // namespace pestle::torch
