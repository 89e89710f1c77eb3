// Any bytes: a one-line message, or a list of tensors that all lie inside the file.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "files/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pestle;
  const auto file = files::parse_gguf(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) {
    if (file.status().code() != Code::kCorruptFile) std::abort();
    if (file.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const files::GgufTensor& tensor : file.value().tensors) {
    if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
    if (tensor.type == nullptr || tensor.shape.empty()) std::abort();
  }
  return 0;
}
