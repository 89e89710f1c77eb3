// Small text helpers for readers, reports and error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pestle::files {

// Index of the first byte that breaks UTF-8 (overlong forms and surrogates count), or
// text.size() when all of it is valid.
size_t first_invalid_utf8(std::string_view text);

// `text` in double quotes, safe for a one-line message: control and non-UTF-8 bytes become \xNN,
// and long text is cut in the middle.
std::string quote(std::string_view text);

// `text` for a terminal: what could steer it (control characters, also those of Unicode) and bytes
// that are not UTF-8 become \xNN.
std::string printable(std::string_view text);

// `text` as a JSON string, quotes included. `text` must be UTF-8.
std::string json_string(std::string_view text);

// "1.5 GiB"; exact below 1 KiB.
std::string human_bytes(uint64_t bytes);

// "bf16[8,4096]"
std::string describe_shape(std::string_view dtype, std::span<const int64_t> shape);

// The candidate with the fewest edits to `name`; empty when even that one is unlike it.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// Shortest decimal text that reads back as the same double ("0.1"); always with '.' as the point.
std::string shortest(double value);

}  // namespace pestle::files
