// A small TOML 1.0 reader for recipes: everything but dates and times, which it refuses.
// (Fuzzing drove toml++ 3.3, which Debian 12 ships, into undefined behaviour on bad input.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace pestle::files {

struct TomlMember;

struct TomlValue {
  enum class Kind { kString, kInteger, kReal, kBool, kArray, kTable };
  Kind kind = Kind::kTable;
  int line = 0;
  std::string text;
  int64_t integer = 0;
  double real = 0;
  bool boolean = false;
  std::vector<TomlValue> items;     // kArray
  std::vector<TomlMember> members;  // kTable, in the order of the text
  bool closed = false;  // written out in place (inline table or array): later text may not add

  TomlValue* find(std::string_view key);  // nullptr when there is none
};

struct TomlMember {
  std::string name;
  TomlValue value;
};

// The root table. Messages begin "LABEL:LINE: " and are one line.
Result<TomlValue> parse_toml(std::string_view text, const std::string& label);

}  // namespace pestle::files
