#include "files/finite.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "files/text.h"

namespace pestle::files {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

template <class Bits>
Bits load_bits(std::span<const std::byte> bytes, size_t index) {
  Bits bits;
  std::memcpy(&bits, bytes.data() + index * sizeof(Bits), sizeof bits);
  return bits;
}

// `exponent`: the bits that are all set in a NaN or an infinity, and in nothing else.
template <class Bits>
int64_t first_with(std::span<const std::byte> bytes, Bits exponent) {
  const size_t count = bytes.size() / sizeof(Bits);
  bool any = false;  // first without a branch for each, so that it runs at the memory's speed
  for (size_t i = 0; i < count; ++i) any |= (load_bits<Bits>(bytes, i) & exponent) == exponent;
  for (size_t i = 0; any && i < count; ++i) {
    if ((load_bits<Bits>(bytes, i) & exponent) == exponent) return static_cast<int64_t>(i);
  }
  return -1;
}

// The place of the first NaN or infinity, -1: none.
int64_t first_not_finite(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::kF64: return first_with<uint64_t>(bytes, 0x7FF0'0000'0000'0000u);
    case DType::kF32: return first_with<uint32_t>(bytes, 0x7F80'0000u);
    case DType::kF16: return first_with<uint16_t>(bytes, 0x7C00u);
    case DType::kBF16: return first_with<uint16_t>(bytes, 0x7F80u);
    case DType::kE5M2: return first_with<uint8_t>(bytes, 0x7Cu);
    case DType::kE4M3: return first_with<uint8_t>(bytes, 0x7Fu);
    case DType::kE8M0: return first_with<uint8_t>(bytes, 0xFFu);
    default: return -1;
  }
}

// Of an element that is one of the two.
bool is_infinite(std::span<const std::byte> bytes, DType dtype, int64_t element) {
  const auto i = static_cast<size_t>(element);
  switch (dtype) {
    case DType::kF64: return (load_bits<uint64_t>(bytes, i) << 12) == 0;
    case DType::kF32: return (load_bits<uint32_t>(bytes, i) & 0x7F'FFFFu) == 0;
    case DType::kF16: return (load_bits<uint16_t>(bytes, i) & 0x3FFu) == 0;
    case DType::kBF16: return (load_bits<uint16_t>(bytes, i) & 0x7Fu) == 0;
    case DType::kE5M2: return (load_bits<uint8_t>(bytes, i) & 0x3u) == 0;
    default: return false;  // E4M3 and E8M0 have NaN alone
  }
}

// "[3, 17]"
std::string place_text(int64_t index, const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t d = shape.size(); d-- > 0;) {
    text = std::to_string(index % shape[d]) + (text.empty() ? "" : ", " + text);
    index /= shape[d];
  }
  return "[" + text + "]";
}

}  // namespace

Status check_finite(const ModelTensor& tensor) {
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < tensor.data.size(); at += piece.size()) {
    piece.resize(std::min(kPieceBytes, tensor.data.size() - at));
    PESTLE_TRY(tensor.data.read(at, piece));
    PESTLE_TRY(check_finite(tensor, at, piece));
  }
  return {};
}

Status check_finite(const ModelTensor& tensor, uint64_t offset, std::span<const std::byte> bytes) {
  const int64_t found = first_not_finite(bytes, tensor.dtype);
  if (found < 0) return {};
  const int64_t element = static_cast<int64_t>(offset) / dtype_bytes(tensor.dtype) + found;
  return {Code::kCorruptFile,
          "tensor " + quote(tensor.name) + ": element " + place_text(element, tensor.shape) +
              " is " + (is_infinite(bytes, tensor.dtype, found) ? "infinite" : "NaN") +
              "; repair the model, or pass --allow-non-finite to store such tensors as they are"};
}

}  // namespace pestle::files
