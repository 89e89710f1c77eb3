// A model as it lies on disk: one safetensors or GGUF file, safetensors shards with their index, or
// a Hugging Face folder. Only headers are read when it is opened; tensors when they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "files/gguf.h"
#include "files/input_file.h"
#include "files/safetensors.h"

namespace pestle::files {

struct ModelTensor {
  std::string name;
  std::string_view dtype_name;            // as the file spells it: "BF16", "Q4_K"
  DType dtype = DType::kNone;             // kNone: not an element type of ours
  const FileDType* file_dtype = nullptr;  // of safetensors
  const GgufType* gguf = nullptr;         // of GGUF
  std::vector<int64_t> shape;
  FileRange data;
};

class Model {
 public:
  static Result<Model> open(const std::string& path);

  bool is_gguf() const { return is_gguf_; }
  // In natural order of names ("blocks.2" before "blocks.10").
  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  const ModelTensor* find(std::string_view name) const;
  // Of all shards; the first that has a key wins.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<std::shared_ptr<const InputFile>>& files() const { return files_; }
  // Of every file that was read, the index of shards among them.
  std::vector<std::string> paths() const;
  // kIoError when a file was changed since it was opened.
  Status check_unchanged() const;
  uint64_t bytes() const;

 private:
  Status add_safetensors(const std::shared_ptr<const InputFile>& file,
                         const std::map<std::string, std::string>* owner);
  Status open_index(const std::string& index_path);
  Status open_gguf(std::shared_ptr<const InputFile> file);
  Status open_file(const std::string& path);
  Status finish();

  bool is_gguf_ = false;
  std::string index_path_;  // empty: no shards
  std::vector<std::shared_ptr<const InputFile>> files_;
  std::vector<ModelTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::unordered_map<std::string_view, size_t> index_;
};

// Digits compare as numbers: "a.2.b" < "a.10.b".
bool natural_less(std::string_view a, std::string_view b);

}  // namespace pestle::files
