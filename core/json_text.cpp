#include "core/json_text.h"

namespace pestle {

bool nests_deeper(std::string_view json, int depth) {
  int open = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (c == '{' || c == '[') ++open;
    if (c == '}' || c == ']') --open;
    if (open > depth) return true;
  }
  return false;
}

template <class Json>
Json parse_json(std::string_view text) {
  if (nests_deeper(text, kMaxJsonDepth)) return Json(nlohmann::json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, false);
}

template <class Json>
std::string print_json(const Json& json, int indent, bool replace) {
  const auto errors = replace ? Json::error_handler_t::replace : Json::error_handler_t::strict;
  return json.dump(indent, ' ', false, errors);
}

template nlohmann::json parse_json(std::string_view text);
template nlohmann::ordered_json parse_json(std::string_view text);
template std::string print_json(const nlohmann::json&, int, bool);
template std::string print_json(const nlohmann::ordered_json&, int, bool);

}  // namespace pestle
