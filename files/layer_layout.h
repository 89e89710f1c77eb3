// How one quantised layer is stored: which tensors, their names, dtypes and shapes, in ComfyUI's
// layout and in the plain one. docs/file-layouts.md
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "formats/format_table.h"

namespace pestle::files {

enum class FileLayout { kComfy, kPlain };

std::string_view layout_name(FileLayout layout);

struct StoredField {
  std::string_view suffix;  // the tensor is LAYER.SUFFIX
  DType dtype = DType::kNone;
  std::vector<int64_t> shape;
  uint64_t bytes() const;
};

struct LayerLayout {
  const formats::FormatInfo* format = nullptr;
  FileLayout layout = FileLayout::kComfy;
  int64_t n = 0;  // of the weight
  int64_t k = 0;
  int64_t padded_n = 0;  // of the codes: odd sizes are padded with zeros as ComfyUI pads them
  int64_t padded_k = 0;
  std::vector<StoredField> fields;  // in the format's order
  std::string comfy_quant;          // JSON of LAYER.comfy_quant; empty in the plain layout

  uint64_t bytes() const;  // of all fields and comfy_quant
};

// Both sizes of a weight are padded to multiples of this in files; 1: never.
int64_t pad_multiple(const formats::FormatInfo& format);

// kUnsupported with the reason when the layout has no such format or the format can't hold [n,k].
Result<LayerLayout> layer_layout(const formats::FormatInfo& format, FileLayout layout, int64_t n,
                                 int64_t k);

}  // namespace pestle::files
