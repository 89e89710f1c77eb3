// Reader of GGUF files, versions 2 and 3 (llama.cpp): metadata and a list of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace pestle::files {

// A tensor type of GGUF: `elements` consecutive elements take `bytes`.
struct GgufType {
  uint32_t id = 0;
  std::string_view name;
  int elements = 0;
  int bytes = 0;
};

// nullptr for an id that is unknown or was removed from the format.
const GgufType* gguf_type(uint32_t id);

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<int64_t> shape;  // row-major as everywhere here: GGUF stores it reversed
  uint64_t offset = 0;         // from the start of the file
  uint64_t bytes = 0;
};

struct GgufFile {
  uint32_t version = 0;
  uint64_t alignment = 32;
  // In the file's order. Values as text; arrays as "[N x type]", with their strings left out.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<GgufTensor> tensors;
};

// Reads and checks a file from its first bytes; `label` begins every message. Where they end before
// the list of tensors does, `needs_more` is set and the result means nothing.
Result<GgufFile> parse_gguf(std::span<const std::byte> head, uint64_t file_bytes,
                            const std::string& label, bool& needs_more);
Result<GgufFile> parse_gguf(std::span<const std::byte> file, const std::string& label);

bool looks_like_gguf(std::span<const std::byte> file);

}  // namespace pestle::files
