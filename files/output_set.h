// The files that a run writes: one, or shards with their index, all or none of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "files/atomic_file.h"
#include "files/output_check.h"
#include "files/safetensors_plan.h"

namespace pestle::files {

struct OutputTensor {
  std::string name;
  const FileDType* dtype = nullptr;
  std::vector<int64_t> shape;
};

struct OutputOptions {
  std::string path;
  uint64_t max_shard_bytes = 0;  // 0: one file
  bool overwrite = false;
  bool resume = false;
  std::string fingerprint;
  std::map<std::string, std::string> metadata;
};

class OutputSet {
 public:
  // `groups`: tensors of one group stay in one shard. Lays everything out, creates nothing.
  static Result<std::unique_ptr<OutputSet>> plan(
      const std::vector<std::vector<OutputTensor>>& groups, const OutputOptions& options);

  // Creates the temporary files and writes their headers.
  Status create();
  Status write(const std::string& tensor, uint64_t offset, std::span<const std::byte> data);
  Status read(const std::string& tensor, uint64_t offset, std::span<std::byte> data) const;
  void start_writeback(const std::string& tensor) const;
  // Notes and what an interrupted run left: kept in the first file.
  Status note(std::string_view line) { return shards_[0].file->note(line); }
  const std::vector<std::string>& notes_found() const { return shards_[0].file->notes_found(); }
  Status commit();

  std::vector<std::string> paths() const;  // of all files, the index last
  // The same for check_outputs().
  std::vector<WrittenPath> written_paths(const std::string& role) const;
  uint64_t bytes() const;

 private:
  struct Shard {
    std::string path;
    SafetensorsPlan plan;
    std::unique_ptr<AtomicFile> file;
  };
  struct Place {
    size_t shard = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  Status lay_out(const std::vector<std::vector<OutputTensor>>& groups);
  void name_shards();
  std::string index_json() const;
  bool may_replace() const;
  const Place& place(const std::string& tensor) const { return places_.at(tensor); }

  OutputOptions options_;
  std::vector<Shard> shards_;
  std::unordered_map<std::string, Place> places_;
  std::string index_path_;  // empty: one file
};

}  // namespace pestle::files
