// Decoding stored layers, chunk by chunk.
#include <algorithm>
#include <cctype>

#include "files/encode_layer.h"
#include "files/op_call.h"
#include "files/stored_layers.h"
#include "files/text.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"

namespace pestle::files {
namespace {

constexpr int64_t kChunkElements = int64_t{128} << 10;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

float load_element(const std::byte* data, DType dtype, int64_t index) {
  const auto code = [&] { return static_cast<uint8_t>(data[index]); };
  if (dtype == DType::kE4M3) return formats::f32_from_e4m3(code());
  if (dtype == DType::kE5M2) return formats::f32_from_e5m2(code());
  return load_weight(data, dtype, index);
}

// Bytes of a tensor in the thread's own memory, until its next read of this kind.
Result<std::byte*> read_bytes(const FileRange& data, int64_t offset, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  auto* memory = static_cast<std::byte*>(ChunkBuffers::of_thread().source(size));
  PESTLE_TRY(data.read(static_cast<uint64_t>(offset), {memory, size}));
  return memory;
}

}  // namespace

Result<LayerReader> LayerReader::make(const StoredLayer& layer) {
  if (!layer.cannot_decode.empty()) {
    return unsupported("layer " + quote(layer.name) + ": " + layer.cannot_decode);
  }
  LayerReader reader;
  reader.layer_ = &layer;
  reader.columns_ = layer.shape.empty() ? 1 : layer.shape.back();
  reader.rows_ = 1;
  for (size_t d = 0; d + 1 < layer.shape.size(); ++d) reader.rows_ *= layer.shape[d];
  if (reader.columns_ == 0) reader.rows_ = 0;
  if (layer.layout) {
    // Every source dtype gives the same codes' shapes; bf16 stands for it.
    Result<Codec> codec = Codec::make(*layer.layout, DType::kBF16);
    PESTLE_TRY(codec.status());
    reader.codec_ = std::move(codec.value());
  }
  return reader;
}

int64_t LayerReader::chunk_rows() const {
  if (codec_) return files::chunk_rows(*codec_);
  return std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, columns_));
}

Result<TensorView> LayerReader::read(int64_t row, int64_t rows) const {
  if (codec_) return read_quantized(row, rows);
  return layer_->gguf != nullptr ? read_gguf(row, rows) : read_plain(row, rows);
}

Result<TensorView> LayerReader::read_plain(int64_t row, int64_t rows) const {
  const ModelTensor& tensor = *layer_->weight;
  const int64_t row_bytes = columns_ * dtype_bytes(tensor.dtype);
  const auto data = read_bytes(tensor.data, row * row_bytes, rows * row_bytes);
  PESTLE_TRY(data.status());
  TensorView out = ChunkBuffers::of_thread().decoded(rows, columns_);
  for (int64_t i = 0; i < rows * columns_; ++i) {
    out.as<float>()[i] = load_element(data.value(), tensor.dtype, i);
  }
  return out;
}

Result<TensorView> LayerReader::read_gguf(int64_t row, int64_t rows) const {
  const int64_t row_bytes = columns_ / layer_->gguf->elements * layer_->gguf->bytes;
  const auto data = read_bytes(layer_->weight->data, row * row_bytes, rows * row_bytes);
  PESTLE_TRY(data.status());
  OpCall call("dequantize_gguf", "type=" + lower(layer_->gguf->name));
  const int64_t shape[] = {rows, row_bytes};
  call.tensor("q", make_view(data.value(), DType::kU8, 2, shape));
  const TensorView out = ChunkBuffers::of_thread().decoded(rows, columns_);
  call.tensor("out", out);
  PESTLE_TRY(call.run());
  return out;
}

Result<TensorView> LayerReader::read_quantized(int64_t row, int64_t rows) const {
  // The codes have padded rows, which the last chunk may hold more of.
  const int64_t stored_rows = row + rows >= rows_ ? codec_->layout().n - row : rows;
  Result<FieldViews> views = codec_->piece_views(stored_rows);
  PESTLE_TRY(views.status());
  const size_t fields = codec_->layout().fields.size();
  ChunkBuffers::of_thread().attach(views.value(), fields);
  for (size_t i = 0; i < fields; ++i) {
    const TensorView& view = views.value()[i];
    const auto bytes = static_cast<size_t>(size_bytes(view));
    PESTLE_TRY(layer_->fields[i]->data.read(codec_->piece_offset(static_cast<int>(i), row),
                                            {view.as<std::byte>(), bytes}));
  }
  TensorView out =
      ChunkBuffers::of_thread().decoded(views.value()[0].shape[0], codec_->layout().padded_k);
  PESTLE_TRY(codec_->decode(views.value(), out));
  out.shape[0] = rows;
  return out;
}

}  // namespace pestle::files
