/* Typed C functions, one per op. Made from the table by `pestle dump c`: do not edit. */
/* clang-format off */
#ifndef PESTLE_OPS_H_
#define PESTLE_OPS_H_

#include "pestle/pestle.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline pestle_arg pestle_int_arg(int64_t value) {
  pestle_arg arg;
  arg.kind = PESTLE_INT;
  arg.count = 0;
  arg.value.i = value;
  return arg;
}
static inline pestle_arg pestle_float_arg(double value) {
  pestle_arg arg;
  arg.kind = PESTLE_FLOAT;
  arg.count = 0;
  arg.value.f = value;
  return arg;
}
static inline pestle_arg pestle_bool_arg(int value) {
  pestle_arg arg;
  arg.kind = PESTLE_BOOL_VALUE;
  arg.count = 0;
  arg.value.i = value != 0;
  return arg;
}
/* NULL takes the contract's default. */
static inline pestle_arg pestle_choice_arg(const char* label) {
  pestle_arg arg;
  arg.kind = label ? PESTLE_CHOICE : PESTLE_ABSENT;
  arg.count = 0;
  arg.value.choice = label;
  return arg;
}
static inline pestle_arg pestle_list_arg(const pestle_tensor* first, int32_t count) {
  pestle_arg arg;
  arg.kind = first ? PESTLE_TENSOR_LIST : PESTLE_ABSENT;
  arg.count = count;
  arg.value.tensor = first;
  return arg;
}
static inline pestle_arg pestle_tensor_arg(const pestle_tensor* tensor) {
  pestle_arg arg;
  arg.kind = tensor ? PESTLE_TENSOR : PESTLE_ABSENT;
  arg.count = 0;
  arg.value.tensor = tensor;
  return arg;
}

/* Quantises to FP8 with a decode scale per tensor, row, column or block.
 *   x: bf16|f16|f32 [*M, K] values to quantise
 *   scale: f32 [tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);block_128x128: cdiv(M,128), cdiv(K,128)] (may be NULL) decode scale: a code stands for code * scale
 *   q: e4m3|e5m2 [*M, K] (output) codes
 *   scale_out: f32 [tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);block_128x128: cdiv(M,128), cdiv(K,128)] (output) (may be NULL) the decode scale computed here, amax / largest code
 *   q_t: =q [K, M] (output) (may be NULL) the codes transposed
 *   granularity: tensor|row|column|block_1x128|block_128x128; which elements share a scale
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits
 *   seed: Philox seed of stochastic rounding
 *   transposed: give q_t beside q, made in the same pass over x
 */
static inline pestle_status pestle_quantize_fp8(
    const pestle_tensor* x,
    const pestle_tensor* scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const pestle_tensor* q_t,
    const char* granularity,
    const char* rounding,
    int64_t seed,
    int transposed,
    const pestle_call_options* options) {
  pestle_arg args[9];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(q);
  args[3] = pestle_tensor_arg(scale_out);
  args[4] = pestle_tensor_arg(q_t);
  args[5] = pestle_choice_arg(granularity);
  args[6] = pestle_choice_arg(rounding);
  args[7] = pestle_int_arg(seed);
  args[8] = pestle_bool_arg(transposed);
  return pestle_call(pestle_find_op("quantize_fp8"), args, 9, options);
}

/* Decodes FP8 with a scale per tensor, row, column or block.
 *   q: e4m3|e5m2 [*M, K] codes
 *   scale: f32 [tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);block_128x128: cdiv(M,128), cdiv(K,128)] decode scale: a code stands for code * scale
 *   out: bf16|f16|f32 [*M, K] (output) code * scale: one f32 product, one rounding
 *   granularity: tensor|row|column|block_1x128|block_128x128; which elements share a scale
 */
static inline pestle_status pestle_dequantize_fp8(
    const pestle_tensor* q,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* granularity,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_choice_arg(granularity);
  return pestle_call(pestle_find_op("dequantize_fp8"), args, 4, options);
}

/* Rounds to FP8 stochastically by given random bytes, without a scale.
 *   x: bf16|f16|f32 [*M, K] values to round; taken to f16 first
 *   rng: u8 [*M, K] one random byte an element
 *   q: e4m3|e5m2 [*M, K] (output) codes
 */
static inline pestle_status pestle_stochastic_round_fp8(
    const pestle_tensor* x,
    const pestle_tensor* rng,
    const pestle_tensor* q,
    const pestle_call_options* options) {
  pestle_arg args[3];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(rng);
  args[2] = pestle_tensor_arg(q);
  return pestle_call(pestle_find_op("stochastic_round_fp8"), args, 3, options);
}

/* Quantises to INT8 with a decode scale per tensor, row or group, rotated first if asked.
 *   x: bf16|f16|f32 [*M, K] values to quantise
 *   scale: f32 [tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)] (may be NULL) decode scale: a code stands for code * scale
 *   q: i8 [*M, K] (output) codes, -128..127
 *   scale_out: f32 [tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)] (output) (may be NULL) the decode scale computed here, amax / 127
 *   q_t: =q [K, M] (output) (may be NULL) the codes transposed
 *   granularity: tensor|row|group; which elements share a scale
 *   group_size: elements along K that share a scale, granularity=group
 *   hadamard: elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits
 *   seed: Philox seed of stochastic rounding
 *   transposed: give q_t beside q, made in the same pass over x
 */
static inline pestle_status pestle_quantize_int8(
    const pestle_tensor* x,
    const pestle_tensor* scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const pestle_tensor* q_t,
    const char* granularity,
    int64_t group_size,
    int64_t hadamard,
    const char* rounding,
    int64_t seed,
    int transposed,
    const pestle_call_options* options) {
  pestle_arg args[11];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(q);
  args[3] = pestle_tensor_arg(scale_out);
  args[4] = pestle_tensor_arg(q_t);
  args[5] = pestle_choice_arg(granularity);
  args[6] = pestle_int_arg(group_size);
  args[7] = pestle_int_arg(hadamard);
  args[8] = pestle_choice_arg(rounding);
  args[9] = pestle_int_arg(seed);
  args[10] = pestle_bool_arg(transposed);
  return pestle_call(pestle_find_op("quantize_int8"), args, 11, options);
}

/* Decodes INT8 with a scale per tensor, row or group, and undoes the rotation if asked.
 *   q: i8 [*M, K] codes
 *   scale: f32 [tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)] decode scale: a code stands for code * scale
 *   out: bf16|f16|f32 [*M, K] (output) code * scale, one f32 product; rotated back if asked; one rounding
 *   granularity: tensor|row|group; which elements share a scale
 *   group_size: elements along K that share a scale, granularity=group
 *   hadamard: elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation
 */
static inline pestle_status pestle_dequantize_int8(
    const pestle_tensor* q,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* granularity,
    int64_t group_size,
    int64_t hadamard,
    const pestle_call_options* options) {
  pestle_arg args[6];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_choice_arg(granularity);
  args[4] = pestle_int_arg(group_size);
  args[5] = pestle_int_arg(hadamard);
  return pestle_call(pestle_find_op("dequantize_int8"), args, 6, options);
}

/* Quantises several tensors at once to FP8 or INT8, each as quantize_fp8 or quantize_int8 would.
 *   x: bf16|f16|f32 [*M, K] tensors to quantise
 *   scale: f32 [tensor: 1; row: *M, 1] (may be NULL) their decode scales: a code stands for code * scale
 *   q: e4m3|e5m2|i8 [*M, K] (output) their codes, FP8 or INT8
 *   scale_out: f32 [tensor: 1; row: *M, 1] (output) (may be NULL) the decode scales computed here, amax / largest code
 *   granularity: tensor|row; which elements share a scale
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits
 *   seed: Philox seed of stochastic rounding, the same for each tensor
 */
static inline pestle_status pestle_quantize_list(
    const pestle_tensor* x, int32_t x_count,
    const pestle_tensor* scale, int32_t scale_count,
    const pestle_tensor* q, int32_t q_count,
    const pestle_tensor* scale_out, int32_t scale_out_count,
    const char* granularity,
    const char* rounding,
    int64_t seed,
    const pestle_call_options* options) {
  pestle_arg args[7];
  args[0] = pestle_list_arg(x, x_count);
  args[1] = pestle_list_arg(scale, scale_count);
  args[2] = pestle_list_arg(q, q_count);
  args[3] = pestle_list_arg(scale_out, scale_out_count);
  args[4] = pestle_choice_arg(granularity);
  args[5] = pestle_choice_arg(rounding);
  args[6] = pestle_int_arg(seed);
  return pestle_call(pestle_find_op("quantize_list"), args, 7, options);
}

/* Rotates groups along K by the regular Hadamard matrix; applied twice it is the identity.
 *   x: bf16|f16|f32 [*M, K] values to rotate along K
 *   out: =x|bf16|f16|f32 [*M, K] (output) rotated x: f32, one rounding
 *   hadamard: elements that are rotated together: 4, 16, 64, 256 or 1024
 */
static inline pestle_status pestle_hadamard(
    const pestle_tensor* x,
    const pestle_tensor* out,
    int64_t hadamard,
    const pestle_call_options* options) {
  pestle_arg args[3];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_int_arg(hadamard);
  return pestle_call(pestle_find_op("hadamard"), args, 3, options);
}

/* Product of two FP8 matrices with decode scales, f32 accumulation and an epilogue.
 *   a: e4m3|e5m2 [*M, K] left codes
 *   b: e4m3|e5m2 [N, K] right codes, one row per output column (a weight)
 *   scale_a: f32 [tensor: 1; row: *M, 1; block: *M, cdiv(K,128)] decode scales of a
 *   scale_b: f32 [tensor: 1; row: N, 1; block: cdiv(N,128), cdiv(K,128)] decode scales of b
 *   out: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) (may be NULL) epilogue(a_decoded @ b_decoded^T)
 *   granularity: tensor|row|block; tensor, row: a scale of all or of each row, which multiplies sums; block: 1x128 of a with 128x128 of b, of terms
 *   accumulation: accurate|fast|f32; what sums along K may lose. accurate: sums of 128 products by tensor cores, whose 8-bit floats keep 13 bits behind the largest term, added in f32; fast: one such sum of all (blocks: as accurate); f32: nothing is lost before f32
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   q_scale: f32 [none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns
 *   out_format: none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8; none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
 *   keep_out: give out beside its codes
 *   out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_scaled_mm_fp8(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* scale_a,
    const pestle_tensor* scale_b,
    const pestle_tensor* out,
    const char* granularity,
    const char* accumulation,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* out_format,
    int keep_out,
    int64_t out_hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[23];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(scale_a);
  args[3] = pestle_tensor_arg(scale_b);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_choice_arg(granularity);
  args[6] = pestle_choice_arg(accumulation);
  args[7] = pestle_tensor_arg(alpha);
  args[8] = pestle_tensor_arg(bias);
  args[9] = pestle_tensor_arg(residual);
  args[10] = pestle_choice_arg(activation);
  args[11] = pestle_tensor_arg(beta);
  args[12] = pestle_tensor_arg(gate);
  args[13] = pestle_choice_arg(gated);
  args[14] = pestle_tensor_arg(q_scale);
  args[15] = pestle_tensor_arg(global_scale);
  args[16] = pestle_tensor_arg(q);
  args[17] = pestle_tensor_arg(scale_out);
  args[18] = pestle_choice_arg(out_format);
  args[19] = pestle_bool_arg(keep_out);
  args[20] = pestle_int_arg(out_hadamard);
  args[21] = pestle_choice_arg(nibbles);
  args[22] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("scaled_mm_fp8"), args, 23, options);
}

/* Product of two INT8 matrices with decode scales, exact integer sums and an epilogue.
 *   a: i8 [*M, K] left codes
 *   b: i8 [N, K] right codes, one row per output column (a weight)
 *   scale_a: f32 [tensor|host: 1; row: *M, 1] (may be NULL) decode scales of a
 *   scale_b: f32 [tensor|host: 1; row: N, 1] (may be NULL) decode scales of b
 *   out: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) (may be NULL) epilogue(a_decoded @ b_decoded^T)
 *   granularity: tensor|row|host; row: one scale per row of a and of b; host: one for the product, host_scale
 *   host_scale: granularity=host: scale of a times scale of b, as f32
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   q_scale: f32 [none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns
 *   out_format: none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8; none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
 *   keep_out: give out beside its codes
 *   out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_scaled_mm_int8(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* scale_a,
    const pestle_tensor* scale_b,
    const pestle_tensor* out,
    const char* granularity,
    double host_scale,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* out_format,
    int keep_out,
    int64_t out_hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[23];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(scale_a);
  args[3] = pestle_tensor_arg(scale_b);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_choice_arg(granularity);
  args[6] = pestle_float_arg(host_scale);
  args[7] = pestle_tensor_arg(alpha);
  args[8] = pestle_tensor_arg(bias);
  args[9] = pestle_tensor_arg(residual);
  args[10] = pestle_choice_arg(activation);
  args[11] = pestle_tensor_arg(beta);
  args[12] = pestle_tensor_arg(gate);
  args[13] = pestle_choice_arg(gated);
  args[14] = pestle_tensor_arg(q_scale);
  args[15] = pestle_tensor_arg(global_scale);
  args[16] = pestle_tensor_arg(q);
  args[17] = pestle_tensor_arg(scale_out);
  args[18] = pestle_choice_arg(out_format);
  args[19] = pestle_bool_arg(keep_out);
  args[20] = pestle_int_arg(out_hadamard);
  args[21] = pestle_choice_arg(nibbles);
  args[22] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("scaled_mm_int8"), args, 23, options);
}

/* Product of two NVFP4 matrices with all their scales, f32 accumulation and an epilogue.
 *   a: u8 [*M, K/2] left rows, two E2M1 codes a byte
 *   b: u8 [N, K/2] right rows, one per output column, two E2M1 codes a byte
 *   scale_a: e4m3 [swizzled: round_up(M,128), round_up(cdiv(K,16),4); plain: *M, cdiv(K,16)] decode scale of each 16 columns of a
 *   scale_b: e4m3 [swizzled: round_up(N,128), round_up(cdiv(K,16),4); plain: N, cdiv(K,16)] decode scale of each 16 columns of b
 *   global_scale_a: f32 [1] decode scale of the whole of a
 *   global_scale_b: f32 [1] decode scale of the whole of b
 *   out: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(a_decoded @ b_decoded^T)
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 */
static inline pestle_status pestle_scaled_mm_nvfp4(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* scale_a,
    const pestle_tensor* scale_b,
    const pestle_tensor* global_scale_a,
    const pestle_tensor* global_scale_b,
    const pestle_tensor* out,
    const char* nibbles,
    const char* scale_layout,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_call_options* options) {
  pestle_arg args[16];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(scale_a);
  args[3] = pestle_tensor_arg(scale_b);
  args[4] = pestle_tensor_arg(global_scale_a);
  args[5] = pestle_tensor_arg(global_scale_b);
  args[6] = pestle_tensor_arg(out);
  args[7] = pestle_choice_arg(nibbles);
  args[8] = pestle_choice_arg(scale_layout);
  args[9] = pestle_tensor_arg(alpha);
  args[10] = pestle_tensor_arg(bias);
  args[11] = pestle_tensor_arg(residual);
  args[12] = pestle_choice_arg(activation);
  args[13] = pestle_tensor_arg(beta);
  args[14] = pestle_tensor_arg(gate);
  args[15] = pestle_choice_arg(gated);
  return pestle_call(pestle_find_op("scaled_mm_nvfp4"), args, 16, options);
}

