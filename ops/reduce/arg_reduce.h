// argmax and argmin: what both share. `sign` is 1 for the largest element, -1 for the smallest.
#pragma once

#include <string>

#include "core/machine.h"
#include "core/op.h"

namespace pestle::ops {

// The order of arguments in both contracts: x, out, dims, keepdim.
inline constexpr Arg kArgReduceDims = int_attr(
    "dims", -1, "the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them");
inline constexpr Arg kArgReduceKeepdim =
    bool_attr("keepdim", false, "reduced dimensions stay, with size 1");

inline constexpr Case kArgReduceCases[] = {
    {"M=64x256 dims=2"},
    {"M=64x256 dims=1 x=f32"},
    {"M=3x40x65 dims=2 keepdim=true"},
    {"M=5x33x7 dims=5 x=f32"},
    {"M=2x3x4x136 dims=12 x=f16"},
    {"M=2x3x4x136 dims=10"},
    {"M=2x20480 dims=2 x=f32"},
    {"M=4096x16 dims=1 x=f16"},
    {"M=70000 x=f32"},
    {"M=24x264 dims=2", kEdge, Dist::kSpecial},
    {"M=24x264 dims=1 x=f32", kEdge, Dist::kSpecial},
    {"M=24x264 dims=2 x=f16", kEdge, Dist::kBytes},
    {"M=24x264 dims=1", kEdge, Dist::kBytes},
    {"M=16x128 dims=2", kEdge, Dist::kZeros},
    {"M=16x128 dims=1 x=f32", kEdge, Dist::kZeros},
    {"M=0x8 dims=1", kEdge},
    {"M=8x0 dims=1", kEdge},
    {"M=3x4 dims=0 x=f32", kEdge},
    {"M= x=f32", kEdge},
    {"M=131072x1024 dims=2", kBar},
    {"M=256x262144 dims=2 x=f32", kBar},
    {"M=65536x2048 dims=1", kBar},
    {"M=65537x65536 dims=2", kHuge},
};

Status reference_arg_reduce(const Call& call, int sign);
Status cpu_arg_reduce(const Call& call, int sign);
std::string refuse_cpu_arg_reduce(const Call& call, const Machine& machine);

Status cuda_arg_reduce(const Call& call, const char* name, int sign);
Status cuda_arg_reduce_any(const Call& call, const char* name, int sign);
std::string refuse_cuda_arg_reduce(const Call& call, const Machine& machine);

}  // namespace pestle::ops
