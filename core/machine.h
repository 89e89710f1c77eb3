// What calls run on: the CPU's instruction set and the GPU's compute capability.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/status.h"

namespace pestle {

enum class Isa : int { kScalar, kAvx2, kAvx512 };

// What an implementation may ask about the machine. A value, so that the choice is a pure function
// and can be printed for machines that are not here.
struct Machine {
  Isa isa = Isa::kScalar;      // the best that may be used
  int compute_capability = 0;  // 90 for sm_90; 0: no CUDA device
};

// This process's machine, its instruction set as narrowed by set_isa.
Machine this_machine();

std::string_view isa_name(Isa isa);
Isa best_isa();  // of this CPU
// Narrows the SIMD code to `name` (scalar, avx2, avx512, or "best"). An error if the CPU lacks it.
// For tests and benches: not while other threads run ops.
Status set_isa(std::string_view name);
// Changes whenever set_isa does, so that remembered choices are dropped.
uint64_t isa_generation();

}  // namespace pestle
