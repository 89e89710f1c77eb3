//! A typed call for every op. Made from the table by `pestle dump rust`: do not edit.
//!
//! `OP(inputs, outputs)` takes what every call must have; the rest are methods, in any
//! order, and `run()` makes the call. Shapes and dtypes are the contract's notation.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]
#![cfg_attr(rustfmt, rustfmt_skip)]

use crate::op_macro::op;

op! {
    quantize_fp8 "Quantises to FP8 with a decode scale per tensor, row, column or block. Source: docs/formats/fp8.md" 9
    must 0 read x "values to quantise. `bf16|f16|f32` of `[*M, K]`";
    must 2 out q "codes. `e4m3|e5m2` of `[*M, K]`";
    may 1 read scale "decode scale: a code stands for code * scale. `f32` of `[tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);block_128x128: cdiv(M,128), cdiv(K,128)]`";
    may 3 out scale_out "the decode scale computed here, amax / largest code. `f32` of `[tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);block_128x128: cdiv(M,128), cdiv(K,128)]`; exactly when `!has(scale)`";
    may 4 out q_t "the codes transposed. `=q` of `[K, M]`; exactly when `transposed`";
    may 5 choice granularity Granularity { Tensor c"tensor", Row c"row", Column c"column", Block1x128 c"block_1x128", Block128x128 c"block_128x128", } "which elements share a scale";
    may 6 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits";
    may 7 int seed "Philox seed of stochastic rounding";
    may 8 flag transposed "give q_t beside q, made in the same pass over x";
}

op! {
    dequantize_fp8 "Decodes FP8 with a scale per tensor, row, column or block. Source: docs/formats/fp8.md" 4
    must 0 read q "codes. `e4m3|e5m2` of `[*M, K]`";
    must 1 read scale "decode scale: a code stands for code * scale. `f32` of `[tensor: 1; row: *M, 1; column: 1, K; block_1x128: *M, cdiv(K,128);block_128x128: cdiv(M,128), cdiv(K,128)]`";
    must 2 out out "code * scale: one f32 product, one rounding. `bf16|f16|f32` of `[*M, K]`";
    may 3 choice granularity Granularity { Tensor c"tensor", Row c"row", Column c"column", Block1x128 c"block_1x128", Block128x128 c"block_128x128", } "which elements share a scale";
}

op! {
    stochastic_round_fp8 "Rounds to FP8 stochastically by given random bytes, without a scale. Source: docs/formats/stochastic.md" 3
    must 0 read x "values to round; taken to f16 first. `bf16|f16|f32` of `[*M, K]`";
    must 1 read rng "one random byte an element. `u8` of `[*M, K]`";
    must 2 out q "codes. `e4m3|e5m2` of `[*M, K]`";
}

op! {
    quantize_int8 "Quantises to INT8 with a decode scale per tensor, row or group, rotated first if asked. Source: docs/formats/int8.md, docs/formats/hadamard.md" 11
    must 0 read x "values to quantise. `bf16|f16|f32` of `[*M, K]`";
    must 2 out q "codes, -128..127. `i8` of `[*M, K]`";
    may 1 read scale "decode scale: a code stands for code * scale. `f32` of `[tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)]`";
    may 3 out scale_out "the decode scale computed here, amax / 127. `f32` of `[tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)]`; exactly when `!has(scale)`";
    may 4 out q_t "the codes transposed. `=q` of `[K, M]`; exactly when `transposed`";
    may 5 choice granularity Granularity { Tensor c"tensor", Row c"row", Group c"group", } "which elements share a scale";
    may 6 int group_size "elements along K that share a scale, granularity=group";
    may 7 int hadamard "elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 8 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits";
    may 9 int seed "Philox seed of stochastic rounding";
    may 10 flag transposed "give q_t beside q, made in the same pass over x";
}

op! {
    dequantize_int8 "Decodes INT8 with a scale per tensor, row or group, and undoes the rotation if asked. Source: docs/formats/int8.md, docs/formats/hadamard.md" 6
    must 0 read q "codes. `i8` of `[*M, K]`";
    must 1 read scale "decode scale: a code stands for code * scale. `f32` of `[tensor: 1; row: *M, 1; group: *M, cdiv(K,group_size)]`";
    must 2 out out "code * scale, one f32 product; rotated back if asked; one rounding. `bf16|f16|f32` of `[*M, K]`";
    may 3 choice granularity Granularity { Tensor c"tensor", Row c"row", Group c"group", } "which elements share a scale";
    may 4 int group_size "elements along K that share a scale, granularity=group";
    may 5 int hadamard "elements along K that are rotated together: 4, 16, 64, 256 or 1024; 0: no rotation";
}

op! {
    quantize_list "Quantises several tensors at once to FP8 or INT8, each as quantize_fp8 or quantize_int8 would. Source: docs/formats/fp8.md, docs/formats/int8.md" 7
    must 0 read_list x "tensors to quantise. `bf16|f16|f32` of `[*M, K]`";
    must 2 out_list q "their codes, FP8 or INT8. `e4m3|e5m2|i8` of `[*M, K]`";
    may 1 read_list scale "their decode scales: a code stands for code * scale. `f32` of `[tensor: 1; row: *M, 1]`";
    may 3 out_list scale_out "the decode scales computed here, amax / largest code. `f32` of `[tensor: 1; row: *M, 1]`; exactly when `!has(scale)`";
    may 4 choice granularity Granularity { Tensor c"tensor", Row c"row", } "which elements share a scale";
    may 5 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits";
    may 6 int seed "Philox seed of stochastic rounding, the same for each tensor";
}

op! {
    hadamard "Rotates groups along K by the regular Hadamard matrix; applied twice it is the identity. Source: docs/formats/hadamard.md" 3
    must 0 read x "values to rotate along K. `bf16|f16|f32` of `[*M, K]`";
    must 1 out out "rotated x: f32, one rounding. `=x|bf16|f16|f32` of `[*M, K]`";
    may 2 int hadamard "elements that are rotated together: 4, 16, 64, 256 or 1024";
}

op! {
    scaled_mm_fp8 "Product of two FP8 matrices with decode scales, f32 accumulation and an epilogue. Source: docs/formats/fp8.md" 23
    must 0 read a "left codes. `e4m3|e5m2` of `[*M, K]`";
    must 1 read b "right codes, one row per output column (a weight). `e4m3|e5m2` of `[N, K]`";
    must 2 read scale_a "decode scales of a. `f32` of `[tensor: 1; row: *M, 1; block: *M, cdiv(K,128)]`";
    must 3 read scale_b "decode scales of b. `f32` of `[tensor: 1; row: N, 1; block: cdiv(N,128), cdiv(K,128)]`";
    may 4 out out "epilogue(a_decoded @ b_decoded^T). `bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`; exactly when `out_format == none || keep_out`";
    may 5 choice granularity Granularity { Tensor c"tensor", Row c"row", Block c"block", } "tensor, row: a scale of all or of each row, which multiplies sums; block: 1x128 of a with 128x128 of b, of terms";
    may 6 choice accumulation Accumulation { Accurate c"accurate", Fast c"fast", F32 c"f32", } "what sums along K may lose. accurate: sums of 128 products by tensor cores, whose 8-bit floats keep 13 bits behind the largest term, added in f32; fast: one such sum of all (blocks: as accurate); f32: nothing is lost before f32";
    may 7 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 8 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 9 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 10 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 11 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 12 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 13 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 14 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 15 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 16 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2]`; exactly when `out_format != none`";
    may 17 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns. `none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))]`; exactly when `out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 18 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Fp8Block c"fp8_block", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)";
    may 19 flag keep_out "give out beside its codes";
    may 20 int out_hadamard "elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 21 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 22 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    scaled_mm_int8 "Product of two INT8 matrices with decode scales, exact integer sums and an epilogue. Source: docs/formats/int8.md" 23
    must 0 read a "left codes. `i8` of `[*M, K]`";
    must 1 read b "right codes, one row per output column (a weight). `i8` of `[N, K]`";
    may 2 read scale_a "decode scales of a. `f32` of `[tensor|host: 1; row: *M, 1]`; exactly when `granularity != host`";
    may 3 read scale_b "decode scales of b. `f32` of `[tensor|host: 1; row: N, 1]`; exactly when `granularity != host`";
    may 4 out out "epilogue(a_decoded @ b_decoded^T). `bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`; exactly when `out_format == none || keep_out`";
    may 5 choice granularity Granularity { Tensor c"tensor", Row c"row", Host c"host", } "row: one scale per row of a and of b; host: one for the product, host_scale";
    may 6 float host_scale "granularity=host: scale of a times scale of b, as f32";
    may 7 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 8 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 9 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 10 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 11 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 12 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 13 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 14 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 15 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 16 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2]`; exactly when `out_format != none`";
    may 17 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns. `none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))]`; exactly when `out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 18 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Fp8Block c"fp8_block", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)";
    may 19 flag keep_out "give out beside its codes";
    may 20 int out_hadamard "elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 21 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 22 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    scaled_mm_nvfp4 "Product of two NVFP4 matrices with all their scales, f32 accumulation and an epilogue. Source: docs/formats/nvfp4.md, docs/formats/swizzle.md" 16
    must 0 read a "left rows, two E2M1 codes a byte. `u8` of `[*M, K/2]`";
    must 1 read b "right rows, one per output column, two E2M1 codes a byte. `u8` of `[N, K/2]`";
    must 2 read scale_a "decode scale of each 16 columns of a. `e4m3` of `[swizzled: round_up(M,128), round_up(cdiv(K,16),4); plain: *M, cdiv(K,16)]`";
    must 3 read scale_b "decode scale of each 16 columns of b. `e4m3` of `[swizzled: round_up(N,128), round_up(cdiv(K,16),4); plain: N, cdiv(K,16)]`";
    must 4 read global_scale_a "decode scale of the whole of a. `f32` of `[1]`";
    must 5 read global_scale_b "decode scale of the whole of b. `f32` of `[1]`";
    must 6 out out "epilogue(a_decoded @ b_decoded^T). `bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 7 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 8 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 9 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 10 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 11 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 12 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 13 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 14 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 15 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
}