/* Product of two MXFP8 matrices with their scales, f32 accumulation and an epilogue.
 *   a: e4m3|e5m2 [*M, K] left codes
 *   b: e4m3|e5m2 [N, K] right codes, one row per output column (a weight)
 *   scale_a: e8m0 [swizzled: round_up(M,128), round_up(cdiv(K,32),4); plain: *M, cdiv(K,32)] decode scale of each 32 columns of a
 *   scale_b: e8m0 [swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)] decode scale of each 32 columns of b
 *   out: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(a_decoded @ b_decoded^T)
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 */
static inline pestle_status pestle_scaled_mm_mxfp8(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* scale_a,
    const pestle_tensor* scale_b,
    const pestle_tensor* out,
    const char* scale_layout,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_call_options* options) {
  pestle_arg args[13];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(scale_a);
  args[3] = pestle_tensor_arg(scale_b);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_choice_arg(scale_layout);
  args[6] = pestle_tensor_arg(alpha);
  args[7] = pestle_tensor_arg(bias);
  args[8] = pestle_tensor_arg(residual);
  args[9] = pestle_choice_arg(activation);
  args[10] = pestle_tensor_arg(beta);
  args[11] = pestle_tensor_arg(gate);
  args[12] = pestle_choice_arg(gated);
  return pestle_call(pestle_find_op("scaled_mm_mxfp8"), args, 13, options);
}

/* Product of an MXFP8 or MXFP4 matrix and an MXFP4 weight with their scales, f32 accumulation and an epilogue.
 *   a: mxfp8: e4m3|e5m2; mxfp4: u8 [mxfp8: *M, K; mxfp4: *M, K/2] left codes; MXFP4 has two a byte
 *   b: u8 [N, K/2] right codes, two a byte, one row per output column (a weight)
 *   scale_a: e8m0 [swizzled: round_up(M,128), round_up(cdiv(K,32),4); plain: *M, cdiv(K,32)] decode scale of each 32 columns of a
 *   scale_b: e8m0 [swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)] decode scale of each 32 columns of b
 *   out: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(a_decoded @ b_decoded^T)
 *   a_format: mxfp8|mxfp4; format of a; b is MXFP4
 *   nibbles: low_first|high_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 */
static inline pestle_status pestle_scaled_mm_mxfp4(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* scale_a,
    const pestle_tensor* scale_b,
    const pestle_tensor* out,
    const char* a_format,
    const char* nibbles,
    const char* scale_layout,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_call_options* options) {
  pestle_arg args[15];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(scale_a);
  args[3] = pestle_tensor_arg(scale_b);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_choice_arg(a_format);
  args[6] = pestle_choice_arg(nibbles);
  args[7] = pestle_choice_arg(scale_layout);
  args[8] = pestle_tensor_arg(alpha);
  args[9] = pestle_tensor_arg(bias);
  args[10] = pestle_tensor_arg(residual);
  args[11] = pestle_choice_arg(activation);
  args[12] = pestle_tensor_arg(beta);
  args[13] = pestle_tensor_arg(gate);
  args[14] = pestle_choice_arg(gated);
  return pestle_call(pestle_find_op("scaled_mm_mxfp4"), args, 15, options);
}

/* Linear layer with an FP8 weight: epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: e4m3|e5m2 [N, K] codes, one row per output column
 *   scale: f32 [tensor: 1; row: N, 1; column: 1, K; block_1x128: N, cdiv(K,128);block_128x128: cdiv(N,128), cdiv(K,128)] decode scale: a code stands for code * scale
 *   out: none: =x|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) (may be NULL) epilogue(x @ W^T), W the decoded weight
 *   granularity: tensor|row|column|block_1x128|block_128x128; which elements of the weight share a scale
 *   activations: float|row; row: x becomes codes of the weight's dtype with a scale a row
 *   accumulation: accurate|fast; activations=row: what sums along K may lose, as scaled_mm_fp8's
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 *   q_scale: f32 [none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns
 *   out_format: none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8; none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
 *   keep_out: give out beside its codes
 *   out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_linear_fp8(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* granularity,
    const char* activations,
    const char* accumulation,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* out_format,
    int keep_out,
    int64_t out_hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[27];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_choice_arg(granularity);
  args[5] = pestle_choice_arg(activations);
  args[6] = pestle_choice_arg(accumulation);
  args[7] = pestle_tensor_arg(alpha);
  args[8] = pestle_tensor_arg(bias);
  args[9] = pestle_tensor_arg(residual);
  args[10] = pestle_choice_arg(activation);
  args[11] = pestle_tensor_arg(beta);
  args[12] = pestle_tensor_arg(gate);
  args[13] = pestle_choice_arg(gated);
  args[14] = pestle_tensor_arg(norm_weight);
  args[15] = pestle_choice_arg(input_act);
  args[16] = pestle_choice_arg(input_layout);
  args[17] = pestle_float_arg(eps);
  args[18] = pestle_tensor_arg(q_scale);
  args[19] = pestle_tensor_arg(global_scale);
  args[20] = pestle_tensor_arg(q);
  args[21] = pestle_tensor_arg(scale_out);
  args[22] = pestle_choice_arg(out_format);
  args[23] = pestle_bool_arg(keep_out);
  args[24] = pestle_int_arg(out_hadamard);
  args[25] = pestle_choice_arg(nibbles);
  args[26] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("linear_fp8"), args, 27, options);
}

/* Linear layer with an NVFP4 weight: epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: u8 [N, K/2] one row per output column, two E2M1 codes a byte
 *   scale: e4m3 [swizzled: round_up(N,128), round_up(cdiv(K,16),4); plain: N, cdiv(K,16)] decode scale of each 16 columns, in units of the global scale
 *   global_scale: f32 [1] decode scale of the whole weight
 *   out: =x|bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(x @ W^T), W the decoded weight
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 */
static inline pestle_status pestle_linear_nvfp4(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const char* nibbles,
    const char* scale_layout,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[18];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale);
  args[3] = pestle_tensor_arg(global_scale);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_choice_arg(nibbles);
  args[6] = pestle_choice_arg(scale_layout);
  args[7] = pestle_tensor_arg(alpha);
  args[8] = pestle_tensor_arg(bias);
  args[9] = pestle_tensor_arg(residual);
  args[10] = pestle_choice_arg(activation);
  args[11] = pestle_tensor_arg(beta);
  args[12] = pestle_tensor_arg(gate);
  args[13] = pestle_choice_arg(gated);
  args[14] = pestle_tensor_arg(norm_weight);
  args[15] = pestle_choice_arg(input_act);
  args[16] = pestle_choice_arg(input_layout);
  args[17] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("linear_nvfp4"), args, 18, options);
}

/* Linear layer with an MXFP8 weight: epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: e4m3|e5m2 [N, K] codes, one row per output column
 *   scale: e8m0 [swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)] decode scale of each 32 columns, a power of two
 *   out: =x|bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(x @ W^T), W the decoded weight
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 */
static inline pestle_status pestle_linear_mxfp8(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* scale_layout,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[16];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_choice_arg(scale_layout);
  args[5] = pestle_tensor_arg(alpha);
  args[6] = pestle_tensor_arg(bias);
  args[7] = pestle_tensor_arg(residual);
  args[8] = pestle_choice_arg(activation);
  args[9] = pestle_tensor_arg(beta);
  args[10] = pestle_tensor_arg(gate);
  args[11] = pestle_choice_arg(gated);
  args[12] = pestle_tensor_arg(norm_weight);
  args[13] = pestle_choice_arg(input_act);
  args[14] = pestle_choice_arg(input_layout);
  args[15] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("linear_mxfp8"), args, 16, options);
}

/* Linear layer with an MXFP4 weight: epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: u8 [N, K/2] one row per output column, two E2M1 codes a byte
 *   scale: e8m0 [swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)] decode scale of each 32 columns, a power of two
 *   out: =x|bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(x @ W^T), W the decoded weight
 *   nibbles: low_first|high_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 */
static inline pestle_status pestle_linear_mxfp4(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* nibbles,
    const char* scale_layout,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[17];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_choice_arg(nibbles);
  args[5] = pestle_choice_arg(scale_layout);
  args[6] = pestle_tensor_arg(alpha);
  args[7] = pestle_tensor_arg(bias);
  args[8] = pestle_tensor_arg(residual);
  args[9] = pestle_choice_arg(activation);
  args[10] = pestle_tensor_arg(beta);
  args[11] = pestle_tensor_arg(gate);
  args[12] = pestle_choice_arg(gated);
  args[13] = pestle_tensor_arg(norm_weight);
  args[14] = pestle_choice_arg(input_act);
  args[15] = pestle_choice_arg(input_layout);
  args[16] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("linear_mxfp4"), args, 17, options);
}

/* Linear layer with an INT8 weight, rotated or not: epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: i8 [N, K] codes, one row per output column
 *   scale: f32 [tensor: 1; row: N, 1; group: N, cdiv(K,group_size)] decode scale: a code stands for code * scale
 *   out: none: =x|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) (may be NULL) epilogue(x @ W^T), W the decoded weight
 *   granularity: tensor|row|group; which elements of the weight share a scale
 *   group_size: columns that share a scale, granularity=group
 *   hadamard: the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither
 *   activations: float|row; row: x, rotated if the weight is, becomes INT8 codes with a scale a row, and the product is one of integers
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 *   q_scale: f32 [none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns
 *   out_format: none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8; none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
 *   keep_out: give out beside its codes
 *   out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_linear_int8(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* granularity,
    int64_t group_size,
    int64_t hadamard,
    const char* activations,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* out_format,
    int keep_out,
    int64_t out_hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[28];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_choice_arg(granularity);
  args[5] = pestle_int_arg(group_size);
  args[6] = pestle_int_arg(hadamard);
  args[7] = pestle_choice_arg(activations);
  args[8] = pestle_tensor_arg(alpha);
  args[9] = pestle_tensor_arg(bias);
  args[10] = pestle_tensor_arg(residual);
  args[11] = pestle_choice_arg(activation);
  args[12] = pestle_tensor_arg(beta);
  args[13] = pestle_tensor_arg(gate);
  args[14] = pestle_choice_arg(gated);
  args[15] = pestle_tensor_arg(norm_weight);
  args[16] = pestle_choice_arg(input_act);
  args[17] = pestle_choice_arg(input_layout);
  args[18] = pestle_float_arg(eps);
  args[19] = pestle_tensor_arg(q_scale);
  args[20] = pestle_tensor_arg(global_scale);
  args[21] = pestle_tensor_arg(q);
  args[22] = pestle_tensor_arg(scale_out);
  args[23] = pestle_choice_arg(out_format);
  args[24] = pestle_bool_arg(keep_out);
  args[25] = pestle_int_arg(out_hadamard);
  args[26] = pestle_choice_arg(nibbles);
  args[27] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("linear_int8"), args, 28, options);
}

/* Linear layer with an INT4 weight in groups, rotated or not: epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: u8 [N, K/2] codes, two a byte: the even column in the low nibble
 *   scale: f32 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))] decode scale of each group
 *   zero: u8 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   out: =x|bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(x @ W^T), W the decoded weight
 *   group_size: columns that share a scale; 0: the whole row
 *   mode: symmetric|asymmetric; symmetric: two's complement codes; asymmetric: codes 0..15 and zero
 *   hadamard: the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither
 *   decoded: exact|as_x; exact: the weight's values as f32 has them; as_x: they may be rounded to x's dtype, as dequantize_int4 rounds, an error of 2^-8 of each term at most
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 */
static inline pestle_status pestle_linear_int4(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* zero,
    const pestle_tensor* out,
    int64_t group_size,
    const char* mode,
    int64_t hadamard,
    const char* decoded,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[20];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale);
  args[3] = pestle_tensor_arg(zero);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_int_arg(group_size);
  args[6] = pestle_choice_arg(mode);
  args[7] = pestle_int_arg(hadamard);
  args[8] = pestle_choice_arg(decoded);
  args[9] = pestle_tensor_arg(alpha);
  args[10] = pestle_tensor_arg(bias);
  args[11] = pestle_tensor_arg(residual);
  args[12] = pestle_choice_arg(activation);
  args[13] = pestle_tensor_arg(beta);
  args[14] = pestle_tensor_arg(gate);
  args[15] = pestle_choice_arg(gated);
  args[16] = pestle_tensor_arg(norm_weight);
  args[17] = pestle_choice_arg(input_act);
  args[18] = pestle_choice_arg(input_layout);
  args[19] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("linear_int4"), args, 20, options);
}

