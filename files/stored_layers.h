// What is in a model file: its quantised layers, whoever wrote them, and its plain tensors.
// Read are ComfyUI's layout (comfy_quant tensors or _quantization_metadata), its older scaled_fp8,
// the plain layout, and GGUF.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/codec.h"
#include "files/model.h"

namespace pestle::files {

struct StoredLayer {
  std::string name;             // of the weight: "blocks.0.fc.weight"
  std::string format;           // "nvfp4", "Q4_K", or the element type of a plain tensor
  std::vector<int64_t> shape;   // of the weight before padding
  DType source = DType::kNone;  // what it was before, when the file says so
  uint64_t bytes = 0;           // of all its tensors
  bool is_quantized = false;
  std::string cannot_decode;  // why its values can't be had; empty: they can

  // How to decode: exactly one of these, or neither for a plain tensor.
  std::optional<LayerLayout> layout;
  const GgufType* gguf = nullptr;
  const ModelTensor* weight = nullptr;
  std::array<const ModelTensor*, formats::kMaxFormatFields> fields = {};  // with layout
};

// kCorruptFile when a layer's description does not fit its tensors.
Result<std::vector<StoredLayer>> stored_layers(const Model& model);

// Decodes rows of a layer into f32. A plain tensor of any rank is seen as rows of its last
// dimension.
class LayerReader {
 public:
  // kUnsupported with the reason when the values can't be had.
  static Result<LayerReader> make(const StoredLayer& layer);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Reads begin at multiples of this many rows, and end there or at the last row.
  int64_t row_step() const { return codec_ ? codec_->row_step() : 1; }
  // A good number of rows for one read: a multiple of row_step().
  int64_t chunk_rows() const;
  // [rows, stride >= columns] of f32 in the thread's own buffer, until its next read.
  Result<TensorView> read(int64_t row, int64_t rows) const;

 private:
  Result<TensorView> read_plain(int64_t row, int64_t rows) const;
  Result<TensorView> read_gguf(int64_t row, int64_t rows) const;
  Result<TensorView> read_quantized(int64_t row, int64_t rows) const;

  const StoredLayer* layer_ = nullptr;
  std::optional<Codec> codec_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
};

}  // namespace pestle::files
