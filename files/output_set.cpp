#include "files/output_set.h"

#include <cstdio>
#include <filesystem>

#include "files/text.h"

namespace pestle::files {
namespace {

constexpr std::string_view kExtension = ".safetensors";

// "dir/model.safetensors" -> "dir/model-00001-of-00003.safetensors"
std::string shard_path(const std::string& path, size_t index, size_t count) {
  const std::string stem =
      path.ends_with(kExtension) ? path.substr(0, path.size() - kExtension.size()) : path;
  char number[48];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", index + 1, count);
  return stem + number + std::string(kExtension);
}

}  // namespace

Result<std::unique_ptr<OutputSet>> OutputSet::plan(
    const std::vector<std::vector<OutputTensor>>& groups, const OutputOptions& options) {
  std::unique_ptr<OutputSet> set(new OutputSet);
  set->options_ = options;
  PESTLE_TRY(set->lay_out(groups));
  set->name_shards();
  return set;
}

Status OutputSet::lay_out(const std::vector<std::vector<OutputTensor>>& groups) {
  shards_.emplace_back();
  uint64_t filled = 0;
  std::vector<std::vector<std::string>> names(1);
  for (const std::vector<OutputTensor>& group : groups) {
    uint64_t bytes = 0;
    for (const OutputTensor& tensor : group) {
      const Result<uint64_t> size = tensor_bytes(*tensor.dtype, tensor.shape);
      PESTLE_TRY(size.status());
      bytes += size.value();
    }
    if (options_.max_shard_bytes > 0 && filled > 0 && filled + bytes > options_.max_shard_bytes) {
      shards_.emplace_back();
      names.emplace_back();
      filled = 0;
    }
    filled += bytes;
    for (const OutputTensor& tensor : group) {
      PESTLE_TRY(shards_.back().plan.add(tensor.name, *tensor.dtype, tensor.shape));
      names.back().push_back(tensor.name);
      if (!places_.emplace(tensor.name, Place{shards_.size() - 1, 0, 0}).second) {
        return invalid_argument("two tensors would be named " + quote(tensor.name) +
                                "; keep one of their layers with --keep");
      }
    }
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    SafetensorsPlan& plan = shards_[i].plan;
    plan.set_metadata(options_.metadata);
    PESTLE_TRY(plan.finish());
    for (const SafetensorsEntry& entry : plan.tensors()) {
      places_[entry.name] = {i, plan.offset_of(entry.name), entry.end - entry.begin};
    }
  }
  return {};
}

void OutputSet::name_shards() {
  if (shards_.size() == 1) {
    shards_[0].path = options_.path;
    return;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].path = shard_path(options_.path, i, shards_.size());
  }
  index_path_ = options_.path + (options_.path.ends_with(kExtension) ? "" : kExtension.data()) +
                ".index.json";
}

std::string OutputSet::index_json() const {
  uint64_t total = 0;
  std::map<std::string, std::string> owner;
  for (const auto& [name, place] : places_) {
    total += place.bytes;
    owner[name] = std::filesystem::path(shards_[place.shard].path).filename().string();
  }
  std::string json =
      "{\n  \"metadata\": {\"total_size\": " + std::to_string(total) + "},\n  \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [name, file] : owner) {
    json += separator + std::string("    ") + json_string(name) + ": " + json_string(file);
    separator = ",\n";
  }
  return json + "\n  }\n}\n";
}

// A killed run may have finished some shards of a set whose index is not there yet.
bool OutputSet::may_replace() const {
  return options_.overwrite ||
         (!index_path_.empty() && options_.resume && !std::filesystem::exists(index_path_));
}

std::vector<WrittenPath> OutputSet::written_paths(const std::string& role) const {
  std::vector<WrittenPath> written;
  for (const Shard& shard : shards_) {
    written.push_back({role, shard.path, shard.plan.file_bytes(), may_replace(), false});
  }
  if (!index_path_.empty()) {
    written.push_back({"index of the " + role, index_path_, 0, may_replace(), false});
  }
  return written;
}

Status OutputSet::create() {
  const bool overwrite = may_replace();
  if (!index_path_.empty() && !overwrite && std::filesystem::exists(index_path_)) {
    return {Code::kIoError,
            index_path_ + ": exists; pass --force to replace it or name another output"};
  }
  for (Shard& shard : shards_) {
    AtomicFileOptions options;
    options.bytes = shard.plan.file_bytes();
    options.overwrite = overwrite;
    options.resume = options_.resume;
    options.fingerprint = options_.fingerprint;
    auto file = AtomicFile::create(shard.path, options);
    PESTLE_TRY(file.status());
    shard.file = std::move(file.value());
    PESTLE_TRY(shard.file->write_at(0, std::as_bytes(std::span(shard.plan.header()))));
  }
  return {};
}

Status OutputSet::write(const std::string& tensor, uint64_t offset,
                        std::span<const std::byte> data) {
  const Place& at = place(tensor);
  if (offset > at.bytes || data.size() > at.bytes - offset) {
    return {Code::kInternal,
            "write past the end of tensor " + quote(tensor) + "; please report this"};
  }
  return shards_[at.shard].file->write_at(at.offset + offset, data);
}

Status OutputSet::read(const std::string& tensor, uint64_t offset,
                       std::span<std::byte> data) const {
  const Place& at = place(tensor);
  return shards_[at.shard].file->read_at(at.offset + offset, data);
}

void OutputSet::start_writeback(const std::string& tensor) const {
  const Place& at = place(tensor);
  if (at.bytes > 0) shards_[at.shard].file->start_writeback(at.offset, at.bytes);
}

Status OutputSet::commit() {
  for (Shard& shard : shards_) PESTLE_TRY(shard.file->commit());
  if (index_path_.empty()) return {};
  const std::string json = index_json();
  AtomicFileOptions options;
  options.bytes = json.size();
  options.overwrite = true;  // asked for, or checked in create()
  options.fingerprint = "index";
  auto index = AtomicFile::create(index_path_, options);
  PESTLE_TRY(index.status());
  PESTLE_TRY(index.value()->write_at(0, std::as_bytes(std::span(json))));
  return index.value()->commit();
}

std::vector<std::string> OutputSet::paths() const {
  std::vector<std::string> paths;
  for (const Shard& shard : shards_) paths.push_back(shard.path);
  if (!index_path_.empty()) paths.push_back(index_path_);
  return paths;
}

uint64_t OutputSet::bytes() const {
  uint64_t total = 0;
  for (const Shard& shard : shards_) total += shard.plan.file_bytes();
  return total;
}

}  // namespace pestle::files
