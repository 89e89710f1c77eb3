// The formats of files as data: everything that lists, names, sizes or stores formats walks this
// table. Host only; the codes themselves are in the headers beside it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace pestle::formats {

// How a quantised weight lies in memory. Files and state dicts hold kFile; layouts that a kernel
// prepares once (same size, reversible) get further tags. Append only.
enum class WeightLayout : int32_t { kFile = 0 };

enum class Format : int32_t {
#define PESTLE_FORMAT(id, ...) id,
#include "formats/formats.def"
#undef PESTLE_FORMAT
};

struct FormatField {
  std::string_view suffix;
  DType dtype = DType::kNone;
  std::string_view shape;
};

inline constexpr int kMaxFormatFields = 4;

struct FormatInfo {
  Format format;
  std::string_view name;
  std::string_view comfy;  // empty: ComfyUI's layout does not have it
  int code_bits;
  int64_t block_n;  // 0: all of N
  int64_t block_k;  // 0: all of K
  int scale_bits;
  int64_t rotation;
  std::string_view doc;
  std::array<FormatField, kMaxFormatFields> field_slots;
  WeightLayout layout = WeightLayout::kFile;

  constexpr std::span<const FormatField> fields() const {
    size_t count = 0;
    while (count < field_slots.size() && !field_slots[count].suffix.empty()) ++count;
    return {field_slots.data(), count};
  }
};

// All formats, in the order of formats.def.
std::span<const FormatInfo> all_formats();
const FormatInfo& format_info(Format format);
// nullptr when `name` is no format.
const FormatInfo* find_format(std::string_view name);

// Bits per weight of an [rows_n, cols_k] weight, every scale and codebook counted and no padding:
// the sum over its fields, so it needs K to be a multiple of the block.
double bits_per_weight(const FormatInfo& info, int64_t rows_n, int64_t cols_k);
// The same at 4096 x 4096, the figure that --help prints.
double nominal_bits_per_weight(const FormatInfo& info);

// K must be a multiple of this for the codes, blocks and rotation to fit.
int64_t format_k_multiple(const FormatInfo& info);

}  // namespace pestle::formats
