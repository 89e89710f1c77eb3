#include "files/dequantize_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "backends/cpu/parallel.h"
#include "files/output_check.h"
#include "files/output_set.h"
#include "files/stored_layers.h"
#include "files/text.h"
#include "formats/float_bits.h"

namespace pestle::files {
namespace {

// Rounds a row of f32 to `dtype`.
void store_row(const float* from, int64_t count, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits =
        dtype == DType::kBF16 ? formats::bf16_from_f32(from[i]) : formats::f16_from_f32(from[i]);
    std::memcpy(to + i * 2, &bits, sizeof bits);
  }
}

class Dequantizer {
 public:
  Dequantizer(const DequantizeOptions& options, const Model& model,
              const std::vector<StoredLayer>& layers)
      : options_(options), model_(model), layers_(layers) {}

  Result<DequantizeReport> run() {
    PESTLE_TRY(check_something_to_decode());
    std::vector<std::vector<OutputTensor>> groups;
    for (const StoredLayer& layer : layers_) {
      if (layer.is_quantized && !layer.cannot_decode.empty()) {
        return unsupported(options_.input + ": layer " + quote(layer.name) + ": " +
                           layer.cannot_decode);
      }
      const FileDType* dtype = file_dtype_of(target_dtype(layer));
      if (!layer.is_quantized && layer.weight->file_dtype != nullptr) {
        dtype = layer.weight->file_dtype;
      }
      groups.push_back({{layer.name, dtype, layer.shape}});
    }
    PESTLE_TRY(create(groups));
    for (const StoredLayer& layer : layers_) {
      PESTLE_TRY(layer.is_quantized ? decode(layer) : copy(layer));
      done_ += layer.bytes;
      if (options_.progress) options_.progress({done_, model_.bytes(), "dequantising"});
    }
    PESTLE_TRY(model_.check_unchanged());
    report_.outputs = output_->paths();
    report_.bytes_before = model_.bytes();
    report_.bytes_after = output_->bytes();
    PESTLE_TRY(output_->commit());
    if (options_.progress) options_.progress({model_.bytes(), model_.bytes(), "dequantising"});
    return report_;
  }

 private:
  Status check_something_to_decode() const {
    for (const StoredLayer& layer : layers_) {
      if (layer.is_quantized) return {};
    }
    return invalid_argument(
        options_.input +
        ": has no quantised layer, so there is nothing to decode; pestle inspect "
        "says what is in it");
  }

  DType target_dtype(const StoredLayer& layer) const {
    if (!layer.is_quantized) return layer.weight->dtype;
    if (options_.dtype) return *options_.dtype;
    return layer.source == DType::kNone ? DType::kBF16 : layer.source;
  }

  Status create(const std::vector<std::vector<OutputTensor>>& groups) {
    OutputOptions options;
    options.path = options_.output;
    options.max_shard_bytes = options_.max_shard_bytes;
    options.overwrite = options_.overwrite;
    options.fingerprint = "dequantize";
    if (!model_.is_gguf()) options.metadata = model_.metadata();
    options.metadata.erase("pestle");
    options.metadata.erase("_quantization_metadata");
    auto output = OutputSet::plan(groups, options);
    PESTLE_TRY(output.status());
    output_ = std::move(output.value());
    PESTLE_TRY(check_outputs(model_.paths(), output_->written_paths("output")));
    return output_->create();
  }

  Status copy(const StoredLayer& layer) {
    constexpr uint64_t kStep = uint64_t{4} << 20;
    ++report_.tensors_copied;
    const FileRange& data = layer.weight->data;
    std::vector<std::byte> piece;
    for (uint64_t at = 0; at < data.size(); at += piece.size()) {
      if (options_.cancel != nullptr && options_.cancel->load()) return interrupted();
      piece.resize(std::min<uint64_t>(kStep, data.size() - at));
      PESTLE_TRY(data.read(at, piece));
      PESTLE_TRY(output_->write(layer.name, at, piece));
    }
    return {};
  }

  Status decode(const StoredLayer& layer) {
    ++report_.layers_decoded;
    const Result<LayerReader> reader = LayerReader::make(layer);
    PESTLE_TRY(reader.status());
    const int64_t step = reader.value().chunk_rows();
    const int64_t chunks = (reader.value().rows() + step - 1) / step;
    std::mutex mutex;
    Status first;
    cpu::parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        Status status = options_.cancel != nullptr && options_.cancel->load()
                            ? interrupted()
                            : decode_rows(layer, reader.value(), chunk * step, step);
        const std::lock_guard lock(mutex);
        if (first.ok()) first = std::move(status);
        if (!first.ok()) return;
      }
    });
    return first;
  }

  Status decode_rows(const StoredLayer& layer, const LayerReader& reader, int64_t row,
                     int64_t step) {
    const int64_t rows = std::min(step, reader.rows() - row);
    const Result<TensorView> values = reader.read(row, rows);
    PESTLE_TRY(values.status());
    const DType dtype = target_dtype(layer);
    const int64_t row_bytes = reader.columns() * dtype_bytes(dtype);
    thread_local std::vector<std::byte> out;
    out.resize(static_cast<size_t>(rows * row_bytes));
    for (int64_t r = 0; r < rows; ++r) {
      store_row(values.value().as<float>() + r * values.value().strides[0], reader.columns(), dtype,
                out.data() + r * row_bytes);
    }
    return output_->write(layer.name, static_cast<uint64_t>(row * row_bytes), out);
  }

  const DequantizeOptions& options_;
  const Model& model_;
  const std::vector<StoredLayer>& layers_;
  std::unique_ptr<OutputSet> output_;
  DequantizeReport report_;
  uint64_t done_ = 0;
};

}  // namespace

Result<DequantizeReport> dequantize_file(const DequantizeOptions& options) {
  const Result<Model> model = Model::open(options.input);
  PESTLE_TRY(model.status());
  const auto layers = stored_layers(model.value());
  PESTLE_TRY(layers.status());
  return Dequantizer(options, model.value(), layers.value()).run();
}

}  // namespace pestle::files
