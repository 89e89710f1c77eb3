// What the commands that work on files share.
#pragma once

#include <atomic>
#include <functional>

#include "files/quantize_options.h"

namespace pestle::cli {

// Set by Ctrl-C, a hang-up or a polite kill from now on: work stops, cleans up and returns.
const std::atomic<bool>& stop_requested();

// A bar with rate and time left, on stderr, if that is a terminal and `quiet` is not set; else
// null.
std::function<void(const files::Progress&)> progress_bar(bool quiet);

}  // namespace pestle::cli
