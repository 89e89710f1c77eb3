#include "files/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "files/text.h"

namespace pestle::files {
namespace {

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};

enum ValueType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
constexpr std::string_view kValueNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                            "bool", "string", "array", "u64", "i64", "f64"};
constexpr int kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kValueTypes = 13;
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDims = 4;

// A cursor that remembers the first error; reads after it yield zeros.
class Reader {
 public:
  Reader(std::span<const std::byte> head, uint64_t file_bytes, const std::string& label)
      : head_(head), file_bytes_(file_bytes), label_(label) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  uint64_t at() const { return at_; }
  uint64_t left() const { return file_bytes_ - at_; }
  bool needs_more() const { return needs_more_; }

  bool fail(const std::string& what) {
    if (ok()) status_ = {Code::kCorruptFile, label_ + ": " + what};
    return false;
  }

  bool need(uint64_t bytes, const std::string& what) {
    if (!ok()) return false;
    if (bytes <= left()) {
      if (at_ + bytes <= head_.size()) return true;
      needs_more_ = true;
      return fail("its list of tensors goes on");
    }
    return fail("truncated: " + what + " at byte " + std::to_string(at_) + " takes " +
                std::to_string(bytes) + " bytes, " + std::to_string(left()) +
                " are left; get the file again from its source");
  }

  template <class T>
  T number(const std::string& what) {
    T value{};
    if (!need(sizeof(T), what)) return value;
    std::memcpy(&value, head_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string_view text(const std::string& what) {
    const auto length = number<uint64_t>("the length of " + what);
    if (!need(length, what)) return {};
    const std::string_view view(reinterpret_cast<const char*>(head_.data()) + at_, length);
    at_ += length;
    return view;
  }

  void skip(uint64_t bytes) { at_ += bytes; }

 private:
  std::span<const std::byte> head_;  // the file's first bytes
  uint64_t file_bytes_;
  const std::string& label_;
  bool needs_more_ = false;
  uint64_t at_ = 0;
  Status status_;
};

std::string scalar_text(Reader& in, uint32_t type, const std::string& what) {
  switch (type) {
    case kU8: return std::to_string(in.number<uint8_t>(what));
    case kI8: return std::to_string(in.number<int8_t>(what));
    case kU16: return std::to_string(in.number<uint16_t>(what));
    case kI16: return std::to_string(in.number<int16_t>(what));
    case kU32: return std::to_string(in.number<uint32_t>(what));
    case kI32: return std::to_string(in.number<int32_t>(what));
    case kF32: return shortest(in.number<float>(what));
    case kU64: return std::to_string(in.number<uint64_t>(what));
    case kI64: return std::to_string(in.number<int64_t>(what));
    case kF64: return shortest(in.number<double>(what));
    default: break;
  }
  const auto flag = in.number<uint8_t>(what);
  if (flag > 1) in.fail(what + " is a bool of value " + std::to_string(flag) + ", not 0 or 1");
  return flag != 0 ? "true" : "false";
}

bool check_type(Reader& in, uint32_t type, const std::string& what) {
  return in.ok() &&
         (type < kValueTypes || in.fail(what + " has the unknown type " + std::to_string(type) +
                                        "; get the file again or a newer Pestle"));
}

std::string string_value(Reader& in, const std::string& what) {
  const std::string_view text = in.text(what);
  if (in.ok() && first_invalid_utf8(text) != text.size()) in.fail(what + " is not UTF-8");
  return std::string(text);
}

// Walks an array, checking every element, and returns its description.
std::string array_value(Reader& in, const std::string& what, int depth) {
  const auto type = in.number<uint32_t>(what);
  const auto count = in.number<uint64_t>(what);
  if (!check_type(in, type, what)) return "";
  const std::string text =
      "[" + std::to_string(count) + " x " + std::string(kValueNames[type]) + "]";
  if (type == kString || type == kArray) {
    if (type == kArray && depth == kMaxArrayDepth) {
      in.fail(what + " nests arrays deeper than " + std::to_string(kMaxArrayDepth) + " levels");
    }
    // Each element takes at least 8 bytes, so a lying count ends with the file.
    for (uint64_t i = 0; i < count && in.ok(); ++i) {
      if (type == kString) in.text(what);
      if (type == kArray) array_value(in, what, depth + 1);
    }
    return text;
  }
  const auto bytes = static_cast<uint64_t>(kValueBytes[type]);
  if (count > in.left() / bytes) {
    in.need(std::numeric_limits<uint64_t>::max() / 2, what);
  } else if (in.ok()) {
    in.skip(count * bytes);
  }
  return text;
}

void read_metadata(Reader& in, uint64_t count, GgufFile& file) {
  std::unordered_set<std::string> seen;
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    const std::string key = string_value(in, "key " + std::to_string(i));
    const std::string what = "key " + quote(key);
    const auto type = in.number<uint32_t>("the type of " + what);
    if (!check_type(in, type, what)) return;
    std::string value;
    if (type == kString) {
      value = string_value(in, what);
    } else {
      value = type == kArray ? array_value(in, what, 1) : scalar_text(in, type, what);
    }
    if (!in.ok()) return;
    if (!seen.insert(key).second) {
      in.fail("duplicate " + what + "; get the file again from its source");
      return;
    }
    if (key == "general.alignment") {
      uint64_t alignment = 0;
      if (type == kU32) alignment = std::stoull(value);
      if (alignment < 8 || alignment > (1u << 20) || !std::has_single_bit(alignment)) {
        in.fail(what + " is " + value + ", not a u32 power of two from 8 to 1048576");
        return;
      }
      file.alignment = alignment;
    }
    file.metadata.emplace_back(key, std::move(value));
  }
}

void read_shape(Reader& in, GgufTensor& tensor, const std::string& what) {
  const auto dims = in.number<uint32_t>(what);
  if (in.ok() && (dims == 0 || dims > kMaxDims)) {
    in.fail(what + " has " + std::to_string(dims) + " dimensions, not 1 to 4");
    return;
  }
  for (uint32_t d = 0; d < dims && in.ok(); ++d) {
    const auto dim = in.number<uint64_t>(what);
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      in.fail(what + " has the dimension " + std::to_string(dim) + ", beyond 2^63 - 1");
      return;
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
}

void read_type(Reader& in, GgufTensor& tensor, const std::string& what) {
  const auto id = in.number<uint32_t>(what);
  if (!in.ok()) return;
  tensor.type = gguf_type(id);
  if (tensor.type == nullptr) {
    in.fail(what + " has the unknown type " + std::to_string(id) +
            "; get the file again or a newer Pestle");
    return;
  }
  const int64_t row = tensor.shape.back();
  if (row % tensor.type->elements != 0) {
    in.fail(what + " has rows of " + std::to_string(row) + " elements, but " +
            std::string(tensor.type->name) + " needs a multiple of " +
            std::to_string(tensor.type->elements));
    return;
  }
  uint64_t bytes = static_cast<uint64_t>(tensor.type->bytes);
  bool overflow = false;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    auto dim = static_cast<uint64_t>(tensor.shape[d]);
    if (d + 1 == tensor.shape.size()) dim /= static_cast<uint64_t>(tensor.type->elements);
    overflow |= __builtin_mul_overflow(bytes, dim, &bytes) || bytes > (uint64_t{1} << 62);
  }
  if (overflow) {
    in.fail(what + ": the product of shape " + describe_shape(tensor.type->name, tensor.shape) +
            " overflows 2^62 bytes");
    return;
  }
  tensor.bytes = bytes;
}

void read_tensors(Reader& in, uint64_t count, GgufFile& file) {
  std::unordered_set<std::string> seen;
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    GgufTensor tensor;
    tensor.name = string_value(in, "the name of tensor " + std::to_string(i));
    const std::string what = "tensor " + quote(tensor.name);
    if (in.ok() && !seen.insert(tensor.name).second) {
      in.fail("duplicate name " + quote(tensor.name) + "; get the file again from its source");
    }
    read_shape(in, tensor, what);
    if (in.ok()) read_type(in, tensor, what);
    tensor.offset = in.number<uint64_t>(what);
    if (in.ok()) file.tensors.push_back(std::move(tensor));
  }
}

