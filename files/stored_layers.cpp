#include "files/stored_layers.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/json_text.h"
#include "files/text.h"

namespace pestle::files {
namespace {

using formats::FormatInfo;
using Json = nlohmann::json;

constexpr std::string_view kWeightEnd = ".weight";
constexpr uint64_t kMaxDescription = uint64_t{1} << 20;  // a longer one is no JSON of a layer

// What some description in the file says about one layer.
struct Description {
  std::string format;          // ComfyUI's name, or ours
  bool is_plain = false;       // our plain layout
  std::vector<int64_t> shape;  // before padding, if known
  DType source = DType::kNone;
  int64_t rotation = 0;
  bool is_legacy = false;  // scaled_fp8: LAYER.scale_weight
};

std::string string_of(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_string()
             ? json[key].get<std::string>()
             : "";
}

int64_t integer_of(const Json& json, const char* key, int64_t otherwise) {
  return json.is_object() && json.contains(key) && json[key].is_number_integer()
             ? json[key].get<int64_t>()
             : otherwise;
}

bool flag_of(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_boolean() && json[key].get<bool>();
}

// The JSON that a LAYER.comfy_quant tensor holds.
Result<std::string> read_description(const ModelTensor& tensor) {
  std::string text(std::min(tensor.data.size(), kMaxDescription), '\0');
  PESTLE_TRY(tensor.data.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Description comfy_description(const Json& json) {
  Description described;
  described.format = string_of(json, "format");
  const Json params = json.is_object() && json.contains("params") ? json["params"] : Json();
  const bool rotated = flag_of(json, "convrot") || flag_of(params, "convrot") ||
                       described.format == "convrot_w4a4" || described.format == "asym_w4a8_int8";
  if (rotated) {
    described.rotation =
        integer_of(json, "convrot_groupsize", integer_of(params, "convrot_groupsize", 256));
  }
  return described;
}

class LayerFinder {
 public:
  explicit LayerFinder(const Model& model) : model_(model) {}

  Result<std::vector<StoredLayer>> find() {
    read_pestle_metadata();
    PESTLE_TRY(read_comfy_metadata());
    PESTLE_TRY(read_comfy_tensors());
    read_legacy();
    std::vector<StoredLayer> layers;
    for (const auto& [name, described] : descriptions_) {
      StoredLayer layer;
      PESTLE_TRY(quantized_layer(name, described, layer));
      layers.push_back(std::move(layer));
    }
    for (const ModelTensor& tensor : model_.tensors()) {
      if (!used_.contains(tensor.name)) layers.push_back(plain_layer(tensor));
    }
    std::sort(layers.begin(), layers.end(), [](const StoredLayer& a, const StoredLayer& b) {
      return natural_less(a.name, b.name);
    });
    return layers;
  }

 private:
  // Ours: format, size before padding and source dtype of each layer.
  void read_pestle_metadata() {
    const auto entry = model_.metadata().find("pestle");
    if (entry == model_.metadata().end() || model_.is_gguf()) return;
    const Json json = parse_json(entry->second);
    if (!json.is_object() || !json.contains("layers") || !json["layers"].is_object()) return;
    const std::string layout = string_of(json, "layout");
    for (const auto& [name, value] : json["layers"].items()) {
      Description described;
      described.format = string_of(value, "format");
      const std::string own_layout = string_of(value, "layout");
      described.is_plain = (own_layout.empty() ? layout : own_layout) == "plain";
      if (const FileDType* dtype = file_dtype_from_name(string_of(value, "dtype"))) {
        described.source = dtype->dtype;
      }
      if (value.is_object() && value.contains("shape") && value["shape"].is_array()) {
        for (const Json& dim : value["shape"]) {
          if (dim.is_number_integer()) described.shape.push_back(dim.get<int64_t>());
        }
      }
      descriptions_[name] = described;
    }
  }

  // ComfyUI's descriptions win over ours; ours still gives the size before padding.
  void merge(const std::string& name, Description described) {
    const auto known = descriptions_.find(name);
    if (known != descriptions_.end()) {
      described.shape = known->second.shape;
      described.source = known->second.source;
    }
    descriptions_[name] = described;
  }

  Status read_comfy_metadata() {
    const auto entry = model_.metadata().find("_quantization_metadata");
    if (entry == model_.metadata().end() || model_.is_gguf()) return {};
    const Json json = parse_json(entry->second);
    if (!json.is_object() || !json.contains("layers") || !json["layers"].is_object()) {
      return corrupt("its _quantization_metadata is no JSON with layers");
    }
    for (const auto& [name, value] : json["layers"].items()) merge(name, comfy_description(value));
    return {};
  }

  Status read_comfy_tensors() {
    for (const ModelTensor& tensor : model_.tensors()) {
      constexpr std::string_view kEnd = ".comfy_quant";
      if (!tensor.name.ends_with(kEnd)) continue;
      const auto text = read_description(tensor);
      PESTLE_TRY(text.status());
      const Json json = parse_json(text.value());
      if (!json.is_object()) return corrupt(quote(tensor.name) + " is no JSON");
      merge(tensor.name.substr(0, tensor.name.size() - kEnd.size()), comfy_description(json));
      used_.insert(tensor.name);
    }
    return {};
  }

  // A marker tensor scaled_fp8 at the top or under a prefix; scales are called scale_weight.
  void read_legacy() {
    for (const ModelTensor& tensor : model_.tensors()) {
      if (tensor.name == "scaled_fp8" || tensor.name.ends_with(".scaled_fp8")) {
        used_.insert(tensor.name);
      }
      constexpr std::string_view kEnd = ".scale_weight";
      if (!tensor.name.ends_with(kEnd)) continue;
      const std::string layer = tensor.name.substr(0, tensor.name.size() - kEnd.size());
      const ModelTensor* weight = model_.find(layer + ".weight");
      if (weight == nullptr || descriptions_.contains(layer)) continue;
      Description described;
      if (weight->dtype == DType::kE4M3) described.format = "float8_e4m3fn";
      if (weight->dtype == DType::kE5M2) described.format = "float8_e5m2";
      if (described.format.empty()) continue;
      described.is_legacy = true;
      descriptions_[layer] = described;
    }
  }

  Status corrupt(const std::string& what) const {
    return {Code::kCorruptFile, model_.files()[0]->path() + ": " + what + "; get the file again"};
  }

  // The row of our table that a description means; nullptr: none.
  const FormatInfo* format_of(const std::string& name, const Description& described) const {
    if (described.is_plain) return formats::find_format(described.format);
    const ModelTensor* scale = model_.find(name + ".weight_scale");
    const bool per_row = scale != nullptr && scale->shape.size() > 0 && scale->data.size() > 4;
    for (const FormatInfo& info : formats::all_formats()) {
      if (info.comfy != described.format) continue;
      if (info.comfy == "int8_tensorwise") {
        if ((info.rotation != 0) != (described.rotation != 0)) continue;
        if (info.rotation == 0 && (info.block_n == 1) != per_row) continue;
      }
      return &info;
    }
    return nullptr;
  }

  Status quantized_layer(const std::string& name, const Description& described,
                         StoredLayer& layer) {
    const ModelTensor* weight = model_.find(name + std::string(kWeightEnd));
    if (weight == nullptr) {
      return corrupt("layer " + quote(name) + " is described as quantised but has no weight");
    }
    layer.name = weight->name;
    layer.weight = weight;
    layer.is_quantized = true;
    layer.source = described.source;
    layer.format = described.format;
    layer.shape = weight->shape;
    layer.bytes = weight->data.size();
    used_.insert(weight->name);
    const FormatInfo* format = format_of(name, described);
    if (format == nullptr) {
      layer.cannot_decode = "format " + quote(described.format) + " is not known to this version";
      return {};
    }
    layer.format = std::string(format->name);
    if (format->rotation != 0 && !described.is_plain && described.rotation != format->rotation) {
      layer.cannot_decode = "rotated in groups of " + std::to_string(described.rotation) +
                            ", only " + std::to_string(format->rotation) + " is read";
      return {};
    }
    return find_fields(name, described, *format, layer);
  }

  Status find_fields(const std::string& name, const Description& described,
                     const FormatInfo& format, StoredLayer& layer) {
    const auto& stored = layer.weight->shape;
    if (stored.size() != 2) {
      return corrupt("layer " + quote(name) + ": a quantised weight must have 2 dimensions");
    }
    const int64_t columns = stored[1] * (format.code_bits == 4 ? 2 : 1);
    const FileLayout kind = described.is_plain ? FileLayout::kPlain : FileLayout::kComfy;
    Result<LayerLayout> layout = layer_layout(format, kind, stored[0], columns);
    if (!layout.ok()) return corrupt("layer " + quote(name) + ": " + layout.status().message());
    for (size_t i = 0; i < layout.value().fields.size(); ++i) {
      std::string field = name + "." + std::string(layout.value().fields[i].suffix);
      if (described.is_legacy && i == 1) field = name + ".scale_weight";
      const ModelTensor* tensor = model_.find(field);
      if (tensor == nullptr) return corrupt("layer " + quote(name) + " has no " + quote(field));
      if (tensor->data.size() != layout.value().fields[i].bytes()) {
        return corrupt(quote(field) + " has " + std::to_string(tensor->data.size()) +
                       " bytes, but a " + std::string(format.name) + " layer of this size needs " +
                       std::to_string(layout.value().fields[i].bytes()));
      }
      used_.insert(tensor->name);
      layer.fields[i] = tensor;
      if (i > 0) layer.bytes += tensor->data.size();
    }
    layer.shape = {stored[0], columns};
    const auto& original = described.shape;
    if (original.size() == 2 && original[0] > 0 && original[0] <= stored[0] && original[1] > 0 &&
        original[1] <= columns) {
      layer.shape = original;
    }
    layer.layout = std::move(layout.value());
    return {};
  }

  static StoredLayer plain_layer(const ModelTensor& tensor) {
    StoredLayer layer;
    layer.name = tensor.name;
    layer.weight = &tensor;
    layer.format = std::string(tensor.dtype_name);
    layer.shape = tensor.shape;
    layer.source = tensor.dtype;
    layer.bytes = tensor.data.size();
    const bool is_float = tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 ||
                          tensor.dtype == DType::kBF16 || tensor.dtype == DType::kE4M3 ||
                          tensor.dtype == DType::kE5M2;
    if (tensor.gguf != nullptr && tensor.gguf->elements > 1) {
      layer.gguf = tensor.gguf;
      layer.is_quantized = true;
      static const std::set<std::string_view> kRead = {"Q8_0", "Q4_0", "Q4_K", "Q6_K"};
      if (!kRead.contains(tensor.gguf->name)) {
        layer.cannot_decode = "GGUF type " + std::string(tensor.gguf->name) +
                              " is not decoded; Q8_0, Q4_0, Q4_K and Q6_K are";
      }
    } else if (!is_float) {
      layer.cannot_decode = "dtype " + std::string(tensor.dtype_name) + " holds no weights";
    }
    return layer;
  }

  const Model& model_;
  std::map<std::string, Description> descriptions_;
  std::set<std::string> used_;
};

}  // namespace

Result<std::vector<StoredLayer>> stored_layers(const Model& model) {
  return LayerFinder(model).find();
}

}  // namespace pestle::files