/* Linear layer with a W4A8 weight (codebook indices that decode to int8): epilogue(x @ W^T).
 *   x: bf16|f16|f32 [none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K] activations; gated ones hold both factors side by side
 *   weight: u8 [N, K/2] indices into the codebook, two a byte: the even column low
 *   scale_rel: e4m3 [N, K/16] scale of 16 columns, relative to the row's
 *   scale_channel: f32 [N] scale of the row
 *   codebook: f32 [16] (may be NULL) values of the indices; the fixed table when absent
 *   out: =x|bf16|f16|f32 [*M, if(gated == none, N, N/2)] (output) epilogue(x @ W^T), W the decoded weight
 *   hadamard: the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   norm_weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row, input_act=rms_norm
 *   input_act: none|silu|gelu|gelu_tanh|swiglu|geglu|geglu_tanh|rms_norm; done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives
 *   input_layout: act_first|act_last; swiglu, geglu: the half of x that the activation takes; the other half multiplies it
 *   eps: added to the mean square, input_act=rms_norm
 */
static inline pestle_status pestle_linear_w4a8(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* scale_rel,
    const pestle_tensor* scale_channel,
    const pestle_tensor* codebook,
    const pestle_tensor* out,
    int64_t hadamard,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const pestle_tensor* norm_weight,
    const char* input_act,
    const char* input_layout,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[18];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(scale_rel);
  args[3] = pestle_tensor_arg(scale_channel);
  args[4] = pestle_tensor_arg(codebook);
  args[5] = pestle_tensor_arg(out);
  args[6] = pestle_int_arg(hadamard);
  args[7] = pestle_tensor_arg(alpha);
  args[8] = pestle_tensor_arg(bias);
  args[9] = pestle_tensor_arg(residual);
  args[10] = pestle_choice_arg(activation);
  args[11] = pestle_tensor_arg(beta);
  args[12] = pestle_tensor_arg(gate);
  args[13] = pestle_choice_arg(gated);
  args[14] = pestle_tensor_arg(norm_weight);
  args[15] = pestle_choice_arg(input_act);
  args[16] = pestle_choice_arg(input_layout);
  args[17] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("linear_w4a8"), args, 18, options);
}

/* Batched products of an NVFP4 matrix with an NVFP4 vector, f32 accumulation.
 *   a: u8 [L, M, K/2] a matrix for each of L batches, two E2M1 codes a byte
 *   b: u8 [L, P, K/2] a vector for each batch: the first of P rows, the others are padding and not read
 *   scale_a: e4m3 [swizzled: L, round_up(M,128), round_up(cdiv(K,16),4); plain: L, M, cdiv(K,16)] decode scale of each 16 columns of a
 *   scale_b: e4m3 [swizzled: L, round_up(P,128), round_up(cdiv(K,16),4); plain: L, P, cdiv(K,16)] decode scale of each 16 columns of b
 *   alpha: f32 [1] (may be NULL) factor on the product: both global scales; 1 when absent
 *   out: f16|bf16|f32 [L, M] (output) alpha * a_decoded @ b_decoded
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_gemv_nvfp4(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* scale_a,
    const pestle_tensor* scale_b,
    const pestle_tensor* alpha,
    const pestle_tensor* out,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[8];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(scale_a);
  args[3] = pestle_tensor_arg(scale_b);
  args[4] = pestle_tensor_arg(alpha);
  args[5] = pestle_tensor_arg(out);
  args[6] = pestle_choice_arg(nibbles);
  args[7] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("gemv_nvfp4"), args, 8, options);
}

/* Moves a weight's codes to the layout that tensor cores read, of the same size, or back.
 *   weight: u8|i8|e4m3|e5m2 [N, W] codes of a weight, W bytes a row: u8 holds two of 4 bits a byte, others one of 8 bits
 *   out: =weight [N, W] (output) the same codes in the other layout
 *   direction: prepare|restore; prepare: from the layout of files to the prepared one; restore: back
 *   nibbles: low_first|high_first; u8: which nibble of a byte holds the even column in the layout of files
 */
static inline pestle_status pestle_prepare_weight(
    const pestle_tensor* weight,
    const pestle_tensor* out,
    const char* direction,
    const char* nibbles,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(weight);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_choice_arg(direction);
  args[3] = pestle_choice_arg(nibbles);
  return pestle_call(pestle_find_op("prepare_weight"), args, 4, options);
}

/* Rotary position embedding of one tensor, or of queries and keys together; or back.
 *   x: bf16|f16|f32 [B, H, S, D] queries, keys or any heads: BHSD, or BSHD
 *   freqs: f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2] (may be NULL) rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
 *   x2: bf16|f16|f32 [B2, H2, S2, D] (may be NULL) a second tensor for the same freqs, e.g. keys
 *   cos: f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2] (may be NULL) cosines, one a pair, in place of freqs; dimensions as those of freqs
 *   sin: =cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2] (may be NULL) sines, one a pair, with cos
 *   out: =x [B, H, S, D] (output) rotated x; what rot_dim leaves is copied
 *   out2: =x2 [B2, H2, S2, D] (output) (may be NULL) rotated x2
 *   pairs: interleaved|split_half; rotate (2i, 2i+1), or (i, i + rot_dim/2)
 *   rot_dim: elements of a head that are rotated, the first ones; 0: all of them
 *   inverse: rotate back: by the transposed rotations, as the gradient is
 */
static inline pestle_status pestle_apply_rope(
    const pestle_tensor* x,
    const pestle_tensor* freqs,
    const pestle_tensor* x2,
    const pestle_tensor* cos,
    const pestle_tensor* sin,
    const pestle_tensor* out,
    const pestle_tensor* out2,
    const char* pairs,
    int64_t rot_dim,
    int inverse,
    const pestle_call_options* options) {
  pestle_arg args[10];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(freqs);
  args[2] = pestle_tensor_arg(x2);
  args[3] = pestle_tensor_arg(cos);
  args[4] = pestle_tensor_arg(sin);
  args[5] = pestle_tensor_arg(out);
  args[6] = pestle_tensor_arg(out2);
  args[7] = pestle_choice_arg(pairs);
  args[8] = pestle_int_arg(rot_dim);
  args[9] = pestle_bool_arg(inverse);
  return pestle_call(pestle_find_op("apply_rope"), args, 10, options);
}

/* RMS norm of every head, then rotary position embedding; one tensor or two.
 *   x: bf16|f16|f32 [B, H, S, D] queries, keys or any heads: BHSD, or BSHD
 *   weight: bf16|f16|f32 [D] what normalised elements are multiplied by
 *   freqs: f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2] (may be NULL) rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
 *   x2: =x [B2, H2, S2, D] (may be NULL) a second tensor for the same freqs, e.g. keys
 *   weight2: =weight [D] (may be NULL) x2's weight; left out, weight serves both
 *   cos: f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2] (may be NULL) cosines, one a pair, in place of freqs; dimensions as those of freqs
 *   sin: =cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2] (may be NULL) sines, one a pair, with cos
 *   out: =x [B, H, S, D] (output) rotated; what rot_dim leaves is only normalised
 *   out2: =x [B2, H2, S2, D] (output) (may be NULL) the same of x2
 *   eps: added to the mean of a head's squares
 *   pairs: interleaved|split_half; rotate (2i, 2i+1), or (i, i + rot_dim/2)
 *   rot_dim: elements of a head that are rotated, the first ones; 0: all of them
 */
static inline pestle_status pestle_rms_rope(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* freqs,
    const pestle_tensor* x2,
    const pestle_tensor* weight2,
    const pestle_tensor* cos,
    const pestle_tensor* sin,
    const pestle_tensor* out,
    const pestle_tensor* out2,
    double eps,
    const char* pairs,
    int64_t rot_dim,
    const pestle_call_options* options) {
  pestle_arg args[12];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(freqs);
  args[3] = pestle_tensor_arg(x2);
  args[4] = pestle_tensor_arg(weight2);
  args[5] = pestle_tensor_arg(cos);
  args[6] = pestle_tensor_arg(sin);
  args[7] = pestle_tensor_arg(out);
  args[8] = pestle_tensor_arg(out2);
  args[9] = pestle_float_arg(eps);
  args[10] = pestle_choice_arg(pairs);
  args[11] = pestle_int_arg(rot_dim);
  return pestle_call(pestle_find_op("rms_rope"), args, 12, options);
}

/* Gradients of rms_rope to its tensors and weights.
 *   d_out: bf16|f16|f32 [B, H, S, D] gradient of rms_rope's out
 *   x: =d_out [B, H, S, D] rms_rope's x
 *   weight: bf16|f16|f32 [D] rms_rope's weight
 *   freqs: f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2] (may be NULL) rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1
 *   d_out2: =d_out [B2, H2, S2, D] (may be NULL) gradient of out2
 *   x2: =d_out [B2, H2, S2, D] (may be NULL) rms_rope's x2
 *   weight2: =weight [D] (may be NULL) rms_rope's weight2
 *   cos: f32|bf16|f16 [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2] (may be NULL) cosines, one a pair, in place of freqs; dimensions as those of freqs
 *   sin: =cos [FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2] (may be NULL) sines, one a pair, with cos
 *   d_x: =d_out [B, H, S, D] (output) gradient of x
 *   d_weight: =weight [D] (output) gradient of weight, summed over all heads and positions
 *   d_x2: =d_out [B2, H2, S2, D] (output) (may be NULL) gradient of x2
 *   d_weight2: =weight [D] (output) (may be NULL) gradient of weight2
 *   eps: added to the mean of a head's squares
 *   pairs: interleaved|split_half; rotate (2i, 2i+1), or (i, i + rot_dim/2)
 *   rot_dim: elements of a head that are rotated, the first ones; 0: all of them
 */
static inline pestle_status pestle_rms_rope_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* freqs,
    const pestle_tensor* d_out2,
    const pestle_tensor* x2,
    const pestle_tensor* weight2,
    const pestle_tensor* cos,
    const pestle_tensor* sin,
    const pestle_tensor* d_x,
    const pestle_tensor* d_weight,
    const pestle_tensor* d_x2,
    const pestle_tensor* d_weight2,
    double eps,
    const char* pairs,
    int64_t rot_dim,
    const pestle_call_options* options) {
  pestle_arg args[16];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(x);
  args[2] = pestle_tensor_arg(weight);
  args[3] = pestle_tensor_arg(freqs);
  args[4] = pestle_tensor_arg(d_out2);
  args[5] = pestle_tensor_arg(x2);
  args[6] = pestle_tensor_arg(weight2);
  args[7] = pestle_tensor_arg(cos);
  args[8] = pestle_tensor_arg(sin);
  args[9] = pestle_tensor_arg(d_x);
  args[10] = pestle_tensor_arg(d_weight);
  args[11] = pestle_tensor_arg(d_x2);
  args[12] = pestle_tensor_arg(d_weight2);
  args[13] = pestle_float_arg(eps);
  args[14] = pestle_choice_arg(pairs);
  args[15] = pestle_int_arg(rot_dim);
  return pestle_call(pestle_find_op("rms_rope_backward"), args, 16, options);
}

/* Quantises to NVFP4: E2M1 codes, an E4M3 scale per 16 elements, one global scale.
 *   x: bf16|f16|f32 [M, K] values to quantise, blocks of 16 along K
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor
 *   q: u8 [if(pad, round_up(M,16), M), if(pad, round_up(K,16), K)/2] (output) E2M1 codes, two a byte
 *   scale_out: e4m3 [swizzled: round_up(M,128), round_up(cdiv(K,16),4);plain: if(pad, round_up(M,16), M), cdiv(K,16)] (output) decode scale of each block, in units of the global scale
 *   global_scale_out: f32 [1] (output) (may be NULL) the global scale computed here, amax / 2688
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   pad: pad rows and columns with zeros to multiples of 16
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q
 *   seed: Philox seed of stochastic rounding
 */
static inline pestle_status pestle_quantize_nvfp4(
    const pestle_tensor* x,
    const pestle_tensor* global_scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const pestle_tensor* global_scale_out,
    const char* nibbles,
    const char* scale_layout,
    int pad,
    const char* rounding,
    int64_t seed,
    const pestle_call_options* options) {
  pestle_arg args[10];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(global_scale);
  args[2] = pestle_tensor_arg(q);
  args[3] = pestle_tensor_arg(scale_out);
  args[4] = pestle_tensor_arg(global_scale_out);
  args[5] = pestle_choice_arg(nibbles);
  args[6] = pestle_choice_arg(scale_layout);
  args[7] = pestle_bool_arg(pad);
  args[8] = pestle_choice_arg(rounding);
  args[9] = pestle_int_arg(seed);
  return pestle_call(pestle_find_op("quantize_nvfp4"), args, 10, options);
}

/* NVFP4 back to floating point: code * (scale * global_scale).
 *   q: u8 [M, K/2] E2M1 codes, two a byte
 *   scale: e4m3|u8 [swizzled: round_up(M,128), round_up(K/16,4); plain: M, K/16] decode scale of each block of 16, E4M3 codes also when they come as bytes
 *   global_scale: f32 [1] decode scale of the whole tensor
 *   out: bf16|f16|f32 [M, K] (output) code * (scale * global_scale), rounded once
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_dequantize_nvfp4(
    const pestle_tensor* q,
    const pestle_tensor* scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[6];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(global_scale);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_choice_arg(nibbles);
  args[5] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("dequantize_nvfp4"), args, 6, options);
}

/* Quantises to MXFP8: E4M3 or E5M2 codes and an E8M0 scale per 32 elements.
 *   x: bf16|f16|f32 [M, K] values to quantise, blocks of 32 along K
 *   q: e4m3|e5m2 [if(pad, round_up(M,32), M), if(pad, round_up(K,32), K)] (output) E4M3 or E5M2 codes
 *   scale_out: e8m0 [swizzled: round_up(M,128), round_up(cdiv(K,32),4);plain: if(pad, round_up(M,32), M), cdiv(K,32)] (output) decode scale of each block, the power of two rounded up so that nothing saturates
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   pad: pad rows and columns with zeros to multiples of 32
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q
 *   seed: Philox seed of stochastic rounding
 */
static inline pestle_status pestle_quantize_mxfp8(
    const pestle_tensor* x,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* scale_layout,
    int pad,
    const char* rounding,
    int64_t seed,
    const pestle_call_options* options) {
  pestle_arg args[7];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(q);
  args[2] = pestle_tensor_arg(scale_out);
  args[3] = pestle_choice_arg(scale_layout);
  args[4] = pestle_bool_arg(pad);
  args[5] = pestle_choice_arg(rounding);
  args[6] = pestle_int_arg(seed);
  return pestle_call(pestle_find_op("quantize_mxfp8"), args, 7, options);
}

