#include "files/layer_layout.h"

#include "formats/swizzle.h"

namespace pestle::files {
namespace {

using formats::Format;
using formats::FormatInfo;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One dimension of formats.def: "N", "K", "16", "K/32", "ceil(N/128)".
int64_t dimension(std::string_view text, int64_t n, int64_t k) {
  const bool ceil = text.starts_with("ceil(");
  if (ceil) text = text.substr(5, text.size() - 6);
  const size_t slash = text.find('/');
  const std::string_view base = text.substr(0, slash);
  int64_t value = base == "N" ? n : base == "K" ? k : std::stoll(std::string(base));
  if (slash != std::string_view::npos) {
    const int64_t divisor = std::stoll(std::string(text.substr(slash + 1)));
    value = ceil ? (value + divisor - 1) / divisor : value / divisor;
  }
  return value;
}

std::vector<int64_t> shape_of(std::string_view text, int64_t n, int64_t k) {
  std::vector<int64_t> shape;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    shape.push_back(dimension(text.substr(0, comma), n, k));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return shape;
}

bool has_block_scales(const FormatInfo& format) {
  return format.format == Format::kNvfp4 || format.format == Format::kMxfp8;
}

// Where ComfyUI's layout departs from the plain one.
void make_comfy(StoredField& field, const FormatInfo& format) {
  if (field.suffix == "weight_scale" && has_block_scales(format)) {
    field.shape[0] = round_up(field.shape[0], formats::kSwizzleRows);
    field.shape[1] = round_up(field.shape[1], formats::kSwizzleCols);
    if (field.dtype == DType::kE8M0) field.dtype = DType::kU8;
  }
  // int8 with a scale a row: [N,1], to tell it from a scale for the tensor.
  if (field.suffix == "weight_scale" && format.comfy == "int8_tensorwise" &&
      field.shape.size() == 1) {
    field.shape.push_back(1);
  }
  // Packed 4-bit integers are int8 there.
  if (field.suffix == "weight" && format.rotation != 0) field.dtype = DType::kI8;
}

std::string comfy_quant_json(const FormatInfo& format) {
  std::string json = "{\"format\":\"" + std::string(format.comfy) + "\"";
  const std::string rotation = std::to_string(format.rotation);
  if (format.format == Format::kW4a8) json += ",\"group_size\":" + std::to_string(format.block_k);
  if (format.rotation != 0) {
    if (format.format != Format::kW4a4Convrot) json += ",\"convrot\":true";
    json += ",\"convrot_groupsize\":" + rotation;
  }
  return json + "}";
}

}  // namespace

std::string_view layout_name(FileLayout layout) {
  return layout == FileLayout::kComfy ? "comfy" : "plain";
}

uint64_t StoredField::bytes() const {
  auto bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  for (const int64_t dim : shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

uint64_t LayerLayout::bytes() const {
  uint64_t total = comfy_quant.size();
  for (const StoredField& field : fields) total += field.bytes();
  return total;
}

int64_t pad_multiple(const FormatInfo& format) {
  if (format.format == Format::kNvfp4) return 16;
  return format.format == Format::kMxfp8 || format.format == Format::kMxfp4 ? 32 : 1;
}

Result<LayerLayout> layer_layout(const FormatInfo& format, FileLayout layout, int64_t n,
                                 int64_t k) {
  const std::string name(format.name);
  if (layout == FileLayout::kComfy && format.comfy.empty()) {
    return unsupported("ComfyUI's layout has no " + name + "; pass --layout plain");
  }
  const int64_t pad = pad_multiple(format);
  const int64_t multiple = formats::format_k_multiple(format);
  if (k == 0 || n == 0) return unsupported(name + " can't hold an empty weight");
  if (round_up(k, pad) % multiple != 0) {
    return unsupported(name + " needs K to be a multiple of " + std::to_string(multiple) +
                       ", it is " + std::to_string(k));
  }
  LayerLayout result;
  result.format = &format;
  result.layout = layout;
  result.n = n;
  result.k = k;
  result.padded_n = round_up(n, pad);
  result.padded_k = round_up(k, pad);
  for (const formats::FormatField& row : format.fields()) {
    StoredField field{row.suffix, row.dtype, shape_of(row.shape, result.padded_n, result.padded_k)};
    if (layout == FileLayout::kComfy) make_comfy(field, format);
    result.fields.push_back(std::move(field));
  }
  if (layout == FileLayout::kComfy) result.comfy_quant = comfy_quant_json(format);
  return result;
}

}  // namespace pestle::files
