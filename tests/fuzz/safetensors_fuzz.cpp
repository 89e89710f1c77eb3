// Any bytes: a message or a header whose tensors lie in the file and survive being written again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "files/safetensors.h"
#include "files/safetensors_plan.h"

using namespace pestle;
using namespace pestle::files;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_plan(const SafetensorsHeader& header, uint64_t file_bytes) {
  SafetensorsPlan plan;
  for (const SafetensorsEntry& entry : header.tensors) {
    require(entry.begin <= entry.end && entry.end <= file_bytes - header.data_begin);
    require(plan.add(entry.name, *entry.dtype, entry.shape).ok());
  }
  plan.set_metadata(header.metadata);
  require(plan.finish().ok());
  std::string file = plan.header();
  file.resize(plan.file_bytes());
  const auto again = parse_safetensors(std::as_bytes(std::span(file)), "again");
  require(again.ok());
  require(again.value().tensors.size() == header.tensors.size());
  require(again.value().metadata == header.metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = parse_safetensors(bytes, "fuzz");
  if (header.ok()) {
    check_plan(header.value(), size);
  } else {
    require(header.status().code() == Code::kCorruptFile);
    require(header.status().message().find('\n') == std::string::npos);
  }
  return 0;
}