op! {
    scaled_mm_mxfp8 "Product of two MXFP8 matrices with their scales, f32 accumulation and an epilogue. Source: docs/formats/mx.md, docs/formats/swizzle.md" 13
    must 0 read a "left codes. `e4m3|e5m2` of `[*M, K]`";
    must 1 read b "right codes, one row per output column (a weight). `e4m3|e5m2` of `[N, K]`";
    must 2 read scale_a "decode scale of each 32 columns of a. `e8m0` of `[swizzled: round_up(M,128), round_up(cdiv(K,32),4); plain: *M, cdiv(K,32)]`";
    must 3 read scale_b "decode scale of each 32 columns of b. `e8m0` of `[swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)]`";
    must 4 out out "epilogue(a_decoded @ b_decoded^T). `bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 5 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 6 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 7 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 8 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 9 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 10 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 11 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 12 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
}

op! {
    scaled_mm_mxfp4 "Product of an MXFP8 or MXFP4 matrix and an MXFP4 weight with their scales, f32 accumulation and an epilogue. Source: docs/formats/mx.md, docs/formats/swizzle.md" 15
    must 0 read a "left codes; MXFP4 has two a byte. `mxfp8: e4m3|e5m2; mxfp4: u8` of `[mxfp8: *M, K; mxfp4: *M, K/2]`";
    must 1 read b "right codes, two a byte, one row per output column (a weight). `u8` of `[N, K/2]`";
    must 2 read scale_a "decode scale of each 32 columns of a. `e8m0` of `[swizzled: round_up(M,128), round_up(cdiv(K,32),4); plain: *M, cdiv(K,32)]`";
    must 3 read scale_b "decode scale of each 32 columns of b. `e8m0` of `[swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)]`";
    must 4 out out "epilogue(a_decoded @ b_decoded^T). `bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 5 choice a_format AFormat { Mxfp8 c"mxfp8", Mxfp4 c"mxfp4", } "format of a; b is MXFP4";
    may 6 choice nibbles Nibbles { LowFirst c"low_first", HighFirst c"high_first", } "which nibble of a byte holds the even element";
    may 7 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 8 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 9 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 10 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 11 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 12 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 13 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 14 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
}

op! {
    linear_fp8 "Linear layer with an FP8 weight: epilogue(x @ W^T). Source: docs/formats/fp8.md" 27
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "codes, one row per output column. `e4m3|e5m2` of `[N, K]`";
    must 2 read scale "decode scale: a code stands for code * scale. `f32` of `[tensor: 1; row: N, 1; column: 1, K; block_1x128: N, cdiv(K,128);block_128x128: cdiv(N,128), cdiv(K,128)]`";
    may 3 out out "epilogue(x @ W^T), W the decoded weight. `none: =x|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`; exactly when `out_format == none || keep_out`";
    may 4 choice granularity Granularity { Tensor c"tensor", Row c"row", Column c"column", Block1x128 c"block_1x128", Block128x128 c"block_128x128", } "which elements of the weight share a scale";
    may 5 choice activations Activations { Float c"float", Row c"row", } "row: x becomes codes of the weight's dtype with a scale a row";
    may 6 choice accumulation Accumulation { Accurate c"accurate", Fast c"fast", } "activations=row: what sums along K may lose, as scaled_mm_fp8's";
    may 7 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 8 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 9 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 10 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 11 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 12 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 13 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 14 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 15 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 16 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 17 float eps "added to the mean square, input_act=rms_norm";
    may 18 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 19 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 20 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2]`; exactly when `out_format != none`";
    may 21 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns. `none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))]`; exactly when `out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 22 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Fp8Block c"fp8_block", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)";
    may 23 flag keep_out "give out beside its codes";
    may 24 int out_hadamard "elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 25 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 26 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    linear_nvfp4 "Linear layer with an NVFP4 weight: epilogue(x @ W^T). Source: docs/formats/nvfp4.md, docs/formats/swizzle.md" 18
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "one row per output column, two E2M1 codes a byte. `u8` of `[N, K/2]`";
    must 2 read scale "decode scale of each 16 columns, in units of the global scale. `e4m3` of `[swizzled: round_up(N,128), round_up(cdiv(K,16),4); plain: N, cdiv(K,16)]`";
    must 3 read global_scale "decode scale of the whole weight. `f32` of `[1]`";
    must 4 out out "epilogue(x @ W^T), W the decoded weight. `=x|bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 5 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 6 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 7 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 8 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 9 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 10 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 11 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 12 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 13 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 14 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 15 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 16 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 17 float eps "added to the mean square, input_act=rms_norm";
}

op! {
    linear_mxfp8 "Linear layer with an MXFP8 weight: epilogue(x @ W^T). Source: docs/formats/mx.md, docs/formats/swizzle.md" 16
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "codes, one row per output column. `e4m3|e5m2` of `[N, K]`";
    must 2 read scale "decode scale of each 32 columns, a power of two. `e8m0` of `[swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)]`";
    must 3 out out "epilogue(x @ W^T), W the decoded weight. `=x|bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 4 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 5 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 6 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 7 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 8 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 9 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 10 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 11 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 12 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 13 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 14 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 15 float eps "added to the mean square, input_act=rms_norm";
}

op! {
    linear_mxfp4 "Linear layer with an MXFP4 weight: epilogue(x @ W^T). Source: docs/formats/mx.md, docs/formats/swizzle.md" 17
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "one row per output column, two E2M1 codes a byte. `u8` of `[N, K/2]`";
    must 2 read scale "decode scale of each 32 columns, a power of two. `e8m0` of `[swizzled: round_up(N,128), round_up(cdiv(K,32),4); plain: N, cdiv(K,32)]`";
    must 3 out out "epilogue(x @ W^T), W the decoded weight. `=x|bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 4 choice nibbles Nibbles { LowFirst c"low_first", HighFirst c"high_first", } "which nibble of a byte holds the even element";
    may 5 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 6 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 7 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 8 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 9 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 10 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 11 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 12 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 13 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 14 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 15 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 16 float eps "added to the mean square, input_act=rms_norm";
}

op! {
    linear_int8 "Linear layer with an INT8 weight, rotated or not: epilogue(x @ W^T). Source: docs/formats/int8.md, docs/formats/hadamard.md" 28
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "codes, one row per output column. `i8` of `[N, K]`";
    must 2 read scale "decode scale: a code stands for code * scale. `f32` of `[tensor: 1; row: N, 1; group: N, cdiv(K,group_size)]`";
    may 3 out out "epilogue(x @ W^T), W the decoded weight. `none: =x|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`; exactly when `out_format == none || keep_out`";
    may 4 choice granularity Granularity { Tensor c"tensor", Row c"row", Group c"group", } "which elements of the weight share a scale";
    may 5 int group_size "columns that share a scale, granularity=group";
    may 6 int hadamard "the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither";
    may 7 choice activations Activations { Float c"float", Row c"row", } "row: x, rotated if the weight is, becomes INT8 codes with a scale a row, and the product is one of integers";
    may 8 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 9 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 10 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 11 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 12 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 13 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 14 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 15 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 16 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 17 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 18 float eps "added to the mean square, input_act=rms_norm";
    may 19 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 20 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 21 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, if(gated == none, N, N/2); nvfp4: *M, if(gated == none, N, N/2)/2]`; exactly when `out_format != none`";
    may 22 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of out's columns. `none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))]`; exactly when `out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 23 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Fp8Block c"fp8_block", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)";
    may 24 flag keep_out "give out beside its codes";
    may 25 int out_hadamard "elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 26 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 27 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    linear_int4 "Linear layer with an INT4 weight in groups, rotated or not: epilogue(x @ W^T). Source: docs/formats/int4.md, docs/formats/hadamard.md" 20
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "codes, two a byte: the even column in the low nibble. `u8` of `[N, K/2]`";
    must 2 read scale "decode scale of each group. `f32` of `[N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`";
    must 4 out out "epilogue(x @ W^T), W the decoded weight. `=x|bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 3 read zero "zero point of each group. `u8` of `[N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `mode == asymmetric`";
    may 5 int group_size "columns that share a scale; 0: the whole row";
    may 6 choice mode Mode { Symmetric c"symmetric", Asymmetric c"asymmetric", } "symmetric: two's complement codes; asymmetric: codes 0..15 and zero";
    may 7 int hadamard "the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither";
    may 8 choice decoded Decoded { Exact c"exact", AsX c"as_x", } "exact: the weight's values as f32 has them; as_x: they may be rounded to x's dtype, as dequantize_int4 rounds, an error of 2^-8 of each term at most";
    may 9 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 10 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 11 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 12 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 13 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 14 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 15 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 16 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 17 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 18 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 19 float eps "added to the mean square, input_act=rms_norm";
}

op! {
    linear_w4a8 "Linear layer with a W4A8 weight (codebook indices that decode to int8): epilogue(x @ W^T). Source: docs/formats/w4a8.md, docs/formats/hadamard.md" 18
    must 0 read x "activations; gated ones hold both factors side by side. `bf16|f16|f32` of `[none|silu|gelu|gelu_tanh|rms_norm: *M, K; swiglu|geglu|geglu_tanh: *M, 2*K]`";
    must 1 read weight "indices into the codebook, two a byte: the even column low. `u8` of `[N, K/2]`";
    must 2 read scale_rel "scale of 16 columns, relative to the row's. `e4m3` of `[N, K/16]`";
    must 3 read scale_channel "scale of the row. `f32` of `[N]`";
    must 5 out out "epilogue(x @ W^T), W the decoded weight. `=x|bf16|f16|f32` of `[*M, if(gated == none, N, N/2)]`";
    may 4 read codebook "values of the indices; the fixed table when absent. `f32` of `[16]`";
    may 6 int hadamard "the weight was rotated in groups of this many columns, so x is too, in f32; 0: neither";
    may 7 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 8 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 9 read residual "added at the end. `f32|bf16|f16` of `[*M, if(gated == none, N, N/2)]`";
    may 10 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 11 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 12 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 13 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 14 read norm_weight "multiplies the normalised row, input_act=rms_norm. `f32|bf16|f16` of `[K]`";
    may 15 choice input_act InputAct { None c"none", Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", Swiglu c"swiglu", Geglu c"geglu", GegluTanh c"geglu_tanh", RmsNorm c"rms_norm", } "done to x first, rounded to x's dtype: what activation, gated_activation (swiglu: silu; geglu: gelu) or rms_norm gives";
    may 16 choice input_layout InputLayout { ActFirst c"act_first", ActLast c"act_last", } "swiglu, geglu: the half of x that the activation takes; the other half multiplies it";
    may 17 float eps "added to the mean square, input_act=rms_norm";
}

op! {
    gemv_nvfp4 "Batched products of an NVFP4 matrix with an NVFP4 vector, f32 accumulation. Source: docs/formats/nvfp4.md, docs/formats/swizzle.md; the nvfp4_gemv problem of gpu-mode (low nibble first, no global scale)" 8
    must 0 read a "a matrix for each of L batches, two E2M1 codes a byte. `u8` of `[L, M, K/2]`";
    must 1 read b "a vector for each batch: the first of P rows, the others are padding and not read. `u8` of `[L, P, K/2]`";
    must 2 read scale_a "decode scale of each 16 columns of a. `e4m3` of `[swizzled: L, round_up(M,128), round_up(cdiv(K,16),4); plain: L, M, cdiv(K,16)]`";
    must 3 read scale_b "decode scale of each 16 columns of b. `e4m3` of `[swizzled: L, round_up(P,128), round_up(cdiv(K,16),4); plain: L, P, cdiv(K,16)]`";
    must 5 out out "alpha * a_decoded @ b_decoded. `f16|bf16|f32` of `[L, M]`";
    may 4 read alpha "factor on the product: both global scales; 1 when absent. `f32` of `[1]`";
    may 6 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 7 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    prepare_weight "Moves a weight's codes to the layout that tensor cores read, of the same size, or back. Source: docs/formats/prepared.md" 4
    must 0 read weight "codes of a weight, W bytes a row: u8 holds two of 4 bits a byte, others one of 8 bits. `u8|i8|e4m3|e5m2` of `[N, W]`";
    must 1 out out "the same codes in the other layout. `=weight` of `[N, W]`";
    may 2 choice direction Direction { Prepare c"prepare", Restore c"restore", } "prepare: from the layout of files to the prepared one; restore: back";
    may 3 choice nibbles Nibbles { LowFirst c"low_first", HighFirst c"high_first", } "u8: which nibble of a byte holds the even column in the layout of files";
}

op! {
    apply_rope "Rotary position embedding of one tensor, or of queries and keys together; or back. Source: y0 = f00*x0 + f01*x1, y1 = f10*x0 + f11*x1 over pairs; f32, one rounding to x's dtype" 10
    must 0 read x "queries, keys or any heads: BHSD, or BSHD. `bf16|f16|f32` of `[B, H, S, D]`";
    must 5 out out "rotated x; what rot_dim leaves is copied. `=x` of `[B, H, S, D]`";
    may 1 read freqs "rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1. `f32|bf16|f16` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2]`; exactly when `!has(cos)`";
    may 2 read x2 "a second tensor for the same freqs, e.g. keys. `bf16|f16|f32` of `[B2, H2, S2, D]`";
    may 3 read cos "cosines, one a pair, in place of freqs; dimensions as those of freqs. `f32|bf16|f16` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2]`";
    may 4 read sin "sines, one a pair, with cos. `=cos` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2]`; exactly when `has(cos)`";
    may 6 out out2 "rotated x2. `=x2` of `[B2, H2, S2, D]`; exactly when `has(x2)`";
    may 7 choice pairs Pairs { Interleaved c"interleaved", SplitHalf c"split_half", } "rotate (2i, 2i+1), or (i, i + rot_dim/2)";
    may 8 int rot_dim "elements of a head that are rotated, the first ones; 0: all of them";
    may 9 flag inverse "rotate back: by the transposed rotations, as the gradient is";
}

