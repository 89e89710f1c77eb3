#include "files/tensor_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "files/model.h"
#include "files/output_set.h"
#include "files/text.h"

namespace pestle::files {
namespace {

// Small enough to stop within a moment, large enough that the report costs nothing.
constexpr uint64_t kPiece = uint64_t{16} << 20;

class Steps {
 public:
  Steps(const char* stage, const JobProgress& progress) : stage_(stage), progress_(progress) {}

  void expect(uint64_t bytes) { total_ += bytes; }
  Status done(uint64_t bytes) {
    done_ += bytes;
    if (!progress_ || progress_(stage_, done_, total_)) return {};
    return {Code::kInterrupted, std::string(stage_) + ": stopped as asked"};
  }

  // f(offset, bytes) for each piece of a tensor.
  template <class F>
  Status in_pieces(uint64_t bytes, F&& f) {
    for (uint64_t offset = 0; offset < bytes; offset += kPiece) {
      const uint64_t piece = std::min(kPiece, bytes - offset);
      PESTLE_TRY(f(offset, piece));
      PESTLE_TRY(done(piece));
    }
    return {};
  }

 private:
  const char* stage_;
  const JobProgress& progress_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

Result<std::vector<uint64_t>> sizes_of(std::span<const MemoryTensor> tensors, Steps& steps) {
  std::vector<uint64_t> sizes;
  for (const MemoryTensor& tensor : tensors) {
    const auto bytes = tensor_bytes(*tensor.dtype, tensor.shape);
    PESTLE_TRY(bytes.status());
    if (bytes.value() > 0 && tensor.data == nullptr) {
      return invalid_argument(quote(tensor.name) + " has elements but its data pointer is NULL");
    }
    sizes.push_back(bytes.value());
    steps.expect(bytes.value());
  }
  return sizes;
}

Status check_same(const MemoryTensor& asked, const ModelTensor& found) {
  if (found.file_dtype == asked.dtype && found.shape == asked.shape) return {};
  return invalid_argument(quote(asked.name) + " is " + std::string(found.dtype_name) +
                          " in the file, or of another shape than the memory for it");
}

}  // namespace

Status read_save_options(std::string_view text, SaveOptions& options) {
  if (text.empty()) return {};
  const auto json = parse_json(text);
  if (!json.is_object()) return invalid_argument("save: the options are no JSON object");
  for (const auto& [key, value] : json.items()) {
    if (key == "force" && value.is_boolean()) {
      options.overwrite = value.get<bool>();
    } else if (key == "max_shard_bytes" && value.is_number_unsigned()) {
      options.max_shard_bytes = value.get<uint64_t>();
    } else if (key == "metadata" && value.is_object()) {
      for (const auto& [name, item] : value.items()) {
        if (!item.is_string()) {
          return invalid_argument("save: metadata " + quote(name) + " must be a string");
        }
        options.metadata[name] = item.get<std::string>();
      }
    } else {
      return invalid_argument("save: option " + quote(key) +
                              " is unknown or of another type; there are metadata (strings by "
                              "name), force (true or false) and max_shard_bytes (a whole number)");
    }
  }
  return {};
}

Status save_tensors(std::span<const MemoryTensor> tensors, const SaveOptions& options,
                    const JobProgress& progress) {
  Steps steps("writing", progress);
  const auto sizes = sizes_of(tensors, steps);
  PESTLE_TRY(sizes.status());
  std::vector<std::vector<OutputTensor>> groups;
  for (const MemoryTensor& tensor : tensors) {
    groups.push_back({{tensor.name, tensor.dtype, tensor.shape}});
  }
  OutputOptions output;
  output.path = options.path;
  output.max_shard_bytes = options.max_shard_bytes;
  output.overwrite = options.overwrite;
  output.fingerprint = "tensors";
  output.metadata = options.metadata;
  auto planned = OutputSet::plan(groups, output);
  PESTLE_TRY(planned.status());
  OutputSet& set = *planned.value();
  PESTLE_TRY(set.create());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MemoryTensor& tensor = tensors[i];
    PESTLE_TRY(steps.in_pieces(sizes.value()[i], [&](uint64_t offset, uint64_t bytes) {
      return set.write(tensor.name, offset, {tensor.data + offset, bytes});
    }));
    set.start_writeback(tensor.name);
  }
  return set.commit();
}

Result<std::string> list_tensors(const std::string& path) {
  const auto model = Model::open(path);
  PESTLE_TRY(model.status());
  nlohmann::ordered_json json = {{"tensors", nlohmann::ordered_json::array()},
                                 {"metadata", model.value().metadata()}};
  for (const ModelTensor& tensor : model.value().tensors()) {
    json["tensors"].push_back(
        {{"name", tensor.name}, {"dtype", tensor.dtype_name}, {"shape", tensor.shape}});
  }
  return print_json(json);
}

Status load_tensors(const std::string& path, std::span<const MemoryTensor> tensors,
                    const JobProgress& progress) {
  Steps steps("reading", progress);
  const auto sizes = sizes_of(tensors, steps);
  PESTLE_TRY(sizes.status());
  const auto model = Model::open(path);
  PESTLE_TRY(model.status());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ModelTensor* found = model.value().find(tensors[i].name);
    if (found == nullptr) {
      return invalid_argument(quote(path) + " has no tensor " + quote(tensors[i].name));
    }
    PESTLE_TRY(check_same(tensors[i], *found));
    PESTLE_TRY(steps.in_pieces(sizes.value()[i], [&](uint64_t offset, uint64_t bytes) {
      return found->data.read(offset, {tensors[i].data + offset, bytes});
    }));
  }
  return {};
}

}  // namespace pestle::files
