// Links what reads files of tuned choices (core/tuned.h) into programs without CUDA, which check
// such files, too.
#pragma once

namespace pestle::ops {

bool reads_tuned_gemms();  // true

}  // namespace pestle::ops