op! {
    rms_rope "RMS norm of every head, then rotary position embedding; one tensor or two. Source: u = (x * r) * weight, r = 1/sqrt(mean(x^2) + eps); pairs of u rotate as in apply_rope; f32 up to one rounding to x's dtype" 12
    must 0 read x "queries, keys or any heads: BHSD, or BSHD. `bf16|f16|f32` of `[B, H, S, D]`";
    must 1 read weight "what normalised elements are multiplied by. `bf16|f16|f32` of `[D]`";
    must 7 out out "rotated; what rot_dim leaves is only normalised. `=x` of `[B, H, S, D]`";
    may 2 read freqs "rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1. `f32|bf16|f16` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2]`; exactly when `!has(cos)`";
    may 3 read x2 "a second tensor for the same freqs, e.g. keys. `=x` of `[B2, H2, S2, D]`";
    may 4 read weight2 "x2's weight; left out, weight serves both. `=weight` of `[D]`";
    may 5 read cos "cosines, one a pair, in place of freqs; dimensions as those of freqs. `f32|bf16|f16` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2]`";
    may 6 read sin "sines, one a pair, with cos. `=cos` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2]`; exactly when `has(cos)`";
    may 8 out out2 "the same of x2. `=x` of `[B2, H2, S2, D]`; exactly when `has(x2)`";
    may 9 float eps "added to the mean of a head's squares";
    may 10 choice pairs Pairs { Interleaved c"interleaved", SplitHalf c"split_half", } "rotate (2i, 2i+1), or (i, i + rot_dim/2)";
    may 11 int rot_dim "elements of a head that are rotated, the first ones; 0: all of them";
}

op! {
    rms_rope_backward "Gradients of rms_rope to its tensors and weights. Source: u' = rotations^T d_out; d_weight = sum(u' * n), n = x * r; d_x = r * (u'*weight - n * mean(u'*weight*n)); f32" 16
    must 0 read d_out "gradient of rms_rope's out. `bf16|f16|f32` of `[B, H, S, D]`";
    must 1 read x "rms_rope's x. `=d_out` of `[B, H, S, D]`";
    must 2 read weight "rms_rope's weight. `bf16|f16|f32` of `[D]`";
    must 9 out d_x "gradient of x. `=d_out` of `[B, H, S, D]`";
    must 10 out d_weight "gradient of weight, summed over all heads and positions. `=weight` of `[D]`";
    may 3 read freqs "rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1. `f32|bf16|f16` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2]`; exactly when `!has(cos)`";
    may 4 read d_out2 "gradient of out2. `=d_out` of `[B2, H2, S2, D]`; exactly when `has(x2)`";
    may 5 read x2 "rms_rope's x2. `=d_out` of `[B2, H2, S2, D]`";
    may 6 read weight2 "rms_rope's weight2. `=weight` of `[D]`";
    may 7 read cos "cosines, one a pair, in place of freqs; dimensions as those of freqs. `f32|bf16|f16` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2]`";
    may 8 read sin "sines, one a pair, with cos. `=cos` of `[FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2]`; exactly when `has(cos)`";
    may 11 out d_x2 "gradient of x2. `=d_out` of `[B2, H2, S2, D]`; exactly when `has(x2)`";
    may 12 out d_weight2 "gradient of weight2. `=weight` of `[D]`; exactly when `has(weight2)`";
    may 13 float eps "added to the mean of a head's squares";
    may 14 choice pairs Pairs { Interleaved c"interleaved", SplitHalf c"split_half", } "rotate (2i, 2i+1), or (i, i + rot_dim/2)";
    may 15 int rot_dim "elements of a head that are rotated, the first ones; 0: all of them";
}

op! {
    quantize_nvfp4 "Quantises to NVFP4: E2M1 codes, an E4M3 scale per 16 elements, one global scale. Source: docs/formats/nvfp4.md, docs/formats/swizzle.md" 10
    must 0 read x "values to quantise, blocks of 16 along K. `bf16|f16|f32` of `[M, K]`";
    must 2 out q "E2M1 codes, two a byte. `u8` of `[if(pad, round_up(M,16), M), if(pad, round_up(K,16), K)/2]`";
    must 3 out scale_out "decode scale of each block, in units of the global scale. `e4m3` of `[swizzled: round_up(M,128), round_up(cdiv(K,16),4);plain: if(pad, round_up(M,16), M), cdiv(K,16)]`";
    may 1 read global_scale "decode scale of the whole tensor. `f32` of `[1]`";
    may 4 out global_scale_out "the global scale computed here, amax / 2688. `f32` of `[1]`; exactly when `!has(global_scale)`";
    may 5 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 6 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 7 flag pad "pad rows and columns with zeros to multiples of 16";
    may 8 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q";
    may 9 int seed "Philox seed of stochastic rounding";
}

op! {
    dequantize_nvfp4 "NVFP4 back to floating point: code * (scale * global_scale). Source: docs/formats/nvfp4.md, docs/formats/swizzle.md" 6
    must 0 read q "E2M1 codes, two a byte. `u8` of `[M, K/2]`";
    must 1 read scale "decode scale of each block of 16, E4M3 codes also when they come as bytes. `e4m3|u8` of `[swizzled: round_up(M,128), round_up(K/16,4); plain: M, K/16]`";
    must 2 read global_scale "decode scale of the whole tensor. `f32` of `[1]`";
    must 3 out out "code * (scale * global_scale), rounded once. `bf16|f16|f32` of `[M, K]`";
    may 4 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 5 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    quantize_mxfp8 "Quantises to MXFP8: E4M3 or E5M2 codes and an E8M0 scale per 32 elements. Source: docs/formats/mx.md, docs/formats/swizzle.md" 7
    must 0 read x "values to quantise, blocks of 32 along K. `bf16|f16|f32` of `[M, K]`";
    must 1 out q "E4M3 or E5M2 codes. `e4m3|e5m2` of `[if(pad, round_up(M,32), M), if(pad, round_up(K,32), K)]`";
    must 2 out scale_out "decode scale of each block, the power of two rounded up so that nothing saturates. `e8m0` of `[swizzled: round_up(M,128), round_up(cdiv(K,32),4);plain: if(pad, round_up(M,32), M), cdiv(K,32)]`";
    may 3 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 4 flag pad "pad rows and columns with zeros to multiples of 32";
    may 5 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q";
    may 6 int seed "Philox seed of stochastic rounding";
}