// Turns offsets from the data section into offsets from the start of the file, and checks them.
void place_tensors(Reader& in, uint64_t file_bytes, GgufFile& file) {
  const uint64_t align = file.alignment;
  const uint64_t data = (in.at() + align - 1) / align * align;
  std::vector<GgufTensor*> order;
  for (GgufTensor& tensor : file.tensors) {
    const std::string what = "tensor " + quote(tensor.name);
    if (tensor.offset % align != 0) {
      in.fail(what + " begins at " + std::to_string(tensor.offset) +
              " of the data, no multiple of the alignment " + std::to_string(align));
      return;
    }
    if (data > file_bytes || tensor.offset > file_bytes - data ||
        tensor.bytes > file_bytes - data - tensor.offset) {
      in.fail("truncated: " + what + " takes " + std::to_string(tensor.bytes) +
              " bytes from byte " + std::to_string(tensor.offset) +
              " of the data, out of range of a file of " + std::to_string(file_bytes) +
              " bytes; get the file again from its source");
      return;
    }
    tensor.offset += data;
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = *order[i - 1];
    if (before.offset + before.bytes > order[i]->offset) {
      in.fail("tensor " + quote(order[i]->name) + " overlaps tensor " + quote(before.name) +
              "; get the file again from its source");
      return;
    }
  }
}

}  // namespace

const GgufType* gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

bool looks_like_gguf(std::span<const std::byte> file) {
  return file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0;
}

Result<GgufFile> parse_gguf(std::span<const std::byte> file, const std::string& label) {
  bool needs_more = false;
  return parse_gguf(file, file.size(), label, needs_more);
}

Result<GgufFile> parse_gguf(std::span<const std::byte> head, uint64_t file_bytes,
                            const std::string& label, bool& needs_more) {
  Reader in(head, file_bytes, label);
  if (!looks_like_gguf(head)) {
    in.fail("not a GGUF file: it does not begin with \"GGUF\"; check the path");
    return in.status();
  }
  in.skip(4);
  GgufFile file;
  file.version = in.number<uint32_t>("the version");
  if (in.ok() && file.version != 2 && file.version != 3) {
    const bool swapped = file.version != 0 && (file.version & 0xFFFF) == 0;
    in.fail(swapped ? "big-endian GGUF is not read; convert it to little-endian"
                    : "GGUF version " + std::to_string(file.version) +
                          " is not read, only 2 and 3; convert it with llama.cpp");
  }
  const auto tensors = in.number<uint64_t>("the number of tensors");
  const auto keys = in.number<uint64_t>("the number of keys");
  read_metadata(in, keys, file);
  if (in.ok()) read_tensors(in, tensors, file);
  if (in.ok()) place_tensors(in, file_bytes, file);
  needs_more = in.needs_more();
  if (!in.ok()) return in.status();
  return file;
}

}  // namespace pestle::files
