// Quantised output in the contracts of GEMMs, whose output is out [*B, M, N]: the formats, the
// rule that says which op makes the codes (ops/quant/output/quantize_after.h runs it), and what it
// asks.
#pragma once

#include "core/codes.h"
#include "core/op_spec.h"
#include "ops/gemm/epilogue/epilogue.h"

namespace pestle::ops {

// Dtypes of out: by default the operands'; where quantised output is asked for bf16, kept or not.
#define PESTLE_GEMM_DTYPES(of) \
  "none: =" of "|bf16|f16|f32; fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8: bf16|f16|f32"
inline constexpr const char* kGemmFormats =
    "none|fp8_tensor|fp8_row|fp8_block|int8_row|nvfp4|mxfp8";
inline constexpr const char* kGemmFormatDoc =
    "none: out; else q holds codes of out, made by a second pass over it, and out is given only "
    "with keep_out (in the workspace it is bf16)";
inline constexpr const char* kGemmRule =
    "keep_out;"
    "fp8_tensor: quantize_fp8 x=out scale=q_scale;"
    "fp8_row: quantize_fp8 x=out scale=q_scale granularity=row;"
    "fp8_block: quantize_fp8 x=out granularity=block_1x128;"
    "int8_row: quantize_int8 x=out scale=q_scale granularity=row hadamard=out_hadamard;"
    "nvfp4: quantize_nvfp4 x=out global_scale=global_scale nibbles=nibbles"
    " scale_layout=scale_layout;"
    "mxfp8: quantize_mxfp8 x=out scale_layout=scale_layout";

inline constexpr Arg kGemmScaleArg =
    input("q_scale", "f32", "none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *B, M, 1",
          "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent")
        .selected_by("out_format")
        .optional();
inline constexpr Arg kGemmKeepArg = bool_attr("keep_out", false, "give out beside its codes");
inline constexpr Arg kGemmHadamardArg =
    int_attr("out_hadamard", 0,
             "elements along N of out that are rotated together before int8_row: 4, 16, 64, 256 "
             "or 1024; 0: no rotation");
inline constexpr Arg kGemmQuantizedArg =
    codes_by(output("q", "none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8",
                    "none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *B, M, " PESTLE_OUT_COLUMNS
                    "; nvfp4: *B, M, " PESTLE_OUT_COLUMNS "/2",
                    "codes of out; nvfp4: two a byte")
                 .selected_by("out_format")
                 .only_if("out_format != none"),
             kGemmRule);
inline constexpr Arg kGemmScaleOutArg = codes_by(
    output("scale_out", "none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0",
           "none|fp8_tensor|fp8_row|int8_row: *B, M, 1; fp8_block: *B, M, cdiv(" PESTLE_OUT_COLUMNS
           ",128);"
           "nvfp4: if(scale_layout == swizzled, round_up(B*M,128), B*M),"
           " if(scale_layout == swizzled, round_up(cdiv(" PESTLE_OUT_COLUMNS ",16),4),"
           " cdiv(" PESTLE_OUT_COLUMNS ",16));"
           "mxfp8: if(scale_layout == swizzled, round_up(B*M,128), B*M),"
           " if(scale_layout == swizzled, round_up(cdiv(" PESTLE_OUT_COLUMNS ",32),4),"
           " cdiv(" PESTLE_OUT_COLUMNS ",32))",
           "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 of N")
        .selected_by("out_format")
        .only_if("out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 || "
                 "((out_format == fp8_row || out_format == int8_row) && !has(q_scale))"),
    kGemmRule);

inline constexpr size_t kGemmOneMatrix = 4;  // its place among them
inline constexpr Constraint kGemmConstraints[8] = {
    {"has(q_scale) || out_format != fp8_tensor",
     "out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass"},
    {"!has(q_scale) || out_format == fp8_tensor || out_format == fp8_row || out_format == int8_row",
     "q_scale belongs to out_format fp8_tensor, fp8_row and int8_row"},
    {"out_format != nvfp4 || " PESTLE_OUT_COLUMNS " % 16 == 0",
     "nvfp4 needs out's columns to be a multiple of 16, its block"},
    {"out_format != mxfp8 || " PESTLE_OUT_COLUMNS " % 32 == 0",
     "mxfp8 needs out's columns to be a multiple of 32, its block"},
    {"B == 1 || (out_format != nvfp4 && out_format != mxfp8)",
     "nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all rows"},
    {"out_hadamard == 0 || out_format == int8_row", "out_hadamard belongs to out_format=int8_row"},
    {"out_hadamard == 0 || out_hadamard == 4 || out_hadamard == 16 || out_hadamard == 64 || "
     "out_hadamard == 256 || "
     "out_hadamard == 1024",
     "out_hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024"},
    {"out_hadamard == 0 || " PESTLE_OUT_COLUMNS " % max(out_hadamard,1) == 0",
     "out's columns must be a multiple of out_hadamard, the elements that are rotated together"},
};

}  // namespace pestle::ops
