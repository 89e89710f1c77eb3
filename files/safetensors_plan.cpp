#include "files/safetensors_plan.h"

#include <algorithm>
#include <cstring>

#include "files/text.h"

namespace pestle::files {
namespace {

std::string metadata_json(const std::map<std::string, std::string>& metadata) {
  std::string text = "\"__metadata__\":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    if (!first) text += ',';
    first = false;
    text += json_string(key) + ':' + json_string(value);
  }
  return text + '}';
}

std::string entry_json(const SafetensorsEntry& entry) {
  std::string text = json_string(entry.name) + ":{\"dtype\":\"" + std::string(entry.dtype->name) +
                     "\",\"shape\":[";
  for (size_t d = 0; d < entry.shape.size(); ++d) {
    if (d > 0) text += ',';
    text += std::to_string(entry.shape[d]);
  }
  return text + "],\"data_offsets\":[" + std::to_string(entry.begin) + ',' +
         std::to_string(entry.end) + "]}";
}

}  // namespace

Status SafetensorsPlan::add(const std::string& name, const FileDType& dtype,
                            std::vector<int64_t> shape) {
  if (name == "__metadata__" || first_invalid_utf8(name) != name.size()) {
    return invalid_argument("tensor name " + quote(name) +
                            " is not allowed in safetensors; rename it");
  }
  const Result<uint64_t> bytes = tensor_bytes(dtype, shape);
  if (!bytes.ok()) {
    return invalid_argument("tensor " + quote(name) + ": " + bytes.status().message());
  }
  if (!index_.emplace(name, tensors_.size()).second) {
    return invalid_argument("two tensors would be named " + quote(name) +
                            "; keep one of their layers with --keep");
  }
  tensors_.push_back({name, &dtype, std::move(shape), 0, bytes.value()});
  return {};
}

Status SafetensorsPlan::finish() {
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return a.dtype->bits != b.dtype->bits ? a.dtype->bits > b.dtype->bits : a.name < b.name;
  });
  uint64_t offset = 0;
  std::string json = "{";
  if (!metadata_.empty()) json += metadata_json(metadata_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    SafetensorsEntry& entry = tensors_[i];
    const uint64_t bytes = entry.end - entry.begin;
    entry.begin = offset;
    offset += bytes;
    entry.end = offset;
    index_[entry.name] = i;
    if (json.size() > 1) json += ',';
    json += entry_json(entry);
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return invalid_argument("the header would have " + std::to_string(json.size()) +
                            " bytes, the limit is " + std::to_string(kMaxHeaderBytes) +
                            "; split the output with --max-shard");
  }
  const uint64_t length = json.size();
  header_.assign(8, '\0');
  std::memcpy(header_.data(), &length, sizeof length);
  header_ += json;
  file_bytes_ = header_.size() + offset;
  return {};
}

uint64_t SafetensorsPlan::offset_of(const std::string& name) const {
  return header_.size() + tensors_[index_.at(name)].begin;
}

}  // namespace pestle::files
