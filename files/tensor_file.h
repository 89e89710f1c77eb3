// Tensors in memory to and from safetensors files, by the same pieces as whole-file work: laid out
// first, written beside the name, complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/file_job.h"
#include "files/safetensors.h"

namespace pestle::files {

struct MemoryTensor {
  std::string name;
  const FileDType* dtype = nullptr;
  std::vector<int64_t> shape;
  std::byte* data = nullptr;  // row-major without gaps
};

struct SaveOptions {
  std::string path;
  std::map<std::string, std::string> metadata;
  uint64_t max_shard_bytes = 0;  // 0: one file
  bool overwrite = false;
};

// {"metadata": {text: text}, "force": flag, "max_shard_bytes": number}; "" leaves all as it is.
Status read_save_options(std::string_view json, SaveOptions& options);

// Stages of `progress`: "writing".
Status save_tensors(std::span<const MemoryTensor> tensors, const SaveOptions& options,
                    const JobProgress& progress);

// What load_tensors can be asked for: {"tensors": [{"name", "dtype", "shape"}...], "metadata": {}}.
// `path` is a file, an index or a folder.
Result<std::string> list_tensors(const std::string& path);

// Fills each tensor's memory; its dtype and shape must be those of the file. Stage: "reading".
Status load_tensors(const std::string& path, std::span<const MemoryTensor> tensors,
                    const JobProgress& progress);

}  // namespace pestle::files
