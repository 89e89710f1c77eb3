// Small string helpers shared by contracts, files and the command line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pestle {

std::string_view trim(std::string_view text);
// Parts between separators, trimmed. "" yields no part; parentheses protect separators.
std::vector<std::string_view> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// The candidate nearest to `word` by edit distance, for "did you mean"; empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace pestle
