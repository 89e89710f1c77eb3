// Whole-file work with options and report as JSON: what the C ABI's pestle_file does.
// docs/files.md lists the keys.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace pestle::files {

// Called between pieces of work, never from two threads at once; false stops the job.
using JobProgress = std::function<bool(const char* stage, uint64_t done, uint64_t total)>;

// `verb`: quantize, dequantize, inspect or diff. Yields the report.
Result<std::string> run_file_job(std::string_view verb, std::string_view options_json,
                                 const JobProgress& progress);

// A text file, complete or not at all; replaces an existing one.
Status write_text_file(const std::string& path, const std::string& text);

}  // namespace pestle::files
