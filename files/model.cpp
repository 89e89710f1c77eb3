#include "files/model.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/json_text.h"
#include "files/text.h"

namespace pestle::files {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnd = ".safetensors.index.json";

bool ends_with_index(const std::string& path) { return path.ends_with(kIndexEnd); }

// The file of a Hugging Face folder that names or is the model.
Result<std::string> find_in_folder(const std::string& folder) {
  std::vector<std::string> found;
  std::vector<std::string> indexes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (ends_with_index(path)) indexes.push_back(path);
    if (path.ends_with(".safetensors") || path.ends_with(".gguf")) found.push_back(path);
  }
  if (error) return Status(Code::kIoError, folder + ": cannot list the folder: " + error.message());
  if (indexes.size() == 1) return indexes[0];
  for (const char* name : {"model.safetensors", "diffusion_pytorch_model.safetensors"}) {
    const std::string path = (fs::path(folder) / name).string();
    if (std::find(found.begin(), found.end(), path) != found.end()) return path;
  }
  if (found.size() == 1 && indexes.empty()) return found[0];
  if (found.empty()) {
    return Status(Code::kIoError, folder + ": no .safetensors file in this folder; name a file");
  }
  return Status(Code::kIoError, folder + ": " + std::to_string(found.size()) +
                                    " model files and no single index in this folder; name one");
}

Result<std::map<std::string, std::string>> parse_weight_map(std::string_view text,
                                                            const std::string& label) {
  const auto corrupt = [&](const std::string& what) {
    return Status(Code::kCorruptFile, label + ": " + what + "; get the index again");
  };
  const auto json = parse_json(text);
  if (json.is_discarded()) {
    return corrupt(nests_deeper(text, kMaxJsonDepth) ? "the index is nested too deep"
                                                     : "the index is no valid JSON");
  }
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return corrupt("the index has no weight_map");
  }
  std::map<std::string, std::string> owner;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) return corrupt("weight_map of " + quote(name) + " is no file name");
    const auto value = file.get<std::string>();
    // A name alone: an index may not reach out of its folder.
    if (value.empty() || value.find('/') != std::string::npos || value == "..") {
      return corrupt("weight_map of " + quote(name) + " is " + quote(value) +
                     ", not a file of the same folder");
    }
    owner.emplace(name, value);
  }
  return owner;
}

Result<std::shared_ptr<const InputFile>> open_shared(const std::string& path) {
  Result<InputFile> file = InputFile::open(path);
  PESTLE_TRY(file.status());
  return std::make_shared<const InputFile>(std::move(file.value()));
}

// The first bytes of a file, at most `bytes`.
Result<std::vector<std::byte>> read_start(const InputFile& file, uint64_t bytes) {
  std::vector<std::byte> start(std::min(bytes, file.size()));
  PESTLE_TRY(file.read_at(0, start));
  return start;
}

Result<SafetensorsHeader> read_header(const InputFile& file) {
  const auto start = read_start(file, 8);
  PESTLE_TRY(start.status());
  const auto head = read_start(file, safetensors_head_bytes(start.value(), file.size()));
  PESTLE_TRY(head.status());
  return parse_safetensors(head.value(), file.size(), file.path());
}

// Nothing says where a GGUF file's list of tensors ends, so more is read until it does.
Result<GgufFile> read_gguf(const InputFile& file) {
  for (uint64_t bytes = uint64_t{4} << 20;; bytes *= 4) {
    const auto head = read_start(file, bytes);
    PESTLE_TRY(head.status());
    bool needs_more = false;
    auto parsed = parse_gguf(head.value(), file.size(), file.path(), needs_more);
    if (!needs_more) return parsed;
  }
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // Takes the run of digits at the start of `text`, without leading zeros.
  const auto take_number = [&](std::string_view& text) {
    size_t zeros = 0;
    while (zeros < text.size() && text[zeros] == '0') ++zeros;
    size_t end = zeros;
    while (end < text.size() && is_digit(text[end])) ++end;
    const std::string_view number = text.substr(zeros, end - zeros);
    text.remove_prefix(end);
    return number;
  };
  std::string_view x = a;
  std::string_view y = b;
  while (!x.empty() && !y.empty()) {
    if (is_digit(x[0]) && is_digit(y[0])) {
      const std::string_view xn = take_number(x);
      const std::string_view yn = take_number(y);
      if (xn.size() != yn.size()) return xn.size() < yn.size();
      if (xn != yn) return xn < yn;
      continue;
    }
    if (x[0] != y[0]) return static_cast<unsigned char>(x[0]) < static_cast<unsigned char>(y[0]);
    x.remove_prefix(1);
    y.remove_prefix(1);
  }
  if (x.size() != y.size()) return x.size() < y.size();
  return a < b;  // equal but for leading zeros
}

