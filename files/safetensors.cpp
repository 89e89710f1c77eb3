#include "files/safetensors.h"

#include <algorithm>
#include <cstring>

#include "files/safetensors_header.h"
#include "files/text.h"

namespace pestle::files {
namespace {

constexpr FileDType kFileDTypes[] = {
    {"BOOL", 8, DType::kBool},
    {"U8", 8, DType::kU8},
    {"I8", 8, DType::kI8},
    {"F8_E5M2", 8, DType::kE5M2},
    {"F8_E4M3", 8, DType::kE4M3},
    {"F8_E8M0", 8, DType::kE8M0},
    {"I16", 16, DType::kI16},
    {"U16", 16, DType::kU16},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"U32", 32, DType::kU32},
    {"F32", 32, DType::kF32},
    {"F64", 64, DType::kF64},
    {"I64", 64, DType::kI64},
    {"U64", 64, DType::kU64},
    {"F4", 4, DType::kNone},
    {"F6_E2M3", 6, DType::kNone},
    {"F6_E3M2", 6, DType::kNone},
    {"C64", 64, DType::kNone},
    {"F8_E4M3FNUZ", 8, DType::kNone},
    {"F8_E5M2FNUZ", 8, DType::kNone},
};

Status corrupt(const std::string& label, const std::string& what) {
  return {Code::kCorruptFile, label + ": " + what};
}

std::string tensor_label(const SafetensorsEntry& entry) { return "tensor " + quote(entry.name); }

// Offsets must tile the data exactly: other readers refuse holes and overlaps too.
Status check_offsets(const SafetensorsHeader& header, uint64_t data_bytes,
                     const std::string& label) {
  uint64_t expected = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin < expected) {
      return corrupt(label, tensor_label(entry) + " overlaps " + tensor_label(*previous) +
                                ": it begins at byte " + std::to_string(entry.begin) +
                                " of the data, before " + std::to_string(expected) +
                                "; get the file again from its source");
    }
    if (entry.begin > expected) {
      return corrupt(label, tensor_label(entry) + " begins at byte " + std::to_string(entry.begin) +
                                " of the data, but the bytes before it end at " +
                                std::to_string(expected) +
                                "; safetensors allows no gaps, so save the file again");
    }
    expected = entry.end;
    previous = &entry;
  }
  if (expected > data_bytes) {
    return corrupt(label, "truncated: the header places " + tensor_label(*previous) +
                              " up to byte " + std::to_string(header.data_begin + expected) +
                              ", out of range of a file of " +
                              std::to_string(header.data_begin + data_bytes) +
                              " bytes; get the file again from its source");
  }
  if (expected < data_bytes) {
    return corrupt(label, std::to_string(data_bytes - expected) +
                              " bytes follow the last tensor, so the header lies about sizes; "
                              "get the file again from its source");
  }
  return {};
}

Status check_sizes(const SafetensorsHeader& header, const std::string& label) {
  for (const SafetensorsEntry& entry : header.tensors) {
    const std::string shape = describe_shape(entry.dtype->name, entry.shape);
    const Result<uint64_t> bytes = tensor_bytes(*entry.dtype, entry.shape);
    if (!bytes.ok()) {
      return corrupt(label, tensor_label(entry) + ": " + bytes.status().message());
    }
    if (entry.end < entry.begin) {
      return corrupt(label, tensor_label(entry) + ": data_offsets end at " +
                                std::to_string(entry.end) + ", before they begin at " +
                                std::to_string(entry.begin) + "; save the file again");
    }
    if (entry.end - entry.begin != bytes.value()) {
      return corrupt(label, tensor_label(entry) + ": " + shape + " takes " +
                                std::to_string(bytes.value()) +
                                " bytes, but its data_offsets give " +
                                std::to_string(entry.end - entry.begin) +
                                ", so the header lies about sizes; save the file again");
    }
  }
  return {};
}

}  // namespace

std::span<const FileDType> file_dtypes() { return kFileDTypes; }

const FileDType* file_dtype_from_name(std::string_view name) {
  for (const FileDType& row : kFileDTypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

const FileDType* file_dtype_of(DType dtype) {
  if (dtype == DType::kNone) return nullptr;
  for (const FileDType& row : kFileDTypes) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

Result<uint64_t> tensor_bytes(const FileDType& dtype, std::span<const int64_t> shape) {
  constexpr uint64_t kLimit = uint64_t{1} << 62;
  uint64_t bits = static_cast<uint64_t>(dtype.bits);
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (const int64_t dim : shape) {
    if (empty) return uint64_t{0};
    if (dim < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits) ||
        bits > kLimit) {
      return invalid_argument("the product of shape " + describe_shape(dtype.name, shape) +
                              " overflows 2^62 bits");
    }
  }
  if (bits % 8 != 0) {
    return invalid_argument(describe_shape(dtype.name, shape) + " is no whole number of bytes");
  }
  return bits / 8;
}

uint64_t safetensors_head_bytes(std::span<const std::byte> start, uint64_t file_bytes) {
  if (start.size() < 8) return start.size();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), sizeof header_bytes);
  return header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - 8 ? 8 : 8 + header_bytes;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes,
                                            const std::string& label) {
  const std::string not_safetensors = "not a safetensors file: ";
  if (file_bytes < 8) {
    return corrupt(label, not_safetensors + "it has " + std::to_string(file_bytes) +
                              " bytes, fewer than the 8 of a header length; check the path");
  }
  uint64_t header_bytes = 0;  // little-endian in the file, as is every machine this builds for
  std::memcpy(&header_bytes, head.data(), sizeof header_bytes);
  const uint64_t rest = file_bytes - 8;
  if (header_bytes > kMaxHeaderBytes) {
    if (std::memcmp(head.data(), "GGUF", 4) == 0) {
      return corrupt(label,
                     not_safetensors + "it is GGUF; pestle inspect, dequantize and diff read it");
    }
    return corrupt(label, not_safetensors + "its first 8 bytes give a header of " +
                              std::to_string(header_bytes) + " bytes, the limit is " +
                              std::to_string(kMaxHeaderBytes) + "; check the path");
  }
  if (header_bytes > rest) {
    return corrupt(label, "truncated: the header should have " + std::to_string(header_bytes) +
                              " bytes, the file has " + std::to_string(rest) +
                              " after the length; get the file again from its source");
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + 8, header_bytes);
  if (text.empty() || text[0] != '{') {
    return corrupt(label, not_safetensors + "its header does not begin with '{'; check the path");
  }
  if (const size_t bad = first_invalid_utf8(text); bad < text.size()) {
    return corrupt(label, "the header is not UTF-8 at its byte " + std::to_string(bad) +
                              " (a name in another encoding?); save the file with UTF-8 names");
  }
  SafetensorsHeader header;
  if (Status status = parse_header_json(text, header); !status.ok()) {
    return corrupt(label, status.message());
  }
  header.data_begin = 8 + header_bytes;
  if (Status status = check_sizes(header, label); !status.ok()) return status;
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  if (Status status = check_offsets(header, rest - header_bytes, label); !status.ok()) {
    return status;
  }
  return header;
}

}  // namespace pestle::files
