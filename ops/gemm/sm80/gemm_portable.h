// The GEMM that every GPU from sm_80 on can run (ops/gemm/sm80/gemm_portable.cuh), as
// ops start it: compiled once, in gemm_portable.cu.
#pragma once

#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

// Why the portable GEMM can't take the operands; empty: it does. Any strides that lie at whole
// elements, any K; both bf16, both f16, both i8, or any two dtypes of 8-bit floats.
std::string refuse_portable(const Operands& o);

// `e` comes filled, but for what TMA needs.
Status run_portable(const Call& call, const char* name, const Operands& o,
                    const hopper::EpilogueArguments& e);

}  // namespace pestle::ops
