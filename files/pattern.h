// Shell-like patterns over tensor names: '*' any run (dots included), '?' one byte, '[a-z]' and
// '[!a-z]' one byte of a set, '\' makes the next byte plain. The whole name must match.
#pragma once

#include <string_view>

#include "core/status.h"

namespace pestle::files {

// Refuses a pattern that could never mean anything: empty, an unclosed '[' or a final '\'.
Status check_pattern(std::string_view pattern);

// `pattern` has passed check_pattern. Time is at most |pattern| x |name|.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace pestle::files
