#include "files/layer_descriptions.h"

#include "core/json_text.h"
#include "files/text.h"

namespace pestle::files {
namespace {

using Json = nlohmann::json;

constexpr const char* kComfyEntry = "_quantization_metadata";
constexpr const char* kOurEntry = "pestle";

// The entry with its object "layers"; null when the model has no such entry.
Json entry_of(const Model& model, const char* key) {
  const auto found = model.metadata().find(key);
  if (found == model.metadata().end()) return nullptr;
  Json json = parse_json(found->second);
  const bool has_layers = json.is_object() && json.contains("layers") && json["layers"].is_object();
  return has_layers ? json : Json(Json::value_t::discarded);
}

template <class Change>
std::string members(const Json& entry, const std::set<std::string>& made, const Change& change) {
  std::string text;
  if (!entry.is_object()) return text;
  for (const auto& [name, value] : entry["layers"].items()) {
    if (made.contains(name)) continue;
    Json described = value;
    change(described);
    text += (text.empty() ? "" : ",") + json_string(name) + ":" + print_json(described, -1, true);
  }
  return text;
}

}  // namespace

Status check_descriptions(const Model& model) {
  for (const char* key : {kComfyEntry, kOurEntry}) {
    if (!entry_of(model, key).is_discarded()) continue;
    return {Code::kCorruptFile, model.files()[0]->path() + ": its metadata entry " + key +
                                    " is no JSON with layers; get the file again"};
  }
  return {};
}

std::string comfy_descriptions(const Model& model, const std::set<std::string>& made) {
  return members(entry_of(model, kComfyEntry), made, [](Json&) {});
}

std::string pestle_descriptions(const Model& model, const std::set<std::string>& made,
                                FileLayout layout) {
  const Json entry = entry_of(model, kOurEntry);
  const std::string name(layout_name(layout));
  std::string theirs = "comfy";
  if (entry.is_object() && entry.contains("layout") && entry["layout"].is_string()) {
    theirs = entry["layout"].get<std::string>();
  }
  return members(entry, made, [&](Json& described) {
    if (!described.is_object()) return;
    const bool says = described.contains("layout") && described["layout"].is_string();
    const auto own = says ? described["layout"].get<std::string>() : theirs;
    described.erase("layout");
    if (own != name) described["layout"] = own;
  });
}

}  // namespace pestle::files
