#include "files/pattern.h"

#include <string>

#include "files/text.h"

namespace pestle::files {
namespace {

constexpr size_t kNone = std::string_view::npos;

// Index of the ']' that closes the set opened at `open`; a ']' right after "[" or "[!" is a member.
size_t set_end(std::string_view pattern, size_t open) {
  size_t at = open + 1;
  if (at < pattern.size() && pattern[at] == '!') ++at;
  if (at < pattern.size()) ++at;
  while (at < pattern.size() && pattern[at] != ']') ++at;
  return at < pattern.size() ? at : kNone;
}

bool in_set(std::string_view members, char c) {
  const bool negated = !members.empty() && members.front() == '!';
  if (negated) members.remove_prefix(1);
  const auto byte = static_cast<unsigned char>(c);
  bool found = false;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto low = static_cast<unsigned char>(members[i]);
    auto high = low;
    if (i + 2 < members.size() && members[i + 1] == '-') {
      high = static_cast<unsigned char>(members[i + 2]);
      i += 2;
    }
    found |= low <= byte && byte <= high;
  }
  return found != negated;
}

// Length of the pattern's first element (not '*') when it takes `c`, else 0.
size_t take_one(std::string_view pattern, char c) {
  if (pattern.empty() || pattern[0] == '*') return 0;
  if (pattern[0] == '?') return 1;
  if (pattern[0] == '[') {
    const size_t end = set_end(pattern, 0);
    return in_set(pattern.substr(1, end - 1), c) ? end + 1 : 0;
  }
  if (pattern[0] == '\\') return pattern[1] == c ? 2 : 0;
  return pattern[0] == c ? 1 : 0;
}

}  // namespace

Status check_pattern(std::string_view pattern) {
  if (pattern.empty()) return invalid_argument("pattern is empty; '*' matches every name");
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '\\') {
      if (++at == pattern.size()) {
        return invalid_argument("pattern " + quote(pattern) +
                                " ends with '\\'; write '\\\\' for a backslash");
      }
    } else if (pattern[at] == '[') {
      at = set_end(pattern, at);
      if (at == kNone) {
        return invalid_argument("pattern " + quote(pattern) +
                                " opens '[' without ']'; write '\\[' for the bracket itself");
      }
    }
  }
  return {};
}

bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = kNone;  // pattern index after the last '*', and where its run ended so far
  size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
    } else if (const size_t taken = take_one(pattern.substr(p), name[n]); taken > 0) {
      p += taken;
      ++n;
    } else if (star != kNone) {
      p = star;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace pestle::files
