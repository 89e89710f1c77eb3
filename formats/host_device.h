// The format headers are the one definition of every code. They compile as plain C++ and, under
// nvcc, for host and device alike; so they use no libm, no std:: beyond <cstdint>, and no f32
// operation that a compiler may fuse (build with -ffp-contract=off, -fmad=false).
#pragma once

#if defined(__CUDACC__)
#define PESTLE_HD __host__ __device__
#else
#define PESTLE_HD
#endif