/* MXFP8 back to floating point: code * 2^(scale - 127).
 *   q: e4m3|e5m2 [M, K] E4M3 or E5M2 codes
 *   scale: e8m0|u8 [swizzled: round_up(M,128), round_up(K/32,4); plain: M, K/32] decode scale of each block of 32, E8M0 codes also when they come as bytes
 *   out: bf16|f16|f32 [M, K] (output) code * 2^(scale - 127), rounded once
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_dequantize_mxfp8(
    const pestle_tensor* q,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("dequantize_mxfp8"), args, 4, options);
}

/* Quantises to MXFP4: E2M1 codes and an E8M0 scale per 32 elements.
 *   x: bf16|f16|f32 [M, K] values to quantise, blocks of 32 along K
 *   q: u8 [if(pad, round_up(M,32), M), if(pad, round_up(K,32), K)/2] (output) E2M1 codes, two a byte
 *   scale_out: e8m0 [swizzled: round_up(M,128), round_up(cdiv(K,32),4);plain: if(pad, round_up(M,32), M), cdiv(K,32)] (output) decode scale of each block, the power of two rounded up so that nothing saturates
 *   nibbles: low_first|high_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 *   pad: pad rows and columns with zeros to multiples of 32
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q
 *   seed: Philox seed of stochastic rounding
 */
static inline pestle_status pestle_quantize_mxfp4(
    const pestle_tensor* x,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* nibbles,
    const char* scale_layout,
    int pad,
    const char* rounding,
    int64_t seed,
    const pestle_call_options* options) {
  pestle_arg args[8];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(q);
  args[2] = pestle_tensor_arg(scale_out);
  args[3] = pestle_choice_arg(nibbles);
  args[4] = pestle_choice_arg(scale_layout);
  args[5] = pestle_bool_arg(pad);
  args[6] = pestle_choice_arg(rounding);
  args[7] = pestle_int_arg(seed);
  return pestle_call(pestle_find_op("quantize_mxfp4"), args, 8, options);
}

/* MXFP4 back to floating point: code * 2^(scale - 127).
 *   q: u8 [M, K/2] E2M1 codes, two a byte
 *   scale: e8m0|u8 [swizzled: round_up(M,128), round_up(K/32,4); plain: M, K/32] decode scale of each block of 32, E8M0 codes also when they come as bytes
 *   out: bf16|f16|f32 [M, K] (output) code * 2^(scale - 127), rounded once
 *   nibbles: low_first|high_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_dequantize_mxfp4(
    const pestle_tensor* q,
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[5];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_choice_arg(nibbles);
  args[4] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("dequantize_mxfp4"), args, 5, options);
}

/* Copies matrices into their transposes.
 *   x: bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32 [*B, M, N] matrices, one or a batch
 *   out: =x [*B, N, M] (output) their transposes, in memory of their own
 *   tile_size: 16 or 32: a hint that other libraries take; neither result nor speed depend on it
 */
static inline pestle_status pestle_copy_transpose(
    const pestle_tensor* x,
    const pestle_tensor* out,
    int64_t tile_size,
    const pestle_call_options* options) {
  pestle_arg args[3];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_int_arg(tile_size);
  return pestle_call(pestle_find_op("copy_transpose"), args, 3, options);
}

/* Copies a tensor: any strides on both sides, with or without a change of dtype.
 *   x: bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32|i64|bool [*M] what is copied: any strides, so also a permuted view
 *   out: =x|bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32|i64|bool [*M] (output) the copy: any strides; of another dtype, each element rounded once
 */
static inline pestle_status pestle_copy(
    const pestle_tensor* x,
    const pestle_tensor* out,
    const pestle_call_options* options) {
  pestle_arg args[2];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  return pestle_call(pestle_find_op("copy"), args, 2, options);
}

/* Rounds f32 to bf16 stochastically, by a seed.
 *   x: f32 [*M] values to round
 *   out: bf16 [*M] (output) rounded up in magnitude with the probability of what is cut off
 *   seed: Philox seed; element i in row-major order uses 16 bits of block i / 8
 */
static inline pestle_status pestle_stochastic_cast(
    const pestle_tensor* x,
    const pestle_tensor* out,
    int64_t seed,
    const pestle_call_options* options) {
  pestle_arg args[3];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_int_arg(seed);
  return pestle_call(pestle_find_op("stochastic_cast"), args, 3, options);
}

/* Reduces a tensor over any set of its dimensions.
 *   x: bf16|f16|f32 [*M] any values
 *   out: as_x: =x; f32: f32 [reduced(*M, dims, keepdim)] (output) one value for each set
 *   op: sum|mean|amax|amin|max|min|prod|norm|logsumexp; what is made of the elements; max and min are amax and amin, norm is the Euclidean one
 *   dims: the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them
 *   keepdim: reduced dimensions stay, with size 1
 *   out_type: as_x|f32; dtype of out: x's, or f32
 */
static inline pestle_status pestle_reduce(
    const pestle_tensor* x,
    const pestle_tensor* out,
    const char* op,
    int64_t dims,
    int keepdim,
    const char* out_type,
    const pestle_call_options* options) {
  pestle_arg args[6];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_choice_arg(op);
  args[3] = pestle_int_arg(dims);
  args[4] = pestle_bool_arg(keepdim);
  args[5] = pestle_choice_arg(out_type);
  return pestle_call(pestle_find_op("reduce"), args, 6, options);
}

/* Gradient of reduce.
 *   d_out: bf16|f16|f32 [reduced(*M, dims, keepdim)] gradient of what reduce gave
 *   x: bf16|f16|f32 [*M] what was reduced
 *   y: bf16|f16|f32 [reduced(*M, dims, keepdim)] what reduce gave; norm and logsumexp use it
 *   d_x: =x [*M] (output) gradient of x
 *   op: sum|mean|amax|amin|max|min|prod|norm|logsumexp; as given to reduce
 *   dims: as given to reduce: a bit for each reduced dimension; -1: all
 *   keepdim: as given to reduce
 */
static inline pestle_status pestle_reduce_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* x,
    const pestle_tensor* y,
    const pestle_tensor* d_x,
    const char* op,
    int64_t dims,
    int keepdim,
    const pestle_call_options* options) {
  pestle_arg args[7];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(x);
  args[2] = pestle_tensor_arg(y);
  args[3] = pestle_tensor_arg(d_x);
  args[4] = pestle_choice_arg(op);
  args[5] = pestle_int_arg(dims);
  args[6] = pestle_bool_arg(keepdim);
  return pestle_call(pestle_find_op("reduce_backward"), args, 7, options);
}

/* Place of the largest element over any set of dimensions.
 *   x: bf16|f16|f32 [*M] any values; NaN counts as the largest
 *   out: i64 [reduced(*M, dims, keepdim)] (output) place of the largest among the reduced elements, in row-major order; the first of equal ones; -1 of none
 *   dims: the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them
 *   keepdim: reduced dimensions stay, with size 1
 */
static inline pestle_status pestle_argmax(
    const pestle_tensor* x,
    const pestle_tensor* out,
    int64_t dims,
    int keepdim,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_int_arg(dims);
  args[3] = pestle_bool_arg(keepdim);
  return pestle_call(pestle_find_op("argmax"), args, 4, options);
}

/* Place of the smallest element over any set of dimensions.
 *   x: bf16|f16|f32 [*M] any values; NaN counts as the smallest
 *   out: i64 [reduced(*M, dims, keepdim)] (output) place of the smallest among the reduced elements, in row-major order; the first of equal ones; -1 of none
 *   dims: the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them
 *   keepdim: reduced dimensions stay, with size 1
 */
static inline pestle_status pestle_argmin(
    const pestle_tensor* x,
    const pestle_tensor* out,
    int64_t dims,
    int keepdim,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_int_arg(dims);
  args[3] = pestle_bool_arg(keepdim);
  return pestle_call(pestle_find_op("argmin"), args, 4, options);
}

/* Block scales from row-major order to the 128 x 4 tile order that cuBLAS reads.
 *   scale: e4m3|e8m0|u8 [M, C] block scales in row-major order
 *   out: =scale [round_up(M,128), round_up(C,4)] (output) the scales in 128 x 4 tiles; padding entries are 0
 */
static inline pestle_status pestle_swizzle_scales(
    const pestle_tensor* scale,
    const pestle_tensor* out,
    const pestle_call_options* options) {
  pestle_arg args[2];
  args[0] = pestle_tensor_arg(scale);
  args[1] = pestle_tensor_arg(out);
  return pestle_call(pestle_find_op("swizzle_scales"), args, 2, options);
}

/* Block scales from the 128 x 4 tile order of cuBLAS back to row-major order.
 *   scale: e4m3|e8m0|u8 [round_up(rows,128), round_up(columns,4)] block scales in 128 x 4 tiles
 *   out: =scale [rows, columns] (output) the scales in row-major order, padding dropped
 *   rows: rows of the matrix of scales
 *   columns: scales in a row, K / block size
 */
static inline pestle_status pestle_unswizzle_scales(
    const pestle_tensor* scale,
    const pestle_tensor* out,
    int64_t rows,
    int64_t columns,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(scale);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_int_arg(rows);
  args[3] = pestle_int_arg(columns);
  return pestle_call(pestle_find_op("unswizzle_scales"), args, 4, options);
}

/* Exchanges the nibbles of every byte: high-first packing to low-first and back.
 *   q: u8 [*M, K] bytes of two 4-bit codes
 *   out: u8 [*M, K] (output) the same with the nibbles of each byte exchanged
 */
static inline pestle_status pestle_swap_nibbles(
    const pestle_tensor* q,
    const pestle_tensor* out,
    const pestle_call_options* options) {
  pestle_arg args[2];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(out);
  return pestle_call(pestle_find_op("swap_nibbles"), args, 2, options);
}

/* Quantises rows to INT4 with a decode scale (and a zero point) per group of columns.
 *   x: bf16|f16|f32 [N, K] values to quantise, one row per output of a linear
 *   q: u8 [N, K/2] (output) codes, two a byte: the even column in the low nibble
 *   scale_out: f32 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (output) decode scale of each group
 *   zero_out: u8 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (output) (may be NULL) zero point of each group, 0..15
 *   group_size: columns that share a scale; 0: the whole row
 *   mode: symmetric|asymmetric; symmetric: two's complement codes times scale; asymmetric: (code - zero) * scale
 *   hadamard: rotate groups of this many columns first; 0: no rotation
 *   rounding: nearest|stochastic; nearest: ties to even; stochastic: by Philox bits
 *   seed: Philox seed of stochastic rounding
 */
static inline pestle_status pestle_quantize_int4(
    const pestle_tensor* x,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const pestle_tensor* zero_out,
    int64_t group_size,
    const char* mode,
    int64_t hadamard,
    const char* rounding,
    int64_t seed,
    const pestle_call_options* options) {
  pestle_arg args[9];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(q);
  args[2] = pestle_tensor_arg(scale_out);
  args[3] = pestle_tensor_arg(zero_out);
  args[4] = pestle_int_arg(group_size);
  args[5] = pestle_choice_arg(mode);
  args[6] = pestle_int_arg(hadamard);
  args[7] = pestle_choice_arg(rounding);
  args[8] = pestle_int_arg(seed);
  return pestle_call(pestle_find_op("quantize_int4"), args, 9, options);
}

/* Turns INT4 codes with a scale (and a zero point) per group of columns into values.
 *   q: u8 [N, K/2] codes, two a byte: the even column in the low nibble
 *   scale: f32 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))] decode scale of each group
 *   zero: u8 [N, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   out: bf16|f16|f32 [N, K] (output) code * scale, or (code - zero) * scale, rotated back
 *   group_size: columns that share a scale; 0: the whole row
 *   mode: symmetric|asymmetric; symmetric: two's complement codes; asymmetric: codes 0..15 and zero
 *   hadamard: columns were rotated in groups of this many; 0: no rotation
 */
static inline pestle_status pestle_dequantize_int4(
    const pestle_tensor* q,
    const pestle_tensor* scale,
    const pestle_tensor* zero,
    const pestle_tensor* out,
    int64_t group_size,
    const char* mode,
    int64_t hadamard,
    const pestle_call_options* options) {
  pestle_arg args[7];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale);
  args[2] = pestle_tensor_arg(zero);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_int_arg(group_size);
  args[5] = pestle_choice_arg(mode);
  args[6] = pestle_int_arg(hadamard);
  return pestle_call(pestle_find_op("dequantize_int4"), args, 7, options);
}

/* Rewrites INT4 codes from one packing to another; zero points go by repack_zeros.
 *   q: plain|plain_unsigned: u8; kaio: u32; gptq|awq: i32 [plain|plain_unsigned: N, K/2; kaio: N, K/8; gptq: K/8, N; awq: K, N/8] codes of an N x K weight
 *   out: plain|plain_unsigned: u8; kaio: u32; gptq|awq: i32 [plain|plain_unsigned: N, K/2; kaio: N, K/8; gptq: K/8, N; awq: K, N/8] (output) the same codes in the other packing
 *   from_packing: plain|plain_unsigned|kaio|gptq|awq; plain: u8, even column low, two's complement; plain_unsigned: the same places, codes 0..15; kaio: u32 along K, two's complement; gptq: i32 along K, transposed, 0..15; awq: i32 along N in the order 0 2 4 6 1 3 5 7, transposed, 0..15
 *   to_packing: plain|plain_unsigned|kaio|gptq|awq; from signed to unsigned codes every code moves up by 8, which is then the zero point
 */
static inline pestle_status pestle_repack_int4(
    const pestle_tensor* q,
    const pestle_tensor* out,
    const char* from_packing,
    const char* to_packing,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_choice_arg(from_packing);
  args[3] = pestle_choice_arg(to_packing);
  return pestle_call(pestle_find_op("repack_int4"), args, 4, options);
}

/* Rewrites the zero points that belong to INT4 codes from one packing to another.
 *   zero: plain: u8; gptq|gptq_v2|awq: i32 [plain: N, G; gptq|gptq_v2|awq: G, N/8] zero points, 0..15, of N rows of G groups
 *   zero_out: plain: u8; gptq|gptq_v2|awq: i32 [plain: N, G; gptq|gptq_v2|awq: G, N/8] (output) the same zero points in the other packing
 *   from_packing: plain|gptq|gptq_v2|awq; plain: a byte each; gptq: zero - 1, eight a word, transposed; gptq_v2: the same without the -1; awq: words in the order 0 2 4 6 1 3 5 7
 *   to_packing: plain|gptq|gptq_v2|awq; likewise; only the low four bits of a zero point are kept
 */