Result<Model> Model::open(const std::string& path) {
  Model model;
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    const Result<std::string> found = find_in_folder(path);
    PESTLE_TRY(found.status());
    file = found.value();
  }
  PESTLE_TRY(ends_with_index(file) ? model.open_index(file) : model.open_file(file));
  PESTLE_TRY(model.finish());
  return model;
}

Status Model::open_file(const std::string& path) {
  const auto file = open_shared(path);
  PESTLE_TRY(file.status());
  const auto start = read_start(*file.value(), 4);
  PESTLE_TRY(start.status());
  return looks_like_gguf(start.value()) ? open_gguf(file.value())
                                        : add_safetensors(file.value(), nullptr);
}

Status Model::add_safetensors(const std::shared_ptr<const InputFile>& file,
                              const std::map<std::string, std::string>* owner) {
  const std::string& path = file->path();
  const Result<SafetensorsHeader> header = read_header(*file);
  PESTLE_TRY(header.status());
  const std::string shard = fs::path(path).filename().string();
  for (const SafetensorsEntry& entry : header.value().tensors) {
    if (owner != nullptr) {
      const auto listed = owner->find(entry.name);
      if (listed == owner->end() || listed->second != shard) {
        return {Code::kCorruptFile, path + ": tensor " + quote(entry.name) +
                                        " is not listed for this shard in the index; get the "
                                        "shards and the index from one source"};
      }
    }
    ModelTensor tensor;
    tensor.name = entry.name;
    tensor.dtype_name = entry.dtype->name;
    tensor.dtype = entry.dtype->dtype;
    tensor.file_dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.data = {*file, header.value().data_begin + entry.begin, entry.end - entry.begin};
    tensors_.push_back(std::move(tensor));
  }
  for (const auto& [key, value] : header.value().metadata) metadata_.emplace(key, value);
  files_.push_back(file);
  return {};
}

Status Model::open_index(const std::string& index_path) {
  const Result<std::string> text = read_text_file(index_path);
  PESTLE_TRY(text.status());
  index_path_ = index_path;
  const auto owner = parse_weight_map(text.value(), index_path);
  PESTLE_TRY(owner.status());
  std::set<std::string> shards;
  for (const auto& [name, shard] : owner.value()) shards.insert(shard);
  for (const std::string& shard : shards) {
    const std::string path = (fs::path(index_path).parent_path() / shard).string();
    const auto file = open_shared(path);
    PESTLE_TRY(file.status());
    PESTLE_TRY(add_safetensors(file.value(), &owner.value()));
  }
  if (tensors_.size() != owner.value().size()) {
    std::set<std::string_view> present;
    for (const ModelTensor& tensor : tensors_) present.insert(tensor.name);
    for (const auto& [name, shard] : owner.value()) {
      if (!present.contains(name)) {
        return {Code::kCorruptFile, index_path + ": tensor " + quote(name) + " is missing in " +
                                        shard + "; get that shard again"};
      }
    }
  }
  return {};
}

Status Model::open_gguf(std::shared_ptr<const InputFile> file) {
  const Result<GgufFile> parsed = read_gguf(*file);
  PESTLE_TRY(parsed.status());
  is_gguf_ = true;
  for (const GgufTensor& source : parsed.value().tensors) {
    ModelTensor tensor;
    tensor.name = source.name;
    tensor.dtype_name = source.type->name;
    tensor.gguf = source.type;
    if (const FileDType* same = file_dtype_from_name(source.type->name)) tensor.dtype = same->dtype;
    tensor.shape = source.shape;
    tensor.data = {*file, source.offset, source.bytes};
    tensors_.push_back(std::move(tensor));
  }
  for (const auto& [key, value] : parsed.value().metadata) metadata_.emplace(key, value);
  files_.push_back(std::move(file));
  return {};
}

Status Model::finish() {
  std::sort(tensors_.begin(), tensors_.end(), [](const ModelTensor& a, const ModelTensor& b) {
    return natural_less(a.name, b.name);
  });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!index_.emplace(tensors_[i].name, i).second) {
      return {Code::kCorruptFile,
              "duplicate name " + quote(tensors_[i].name) + " in two shards; get them again"};
    }
  }
  return {};
}

const ModelTensor* Model::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

uint64_t Model::bytes() const {
  uint64_t total = 0;
  for (const auto& file : files_) total += file->size();
  return total;
}

std::vector<std::string> Model::paths() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(file->path());
  if (!index_path_.empty()) paths.push_back(index_path_);
  return paths;
}

Status Model::check_unchanged() const {
  for (const auto& file : files_) PESTLE_TRY(file->check_unchanged());
  return {};
}

}  // namespace pestle::files
