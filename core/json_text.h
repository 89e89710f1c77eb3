// JSON from outside, in bounds: documents nest at most as deep as any of ours do, since reading,
// copying and writing a deeper one recurses until the stack ends.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace pestle {

inline constexpr int kMaxJsonDepth = 64;

bool nests_deeper(std::string_view json, int depth);

// The document; discarded (is_discarded()) when it is no JSON or nests deeper than kMaxJsonDepth.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  if (nests_deeper(text, kMaxJsonDepth)) return Json(nlohmann::json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, false);
}

}  // namespace pestle
