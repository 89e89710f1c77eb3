// JSON from outside, in bounds: documents nest at most as deep as any of ours do, since reading,
// copying and writing a deeper one recurses until the stack ends.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pestle {

inline constexpr int kMaxJsonDepth = 64;

bool nests_deeper(std::string_view json, int depth);

// The document; discarded (is_discarded()) when it is no JSON or nests deeper than kMaxJsonDepth.
// For json and ordered_json. Here and not in each caller, where a parser or a printer costs seconds
// of compiling.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text);

// Below `indent` 0 on one line. `replace`: bytes that are no UTF-8 become U+FFFD instead of throwing.
template <class Json>
std::string print_json(const Json& json, int indent = -1, bool replace = false);

extern template nlohmann::json parse_json(std::string_view text);
extern template nlohmann::ordered_json parse_json(std::string_view text);
extern template std::string print_json(const nlohmann::json&, int, bool);
extern template std::string print_json(const nlohmann::ordered_json&, int, bool);

}  // namespace pestle