static inline pestle_status pestle_repack_zeros(
    const pestle_tensor* zero,
    const pestle_tensor* zero_out,
    const char* from_packing,
    const char* to_packing,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(zero);
  args[1] = pestle_tensor_arg(zero_out);
  args[2] = pestle_choice_arg(from_packing);
  args[3] = pestle_choice_arg(to_packing);
  return pestle_call(pestle_find_op("repack_zeros"), args, 4, options);
}

/* Quantises a rotated weight to codebook indices with a scale per 16 columns and row.
 *   x: bf16|f16|f32 [N, K] weight to quantise, one row per output of the linear
 *   codebook: f32 [16] (may be NULL) ascending values; the fixed table of the format when absent
 *   q: u8 [N, K/2] (output) indices into the codebook, two a byte: the even column low
 *   scale_rel: e4m3 [N, K/16] (output) scale of 16 columns, relative to the row's
 *   scale_channel: f32 [N] (output) scale of the row: values decode to int8 times this
 *   hadamard: rotate groups of this many columns first; 0: no rotation
 */
static inline pestle_status pestle_quantize_w4a8(
    const pestle_tensor* x,
    const pestle_tensor* codebook,
    const pestle_tensor* q,
    const pestle_tensor* scale_rel,
    const pestle_tensor* scale_channel,
    int64_t hadamard,
    const pestle_call_options* options) {
  pestle_arg args[6];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(codebook);
  args[2] = pestle_tensor_arg(q);
  args[3] = pestle_tensor_arg(scale_rel);
  args[4] = pestle_tensor_arg(scale_channel);
  args[5] = pestle_int_arg(hadamard);
  return pestle_call(pestle_find_op("quantize_w4a8"), args, 6, options);
}

/* Turns codebook indices with a scale per 16 columns and row into values.
 *   q: u8 [N, K/2] indices into the codebook, two a byte: the even column low
 *   scale_rel: e4m3 [N, K/16] scale of 16 columns, relative to the row's
 *   scale_channel: f32 [N] scale of the row
 *   codebook: f32 [16] (may be NULL) values of the indices; the fixed table when absent
 *   out: bf16|f16|f32 [N, K] (output) int8(codebook[q] * scale_rel) * scale_channel, rotated back
 *   hadamard: columns were rotated in groups of this many; 0: no rotation
 */
static inline pestle_status pestle_dequantize_w4a8(
    const pestle_tensor* q,
    const pestle_tensor* scale_rel,
    const pestle_tensor* scale_channel,
    const pestle_tensor* codebook,
    const pestle_tensor* out,
    int64_t hadamard,
    const pestle_call_options* options) {
  pestle_arg args[6];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(scale_rel);
  args[2] = pestle_tensor_arg(scale_channel);
  args[3] = pestle_tensor_arg(codebook);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_int_arg(hadamard);
  return pestle_call(pestle_find_op("dequantize_w4a8"), args, 6, options);
}

/* Turns GGUF blocks Q8_0, Q4_0, Q4_K and Q6_K into values.
 *   q: u8 [N, B] rows of whole blocks, as the bytes lie in the file
 *   out: bf16|f16|f32 [q8_0: N, B/34*32; q4_0: N, B/18*32; q4_k: N, B/144*256; q6_k: N, B/210*256] (output) the values: what llama.cpp computes in f32, rounded once
 *   type: q8_0|q4_0|q4_k|q6_k; which blocks
 */
static inline pestle_status pestle_dequantize_gguf(
    const pestle_tensor* q,
    const pestle_tensor* out,
    const char* type,
    const pestle_call_options* options) {
  pestle_arg args[3];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_choice_arg(type);
  return pestle_call(pestle_find_op("dequantize_gguf"), args, 3, options);
}

/* Softmax along one dimension, with scale and additive mask (softmax_online).
 *   x: bf16|f16|f32 [*S] logits of any shape
 *   mask: f32|bf16|f16 [*B] (may be NULL) added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1
 *   out: =x [*S] (output) probabilities along dim; NaN where all of a row is -inf
 *   dim: the dimension whose elements add up to 1
 *   scale: what x is multiplied by first, e.g. 1 / temperature
 */
static inline pestle_status pestle_softmax(
    const pestle_tensor* x,
    const pestle_tensor* mask,
    const pestle_tensor* out,
    int64_t dim,
    double scale,
    const pestle_call_options* options) {
  pestle_arg args[5];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(mask);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_int_arg(dim);
  args[4] = pestle_float_arg(scale);
  return pestle_call(pestle_find_op("softmax"), args, 5, options);
}

/* Gradient of softmax from its result.
 *   d_out: bf16|f16|f32 [*S] gradient of softmax's result
 *   out: =d_out [*S] softmax's result
 *   d_x: =d_out [*S] (output) gradient of softmax's x
 *   dim: the dimension that softmax went along
 *   scale: what softmax multiplied x by
 */
static inline pestle_status pestle_softmax_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* out,
    const pestle_tensor* d_x,
    int64_t dim,
    double scale,
    const pestle_call_options* options) {
  pestle_arg args[5];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_tensor_arg(d_x);
  args[3] = pestle_int_arg(dim);
  args[4] = pestle_float_arg(scale);
  return pestle_call(pestle_find_op("softmax_backward"), args, 5, options);
}

/* Logarithm of softmax along one dimension, with scale and additive mask.
 *   x: bf16|f16|f32 [*S] logits of any shape
 *   mask: f32|bf16|f16 [*B] (may be NULL) added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1
 *   out: =x [*S] (output) logarithms of the probabilities along dim
 *   dim: the dimension whose probabilities add up to 1
 *   scale: what x is multiplied by first, e.g. 1 / temperature
 */
static inline pestle_status pestle_log_softmax(
    const pestle_tensor* x,
    const pestle_tensor* mask,
    const pestle_tensor* out,
    int64_t dim,
    double scale,
    const pestle_call_options* options) {
  pestle_arg args[5];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(mask);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_int_arg(dim);
  args[4] = pestle_float_arg(scale);
  return pestle_call(pestle_find_op("log_softmax"), args, 5, options);
}

/* Gradient of log_softmax from its result.
 *   d_out: bf16|f16|f32 [*S] gradient of log_softmax's result
 *   out: =d_out [*S] log_softmax's result
 *   d_x: =d_out [*S] (output) gradient of log_softmax's x
 *   dim: the dimension that log_softmax went along
 *   scale: what log_softmax multiplied x by
 */
static inline pestle_status pestle_log_softmax_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* out,
    const pestle_tensor* d_x,
    int64_t dim,
    double scale,
    const pestle_call_options* options) {
  pestle_arg args[5];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(out);
  args[2] = pestle_tensor_arg(d_x);
  args[3] = pestle_int_arg(dim);
  args[4] = pestle_float_arg(scale);
  return pestle_call(pestle_find_op("log_softmax_backward"), args, 5, options);
}

/* Cross entropy of each row of logits with its target class, without averaging.
 *   logits: bf16|f16|f32 [*M, N] M rows of N classes
 *   target: i64|i32 [*M] the class of each row, or ignore_index
 *   loss: f32 [*M] (output) -log of the target's probability; 0 for ignored rows, NaN for a target that is no class
 *   lse: f64 [*M] (output) log of the sum of exp(logits), kept for the backward op: f64, since f32 would lose of large logits what the gradient is made of
 *   ignore_index: target of rows that do not count
 *   label_smoothing: part of the target that all classes share evenly
 */
static inline pestle_status pestle_cross_entropy(
    const pestle_tensor* logits,
    const pestle_tensor* target,
    const pestle_tensor* loss,
    const pestle_tensor* lse,
    int64_t ignore_index,
    double label_smoothing,
    const pestle_call_options* options) {
  pestle_arg args[6];
  args[0] = pestle_tensor_arg(logits);
  args[1] = pestle_tensor_arg(target);
  args[2] = pestle_tensor_arg(loss);
  args[3] = pestle_tensor_arg(lse);
  args[4] = pestle_int_arg(ignore_index);
  args[5] = pestle_float_arg(label_smoothing);
  return pestle_call(pestle_find_op("cross_entropy"), args, 6, options);
}

/* Gradient of cross_entropy's logits from its lse.
 *   d_loss: f32 [*M] gradient of each row's loss
 *   logits: bf16|f16|f32 [*M, N] cross_entropy's logits
 *   target: i64|i32 [*M] the class of each row, or ignore_index
 *   lse: f64 [*M] cross_entropy's lse
 *   d_logits: =logits [*M, N] (output) gradient of logits; 0 in ignored rows, NaN in those with a target that is no class
 *   ignore_index: target of rows that do not count
 *   label_smoothing: part of the target that all classes share evenly
 */
static inline pestle_status pestle_cross_entropy_backward(
    const pestle_tensor* d_loss,
    const pestle_tensor* logits,
    const pestle_tensor* target,
    const pestle_tensor* lse,
    const pestle_tensor* d_logits,
    int64_t ignore_index,
    double label_smoothing,
    const pestle_call_options* options) {
  pestle_arg args[7];
  args[0] = pestle_tensor_arg(d_loss);
  args[1] = pestle_tensor_arg(logits);
  args[2] = pestle_tensor_arg(target);
  args[3] = pestle_tensor_arg(lse);
  args[4] = pestle_tensor_arg(d_logits);
  args[5] = pestle_int_arg(ignore_index);
  args[6] = pestle_float_arg(label_smoothing);
  return pestle_call(pestle_find_op("cross_entropy_backward"), args, 7, options);
}

/* Divides each row by the root of its mean square (plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   bias: f32|bf16|f16 [K] (may be NULL) added after weight
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) the normalised rows
 *   residual_out: =x [*M, K] (output) (may be NULL) the sum that was normalised: residual + gate * x
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   eps: added to the mean square
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_rms_norm(
    const pestle_tensor* x,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* bias,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* residual_out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    double eps,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[17];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(residual);
  args[2] = pestle_tensor_arg(gate);
  args[3] = pestle_tensor_arg(weight);
  args[4] = pestle_tensor_arg(bias);
  args[5] = pestle_tensor_arg(q_scale);
  args[6] = pestle_tensor_arg(global_scale);
  args[7] = pestle_tensor_arg(out);
  args[8] = pestle_tensor_arg(residual_out);
  args[9] = pestle_tensor_arg(q);
  args[10] = pestle_tensor_arg(scale_out);
  args[11] = pestle_float_arg(eps);
  args[12] = pestle_choice_arg(out_format);
  args[13] = pestle_bool_arg(keep_out);
  args[14] = pestle_int_arg(hadamard);
  args[15] = pestle_choice_arg(nibbles);
  args[16] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("rms_norm"), args, 17, options);
}

/* Subtracts each row's mean and divides by its standard deviation (variance plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   bias: f32|bf16|f16 [K] (may be NULL) added after weight
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) the normalised rows
 *   residual_out: =x [*M, K] (output) (may be NULL) the sum that was normalised: residual + gate * x
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   eps: added to the mean squared difference, the variance
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_layer_norm(
    const pestle_tensor* x,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* bias,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* residual_out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    double eps,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[17];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(residual);
  args[2] = pestle_tensor_arg(gate);
  args[3] = pestle_tensor_arg(weight);
  args[4] = pestle_tensor_arg(bias);
  args[5] = pestle_tensor_arg(q_scale);
  args[6] = pestle_tensor_arg(global_scale);
  args[7] = pestle_tensor_arg(out);
  args[8] = pestle_tensor_arg(residual_out);
  args[9] = pestle_tensor_arg(q);
  args[10] = pestle_tensor_arg(scale_out);
  args[11] = pestle_float_arg(eps);
  args[12] = pestle_choice_arg(out_format);
  args[13] = pestle_bool_arg(keep_out);
  args[14] = pestle_int_arg(hadamard);
  args[15] = pestle_choice_arg(nibbles);
  args[16] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("layer_norm"), args, 17, options);
}

/* Layer norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   scale: bf16|f16|f32 [*G, K] modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
 *   shift: bf16|f16|f32 [*G, K] modulation: added at the end
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) the normalised rows
 *   residual_out: =x [*M, K] (output) (may be NULL) the sum that was normalised: residual + gate * x
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   eps: added to the mean squared difference, the variance
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_adaln(
    const pestle_tensor* x,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* shift,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* residual_out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    double eps,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[18];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(residual);
  args[2] = pestle_tensor_arg(gate);
  args[3] = pestle_tensor_arg(weight);
  args[4] = pestle_tensor_arg(scale);
  args[5] = pestle_tensor_arg(shift);
  args[6] = pestle_tensor_arg(q_scale);
  args[7] = pestle_tensor_arg(global_scale);
  args[8] = pestle_tensor_arg(out);
  args[9] = pestle_tensor_arg(residual_out);
  args[10] = pestle_tensor_arg(q);
  args[11] = pestle_tensor_arg(scale_out);
  args[12] = pestle_float_arg(eps);
  args[13] = pestle_choice_arg(out_format);
  args[14] = pestle_bool_arg(keep_out);
  args[15] = pestle_int_arg(hadamard);
  args[16] = pestle_choice_arg(nibbles);
  args[17] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("adaln"), args, 18, options);
}

/* RMS norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   scale: bf16|f16|f32 [*G, K] modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
 *   shift: bf16|f16|f32 [*G, K] modulation: added at the end
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) the normalised rows
 *   residual_out: =x [*M, K] (output) (may be NULL) the sum that was normalised: residual + gate * x
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   eps: added to the mean square
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_rms_adaln(
    const pestle_tensor* x,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* shift,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* residual_out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    double eps,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[18];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(residual);
  args[2] = pestle_tensor_arg(gate);
  args[3] = pestle_tensor_arg(weight);
  args[4] = pestle_tensor_arg(scale);
  args[5] = pestle_tensor_arg(shift);
  args[6] = pestle_tensor_arg(q_scale);
  args[7] = pestle_tensor_arg(global_scale);
  args[8] = pestle_tensor_arg(out);
  args[9] = pestle_tensor_arg(residual_out);
  args[10] = pestle_tensor_arg(q);
  args[11] = pestle_tensor_arg(scale_out);
  args[12] = pestle_float_arg(eps);
  args[13] = pestle_choice_arg(out_format);
  args[14] = pestle_bool_arg(keep_out);
  args[15] = pestle_int_arg(hadamard);
  args[16] = pestle_choice_arg(nibbles);
  args[17] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("rms_adaln"), args, 18, options);
}

/* Gradients of rms_norm: of x, residual, gate and all parameters, from x and the gradient of out.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   d_out: =x [*M, K] gradient of out
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   bias: f32|bf16|f16 [K] (may be NULL) added after weight
 *   d_residual_out: =x [*M, K] (may be NULL) gradient of residual_out
 *   d_x: =x [*M, K] (output) gradient of x
 *   d_residual: =x [*M, K] (output) (may be NULL) gradient of residual
 *   d_weight: =weight [K] (output) (may be NULL) gradient of weight
 *   d_gate: =gate [*G, K] (output) (may be NULL) gradient of gate
 *   d_bias: =bias [K] (output) (may be NULL) gradient of bias
 *   eps: as in the forward call
 */