op! {
    dequantize_mxfp8 "MXFP8 back to floating point: code * 2^(scale - 127). Source: docs/formats/mx.md, docs/formats/swizzle.md" 4
    must 0 read q "E4M3 or E5M2 codes. `e4m3|e5m2` of `[M, K]`";
    must 1 read scale "decode scale of each block of 32, E8M0 codes also when they come as bytes. `e8m0|u8` of `[swizzled: round_up(M,128), round_up(K/32,4); plain: M, K/32]`";
    must 2 out out "code * 2^(scale - 127), rounded once. `bf16|f16|f32` of `[M, K]`";
    may 3 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    quantize_mxfp4 "Quantises to MXFP4: E2M1 codes and an E8M0 scale per 32 elements. Source: docs/formats/mx.md, docs/formats/swizzle.md" 8
    must 0 read x "values to quantise, blocks of 32 along K. `bf16|f16|f32` of `[M, K]`";
    must 1 out q "E2M1 codes, two a byte. `u8` of `[if(pad, round_up(M,32), M), if(pad, round_up(K,32), K)/2]`";
    must 2 out scale_out "decode scale of each block, the power of two rounded up so that nothing saturates. `e8m0` of `[swizzled: round_up(M,128), round_up(cdiv(K,32),4);plain: if(pad, round_up(M,32), M), cdiv(K,32)]`";
    may 3 choice nibbles Nibbles { LowFirst c"low_first", HighFirst c"high_first", } "which nibble of a byte holds the even element";
    may 4 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
    may 5 flag pad "pad rows and columns with zeros to multiples of 32";
    may 6 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits of the element's row-major index in q";
    may 7 int seed "Philox seed of stochastic rounding";
}

op! {
    dequantize_mxfp4 "MXFP4 back to floating point: code * 2^(scale - 127). Source: docs/formats/mx.md, docs/formats/swizzle.md" 5
    must 0 read q "E2M1 codes, two a byte. `u8` of `[M, K/2]`";
    must 1 read scale "decode scale of each block of 32, E8M0 codes also when they come as bytes. `e8m0|u8` of `[swizzled: round_up(M,128), round_up(K/32,4); plain: M, K/32]`";
    must 2 out out "code * 2^(scale - 127), rounded once. `bf16|f16|f32` of `[M, K]`";
    may 3 choice nibbles Nibbles { LowFirst c"low_first", HighFirst c"high_first", } "which nibble of a byte holds the even element";
    may 4 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    copy_transpose "Copies matrices into their transposes. Source: out[..., n, m] = x[..., m, n], bit for bit" 3
    must 0 read x "matrices, one or a batch. `bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32` of `[*B, M, N]`";
    must 1 out out "their transposes, in memory of their own. `=x` of `[*B, N, M]`";
    may 2 int tile_size "16 or 32: a hint that other libraries take; neither result nor speed depend on it";
}

op! {
    copy "Copies a tensor: any strides on both sides, with or without a change of dtype. Source: ops/copy/copy/copy.md" 2
    must 0 read x "what is copied: any strides, so also a permuted view. `bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32|i64|bool` of `[*M]`";
    must 1 out out "the copy: any strides; of another dtype, each element rounded once. `=x|bf16|f16|f32|e4m3|e5m2|u8|i8|i16|i32|i64|bool` of `[*M]`";
}

op! {
    stochastic_cast "Rounds f32 to bf16 stochastically, by a seed. Source: ops/copy/stochastic_cast/stochastic_cast.md" 3
    must 0 read x "values to round. `f32` of `[*M]`";
    must 1 out out "rounded up in magnitude with the probability of what is cut off. `bf16` of `[*M]`";
    may 2 int seed "Philox seed; element i in row-major order uses 16 bits of block i / 8";
}

op! {
    reduce "Reduces a tensor over any set of its dimensions. Source: ops/reduce/reduce/reduce.md" 6
    must 0 read x "any values. `bf16|f16|f32` of `[*M]`";
    must 1 out out "one value for each set. `as_x: =x; f32: f32` of `[reduced(*M, dims, keepdim)]`";
    may 2 choice op Op { Sum c"sum", Mean c"mean", Amax c"amax", Amin c"amin", Max c"max", Min c"min", Prod c"prod", Norm c"norm", Logsumexp c"logsumexp", } "what is made of the elements; max and min are amax and amin, norm is the Euclidean one";
    may 3 int dims "the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them";
    may 4 flag keepdim "reduced dimensions stay, with size 1";
    may 5 choice out_type OutType { AsX c"as_x", F32 c"f32", } "dtype of out: x's, or f32";
}

op! {
    reduce_backward "Gradient of reduce. Source: ops/reduce/reduce_backward/reduce_backward.md" 7
    must 0 read d_out "gradient of what reduce gave. `bf16|f16|f32` of `[reduced(*M, dims, keepdim)]`";
    must 1 read x "what was reduced. `bf16|f16|f32` of `[*M]`";
    must 2 read y "what reduce gave; norm and logsumexp use it. `bf16|f16|f32` of `[reduced(*M, dims, keepdim)]`";
    must 3 out d_x "gradient of x. `=x` of `[*M]`";
    may 4 choice op Op { Sum c"sum", Mean c"mean", Amax c"amax", Amin c"amin", Max c"max", Min c"min", Prod c"prod", Norm c"norm", Logsumexp c"logsumexp", } "as given to reduce";
    may 5 int dims "as given to reduce: a bit for each reduced dimension; -1: all";
    may 6 flag keepdim "as given to reduce";
}

op! {
    argmax "Place of the largest element over any set of dimensions. Source: ops/reduce/argmax/argmax.md" 4
    must 0 read x "any values; NaN counts as the largest. `bf16|f16|f32` of `[*M]`";
    must 1 out out "place of the largest among the reduced elements, in row-major order; the first of equal ones; -1 of none. `i64` of `[reduced(*M, dims, keepdim)]`";
    may 2 int dims "the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them";
    may 3 flag keepdim "reduced dimensions stay, with size 1";
}

op! {
    argmin "Place of the smallest element over any set of dimensions. Source: ops/reduce/argmin/argmin.md" 4
    must 0 read x "any values; NaN counts as the smallest. `bf16|f16|f32` of `[*M]`";
    must 1 out out "place of the smallest among the reduced elements, in row-major order; the first of equal ones; -1 of none. `i64` of `[reduced(*M, dims, keepdim)]`";
    may 2 int dims "the dimensions to reduce, a bit for each: bit 0 is x's first; -1 is all of them";
    may 3 flag keepdim "reduced dimensions stay, with size 1";
}

op! {
    swizzle_scales "Block scales from row-major order to the 128 x 4 tile order that cuBLAS reads. Source: docs/formats/swizzle.md" 2
    must 0 read scale "block scales in row-major order. `e4m3|e8m0|u8` of `[M, C]`";
    must 1 out out "the scales in 128 x 4 tiles; padding entries are 0. `=scale` of `[round_up(M,128), round_up(C,4)]`";
}

op! {
    unswizzle_scales "Block scales from the 128 x 4 tile order of cuBLAS back to row-major order. Source: docs/formats/swizzle.md" 4
    must 0 read scale "block scales in 128 x 4 tiles. `e4m3|e8m0|u8` of `[round_up(rows,128), round_up(columns,4)]`";
    must 1 out out "the scales in row-major order, padding dropped. `=scale` of `[rows, columns]`";
    may 2 int rows "rows of the matrix of scales";
    may 3 int columns "scales in a row, K / block size";
}

op! {
    swap_nibbles "Exchanges the nibbles of every byte: high-first packing to low-first and back. Source: docs/formats/nvfp4.md" 2
    must 0 read q "bytes of two 4-bit codes. `u8` of `[*M, K]`";
    must 1 out out "the same with the nibbles of each byte exchanged. `u8` of `[*M, K]`";
}

op! {
    quantize_int4 "Quantises rows to INT4 with a decode scale (and a zero point) per group of columns. Source: docs/formats/int4.md" 9
    must 0 read x "values to quantise, one row per output of a linear. `bf16|f16|f32` of `[N, K]`";
    must 1 out q "codes, two a byte: the even column in the low nibble. `u8` of `[N, K/2]`";
    must 2 out scale_out "decode scale of each group. `f32` of `[N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`";
    may 3 out zero_out "zero point of each group, 0..15. `u8` of `[N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `mode == asymmetric`";
    may 4 int group_size "columns that share a scale; 0: the whole row";
    may 5 choice mode Mode { Symmetric c"symmetric", Asymmetric c"asymmetric", } "symmetric: two's complement codes times scale; asymmetric: (code - zero) * scale";
    may 6 int hadamard "rotate groups of this many columns first; 0: no rotation";
    may 7 choice rounding Rounding { Nearest c"nearest", Stochastic c"stochastic", } "nearest: ties to even; stochastic: by Philox bits";
    may 8 int seed "Philox seed of stochastic rounding";
}

op! {
    dequantize_int4 "Turns INT4 codes with a scale (and a zero point) per group of columns into values. Source: docs/formats/int4.md" 7
    must 0 read q "codes, two a byte: the even column in the low nibble. `u8` of `[N, K/2]`";
    must 1 read scale "decode scale of each group. `f32` of `[N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`";
    must 3 out out "code * scale, or (code - zero) * scale, rotated back. `bf16|f16|f32` of `[N, K]`";
    may 2 read zero "zero point of each group. `u8` of `[N, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `mode == asymmetric`";
    may 4 int group_size "columns that share a scale; 0: the whole row";
    may 5 choice mode Mode { Symmetric c"symmetric", Asymmetric c"asymmetric", } "symmetric: two's complement codes; asymmetric: codes 0..15 and zero";
    may 6 int hadamard "columns were rotated in groups of this many; 0: no rotation";
}

