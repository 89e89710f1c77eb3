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

}  // namespace pestle