static inline pestle_status pestle_rms_norm_backward(
    const pestle_tensor* x,
    const pestle_tensor* d_out,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* bias,
    const pestle_tensor* d_residual_out,
    const pestle_tensor* d_x,
    const pestle_tensor* d_residual,
    const pestle_tensor* d_weight,
    const pestle_tensor* d_gate,
    const pestle_tensor* d_bias,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[13];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(d_out);
  args[2] = pestle_tensor_arg(residual);
  args[3] = pestle_tensor_arg(gate);
  args[4] = pestle_tensor_arg(weight);
  args[5] = pestle_tensor_arg(bias);
  args[6] = pestle_tensor_arg(d_residual_out);
  args[7] = pestle_tensor_arg(d_x);
  args[8] = pestle_tensor_arg(d_residual);
  args[9] = pestle_tensor_arg(d_weight);
  args[10] = pestle_tensor_arg(d_gate);
  args[11] = pestle_tensor_arg(d_bias);
  args[12] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("rms_norm_backward"), args, 13, options);
}

/* Gradients of layer_norm: of x, residual, gate and all parameters, from x and the gradient of out.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   d_out: =x [*M, K] gradient of out
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   bias: f32|bf16|f16 [K] (may be NULL) added after weight
 *   d_residual_out: =x [*M, K] (may be NULL) gradient of residual_out
 *   d_x: =x [*M, K] (output) gradient of x
 *   d_residual: =x [*M, K] (output) (may be NULL) gradient of residual
 *   d_weight: =weight [K] (output) (may be NULL) gradient of weight
 *   d_gate: =gate [*G, K] (output) (may be NULL) gradient of gate
 *   d_bias: =bias [K] (output) (may be NULL) gradient of bias
 *   eps: as in the forward call
 */
static inline pestle_status pestle_layer_norm_backward(
    const pestle_tensor* x,
    const pestle_tensor* d_out,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* bias,
    const pestle_tensor* d_residual_out,
    const pestle_tensor* d_x,
    const pestle_tensor* d_residual,
    const pestle_tensor* d_weight,
    const pestle_tensor* d_gate,
    const pestle_tensor* d_bias,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[13];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(d_out);
  args[2] = pestle_tensor_arg(residual);
  args[3] = pestle_tensor_arg(gate);
  args[4] = pestle_tensor_arg(weight);
  args[5] = pestle_tensor_arg(bias);
  args[6] = pestle_tensor_arg(d_residual_out);
  args[7] = pestle_tensor_arg(d_x);
  args[8] = pestle_tensor_arg(d_residual);
  args[9] = pestle_tensor_arg(d_weight);
  args[10] = pestle_tensor_arg(d_gate);
  args[11] = pestle_tensor_arg(d_bias);
  args[12] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("layer_norm_backward"), args, 13, options);
}

/* Gradients of adaln: of x, residual, gate and all parameters, from x and the gradient of out.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   d_out: =x [*M, K] gradient of out
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   scale: bf16|f16|f32 [*G, K] modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
 *   d_residual_out: =x [*M, K] (may be NULL) gradient of residual_out
 *   d_x: =x [*M, K] (output) gradient of x
 *   d_residual: =x [*M, K] (output) (may be NULL) gradient of residual
 *   d_weight: =weight [K] (output) (may be NULL) gradient of weight
 *   d_gate: =gate [*G, K] (output) (may be NULL) gradient of gate
 *   d_scale: =scale [*G, K] (output) gradient of scale
 *   d_shift: =scale [*G, K] (output) gradient of shift
 *   eps: as in the forward call
 */
static inline pestle_status pestle_adaln_backward(
    const pestle_tensor* x,
    const pestle_tensor* d_out,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* d_residual_out,
    const pestle_tensor* d_x,
    const pestle_tensor* d_residual,
    const pestle_tensor* d_weight,
    const pestle_tensor* d_gate,
    const pestle_tensor* d_scale,
    const pestle_tensor* d_shift,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[14];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(d_out);
  args[2] = pestle_tensor_arg(residual);
  args[3] = pestle_tensor_arg(gate);
  args[4] = pestle_tensor_arg(weight);
  args[5] = pestle_tensor_arg(scale);
  args[6] = pestle_tensor_arg(d_residual_out);
  args[7] = pestle_tensor_arg(d_x);
  args[8] = pestle_tensor_arg(d_residual);
  args[9] = pestle_tensor_arg(d_weight);
  args[10] = pestle_tensor_arg(d_gate);
  args[11] = pestle_tensor_arg(d_scale);
  args[12] = pestle_tensor_arg(d_shift);
  args[13] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("adaln_backward"), args, 14, options);
}

/* Gradients of rms_adaln: of x, residual, gate and all parameters, from x and the gradient of out.
 *   x: bf16|f16|f32 [*M, K] rows to normalise
 *   d_out: =x [*M, K] gradient of out
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [*G, K] (may be NULL) multiplies x before the residual is added; M/G neighbouring rows share a row of it
 *   weight: f32|bf16|f16 [K] (may be NULL) multiplies the normalised row
 *   scale: bf16|f16|f32 [*G, K] modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it
 *   d_residual_out: =x [*M, K] (may be NULL) gradient of residual_out
 *   d_x: =x [*M, K] (output) gradient of x
 *   d_residual: =x [*M, K] (output) (may be NULL) gradient of residual
 *   d_weight: =weight [K] (output) (may be NULL) gradient of weight
 *   d_gate: =gate [*G, K] (output) (may be NULL) gradient of gate
 *   d_scale: =scale [*G, K] (output) gradient of scale
 *   d_shift: =scale [*G, K] (output) gradient of shift
 *   eps: as in the forward call
 */
static inline pestle_status pestle_rms_adaln_backward(
    const pestle_tensor* x,
    const pestle_tensor* d_out,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* weight,
    const pestle_tensor* scale,
    const pestle_tensor* d_residual_out,
    const pestle_tensor* d_x,
    const pestle_tensor* d_residual,
    const pestle_tensor* d_weight,
    const pestle_tensor* d_gate,
    const pestle_tensor* d_scale,
    const pestle_tensor* d_shift,
    double eps,
    const pestle_call_options* options) {
  pestle_arg args[14];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(d_out);
  args[2] = pestle_tensor_arg(residual);
  args[3] = pestle_tensor_arg(gate);
  args[4] = pestle_tensor_arg(weight);
  args[5] = pestle_tensor_arg(scale);
  args[6] = pestle_tensor_arg(d_residual_out);
  args[7] = pestle_tensor_arg(d_x);
  args[8] = pestle_tensor_arg(d_residual);
  args[9] = pestle_tensor_arg(d_weight);
  args[10] = pestle_tensor_arg(d_gate);
  args[11] = pestle_tensor_arg(d_scale);
  args[12] = pestle_tensor_arg(d_shift);
  args[13] = pestle_float_arg(eps);
  return pestle_call(pestle_find_op("rms_adaln_backward"), args, 14, options);
}

/* SiLU (swish) or GELU, exact or by tanh, of every element.
 *   x: bf16|f16|f32 [*M, K] any values
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) act(x)
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   act: silu|gelu|gelu_tanh; x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_activation(
    const pestle_tensor* x,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* act,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[12];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(q_scale);
  args[2] = pestle_tensor_arg(global_scale);
  args[3] = pestle_tensor_arg(out);
  args[4] = pestle_tensor_arg(q);
  args[5] = pestle_tensor_arg(scale_out);
  args[6] = pestle_choice_arg(act);
  args[7] = pestle_choice_arg(out_format);
  args[8] = pestle_bool_arg(keep_out);
  args[9] = pestle_int_arg(hadamard);
  args[10] = pestle_choice_arg(nibbles);
  args[11] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("activation"), args, 12, options);
}

/* Gradient of activation's x.
 *   d_out: bf16|f16|f32 [*M, K] gradient of activation's result
 *   x: =d_out [*M, K] activation's x
 *   d_x: =d_out [*M, K] (output) gradient of x
 *   act: silu|gelu|gelu_tanh; x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
 */
static inline pestle_status pestle_activation_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* x,
    const pestle_tensor* d_x,
    const char* act,
    const pestle_call_options* options) {
  pestle_arg args[4];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(x);
  args[2] = pestle_tensor_arg(d_x);
  args[3] = pestle_choice_arg(act);
  return pestle_call(pestle_find_op("activation_backward"), args, 4, options);
}

/* silu_mul, gelu_mul, swiglu, geglu: an activation times a gate, in two tensors or the halves of one.
 *   x: bf16|f16|f32 [pair: *M, K; act_first|act_last: *M, 2*K] what act takes; or both factors side by side
 *   gate: =x [*M, K] (may be NULL) the other factor
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) act(x) * gate
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   act: silu|gelu|gelu_tanh; x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
 *   layout: pair|act_first|act_last; act(x) * gate; x holds both in its last dimension, the half that act takes first (swiglu) or last (geglu)
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_gated_activation(
    const pestle_tensor* x,
    const pestle_tensor* gate,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* act,
    const char* layout,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[14];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(gate);
  args[2] = pestle_tensor_arg(q_scale);
  args[3] = pestle_tensor_arg(global_scale);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_tensor_arg(q);
  args[6] = pestle_tensor_arg(scale_out);
  args[7] = pestle_choice_arg(act);
  args[8] = pestle_choice_arg(layout);
  args[9] = pestle_choice_arg(out_format);
  args[10] = pestle_bool_arg(keep_out);
  args[11] = pestle_int_arg(hadamard);
  args[12] = pestle_choice_arg(nibbles);
  args[13] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("gated_activation"), args, 14, options);
}

/* Gradients of gated_activation (silu_mul, gelu_mul, swiglu, geglu).
 *   d_out: bf16|f16|f32 [*M, K] gradient of gated_activation's result
 *   x: =d_out [pair: *M, K; act_first|act_last: *M, 2*K] gated_activation's x
 *   gate: =d_out [*M, K] (may be NULL) gated_activation's gate
 *   d_x: =d_out [pair: *M, K; act_first|act_last: *M, 2*K] (output) gradient of x, of both halves where x holds both
 *   d_gate: =d_out [*M, K] (output) (may be NULL) gradient of gate
 *   act: silu|gelu|gelu_tanh; x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation
 *   layout: pair|act_first|act_last; act(x) * gate; x holds both in its last dimension, the half that act takes first (swiglu) or last (geglu)
 */
static inline pestle_status pestle_gated_activation_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* x,
    const pestle_tensor* gate,
    const pestle_tensor* d_x,
    const pestle_tensor* d_gate,
    const char* act,
    const char* layout,
    const pestle_call_options* options) {
  pestle_arg args[7];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(x);
  args[2] = pestle_tensor_arg(gate);
  args[3] = pestle_tensor_arg(d_x);
  args[4] = pestle_tensor_arg(d_gate);
  args[5] = pestle_choice_arg(act);
  args[6] = pestle_choice_arg(layout);
  return pestle_call(pestle_find_op("gated_activation_backward"), args, 7, options);
}

/* Normalises groups of neighbouring channels of each sample to mean 0 and variance 1, then weight and bias a channel, modulation a sample and channel, and silu if asked; what is normalised may be a sum with a residual, the result quantised.
 *   x: bf16|f16|f32 [*M, K] batch, channels, and any dimensions behind them
 *   weight: f32|bf16|f16 [C] (may be NULL) multiplies each channel
 *   bias: f32|bf16|f16 [C] (may be NULL) added to each channel after weight
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [G, C] (may be NULL) multiplies x before the residual is added; batch/G neighbouring samples share a row
 *   scale: bf16|f16|f32 [G, C] (may be NULL) modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it
 *   shift: bf16|f16|f32 [G, C] (may be NULL) modulation: added before the activation
 *   q_scale: f32 [none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   out: =x [*M, K] (output) (may be NULL) the normalised groups
 *   residual_out: =x [*M, K] (output) (may be NULL) the sum that was normalised: residual + gate * x
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K
 *   groups: neighbouring channels are normalised together: channels / groups each
 *   eps: added to the variance
 *   activation: none|silu; what is applied to the result
 *   out_format: none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8; none: out; else q holds out's codes, and out is given only with keep_out
 *   keep_out: give out beside its codes, rounded to x's dtype
 *   hadamard: elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_group_norm(
    const pestle_tensor* x,
    const pestle_tensor* weight,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* scale,
    const pestle_tensor* shift,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* out,
    const pestle_tensor* residual_out,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    int64_t groups,
    double eps,
    const char* activation,
    const char* out_format,
    int keep_out,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[21];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight);
  args[2] = pestle_tensor_arg(bias);
  args[3] = pestle_tensor_arg(residual);
  args[4] = pestle_tensor_arg(gate);
  args[5] = pestle_tensor_arg(scale);
  args[6] = pestle_tensor_arg(shift);
  args[7] = pestle_tensor_arg(q_scale);
  args[8] = pestle_tensor_arg(global_scale);
  args[9] = pestle_tensor_arg(out);
  args[10] = pestle_tensor_arg(residual_out);
  args[11] = pestle_tensor_arg(q);
  args[12] = pestle_tensor_arg(scale_out);
  args[13] = pestle_int_arg(groups);
  args[14] = pestle_float_arg(eps);
  args[15] = pestle_choice_arg(activation);
  args[16] = pestle_choice_arg(out_format);
  args[17] = pestle_bool_arg(keep_out);
  args[18] = pestle_int_arg(hadamard);
  args[19] = pestle_choice_arg(nibbles);
  args[20] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("group_norm"), args, 21, options);
}

/* Gradients of group_norm: of x, weight, bias, residual, gate, scale and shift, from the inputs and the gradients of out and residual_out.
 *   x: bf16|f16|f32 [*M, K] batch, channels, and any dimensions behind them
 *   d_out: =x [*M, K] gradient of out
 *   weight: f32|bf16|f16 [C] (may be NULL) multiplies each channel
 *   bias: f32|bf16|f16 [C] (may be NULL) added to each channel after weight
 *   residual: =x [*M, K] (may be NULL) added to gate * x before the norm
 *   gate: bf16|f16|f32 [G, C] (may be NULL) multiplies x before the residual is added; batch/G neighbouring samples share a row
 *   scale: bf16|f16|f32 [G, C] (may be NULL) modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it
 *   shift: bf16|f16|f32 [G, C] (may be NULL) modulation: added before the activation
 *   d_residual_out: =x [*M, K] (may be NULL) gradient of residual_out
 *   d_x: =x [*M, K] (output) gradient of x
 *   d_weight: =weight [C] (output) (may be NULL) gradient of weight
 *   d_bias: =bias [C] (output) (may be NULL) gradient of bias
 *   d_residual: =x [*M, K] (output) (may be NULL) gradient of residual
 *   d_gate: =gate [G, C] (output) (may be NULL) gradient of gate
 *   d_scale: =scale [G, C] (output) (may be NULL) gradient of scale
 *   d_shift: =shift [G, C] (output) (may be NULL) gradient of shift
 *   groups: as in the forward call
 *   eps: as in the forward call
 *   activation: none|silu; as in the forward call
 */