op! {
    repack_int4 "Rewrites INT4 codes from one packing to another; zero points go by repack_zeros. Source: docs/formats/packing.md" 4
    must 0 read q "codes of an N x K weight. `plain|plain_unsigned: u8; kaio: u32; gptq|awq: i32` of `[plain|plain_unsigned: N, K/2; kaio: N, K/8; gptq: K/8, N; awq: K, N/8]`";
    must 1 out out "the same codes in the other packing. `plain|plain_unsigned: u8; kaio: u32; gptq|awq: i32` of `[plain|plain_unsigned: N, K/2; kaio: N, K/8; gptq: K/8, N; awq: K, N/8]`";
    may 2 choice from_packing FromPacking { Plain c"plain", PlainUnsigned c"plain_unsigned", Kaio c"kaio", Gptq c"gptq", Awq c"awq", } "plain: u8, even column low, two's complement; plain_unsigned: the same places, codes 0..15; kaio: u32 along K, two's complement; gptq: i32 along K, transposed, 0..15; awq: i32 along N in the order 0 2 4 6 1 3 5 7, transposed, 0..15";
    may 3 choice to_packing ToPacking { Plain c"plain", PlainUnsigned c"plain_unsigned", Kaio c"kaio", Gptq c"gptq", Awq c"awq", } "from signed to unsigned codes every code moves up by 8, which is then the zero point";
}

op! {
    repack_zeros "Rewrites the zero points that belong to INT4 codes from one packing to another. Source: docs/formats/packing.md" 4
    must 0 read zero "zero points, 0..15, of N rows of G groups. `plain: u8; gptq|gptq_v2|awq: i32` of `[plain: N, G; gptq|gptq_v2|awq: G, N/8]`";
    must 1 out zero_out "the same zero points in the other packing. `plain: u8; gptq|gptq_v2|awq: i32` of `[plain: N, G; gptq|gptq_v2|awq: G, N/8]`";
    may 2 choice from_packing FromPacking { Plain c"plain", Gptq c"gptq", GptqV2 c"gptq_v2", Awq c"awq", } "plain: a byte each; gptq: zero - 1, eight a word, transposed; gptq_v2: the same without the -1; awq: words in the order 0 2 4 6 1 3 5 7";
    may 3 choice to_packing ToPacking { Plain c"plain", Gptq c"gptq", GptqV2 c"gptq_v2", Awq c"awq", } "likewise; only the low four bits of a zero point are kept";
}

op! {
    quantize_w4a8 "Quantises a rotated weight to codebook indices with a scale per 16 columns and row. Source: docs/formats/w4a8.md" 6
    must 0 read x "weight to quantise, one row per output of the linear. `bf16|f16|f32` of `[N, K]`";
    must 2 out q "indices into the codebook, two a byte: the even column low. `u8` of `[N, K/2]`";
    must 3 out scale_rel "scale of 16 columns, relative to the row's. `e4m3` of `[N, K/16]`";
    must 4 out scale_channel "scale of the row: values decode to int8 times this. `f32` of `[N]`";
    may 1 read codebook "ascending values; the fixed table of the format when absent. `f32` of `[16]`";
    may 5 int hadamard "rotate groups of this many columns first; 0: no rotation";
}

op! {
    dequantize_w4a8 "Turns codebook indices with a scale per 16 columns and row into values. Source: docs/formats/w4a8.md" 6
    must 0 read q "indices into the codebook, two a byte: the even column low. `u8` of `[N, K/2]`";
    must 1 read scale_rel "scale of 16 columns, relative to the row's. `e4m3` of `[N, K/16]`";
    must 2 read scale_channel "scale of the row. `f32` of `[N]`";
    must 4 out out "int8(codebook[q] * scale_rel) * scale_channel, rotated back. `bf16|f16|f32` of `[N, K]`";
    may 3 read codebook "values of the indices; the fixed table when absent. `f32` of `[16]`";
    may 5 int hadamard "columns were rotated in groups of this many; 0: no rotation";
}

op! {
    dequantize_gguf "Turns GGUF blocks Q8_0, Q4_0, Q4_K and Q6_K into values. Source: docs/formats/gguf.md" 3
    must 0 read q "rows of whole blocks, as the bytes lie in the file. `u8` of `[N, B]`";
    must 1 out out "the values: what llama.cpp computes in f32, rounded once. `bf16|f16|f32` of `[q8_0: N, B/34*32; q4_0: N, B/18*32; q4_k: N, B/144*256; q6_k: N, B/210*256]`";
    may 2 choice type_ Type { Q80 c"q8_0", Q40 c"q4_0", Q4K c"q4_k", Q6K c"q6_k", } "which blocks";
}

op! {
    softmax "Softmax along one dimension, with scale and additive mask (softmax_online). Source: out = exp(t - max t) / sum of exp(t - max t), t = scale * x + mask; f32, one rounding to x's dtype" 5
    must 0 read x "logits of any shape. `bf16|f16|f32` of `[*S]`";
    must 2 out out "probabilities along dim; NaN where all of a row is -inf. `=x` of `[*S]`";
    may 1 read mask "added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1. `f32|bf16|f16` of `[*B]`";
    may 3 int dim "the dimension whose elements add up to 1";
    may 4 float scale "what x is multiplied by first, e.g. 1 / temperature";
}

op! {
    softmax_backward "Gradient of softmax from its result. Source: d_x = scale * out * (d_out - sum of d_out * out along dim)" 5
    must 0 read d_out "gradient of softmax's result. `bf16|f16|f32` of `[*S]`";
    must 1 read out "softmax's result. `=d_out` of `[*S]`";
    must 2 out d_x "gradient of softmax's x. `=d_out` of `[*S]`";
    may 3 int dim "the dimension that softmax went along";
    may 4 float scale "what softmax multiplied x by";
}

op! {
    log_softmax "Logarithm of softmax along one dimension, with scale and additive mask. Source: out = (t - max t) - log(sum of exp(t - max t)), t = scale * x + mask; f32, one rounding to x's dtype" 5
    must 0 read x "logits of any shape. `bf16|f16|f32` of `[*S]`";
    must 2 out out "logarithms of the probabilities along dim. `=x` of `[*S]`";
    may 1 read mask "added to scale * x, e.g. 0 and -inf; each of its dimensions, counted from the last, is x's or 1. `f32|bf16|f16` of `[*B]`";
    may 3 int dim "the dimension whose probabilities add up to 1";
    may 4 float scale "what x is multiplied by first, e.g. 1 / temperature";
}

op! {
    log_softmax_backward "Gradient of log_softmax from its result. Source: d_x = scale * (d_out - exp(out) * sum of d_out along dim)" 5
    must 0 read d_out "gradient of log_softmax's result. `bf16|f16|f32` of `[*S]`";
    must 1 read out "log_softmax's result. `=d_out` of `[*S]`";
    must 2 out d_x "gradient of log_softmax's x. `=d_out` of `[*S]`";
    may 3 int dim "the dimension that log_softmax went along";
    may 4 float scale "what log_softmax multiplied x by";
}

op! {
    cross_entropy "Cross entropy of each row of logits with its target class, without averaging. Source: loss = lse - ((1 - label_smoothing) * logits[target] + label_smoothing * mean(logits)), lse = log(sum of exp(logits)); f32 beside the largest logit" 6
    must 0 read logits "M rows of N classes. `bf16|f16|f32` of `[*M, N]`";
    must 1 read target "the class of each row, or ignore_index. `i64|i32` of `[*M]`";
    must 2 out loss "-log of the target's probability; 0 for ignored rows, NaN for a target that is no class. `f32` of `[*M]`";
    must 3 out lse "log of the sum of exp(logits), kept for the backward op: f64, since f32 would lose of large logits what the gradient is made of. `f64` of `[*M]`";
    may 4 int ignore_index "target of rows that do not count";
    may 5 float label_smoothing "part of the target that all classes share evenly";
}

op! {
    cross_entropy_backward "Gradient of cross_entropy's logits from its lse. Source: d_logits = d_loss * (exp(logits - lse) - (1 - label_smoothing) * [class is the target] - label_smoothing / N); f32, logits - lse as if exact, one rounding to logits' dtype" 7
    must 0 read d_loss "gradient of each row's loss. `f32` of `[*M]`";
    must 1 read logits "cross_entropy's logits. `bf16|f16|f32` of `[*M, N]`";
    must 2 read target "the class of each row, or ignore_index. `i64|i32` of `[*M]`";
    must 3 read lse "cross_entropy's lse. `f64` of `[*M]`";
    must 4 out d_logits "gradient of logits; 0 in ignored rows, NaN in those with a target that is no class. `=logits` of `[*M, N]`";
    may 5 int ignore_index "target of rows that do not count";
    may 6 float label_smoothing "part of the target that all classes share evenly";
}

op! {
    rms_norm "Divides each row by the root of its mean square (plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised. Source: arXiv:1910.07467; ops/norm/rms_norm/rms_norm.md" 17
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    may 1 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 2 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 3 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 4 read bias "added after weight. `f32|bf16|f16` of `[K]`";
    may 5 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 6 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 7 out out "the normalised rows. `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 8 out residual_out "the sum that was normalised: residual + gate * x. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 9 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 10 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 11 float eps "added to the mean square";
    may 12 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 13 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 14 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 15 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 16 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    layer_norm "Subtracts each row's mean and divides by its standard deviation (variance plus eps), times weight, plus bias; the row may be a sum with a residual, the result quantised. Source: arXiv:1607.06450; ops/norm/layer_norm/layer_norm.md" 17
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    may 1 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 2 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 3 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 4 read bias "added after weight. `f32|bf16|f16` of `[K]`";
    may 5 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 6 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 7 out out "the normalised rows. `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 8 out residual_out "the sum that was normalised: residual + gate * x. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 9 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 10 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 11 float eps "added to the mean squared difference, the variance";
    may 12 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 13 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 14 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 15 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 16 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    adaln "Layer norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift. Source: arXiv:2212.09748; ops/norm/adaln/adaln.md" 18
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    must 4 read scale "modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    must 5 read shift "modulation: added at the end. `bf16|f16|f32` of `[*G, K]`";
    may 1 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 2 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 3 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 6 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 7 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 8 out out "the normalised rows. `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 9 out residual_out "the sum that was normalised: residual + gate * x. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 10 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 11 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 12 float eps "added to the mean squared difference, the variance";
    may 13 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 14 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 15 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 16 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 17 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    rms_adaln "RMS norm whose rows, or groups of rows, have a modulation of their own: norm * (1 + scale) + shift. Source: arXiv:2212.09748; ops/norm/rms_adaln/rms_adaln.md" 18
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    must 4 read scale "modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    must 5 read shift "modulation: added at the end. `bf16|f16|f32` of `[*G, K]`";
    may 1 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 2 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 3 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 6 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 7 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 8 out out "the normalised rows. `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 9 out residual_out "the sum that was normalised: residual + gate * x. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 10 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 11 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 12 float eps "added to the mean square";
    may 13 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 14 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 15 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 16 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 17 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    rms_norm_backward "Gradients of rms_norm: of x, residual, gate and all parameters, from x and the gradient of out. Source: ops/norm/rms_norm/rms_norm.md" 13
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    must 1 read d_out "gradient of out. `=x` of `[*M, K]`";
    must 7 out d_x "gradient of x. `=x` of `[*M, K]`";
    may 2 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 3 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 4 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 5 read bias "added after weight. `f32|bf16|f16` of `[K]`";
    may 6 read d_residual_out "gradient of residual_out. `=x` of `[*M, K]`";
    may 8 out d_residual "gradient of residual. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 9 out d_weight "gradient of weight. `=weight` of `[K]`; exactly when `has(weight)`";
    may 10 out d_gate "gradient of gate. `=gate` of `[*G, K]`; exactly when `has(gate)`";
    may 11 out d_bias "gradient of bias. `=bias` of `[K]`; exactly when `has(bias)`";
    may 12 float eps "as in the forward call";
}

