// Arithmetic on rows of floats, for ops whose CPU path is an ordinary file: load a piece of a row
// as f32, work on it while it is in the L1, store it with one rounding. SIMD is chosen at run time
// for each call, so pieces should have at least some hundred elements; kRowPiece is a good length.
// Results depend on the instruction set, and on nothing else: no alignment, no threads.
// Outputs may be the memory of inputs of the same length; other overlaps are not allowed.
#pragma once

#include <cstdint>

#include "core/activation.h"
#include "core/dtype.h"

namespace pestle::cpu {

inline constexpr int64_t kRowPiece = 2048;  // floats: 8 KiB, so that four pieces fit the L1

// Elements of bf16, f16 or f32 at any byte address, to f32 and back with one rounding. A streamed
// store bypasses the caches; call row_flush before another thread may read.
void row_load(const void* in, DType dtype, float* out, int64_t count);
void row_store(const float* in, void* out, DType dtype, int64_t count, bool stream = false);
void row_flush();
// Each value as if stored in the dtype and loaded again.
void row_round(float* x, DType dtype, int64_t count);

// Sums: trees of 8 vectors in f32, then lanes that keep what each addition lost beside the sum,
// over runs of 4096; those added up in double. So errors do not grow with the number of elements.
double row_sum(const float* x, int64_t count);
double row_sum_squares(const float* x, int64_t count);
double row_sum_squared_differences(const float* x, float mean, int64_t count);
double row_dot(const float* a, const float* b, int64_t count);
// -infinity for no elements; NaN if any is.
float row_max(const float* x, int64_t count);

// out = exp(x - m), within 2 ulp; returns the sum.
double row_exp(const float* x, float m, float* out, int64_t count);
// out = exp(x - m) * factor.
void row_exp_scaled(const float* x, float m, float factor, float* out, int64_t count);

// Element by element, one rounding an operation.
void row_scale(const float* x, float factor, float* out, int64_t count);  // x * factor
void row_normalize(const float* x, float mean, float factor, float* out,
                   int64_t count);  // (x-mean)*factor
void row_affine(const float* x, float factor, float shift, float* out,
                int64_t count);  // x*factor + shift
void row_add(const float* a, const float* b, float* out, int64_t count);
void row_subtract(const float* a, const float* b, float* out, int64_t count);
void row_multiply(const float* a, const float* b, float* out, int64_t count);
void row_multiply_add(const float* a, const float* b, const float* c, float* out,
                      int64_t count);  // a*b + c
void row_add_scaled(const float* a, const float* b, float factor, float* out,
                    int64_t count);  // a + b*factor
void row_add_constant(const float* x, float constant, float* out, int64_t count);
void row_sigmoid(const float* x, float* out, int64_t count);  // 1 / (1 + exp(-x))
void row_silu(const float* x, float* out, int64_t count);     // x / (1 + exp(-x))
// The function itself, and its derivative (at infinities the limits, 0 and 1).
void row_activation(Activation act, const float* x, float* out, int64_t count);
void row_activation_slope(Activation act, const float* x, float* out, int64_t count);

}  // namespace pestle::cpu
