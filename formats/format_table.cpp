#include "formats/format_table.h"

#include <numeric>

namespace pestle::formats {
namespace {

constexpr FormatInfo kFormats[] = {
#define PESTLE_FORMAT(id, name, comfy, code_bits, block_n, block_k, scale_bits, rotation, doc, \
                      ...)                                                                     \
  {Format::id, name,       comfy,    code_bits, block_n,                                       \
   block_k,    scale_bits, rotation, doc,       {{__VA_ARGS__}}},
#include "formats/formats.def"
#undef PESTLE_FORMAT
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::span<const FormatInfo> all_formats() { return kFormats; }

const FormatInfo& format_info(Format format) { return kFormats[static_cast<size_t>(format)]; }

const FormatInfo* find_format(std::string_view name) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

double bits_per_weight(const FormatInfo& info, int64_t rows_n, int64_t cols_k) {
  const int64_t scales = ceil_div(rows_n, info.block_n == 0 ? rows_n : info.block_n) *
                         ceil_div(cols_k, info.block_k == 0 ? cols_k : info.block_k);
  int64_t bits = rows_n * cols_k * info.code_bits + scales * info.scale_bits;
  // Fields past the codes and their scales hold one value for the tensor or the row, or a table.
  const auto fields = info.fields();
  for (size_t i = 2; i < fields.size(); ++i) {
    const int64_t count = fields[i].shape == "N" ? rows_n : fields[i].shape == "16" ? 16 : 1;
    bits += count * 8 * dtype_bytes(fields[i].dtype);
  }
  return static_cast<double>(bits) / (static_cast<double>(rows_n) * static_cast<double>(cols_k));
}

double nominal_bits_per_weight(const FormatInfo& info) { return bits_per_weight(info, 4096, 4096); }

int64_t format_k_multiple(const FormatInfo& info) {
  // A last 128 x 128 block may be partial; blocks along one row may not.
  const int64_t block = info.block_k != 0 && info.block_n == 1 ? info.block_k : 1;
  const int64_t codes = info.code_bits == 4 ? 2 : 1;
  return std::lcm(std::lcm(block, codes), info.rotation == 0 ? 1 : info.rotation);
}

}  // namespace pestle::formats