op! {
    layer_norm_backward "Gradients of layer_norm: of x, residual, gate and all parameters, from x and the gradient of out. Source: ops/norm/layer_norm/layer_norm.md" 13
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    must 1 read d_out "gradient of out. `=x` of `[*M, K]`";
    must 7 out d_x "gradient of x. `=x` of `[*M, K]`";
    may 2 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 3 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 4 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 5 read bias "added after weight. `f32|bf16|f16` of `[K]`";
    may 6 read d_residual_out "gradient of residual_out. `=x` of `[*M, K]`";
    may 8 out d_residual "gradient of residual. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 9 out d_weight "gradient of weight. `=weight` of `[K]`; exactly when `has(weight)`";
    may 10 out d_gate "gradient of gate. `=gate` of `[*G, K]`; exactly when `has(gate)`";
    may 11 out d_bias "gradient of bias. `=bias` of `[K]`; exactly when `has(bias)`";
    may 12 float eps "as in the forward call";
}

op! {
    adaln_backward "Gradients of adaln: of x, residual, gate and all parameters, from x and the gradient of out. Source: ops/norm/adaln/adaln.md" 14
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    must 1 read d_out "gradient of out. `=x` of `[*M, K]`";
    must 5 read scale "modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    must 7 out d_x "gradient of x. `=x` of `[*M, K]`";
    must 11 out d_scale "gradient of scale. `=scale` of `[*G, K]`";
    must 12 out d_shift "gradient of shift. `=scale` of `[*G, K]`";
    may 2 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 3 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 4 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 6 read d_residual_out "gradient of residual_out. `=x` of `[*M, K]`";
    may 8 out d_residual "gradient of residual. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 9 out d_weight "gradient of weight. `=weight` of `[K]`; exactly when `has(weight)`";
    may 10 out d_gate "gradient of gate. `=gate` of `[*G, K]`; exactly when `has(gate)`";
    may 13 float eps "as in the forward call";
}

op! {
    rms_adaln_backward "Gradients of rms_adaln: of x, residual, gate and all parameters, from x and the gradient of out. Source: ops/norm/rms_adaln/rms_adaln.md" 14
    must 0 read x "rows to normalise. `bf16|f16|f32` of `[*M, K]`";
    must 1 read d_out "gradient of out. `=x` of `[*M, K]`";
    must 5 read scale "modulation: the norm is multiplied by 1 + scale; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    must 7 out d_x "gradient of x. `=x` of `[*M, K]`";
    must 11 out d_scale "gradient of scale. `=scale` of `[*G, K]`";
    must 12 out d_shift "gradient of shift. `=scale` of `[*G, K]`";
    may 2 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 3 read gate "multiplies x before the residual is added; M/G neighbouring rows share a row of it. `bf16|f16|f32` of `[*G, K]`";
    may 4 read weight "multiplies the normalised row. `f32|bf16|f16` of `[K]`";
    may 6 read d_residual_out "gradient of residual_out. `=x` of `[*M, K]`";
    may 8 out d_residual "gradient of residual. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 9 out d_weight "gradient of weight. `=weight` of `[K]`; exactly when `has(weight)`";
    may 10 out d_gate "gradient of gate. `=gate` of `[*G, K]`; exactly when `has(gate)`";
    may 13 float eps "as in the forward call";
}

op! {
    activation "SiLU (swish) or GELU, exact or by tanh, of every element. Source: silu = x / (1 + e^-x); gelu = x * Phi(x); gelu_tanh = x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2; f32, one rounding to x's dtype" 12
    must 0 read x "any values. `bf16|f16|f32` of `[*M, K]`";
    may 1 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 2 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 3 out out "act(x). `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 4 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 5 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 6 choice act Act { Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", } "x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation";
    may 7 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 8 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 9 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 10 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 11 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    activation_backward "Gradient of activation's x. Source: d_x = d_out * act'(x); f32, one rounding" 4
    must 0 read d_out "gradient of activation's result. `bf16|f16|f32` of `[*M, K]`";
    must 1 read x "activation's x. `=d_out` of `[*M, K]`";
    must 2 out d_x "gradient of x. `=d_out` of `[*M, K]`";
    may 3 choice act Act { Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", } "x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation";
}

op! {
    gated_activation "silu_mul, gelu_mul, swiglu, geglu: an activation times a gate, in two tensors or the halves of one. Source: out = act(x) * gate, act as in activation; f32, one rounding to x's dtype" 14
    must 0 read x "what act takes; or both factors side by side. `bf16|f16|f32` of `[pair: *M, K; act_first|act_last: *M, 2*K]`";
    may 1 read gate "the other factor. `=x` of `[*M, K]`; exactly when `layout == pair`";
    may 2 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 3 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 4 out out "act(x) * gate. `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 5 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 6 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 7 choice act Act { Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", } "x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation";
    may 8 choice layout Layout { Pair c"pair", ActFirst c"act_first", ActLast c"act_last", } "act(x) * gate; x holds both in its last dimension, the half that act takes first (swiglu) or last (geglu)";
    may 9 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 10 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 11 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 12 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 13 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    gated_activation_backward "Gradients of gated_activation (silu_mul, gelu_mul, swiglu, geglu). Source: d_x = (d_out * gate) * act'(x), d_gate = d_out * act(x); f32, one rounding" 7
    must 0 read d_out "gradient of gated_activation's result. `bf16|f16|f32` of `[*M, K]`";
    must 1 read x "gated_activation's x. `=d_out` of `[pair: *M, K; act_first|act_last: *M, 2*K]`";
    must 3 out d_x "gradient of x, of both halves where x holds both. `=d_out` of `[pair: *M, K; act_first|act_last: *M, 2*K]`";
    may 2 read gate "gated_activation's gate. `=d_out` of `[*M, K]`; exactly when `layout == pair`";
    may 4 out d_gate "gradient of gate. `=d_out` of `[*M, K]`; exactly when `layout == pair`";
    may 5 choice act Act { Silu c"silu", Gelu c"gelu", GeluTanh c"gelu_tanh", } "x * sigmoid(x) (also swish); x * Phi(x) by erf; gelu by its tanh approximation";
    may 6 choice layout Layout { Pair c"pair", ActFirst c"act_first", ActLast c"act_last", } "act(x) * gate; x holds both in its last dimension, the half that act takes first (swiglu) or last (geglu)";
}

