// The JSON part of a safetensors header, read by events so that its depth costs no stack.
#pragma once

#include <string_view>

#include "core/status.h"
#include "files/safetensors.h"

namespace pestle::files {

// Fills `header.tensors` (in the order of the text, offsets unchecked) and `header.metadata`.
// `text` is valid UTF-8. Messages carry no file name.
Status parse_header_json(std::string_view text, SafetensorsHeader& header);

}  // namespace pestle::files
