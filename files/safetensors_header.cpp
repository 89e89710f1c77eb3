#include "files/safetensors_header.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "files/text.h"

namespace pestle::files {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kSaveAgain = "; save the file again";
// Deepest legal value: the numbers of {"name": {"shape": [...]}}.
constexpr int kMaxDepth = 3;

// Events of nlohmann::json's SAX parser. Each returns false to stop, with `status_` set.
class HeaderEvents : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}
  const Status& status() const { return status_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(text + ", which is no integer below 2^64");
  }
  bool number_integer(number_integer_t value) override {
    return unexpected("the negative number " + std::to_string(value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || !in_array_) return unexpected("the number " + std::to_string(value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return unexpected(std::to_string(value) + ", which is beyond 2^63 - 1");
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      if (!header_.metadata.emplace(key_, value).second) {
        return fail("duplicate key " + quote(key_) + " in __metadata__");
      }
      return true;
    }
    if (depth_ != 2 || key_ != "dtype") return unexpected("the string " + quote(value));
    if (entry_.dtype != nullptr) return fail_in_tensor("dtype is given twice");
    entry_.dtype = file_dtype_from_name(value);
    if (entry_.dtype != nullptr) return true;
    status_ = {Code::kCorruptFile, "tensor " + quote(entry_.name) + ": unknown dtype " +
                                       quote(value) + "; known are " + known_dtypes()};
    return false;
  }

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ > 2 || in_array_) return too_deep_or("an object");
    in_metadata_ = key_ == kMetadata;
    entry_ = {};
    if (!in_metadata_) entry_.name = key_;
    has_shape_ = has_offsets_ = false;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ != 1) return true;
    if (in_metadata_) return true;
    if (entry_.dtype == nullptr) return fail_in_tensor("has no dtype");
    if (!has_shape_) return fail_in_tensor("has no shape");
    if (!has_offsets_) return fail_in_tensor("has no data_offsets");
    header_.tensors.push_back(std::move(entry_));
    return true;
  }

  bool start_array(size_t) override {
    ++depth_;
    if (depth_ != 3 || in_metadata_ || in_array_ || (key_ != "shape" && key_ != "data_offsets")) {
      return too_deep_or("an array");
    }
    in_array_ = true;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    --depth_;
    in_array_ = false;
    if (key_ == "shape") {
      if (has_shape_) return fail_in_tensor("shape is given twice");
      has_shape_ = true;
      entry_.shape = numbers_;
      return true;
    }
    if (has_offsets_) return fail_in_tensor("data_offsets is given twice");
    if (numbers_.size() != 2) {
      return fail_in_tensor("data_offsets has " + std::to_string(numbers_.size()) +
                            " numbers, not 2");
    }
    has_offsets_ = true;
    entry_.begin = static_cast<uint64_t>(numbers_[0]);
    entry_.end = static_cast<uint64_t>(numbers_[1]);
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (depth_ == 1) {
      if (names_.insert(value).second) return true;
      return fail("duplicate name " + quote(value));
    }
    if (in_metadata_ || value == "dtype" || value == "shape" || value == "data_offsets") {
      return true;
    }
    return fail_in_tensor("unknown key " + quote(value) +
                          ", expected dtype, shape and data_offsets");
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return fail("the header is no valid JSON at its byte " + std::to_string(position));
  }

 private:
  bool fail(const std::string& what) {
    status_ = {Code::kCorruptFile, what + std::string(kSaveAgain)};
    return false;
  }
  bool fail_in_tensor(const std::string& what) {
    return fail("tensor " + quote(entry_.name) + ": " + what);
  }
  bool too_deep_or(const std::string& what) {
    if (depth_ > kMaxDepth) {
      return fail("the header's JSON is nested deeper than " + std::to_string(kMaxDepth) +
                  " levels");
    }
    --depth_;  // the value sits one level above the one that it would open
    return unexpected(what);
  }
  bool unexpected(const std::string& what) {
    std::string where = "the header";
    if (depth_ == 1) where = "entry " + quote(key_);
    if (depth_ >= 2 && in_metadata_) where = "__metadata__ key " + quote(key_);
    if (depth_ >= 2 && !in_metadata_) {
      where = "tensor " + quote(entry_.name) + ", key " + quote(key_);
    }
    return fail(where + " holds " + what + ", which safetensors does not allow there");
  }
  static std::string known_dtypes() {
    std::string names;
    for (const FileDType& row : file_dtypes()) {
      if (!names.empty()) names += ", ";
      names += row.name;
    }
    return names;
  }

  SafetensorsHeader& header_;
  Status status_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::string key_;
  SafetensorsEntry entry_;
  std::vector<int64_t> numbers_;
  std::unordered_set<std::string> names_;
};

}  // namespace

Status parse_header_json(std::string_view text, SafetensorsHeader& header) {
  HeaderEvents events(header);
  if (!Json::sax_parse(text.begin(), text.end(), &events)) return events.status();
  return {};
}

}  // namespace pestle::files
