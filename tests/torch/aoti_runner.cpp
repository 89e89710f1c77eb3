// Runs a model that AOTInductor compiled, without Python: PACKAGE LIBPESTLE_TORCH; prints the
// output.
#include <ATen/Functions.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>

int main(int count, char** arguments) {
  if (count != 3) return 2;
  if (dlopen(arguments[2], RTLD_NOW | RTLD_GLOBAL) == nullptr) {  // registers the ops
    std::puts(dlerror());
    return 2;
  }
  torch::inductor::AOTIModelPackageLoader loader(arguments[1]);
  const std::vector<at::Tensor> inputs{at::arange(5 * 64).reshape({5, 64}).to(at::kFloat).div(64)};
  const at::Tensor out = loader.run(inputs)[0].contiguous();
  for (int64_t i = 0; i < out.numel(); ++i) std::printf("%.9g\n", out.data_ptr<float>()[i]);
}
