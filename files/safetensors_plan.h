// The first phase of writing safetensors: every name, dtype and shape is known, so every byte's
// place is too. In the second phase the tensors' bytes go to their places in any order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "files/safetensors.h"

namespace pestle::files {

class SafetensorsPlan {
 public:
  // `name` must be new and UTF-8, not "__metadata__".
  Status add(const std::string& name, const FileDType& dtype, std::vector<int64_t> shape);
  void set_metadata(std::map<std::string, std::string> metadata) {
    metadata_ = std::move(metadata);
  }
  // Sorts by bits per element (widest first, so that every tensor is aligned to its element), then
  // by name; lays out offsets and the header. The bytes depend on the entries alone.
  Status finish();

  // Valid after finish(). Offsets count from the start of the file.
  const std::string& header() const { return header_; }  // with its 8-byte length
  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t offset_of(const std::string& name) const;
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }

 private:
  std::vector<SafetensorsEntry> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
  std::string header_;
  uint64_t file_bytes_ = 0;
};

}  // namespace pestle::files
