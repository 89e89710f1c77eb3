// Reader of one safetensors file: 8 bytes header length, a JSON header, then the tensors' bytes.
// docs/file-layouts.md states the rules that are enforced here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"

namespace pestle::files {

// An element type as safetensors spells it. `dtype` is kNone for the ones that only pass through.
struct FileDType {
  std::string_view name;
  int bits = 0;
  DType dtype = DType::kNone;
};

std::span<const FileDType> file_dtypes();
// nullptr when `name` is no safetensors dtype.
const FileDType* file_dtype_from_name(std::string_view name);
// nullptr when safetensors has no spelling for `dtype`.
const FileDType* file_dtype_of(DType dtype);

struct SafetensorsEntry {
  std::string name;
  const FileDType* dtype = nullptr;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in bytes, from the end of the header
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // in bytes, from the start of the file
};

// Larger headers are refused by every reader of the format.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Bytes of a tensor; kInvalidArgument when the product overflows or is no whole number of bytes.
Result<uint64_t> tensor_bytes(const FileDType& dtype, std::span<const int64_t> shape);

// How much of a file of `file_bytes` bytes that begins with `start` (8 bytes, or all of a shorter
// file) parse_safetensors() needs to see.
uint64_t safetensors_head_bytes(std::span<const std::byte> start, uint64_t file_bytes);

// Reads and checks the header of a file from its first bytes, at least safetensors_head_bytes(), or
// all of it; `label` begins every message.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes,
                                            const std::string& label);
inline Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                                   const std::string& label) {
  return parse_safetensors(file, file.size(), label);
}

}  // namespace pestle::files