static inline pestle_status pestle_group_norm_backward(
    const pestle_tensor* x,
    const pestle_tensor* d_out,
    const pestle_tensor* weight,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const pestle_tensor* gate,
    const pestle_tensor* scale,
    const pestle_tensor* shift,
    const pestle_tensor* d_residual_out,
    const pestle_tensor* d_x,
    const pestle_tensor* d_weight,
    const pestle_tensor* d_bias,
    const pestle_tensor* d_residual,
    const pestle_tensor* d_gate,
    const pestle_tensor* d_scale,
    const pestle_tensor* d_shift,
    int64_t groups,
    double eps,
    const char* activation,
    const pestle_call_options* options) {
  pestle_arg args[19];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(d_out);
  args[2] = pestle_tensor_arg(weight);
  args[3] = pestle_tensor_arg(bias);
  args[4] = pestle_tensor_arg(residual);
  args[5] = pestle_tensor_arg(gate);
  args[6] = pestle_tensor_arg(scale);
  args[7] = pestle_tensor_arg(shift);
  args[8] = pestle_tensor_arg(d_residual_out);
  args[9] = pestle_tensor_arg(d_x);
  args[10] = pestle_tensor_arg(d_weight);
  args[11] = pestle_tensor_arg(d_bias);
  args[12] = pestle_tensor_arg(d_residual);
  args[13] = pestle_tensor_arg(d_gate);
  args[14] = pestle_tensor_arg(d_scale);
  args[15] = pestle_tensor_arg(d_shift);
  args[16] = pestle_int_arg(groups);
  args[17] = pestle_float_arg(eps);
  args[18] = pestle_choice_arg(activation);
  return pestle_call(pestle_find_op("group_norm_backward"), args, 19, options);
}

/* Product of two matrices of floats of any strides, f32 accumulation, with an epilogue.
 *   a: bf16|f16|f32|e4m3|e5m2 [*B, M, K] left matrices, any strides
 *   b: bf16|f16|f32|e4m3|e5m2 [*B, K, N] right matrices, any strides: a weight [N, K] is passed transposed, one matrix for all by strides of 0
 *   out: none: =a|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32 [*B, M, if(gated == none, N, N/2)] (output) (may be NULL) residual * beta + gate * activation(a @ b * alpha + bias)
 *   alpha: f32 [1] (may be NULL) factor on the product; 1 when absent
 *   bias: f32|bf16|f16 [N] (may be NULL) added to every row of the product
 *   residual: f32|bf16|f16 [*B, M, if(gated == none, N, N/2)] (may be NULL) added at the end
 *   activation: none|gelu|gelu_tanh|silu; applied after the bias
 *   beta: f32 [1] (may be NULL) factor on the residual; 1 when absent
 *   gate: f32|bf16|f16 [*G, if(gated == none, N, N/2)] (may be NULL) multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own
 *   gated: none|act_first|act_last; out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)
 *   precision: highest|tf32; of products of two f32 matrices: as exact as f32, or each value may be rounded to TF32's 11 bits
 *   q_scale: f32 [none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *B, M, 1] (may be NULL) decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent
 *   global_scale: f32 [1] (may be NULL) decode scale of the whole tensor, out_format=nvfp4
 *   q: none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8 [none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *B, M, if(gated == none, N, N/2); nvfp4: *B, M, if(gated == none, N, N/2)/2] (output) (may be NULL) codes of out; nvfp4: two a byte
 *   scale_out: none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0 [none|fp8_tensor|fp8_row|int8_row: *B, M, 1; fp8_block: *B, M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(B*M,128), B*M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(B*M,128), B*M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))] (output) (may be NULL) decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of N
 *   out_format: none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8; none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)
 *   keep_out: give out beside its codes
 *   out_hadamard: elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_matmul(
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* out,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const char* activation,
    const pestle_tensor* beta,
    const pestle_tensor* gate,
    const char* gated,
    const char* precision,
    const pestle_tensor* q_scale,
    const pestle_tensor* global_scale,
    const pestle_tensor* q,
    const pestle_tensor* scale_out,
    const char* out_format,
    int keep_out,
    int64_t out_hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[20];
  args[0] = pestle_tensor_arg(a);
  args[1] = pestle_tensor_arg(b);
  args[2] = pestle_tensor_arg(out);
  args[3] = pestle_tensor_arg(alpha);
  args[4] = pestle_tensor_arg(bias);
  args[5] = pestle_tensor_arg(residual);
  args[6] = pestle_choice_arg(activation);
  args[7] = pestle_tensor_arg(beta);
  args[8] = pestle_tensor_arg(gate);
  args[9] = pestle_choice_arg(gated);
  args[10] = pestle_choice_arg(precision);
  args[11] = pestle_tensor_arg(q_scale);
  args[12] = pestle_tensor_arg(global_scale);
  args[13] = pestle_tensor_arg(q);
  args[14] = pestle_tensor_arg(scale_out);
  args[15] = pestle_choice_arg(out_format);
  args[16] = pestle_bool_arg(keep_out);
  args[17] = pestle_int_arg(out_hadamard);
  args[18] = pestle_choice_arg(nibbles);
  args[19] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("matmul"), args, 20, options);
}

/* Gradients of matmul: of a, b, bias and residual; the product is made again where an activation followed it.
 *   d_out: bf16|f16|f32 [*B, M, N] gradient of matmul's out
 *   a: bf16|f16|f32 [*B, M, K] matmul's a
 *   b: bf16|f16|f32 [*B, K, N] matmul's b
 *   alpha: f32 [1] (may be NULL) matmul's alpha
 *   bias: f32|bf16|f16 [N] (may be NULL) matmul's bias
 *   residual: f32|bf16|f16 [*B, M, N] (may be NULL) matmul's residual; its values are not read
 *   d_a: =a [*B, M, K] (output) gradient of a
 *   d_b: =b [*B, K, N] (output) gradient of b
 *   d_bias: =bias [N] (output) (may be NULL) gradient of bias
 *   d_residual: =residual [*B, M, N] (output) (may be NULL) d_out in residual's dtype
 *   activation: none|gelu|gelu_tanh|silu; matmul's activation
 */
static inline pestle_status pestle_matmul_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* a,
    const pestle_tensor* b,
    const pestle_tensor* alpha,
    const pestle_tensor* bias,
    const pestle_tensor* residual,
    const pestle_tensor* d_a,
    const pestle_tensor* d_b,
    const pestle_tensor* d_bias,
    const pestle_tensor* d_residual,
    const char* activation,
    const pestle_call_options* options) {
  pestle_arg args[11];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(a);
  args[2] = pestle_tensor_arg(b);
  args[3] = pestle_tensor_arg(alpha);
  args[4] = pestle_tensor_arg(bias);
  args[5] = pestle_tensor_arg(residual);
  args[6] = pestle_tensor_arg(d_a);
  args[7] = pestle_tensor_arg(d_b);
  args[8] = pestle_tensor_arg(d_bias);
  args[9] = pestle_tensor_arg(d_residual);
  args[10] = pestle_choice_arg(activation);
  return pestle_call(pestle_find_op("matmul_backward"), args, 11, options);
}

/* The projections of attention's queries, keys and values by three weights of one x, of floats or quantised.
 *   x: bf16|f16|f32 [*M, K] activations
 *   weight_q: float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8 [float|int8_tensor|int8_row: NQ, K; int4|nvfp4: NQ, K/2] weight of the queries, a row for each column of q
 *   weight_k: float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8 [float|int8_tensor|int8_row: NK, K; int4|nvfp4: NK, K/2] weight of the keys
 *   weight_v: float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8 [float|int8_tensor|int8_row: NV, K; int4|nvfp4: NV, K/2] weight of the values
 *   bias_q: f32|bf16|f16 [NQ] (may be NULL) added to every row of q
 *   bias_k: f32|bf16|f16 [NK] (may be NULL) added to every row of k
 *   bias_v: f32|bf16|f16 [NV] (may be NULL) added to every row of v
 *   scale_q: float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3 [float|int8_tensor: 1; int8_row: NQ, 1; int4: NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NQ,128), NQ), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))] (may be NULL) decode scales of the weight's codes
 *   scale_k: float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3 [float|int8_tensor: 1; int8_row: NK, 1; int4: NK, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NK,128), NK), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))] (may be NULL) decode scales of the weight's codes
 *   scale_v: float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3 [float|int8_tensor: 1; int8_row: NV, 1; int4: NV, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NV,128), NV), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))] (may be NULL) decode scales of the weight's codes
 *   zero_q: u8 [NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   zero_k: u8 [NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   zero_v: u8 [NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   global_scale_q: f32 [1] (may be NULL) decode scale of the whole weight
 *   global_scale_k: f32 [1] (may be NULL) decode scale of the whole weight
 *   global_scale_v: f32 [1] (may be NULL) decode scale of the whole weight
 *   q: =x|bf16|f16|f32 [*M, NQ] (output) x @ weight_q^T + bias_q
 *   k: =x|bf16|f16|f32 [*M, NK] (output) x @ weight_k^T + bias_k
 *   v: =x|bf16|f16|f32 [*M, NV] (output) x @ weight_v^T + bias_v
 *   format: float|int8_tensor|int8_row|int4|nvfp4; how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each row), quantize_int4 or quantize_nvfp4
 *   group_size: format=int4: columns that share a scale; 0: the whole row
 *   mode: symmetric|asymmetric; format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros
 *   hadamard: the weights were rotated in groups of this many columns, so x is too, in f32; 0: neither
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_qkv_project(
    const pestle_tensor* x,
    const pestle_tensor* weight_q,
    const pestle_tensor* weight_k,
    const pestle_tensor* weight_v,
    const pestle_tensor* bias_q,
    const pestle_tensor* bias_k,
    const pestle_tensor* bias_v,
    const pestle_tensor* scale_q,
    const pestle_tensor* scale_k,
    const pestle_tensor* scale_v,
    const pestle_tensor* zero_q,
    const pestle_tensor* zero_k,
    const pestle_tensor* zero_v,
    const pestle_tensor* global_scale_q,
    const pestle_tensor* global_scale_k,
    const pestle_tensor* global_scale_v,
    const pestle_tensor* q,
    const pestle_tensor* k,
    const pestle_tensor* v,
    const char* format,
    int64_t group_size,
    const char* mode,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[25];
  args[0] = pestle_tensor_arg(x);
  args[1] = pestle_tensor_arg(weight_q);
  args[2] = pestle_tensor_arg(weight_k);
  args[3] = pestle_tensor_arg(weight_v);
  args[4] = pestle_tensor_arg(bias_q);
  args[5] = pestle_tensor_arg(bias_k);
  args[6] = pestle_tensor_arg(bias_v);
  args[7] = pestle_tensor_arg(scale_q);
  args[8] = pestle_tensor_arg(scale_k);
  args[9] = pestle_tensor_arg(scale_v);
  args[10] = pestle_tensor_arg(zero_q);
  args[11] = pestle_tensor_arg(zero_k);
  args[12] = pestle_tensor_arg(zero_v);
  args[13] = pestle_tensor_arg(global_scale_q);
  args[14] = pestle_tensor_arg(global_scale_k);
  args[15] = pestle_tensor_arg(global_scale_v);
  args[16] = pestle_tensor_arg(q);
  args[17] = pestle_tensor_arg(k);
  args[18] = pestle_tensor_arg(v);
  args[19] = pestle_choice_arg(format);
  args[20] = pestle_int_arg(group_size);
  args[21] = pestle_choice_arg(mode);
  args[22] = pestle_int_arg(hadamard);
  args[23] = pestle_choice_arg(nibbles);
  args[24] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("qkv_project"), args, 25, options);
}

/* Gradients of qkv_project: of x, of weights that are floats, of the biases.
 *   d_q: bf16|f16|f32 [*M, NQ] gradient of qkv_project's q
 *   d_k: bf16|f16|f32 [*M, NK] gradient of k
 *   d_v: bf16|f16|f32 [*M, NV] gradient of v
 *   x: bf16|f16|f32 [*M, K] qkv_project's x
 *   weight_q: float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8 [float|int8_tensor|int8_row: NQ, K; int4|nvfp4: NQ, K/2] qkv_project's weight_q
 *   weight_k: float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8 [float|int8_tensor|int8_row: NK, K; int4|nvfp4: NK, K/2] qkv_project's weight_k
 *   weight_v: float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8 [float|int8_tensor|int8_row: NV, K; int4|nvfp4: NV, K/2] qkv_project's weight_v
 *   bias_q: f32|bf16|f16 [NQ] (may be NULL) qkv_project's; its values are not read
 *   bias_k: f32|bf16|f16 [NK] (may be NULL) likewise
 *   bias_v: f32|bf16|f16 [NV] (may be NULL) likewise
 *   scale_q: float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3 [float|int8_tensor: 1; int8_row: NQ, 1; int4: NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NQ,128), NQ), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))] (may be NULL) decode scales of the weight's codes
 *   scale_k: float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3 [float|int8_tensor: 1; int8_row: NK, 1; int4: NK, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NK,128), NK), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))] (may be NULL) decode scales of the weight's codes
 *   scale_v: float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3 [float|int8_tensor: 1; int8_row: NV, 1; int4: NV, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NV,128), NV), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))] (may be NULL) decode scales of the weight's codes
 *   zero_q: u8 [NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   zero_k: u8 [NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   zero_v: u8 [NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))] (may be NULL) zero point of each group
 *   global_scale_q: f32 [1] (may be NULL) decode scale of the whole weight
 *   global_scale_k: f32 [1] (may be NULL) decode scale of the whole weight
 *   global_scale_v: f32 [1] (may be NULL) decode scale of the whole weight
 *   d_x: =x [*M, K] (output) gradient of x: the sum of three products, rounded once
 *   d_weight_q: =x [NQ, K] (output) (may be NULL) gradient of weight_q
 *   d_weight_k: =x [NK, K] (output) (may be NULL) gradient of weight_k
 *   d_weight_v: =x [NV, K] (output) (may be NULL) gradient of weight_v
 *   d_bias_q: =bias_q [NQ] (output) (may be NULL) gradient of bias_q
 *   d_bias_k: =bias_k [NK] (output) (may be NULL) gradient of bias_k
 *   d_bias_v: =bias_v [NV] (output) (may be NULL) gradient of bias_v
 *   format: float|int8_tensor|int8_row|int4|nvfp4; how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each row), quantize_int4 or quantize_nvfp4
 *   group_size: format=int4: columns that share a scale; 0: the whole row
 *   mode: symmetric|asymmetric; format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros
 *   hadamard: the weights were rotated in groups of this many columns, so x is too, in f32; 0: neither
 *   nibbles: high_first|low_first; which nibble of a byte holds the even element
 *   scale_layout: swizzled|plain; swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major
 */