op! {
    group_norm "Normalises groups of neighbouring channels of each sample to mean 0 and variance 1, then weight and bias a channel, modulation a sample and channel, and silu if asked; what is normalised may be a sum with a residual, the result quantised. Source: arXiv:1803.08494; ops/norm/group_norm/group_norm.md" 21
    must 0 read x "batch, channels, and any dimensions behind them. `bf16|f16|f32` of `[*M, K]`";
    may 1 read weight "multiplies each channel. `f32|bf16|f16` of `[C]`";
    may 2 read bias "added to each channel after weight. `f32|bf16|f16` of `[C]`";
    may 3 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 4 read gate "multiplies x before the residual is added; batch/G neighbouring samples share a row. `bf16|f16|f32` of `[G, C]`";
    may 5 read scale "modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it. `bf16|f16|f32` of `[G, C]`";
    may 6 read shift "modulation: added before the activation. `bf16|f16|f32` of `[G, C]`";
    may 7 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1]`";
    may 8 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 9 out out "the normalised groups. `=x` of `[*M, K]`; exactly when `out_format == none || keep_out`";
    may 10 out residual_out "the sum that was normalised: residual + gate * x. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 11 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2]`; exactly when `out_format != none`";
    may 12 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K. `none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *M, 1;nvfp4: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));mxfp8: if(scale_layout == swizzled, round_up(M,128), M), if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))]`; exactly when `out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 13 int groups "neighbouring channels are normalised together: channels / groups each";
    may 14 float eps "added to the variance";
    may 15 choice activation Activation { None c"none", Silu c"silu", } "what is applied to the result";
    may 16 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds out's codes, and out is given only with keep_out";
    may 17 flag keep_out "give out beside its codes, rounded to x's dtype";
    may 18 int hadamard "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 19 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 20 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    group_norm_backward "Gradients of group_norm: of x, weight, bias, residual, gate, scale and shift, from the inputs and the gradients of out and residual_out. Source: ops/norm/group_norm_backward/group_norm_backward.md" 19
    must 0 read x "batch, channels, and any dimensions behind them. `bf16|f16|f32` of `[*M, K]`";
    must 1 read d_out "gradient of out. `=x` of `[*M, K]`";
    must 9 out d_x "gradient of x. `=x` of `[*M, K]`";
    may 2 read weight "multiplies each channel. `f32|bf16|f16` of `[C]`";
    may 3 read bias "added to each channel after weight. `f32|bf16|f16` of `[C]`";
    may 4 read residual "added to gate * x before the norm. `=x` of `[*M, K]`";
    may 5 read gate "multiplies x before the residual is added; batch/G neighbouring samples share a row. `bf16|f16|f32` of `[G, C]`";
    may 6 read scale "modulation: what weight and bias gave is multiplied by 1 + scale; batch/G neighbouring samples share a row of it. `bf16|f16|f32` of `[G, C]`";
    may 7 read shift "modulation: added before the activation. `bf16|f16|f32` of `[G, C]`";
    may 8 read d_residual_out "gradient of residual_out. `=x` of `[*M, K]`";
    may 10 out d_weight "gradient of weight. `=weight` of `[C]`; exactly when `has(weight)`";
    may 11 out d_bias "gradient of bias. `=bias` of `[C]`; exactly when `has(bias)`";
    may 12 out d_residual "gradient of residual. `=x` of `[*M, K]`; exactly when `has(residual)`";
    may 13 out d_gate "gradient of gate. `=gate` of `[G, C]`; exactly when `has(gate)`";
    may 14 out d_scale "gradient of scale. `=scale` of `[G, C]`; exactly when `has(scale)`";
    may 15 out d_shift "gradient of shift. `=shift` of `[G, C]`; exactly when `has(shift)`";
    may 16 int groups "as in the forward call";
    may 17 float eps "as in the forward call";
    may 18 choice activation Activation { None c"none", Silu c"silu", } "as in the forward call";
}

op! {
    matmul "Product of two matrices of floats of any strides, f32 accumulation, with an epilogue. Source: y = activation(sum_k a[m,k] * b[k,n] * alpha + bias[n]), of pairs of columns activation(one) * the other; out = residual[m,n] * beta + gate * y" 20
    must 0 read a "left matrices, any strides. `bf16|f16|f32|e4m3|e5m2` of `[*B, M, K]`";
    must 1 read b "right matrices, any strides: a weight [N, K] is passed transposed, one matrix for all by strides of 0. `bf16|f16|f32|e4m3|e5m2` of `[*B, K, N]`";
    may 2 out out "residual * beta + gate * activation(a @ b * alpha + bias). `none: =a|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32` of `[*B, M, if(gated == none, N, N/2)]`; exactly when `out_format == none || keep_out`";
    may 3 read alpha "factor on the product; 1 when absent. `f32` of `[1]`";
    may 4 read bias "added to every row of the product. `f32|bf16|f16` of `[N]`";
    may 5 read residual "added at the end. `f32|bf16|f16` of `[*B, M, if(gated == none, N, N/2)]`";
    may 6 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "applied after the bias";
    may 7 read beta "factor on the residual; 1 when absent. `f32` of `[1]`";
    may 8 read gate "multiplies the product before the residual is added; neighbouring rows share a row of it, as many as there are rows of out for each of its own. `f32|bf16|f16` of `[*G, if(gated == none, N, N/2)]`";
    may 9 choice gated Gated { None c"none", ActFirst c"act_first", ActLast c"act_last", } "out has half of the product's columns: activation(one half) * the other, the half that the activation takes first (swiglu) or last (geglu)";
    may 10 choice precision Precision { Highest c"highest", Tf32 c"tf32", } "of products of two f32 matrices: as exact as f32, or each value may be rounded to TF32's 11 bits";
    may 11 read q_scale "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent. `f32` of `[none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *B, M, 1]`";
    may 12 read global_scale "decode scale of the whole tensor, out_format=nvfp4. `f32` of `[1]`; exactly when `out_format == nvfp4`";
    may 13 out q "codes of out; nvfp4: two a byte. `none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8` of `[none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *B, M, if(gated == none, N, N/2); nvfp4: *B, M, if(gated == none, N, N/2)/2]`; exactly when `out_format != none`";
    may 14 out scale_out "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of N. `none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0` of `[none|fp8_tensor|fp8_row|int8_row: *B, M, 1; fp8_block: *B, M, cdiv(if(gated == none, N, N/2),128);nvfp4: if(scale_layout == swizzled, round_up(B*M,128), B*M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),16),4), cdiv(if(gated == none, N, N/2),16));mxfp8: if(scale_layout == swizzled, round_up(B*M,128), B*M), if(scale_layout == swizzled, round_up(cdiv(if(gated == none, N, N/2),32),4), cdiv(if(gated == none, N, N/2),32))]`; exactly when `out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || ((out_format == fp8_row || out_format == int8_row) && !has(q_scale))`";
    may 15 choice out_format OutFormat { None c"none", Fp8Tensor c"fp8_tensor", Fp8Row c"fp8_row", Fp8Block c"fp8_block", Int8Row c"int8_row", Nvfp4 c"nvfp4", Mxfp8 c"mxfp8", } "none: out; else q holds codes of out, made by a second pass over it, and out is given only with keep_out (in the workspace it is bf16)";
    may 16 flag keep_out "give out beside its codes";
    may 17 int out_hadamard "elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 or 1024; 0: no rotation";
    may 18 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 19 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    matmul_backward "Gradients of matmul: of a, b, bias and residual; the product is made again where an activation followed it. Source: d_pre = d_out * activation'(a @ b * alpha + bias); d_a = d_pre @ b^T * alpha; d_b = a^T @ d_pre * alpha; d_bias = sum of d_pre over rows; d_residual = d_out" 11
    must 0 read d_out "gradient of matmul's out. `bf16|f16|f32` of `[*B, M, N]`";
    must 1 read a "matmul's a. `bf16|f16|f32` of `[*B, M, K]`";
    must 2 read b "matmul's b. `bf16|f16|f32` of `[*B, K, N]`";
    must 6 out d_a "gradient of a. `=a` of `[*B, M, K]`";
    must 7 out d_b "gradient of b. `=b` of `[*B, K, N]`";
    may 3 read alpha "matmul's alpha. `f32` of `[1]`";
    may 4 read bias "matmul's bias. `f32|bf16|f16` of `[N]`";
    may 5 read residual "matmul's residual; its values are not read. `f32|bf16|f16` of `[*B, M, N]`";
    may 8 out d_bias "gradient of bias. `=bias` of `[N]`; exactly when `has(bias)`";
    may 9 out d_residual "d_out in residual's dtype. `=residual` of `[*B, M, N]`; exactly when `has(residual)`";
    may 10 choice activation Activation { None c"none", Gelu c"gelu", GeluTanh c"gelu_tanh", Silu c"silu", } "matmul's activation";
}

op! {
    qkv_project "The projections of attention's queries, keys and values by three weights of one x, of floats or quantised. Source: three products as matmul's or as the format's linear op, f32 sums, one rounding" 25
    must 0 read x "activations. `bf16|f16|f32` of `[*M, K]`";
    must 1 read weight_q "weight of the queries, a row for each column of q. `float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8` of `[float|int8_tensor|int8_row: NQ, K; int4|nvfp4: NQ, K/2]`";
    must 2 read weight_k "weight of the keys. `float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8` of `[float|int8_tensor|int8_row: NK, K; int4|nvfp4: NK, K/2]`";
    must 3 read weight_v "weight of the values. `float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8` of `[float|int8_tensor|int8_row: NV, K; int4|nvfp4: NV, K/2]`";
    must 16 out q "x @ weight_q^T + bias_q. `=x|bf16|f16|f32` of `[*M, NQ]`";
    must 17 out k "x @ weight_k^T + bias_k. `=x|bf16|f16|f32` of `[*M, NK]`";
    must 18 out v "x @ weight_v^T + bias_v. `=x|bf16|f16|f32` of `[*M, NV]`";
    may 4 read bias_q "added to every row of q. `f32|bf16|f16` of `[NQ]`";
    may 5 read bias_k "added to every row of k. `f32|bf16|f16` of `[NK]`";
    may 6 read bias_v "added to every row of v. `f32|bf16|f16` of `[NV]`";
    may 7 read scale_q "decode scales of the weight's codes. `float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3` of `[float|int8_tensor: 1; int8_row: NQ, 1; int4: NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NQ,128), NQ), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))]`; exactly when `format != float`";
    may 8 read scale_k "decode scales of the weight's codes. `float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3` of `[float|int8_tensor: 1; int8_row: NK, 1; int4: NK, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NK,128), NK), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))]`; exactly when `format != float`";
    may 9 read scale_v "decode scales of the weight's codes. `float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3` of `[float|int8_tensor: 1; int8_row: NV, 1; int4: NV, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NV,128), NV), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))]`; exactly when `format != float`";
    may 10 read zero_q "zero point of each group. `u8` of `[NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `format == int4 && mode == asymmetric`";
    may 11 read zero_k "zero point of each group. `u8` of `[NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `format == int4 && mode == asymmetric`";
    may 12 read zero_v "zero point of each group. `u8` of `[NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `format == int4 && mode == asymmetric`";
    may 13 read global_scale_q "decode scale of the whole weight. `f32` of `[1]`; exactly when `format == nvfp4`";
    may 14 read global_scale_k "decode scale of the whole weight. `f32` of `[1]`; exactly when `format == nvfp4`";
    may 15 read global_scale_v "decode scale of the whole weight. `f32` of `[1]`; exactly when `format == nvfp4`";
    may 19 choice format Format { Float c"float", Int8Tensor c"int8_tensor", Int8Row c"int8_row", Int4 c"int4", Nvfp4 c"nvfp4", } "how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each row), quantize_int4 or quantize_nvfp4";
    may 20 int group_size "format=int4: columns that share a scale; 0: the whole row";
    may 21 choice mode Mode { Symmetric c"symmetric", Asymmetric c"asymmetric", } "format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros";
    may 22 int hadamard "the weights were rotated in groups of this many columns, so x is too, in f32; 0: neither";
    may 23 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 24 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    qkv_project_backward "Gradients of qkv_project: of x, of weights that are floats, of the biases. Source: d_x = d_q @ W_q + d_k @ W_k + d_v @ W_v, a weight of codes decoded in the dtype of its d; d_weight_q = d_q^T @ x; d_bias_q = sum of d_q over rows" 32
    must 0 read d_q "gradient of qkv_project's q. `bf16|f16|f32` of `[*M, NQ]`";
    must 1 read d_k "gradient of k. `bf16|f16|f32` of `[*M, NK]`";
    must 2 read d_v "gradient of v. `bf16|f16|f32` of `[*M, NV]`";
    must 3 read x "qkv_project's x. `bf16|f16|f32` of `[*M, K]`";
    must 4 read weight_q "qkv_project's weight_q. `float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8` of `[float|int8_tensor|int8_row: NQ, K; int4|nvfp4: NQ, K/2]`";
    must 5 read weight_k "qkv_project's weight_k. `float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8` of `[float|int8_tensor|int8_row: NK, K; int4|nvfp4: NK, K/2]`";
    must 6 read weight_v "qkv_project's weight_v. `float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8` of `[float|int8_tensor|int8_row: NV, K; int4|nvfp4: NV, K/2]`";
    must 19 out d_x "gradient of x: the sum of three products, rounded once. `=x` of `[*M, K]`";
    may 7 read bias_q "qkv_project's; its values are not read. `f32|bf16|f16` of `[NQ]`";
    may 8 read bias_k "likewise. `f32|bf16|f16` of `[NK]`";
    may 9 read bias_v "likewise. `f32|bf16|f16` of `[NV]`";
    may 10 read scale_q "decode scales of the weight's codes. `float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3` of `[float|int8_tensor: 1; int8_row: NQ, 1; int4: NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NQ,128), NQ), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))]`; exactly when `format != float`";
    may 11 read scale_k "decode scales of the weight's codes. `float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3` of `[float|int8_tensor: 1; int8_row: NK, 1; int4: NK, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NK,128), NK), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))]`; exactly when `format != float`";
    may 12 read scale_v "decode scales of the weight's codes. `float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3` of `[float|int8_tensor: 1; int8_row: NV, 1; int4: NV, cdiv(K, if(group_size == 0, max(K, 1), group_size)); nvfp4: if(scale_layout == swizzled, round_up(NV,128), NV), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))]`; exactly when `format != float`";
    may 13 read zero_q "zero point of each group. `u8` of `[NQ, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `format == int4 && mode == asymmetric`";
    may 14 read zero_k "zero point of each group. `u8` of `[NK, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `format == int4 && mode == asymmetric`";
    may 15 read zero_v "zero point of each group. `u8` of `[NV, cdiv(K, if(group_size == 0, max(K, 1), group_size))]`; exactly when `format == int4 && mode == asymmetric`";
    may 16 read global_scale_q "decode scale of the whole weight. `f32` of `[1]`; exactly when `format == nvfp4`";
    may 17 read global_scale_k "decode scale of the whole weight. `f32` of `[1]`; exactly when `format == nvfp4`";
    may 18 read global_scale_v "decode scale of the whole weight. `f32` of `[1]`; exactly when `format == nvfp4`";
    may 20 out d_weight_q "gradient of weight_q. `=x` of `[NQ, K]`; exactly when `format == float`";
    may 21 out d_weight_k "gradient of weight_k. `=x` of `[NK, K]`; exactly when `format == float`";
    may 22 out d_weight_v "gradient of weight_v. `=x` of `[NV, K]`; exactly when `format == float`";
    may 23 out d_bias_q "gradient of bias_q. `=bias_q` of `[NQ]`; exactly when `has(bias_q)`";
    may 24 out d_bias_k "gradient of bias_k. `=bias_k` of `[NK]`; exactly when `has(bias_k)`";
    may 25 out d_bias_v "gradient of bias_v. `=bias_v` of `[NV]`; exactly when `has(bias_v)`";
    may 26 choice format Format { Float c"float", Int8Tensor c"int8_tensor", Int8Row c"int8_row", Int4 c"int4", Nvfp4 c"nvfp4", } "how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each row), quantize_int4 or quantize_nvfp4";
    may 27 int group_size "format=int4: columns that share a scale; 0: the whole row";
    may 28 choice mode Mode { Symmetric c"symmetric", Asymmetric c"asymmetric", } "format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros";
    may 29 int hadamard "the weights were rotated in groups of this many columns, so x is too, in f32; 0: neither";
    may 30 choice nibbles Nibbles { HighFirst c"high_first", LowFirst c"low_first", } "which nibble of a byte holds the even element";
    may 31 choice scale_layout ScaleLayout { Swizzled c"swizzled", Plain c"plain", } "swizzled: tiles of 128 rows x 4 scales, padding entries 0; plain: row-major";
}

