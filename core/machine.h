// What calls run on: the CPU's instruction set and the GPU's compute capability.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/status.h"
#include "core/tensor.h"

namespace pestle {

enum class Isa : int { kScalar, kAvx2, kAvx512 };

// What an implementation may ask about the machine. A value, so that the choice is a pure function
// and can be printed for machines that are not here.
struct Machine {
  Isa isa = Isa::kScalar;      // the best that may be used
  int compute_capability = 0;  // 90 for sm_90; 0: no CUDA device
};

// This process's machine, its instruction set as narrowed by set_isa. Without a GPU's abilities:
// those belong to a device.
Machine this_machine();
// The same with the compute capability of a CUDA device, as the probe says.
Machine machine_for(Device device);

// The CUDA backend's answer for a device; 0 when there is none. Registered with the op table, so
// that this folder needs no CUDA.
using CudaProbe = int (*)(int32_t device);
void set_cuda_probe(CudaProbe probe);

std::string_view isa_name(Isa isa);
Isa best_isa();  // of this CPU
// Narrows the SIMD code to `name` (scalar, avx2, avx512, or "best"). An error if the CPU lacks it.
// For tests and benches: not while other threads run ops.
Status set_isa(std::string_view name);
// Changes whenever set_isa does, so that remembered choices are dropped.
uint64_t isa_generation();

}  // namespace pestle
