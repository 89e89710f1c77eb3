// Operands whose strides or offset neither TMA nor cp.async can read, copied into the
// caller's workspace so that both can: a GEMM costs far more than its operands' bytes.
#pragma once

#include "ops/gemm/sm90/gemm_launch.cuh"

namespace pestle::ops {

// Does it begin, and does every row of it, at a multiple of 16 bytes, with neighbouring elements
// along k or, for 16 bits, across it?
bool lies_in_units(const Stack& s, bool k_is_columns);

// For contracts that name the operands a and b: bytes of both, packed.
inline constexpr const char* kPackWorkspace =
    "2*(numel(a) + numel(b) + 16*cdiv(numel(out),max(M*N,1))*(M + 2*K + N)) + 1024";
// The same where b has rows of k.
inline constexpr const char* kPackQuantizedWorkspace =
    "numel(a) + numel(b) + 16*(M + 2*K + N) + 1024";

// Why packing is not for these operands; empty: it is.
std::string refuse_packing(const Operands& o);

// Packs those operands that need it; they then lie in the workspace.
Status pack_operands(const Call& call, const char* name, Operands* o);

}  // namespace pestle::ops