op! {
    attention "Softmax attention of queries over keys and values, with every usual mask. Source: logit = softcap(scale * q.k) + mask over the keys that a query sees; out = sum of exp(logit - lse) * v, lse = log(sum of exp(logit)); f32, exponentials of 16-bit inputs may be rounded to their dtype" 18
    must 0 read q "queries, any strides. `bf16|f16|f32` of `[B, Hq, Sq, D]`";
    must 1 read k "keys; head h of q sees head h * Hk / Hq. `=q` of `[B, Hk, Sk, D]`";
    must 2 read v "values. `=q` of `[B, Hk, Sk, Dv]`";
    must 8 out out "softmax(logits) @ v; 0 for a query that sees no key. `=q|bf16|f16|f32` of `[B, Hq, Sq, Dv]`";
    may 3 read mask "bool: true where a key counts; floats are added to the logits. Each dimension is that of the logits [B, Hq, Sq, Sk] or 1. `bool|f32|bf16|f16` of `[Bm, Hm, Mq, Mk]`";
    may 4 read sinks "the logit of a key of each head that every query sees and whose value is 0. `f32|bf16|f16` of `[Hq]`";
    may 5 read key_lengths "keys of each batch that count, the first of them; beyond 0 and Sk the nearer one. `i32|i64` of `[B]`";
    may 6 read q_offsets "sequences packed along Sq: sequence n has the queries from q_offsets[n] up to q_offsets[n + 1], ascending; other queries see no key. `i32|i64` of `[N]`";
    may 7 read k_offsets "the same of the keys, along Sk. `i32|i64` of `[N]`";
    may 9 out lse "log of the sum of exp(logits), with the sink's; -inf for a query that sees no key. Kept for the backward op. `f32` of `[B, Hq, Sq]`";
    may 10 float scale "factor of the products of q and k; 0: 1 / sqrt(D)";
    may 11 float softcap "logits become softcap * tanh(logit / softcap); 0: as they are";
    may 12 flag causal "a query sees no key behind its own place";
    may 13 int window_left "how many keys before its place a query sees at most; -1: all of them";
    may 14 int window_right "how many keys behind its place a query sees at most; -1: all of them";
    may 15 choice align Align { TopLeft c"top_left", BottomRight c"bottom_right", } "the place of a query among the keys: the first query's is the first key, or the last one's is the last key that counts";
    may 16 choice precision Precision { Highest c"highest", Tf32 c"tf32", } "of products of f32 values, the gradients' too: as exact as f32, or each value may be rounded to TF32's 11 bits";
    may 17 flag deterministic "gradients have the same bits in every run; false: they may be added up in any order, which some implementations do faster";
}

op! {
    attention_backward "Gradients of attention from its out and lse. Source: p = exp(logit - lse); d_v = sum of p * d_out; d_logit = p * (d_out.v - d_out.out); d_mask = d_logit; d_q, d_k = sums of d_logit * d logit / d q, / d k; d_sinks = -sum of exp(sink - lse) * (d_out.out)" 25
    must 0 read d_out "gradient of attention's out. `bf16|f16|f32` of `[B, Hq, Sq, Dv]`";
    must 1 read q "queries, any strides. `bf16|f16|f32` of `[B, Hq, Sq, D]`";
    must 2 read k "keys; head h of q sees head h * Hk / Hq. `=q` of `[B, Hk, Sk, D]`";
    must 3 read v "values. `=q` of `[B, Hk, Sk, Dv]`";
    must 4 read out "what attention gave. `bf16|f16|f32` of `[B, Hq, Sq, Dv]`";
    must 5 read lse "what attention gave; queries where it is infinite give 0. `f32` of `[B, Hq, Sq]`";
    must 11 out d_q "gradient of q. `=q` of `[B, Hq, Sq, D]`";
    must 12 out d_k "gradient of k. `=q` of `[B, Hk, Sk, D]`";
    must 13 out d_v "gradient of v. `=q` of `[B, Hk, Sk, Dv]`";
    may 6 read mask "bool: true where a key counts; floats are added to the logits. Each dimension is that of the logits [B, Hq, Sq, Sk] or 1. `bool|f32|bf16|f16` of `[Bm, Hm, Mq, Mk]`";
    may 7 read sinks "the logit of a key of each head that every query sees and whose value is 0. `f32|bf16|f16` of `[Hq]`";
    may 8 read key_lengths "keys of each batch that count, the first of them; beyond 0 and Sk the nearer one. `i32|i64` of `[B]`";
    may 9 read q_offsets "sequences packed along Sq: sequence n has the queries from q_offsets[n] up to q_offsets[n + 1], ascending; other queries see no key. `i32|i64` of `[N]`";
    may 10 read k_offsets "the same of the keys, along Sk. `i32|i64` of `[N]`";
    may 14 out d_mask "gradient of mask, summed over what it is shared by. `=mask` of `[Bm, Hm, Mq, Mk]`; exactly when `mask_gradient`";
    may 15 out d_sinks "gradient of sinks. `=sinks` of `[Hq]`; exactly when `has(sinks)`";
    may 16 float scale "factor of the products of q and k; 0: 1 / sqrt(D)";
    may 17 float softcap "logits become softcap * tanh(logit / softcap); 0: as they are";
    may 18 flag causal "a query sees no key behind its own place";
    may 19 int window_left "how many keys before its place a query sees at most; -1: all of them";
    may 20 int window_right "how many keys behind its place a query sees at most; -1: all of them";
    may 21 choice align Align { TopLeft c"top_left", BottomRight c"bottom_right", } "the place of a query among the keys: the first query's is the first key, or the last one's is the last key that counts";
    may 22 flag mask_gradient "give d_mask, which may be as large as all logits";
    may 23 choice precision Precision { Highest c"highest", Tf32 c"tf32", } "of products of f32 values, the gradients' too: as exact as f32, or each value may be rounded to TF32's 11 bits";
    may 24 flag deterministic "gradients have the same bits in every run; false: they may be added up in any order, which some implementations do faster";
}
