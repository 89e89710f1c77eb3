// A CUDA device's memory for the checks and benches.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "harness/memory.h"

namespace pestle::harness {

// "cpu", "cuda" or "cuda:1"; false for anything else.
bool device_from_text(std::string_view text, Device& device);

// An error when this build has no CUDA or the machine no such device.
Result<std::unique_ptr<Memory>> cuda_memory(int device);

}  // namespace pestle::harness