static inline pestle_status pestle_qkv_project_backward(
    const pestle_tensor* d_q,
    const pestle_tensor* d_k,
    const pestle_tensor* d_v,
    const pestle_tensor* x,
    const pestle_tensor* weight_q,
    const pestle_tensor* weight_k,
    const pestle_tensor* weight_v,
    const pestle_tensor* bias_q,
    const pestle_tensor* bias_k,
    const pestle_tensor* bias_v,
    const pestle_tensor* scale_q,
    const pestle_tensor* scale_k,
    const pestle_tensor* scale_v,
    const pestle_tensor* zero_q,
    const pestle_tensor* zero_k,
    const pestle_tensor* zero_v,
    const pestle_tensor* global_scale_q,
    const pestle_tensor* global_scale_k,
    const pestle_tensor* global_scale_v,
    const pestle_tensor* d_x,
    const pestle_tensor* d_weight_q,
    const pestle_tensor* d_weight_k,
    const pestle_tensor* d_weight_v,
    const pestle_tensor* d_bias_q,
    const pestle_tensor* d_bias_k,
    const pestle_tensor* d_bias_v,
    const char* format,
    int64_t group_size,
    const char* mode,
    int64_t hadamard,
    const char* nibbles,
    const char* scale_layout,
    const pestle_call_options* options) {
  pestle_arg args[32];
  args[0] = pestle_tensor_arg(d_q);
  args[1] = pestle_tensor_arg(d_k);
  args[2] = pestle_tensor_arg(d_v);
  args[3] = pestle_tensor_arg(x);
  args[4] = pestle_tensor_arg(weight_q);
  args[5] = pestle_tensor_arg(weight_k);
  args[6] = pestle_tensor_arg(weight_v);
  args[7] = pestle_tensor_arg(bias_q);
  args[8] = pestle_tensor_arg(bias_k);
  args[9] = pestle_tensor_arg(bias_v);
  args[10] = pestle_tensor_arg(scale_q);
  args[11] = pestle_tensor_arg(scale_k);
  args[12] = pestle_tensor_arg(scale_v);
  args[13] = pestle_tensor_arg(zero_q);
  args[14] = pestle_tensor_arg(zero_k);
  args[15] = pestle_tensor_arg(zero_v);
  args[16] = pestle_tensor_arg(global_scale_q);
  args[17] = pestle_tensor_arg(global_scale_k);
  args[18] = pestle_tensor_arg(global_scale_v);
  args[19] = pestle_tensor_arg(d_x);
  args[20] = pestle_tensor_arg(d_weight_q);
  args[21] = pestle_tensor_arg(d_weight_k);
  args[22] = pestle_tensor_arg(d_weight_v);
  args[23] = pestle_tensor_arg(d_bias_q);
  args[24] = pestle_tensor_arg(d_bias_k);
  args[25] = pestle_tensor_arg(d_bias_v);
  args[26] = pestle_choice_arg(format);
  args[27] = pestle_int_arg(group_size);
  args[28] = pestle_choice_arg(mode);
  args[29] = pestle_int_arg(hadamard);
  args[30] = pestle_choice_arg(nibbles);
  args[31] = pestle_choice_arg(scale_layout);
  return pestle_call(pestle_find_op("qkv_project_backward"), args, 32, options);
}

/* Softmax attention of queries over keys and values, with every usual mask.
 *   q: bf16|f16|f32 [B, Hq, Sq, D] queries, any strides
 *   k: =q [B, Hk, Sk, D] keys; head h of q sees head h * Hk / Hq
 *   v: =q [B, Hk, Sk, Dv] values
 *   mask: bool|f32|bf16|f16 [Bm, Hm, Mq, Mk] (may be NULL) bool: true where a key counts; floats are added to the logits. Each dimension is that of the logits [B, Hq, Sq, Sk] or 1
 *   sinks: f32|bf16|f16 [Hq] (may be NULL) the logit of a key of each head that every query sees and whose value is 0
 *   key_lengths: i32|i64 [B] (may be NULL) keys of each batch that count, the first of them; beyond 0 and Sk the nearer one
 *   q_offsets: i32|i64 [N] (may be NULL) sequences packed along Sq: sequence n has the queries from q_offsets[n] up to q_offsets[n + 1], ascending; other queries see no key
 *   k_offsets: i32|i64 [N] (may be NULL) the same of the keys, along Sk
 *   out: =q|bf16|f16|f32 [B, Hq, Sq, Dv] (output) softmax(logits) @ v; 0 for a query that sees no key
 *   lse: f32 [B, Hq, Sq] (output) (may be NULL) log of the sum of exp(logits), with the sink's; -inf for a query that sees no key. Kept for the backward op
 *   scale: factor of the products of q and k; 0: 1 / sqrt(D)
 *   softcap: logits become softcap * tanh(logit / softcap); 0: as they are
 *   causal: a query sees no key behind its own place
 *   window_left: how many keys before its place a query sees at most; -1: all of them
 *   window_right: how many keys behind its place a query sees at most; -1: all of them
 *   align: top_left|bottom_right; the place of a query among the keys: the first query's is the first key, or the last one's is the last key that counts
 *   precision: highest|tf32; of products of f32 values, the gradients' too: as exact as f32, or each value may be rounded to TF32's 11 bits
 *   deterministic: gradients have the same bits in every run; false: they may be added up in any order, which some implementations do faster
 */
static inline pestle_status pestle_attention(
    const pestle_tensor* q,
    const pestle_tensor* k,
    const pestle_tensor* v,
    const pestle_tensor* mask,
    const pestle_tensor* sinks,
    const pestle_tensor* key_lengths,
    const pestle_tensor* q_offsets,
    const pestle_tensor* k_offsets,
    const pestle_tensor* out,
    const pestle_tensor* lse,
    double scale,
    double softcap,
    int causal,
    int64_t window_left,
    int64_t window_right,
    const char* align,
    const char* precision,
    int deterministic,
    const pestle_call_options* options) {
  pestle_arg args[18];
  args[0] = pestle_tensor_arg(q);
  args[1] = pestle_tensor_arg(k);
  args[2] = pestle_tensor_arg(v);
  args[3] = pestle_tensor_arg(mask);
  args[4] = pestle_tensor_arg(sinks);
  args[5] = pestle_tensor_arg(key_lengths);
  args[6] = pestle_tensor_arg(q_offsets);
  args[7] = pestle_tensor_arg(k_offsets);
  args[8] = pestle_tensor_arg(out);
  args[9] = pestle_tensor_arg(lse);
  args[10] = pestle_float_arg(scale);
  args[11] = pestle_float_arg(softcap);
  args[12] = pestle_bool_arg(causal);
  args[13] = pestle_int_arg(window_left);
  args[14] = pestle_int_arg(window_right);
  args[15] = pestle_choice_arg(align);
  args[16] = pestle_choice_arg(precision);
  args[17] = pestle_bool_arg(deterministic);
  return pestle_call(pestle_find_op("attention"), args, 18, options);
}

/* Gradients of attention from its out and lse.
 *   d_out: bf16|f16|f32 [B, Hq, Sq, Dv] gradient of attention's out
 *   q: bf16|f16|f32 [B, Hq, Sq, D] queries, any strides
 *   k: =q [B, Hk, Sk, D] keys; head h of q sees head h * Hk / Hq
 *   v: =q [B, Hk, Sk, Dv] values
 *   out: bf16|f16|f32 [B, Hq, Sq, Dv] what attention gave
 *   lse: f32 [B, Hq, Sq] what attention gave; queries where it is infinite give 0
 *   mask: bool|f32|bf16|f16 [Bm, Hm, Mq, Mk] (may be NULL) bool: true where a key counts; floats are added to the logits. Each dimension is that of the logits [B, Hq, Sq, Sk] or 1
 *   sinks: f32|bf16|f16 [Hq] (may be NULL) the logit of a key of each head that every query sees and whose value is 0
 *   key_lengths: i32|i64 [B] (may be NULL) keys of each batch that count, the first of them; beyond 0 and Sk the nearer one
 *   q_offsets: i32|i64 [N] (may be NULL) sequences packed along Sq: sequence n has the queries from q_offsets[n] up to q_offsets[n + 1], ascending; other queries see no key
 *   k_offsets: i32|i64 [N] (may be NULL) the same of the keys, along Sk
 *   d_q: =q [B, Hq, Sq, D] (output) gradient of q
 *   d_k: =q [B, Hk, Sk, D] (output) gradient of k
 *   d_v: =q [B, Hk, Sk, Dv] (output) gradient of v
 *   d_mask: =mask [Bm, Hm, Mq, Mk] (output) (may be NULL) gradient of mask, summed over what it is shared by
 *   d_sinks: =sinks [Hq] (output) (may be NULL) gradient of sinks
 *   scale: factor of the products of q and k; 0: 1 / sqrt(D)
 *   softcap: logits become softcap * tanh(logit / softcap); 0: as they are
 *   causal: a query sees no key behind its own place
 *   window_left: how many keys before its place a query sees at most; -1: all of them
 *   window_right: how many keys behind its place a query sees at most; -1: all of them
 *   align: top_left|bottom_right; the place of a query among the keys: the first query's is the first key, or the last one's is the last key that counts
 *   mask_gradient: give d_mask, which may be as large as all logits
 *   precision: highest|tf32; of products of f32 values, the gradients' too: as exact as f32, or each value may be rounded to TF32's 11 bits
 *   deterministic: gradients have the same bits in every run; false: they may be added up in any order, which some implementations do faster
 */
static inline pestle_status pestle_attention_backward(
    const pestle_tensor* d_out,
    const pestle_tensor* q,
    const pestle_tensor* k,
    const pestle_tensor* v,
    const pestle_tensor* out,
    const pestle_tensor* lse,
    const pestle_tensor* mask,
    const pestle_tensor* sinks,
    const pestle_tensor* key_lengths,
    const pestle_tensor* q_offsets,
    const pestle_tensor* k_offsets,
    const pestle_tensor* d_q,
    const pestle_tensor* d_k,
    const pestle_tensor* d_v,
    const pestle_tensor* d_mask,
    const pestle_tensor* d_sinks,
    double scale,
    double softcap,
    int causal,
    int64_t window_left,
    int64_t window_right,
    const char* align,
    int mask_gradient,
    const char* precision,
    int deterministic,
    const pestle_call_options* options) {
  pestle_arg args[25];
  args[0] = pestle_tensor_arg(d_out);
  args[1] = pestle_tensor_arg(q);
  args[2] = pestle_tensor_arg(k);
  args[3] = pestle_tensor_arg(v);
  args[4] = pestle_tensor_arg(out);
  args[5] = pestle_tensor_arg(lse);
  args[6] = pestle_tensor_arg(mask);
  args[7] = pestle_tensor_arg(sinks);
  args[8] = pestle_tensor_arg(key_lengths);
  args[9] = pestle_tensor_arg(q_offsets);
  args[10] = pestle_tensor_arg(k_offsets);
  args[11] = pestle_tensor_arg(d_q);
  args[12] = pestle_tensor_arg(d_k);
  args[13] = pestle_tensor_arg(d_v);
  args[14] = pestle_tensor_arg(d_mask);
  args[15] = pestle_tensor_arg(d_sinks);
  args[16] = pestle_float_arg(scale);
  args[17] = pestle_float_arg(softcap);
  args[18] = pestle_bool_arg(causal);
  args[19] = pestle_int_arg(window_left);
  args[20] = pestle_int_arg(window_right);
  args[21] = pestle_choice_arg(align);
  args[22] = pestle_bool_arg(mask_gradient);
  args[23] = pestle_choice_arg(precision);
  args[24] = pestle_bool_arg(deterministic);
  return pestle_call(pestle_find_op("attention_backward"), args, 25, options);
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PESTLE_OPS_H_ */
