// Quantised output of scaled_mm_* and linear_*, whose rows are *M: as matmul's (quantize_after.h).
#pragma once

#include <algorithm>
#include <array>
#include <iterator>

#include "ops/gemm/epilogue/output_args.h"
#include "ops/gemm/linear/input_rows.h"
#include "ops/quant/output/quantize_after.h"

namespace pestle::ops {

// What such a contract appends to its own arguments; `out` itself is kept_output(...).
inline constexpr Arg kRowsOutputArgs[9] = {
    input("q_scale", "f32", "none|fp8_tensor|fp8_block|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1",
          "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent")
        .selected_by("out_format")
        .optional(),
    kQuantGlobalScaleArg,
    codes_by(output("q", "none|nvfp4: u8; fp8_tensor|fp8_row|fp8_block|mxfp8: e4m3; int8_row: i8",
                    "none|fp8_tensor|fp8_row|fp8_block|int8_row|mxfp8: *M, " PESTLE_OUT_COLUMNS
                    "; nvfp4: *M, " PESTLE_OUT_COLUMNS "/2",
                    "codes of out; nvfp4: two a byte")
                 .selected_by("out_format")
                 .only_if("out_format != none"),
             kGemmRule),
    codes_by(
        output("scale_out",
               "none|fp8_tensor|fp8_row|fp8_block|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0",
               "none|fp8_tensor|fp8_row|int8_row: *M, 1; fp8_block: *M, cdiv(" PESTLE_OUT_COLUMNS
               ",128);"
               "nvfp4: if(scale_layout == swizzled, round_up(M,128), M),"
               " if(scale_layout == swizzled, round_up(cdiv(" PESTLE_OUT_COLUMNS
               ",16),4), cdiv(" PESTLE_OUT_COLUMNS ",16));"
               "mxfp8: if(scale_layout == swizzled, round_up(M,128), M),"
               " if(scale_layout == swizzled, round_up(cdiv(" PESTLE_OUT_COLUMNS
               ",32),4), cdiv(" PESTLE_OUT_COLUMNS ",32))",
               "decode scales of q that were computed: of rows, or of blocks of 16, 32 or 128 "
               "of out's columns")
            .selected_by("out_format")
            .only_if("out_format == fp8_block || out_format == nvfp4 || out_format == mxfp8 "
                     "|| ((out_format == fp8_row || out_format == int8_row) && "
                     "!has(q_scale))"),
        kGemmRule),
    choice("out_format", kGemmFormats, kGemmFormatDoc),
    kGemmKeepArg,
    kGemmHadamardArg,
    kQuantNibblesArg,
    kQuantScaleLayoutArg,
};

// Of `x`, the name of the operand with rows *M.
constexpr Constraint only_matrices(const char* expression) {
  return {expression,
          "nvfp4 and mxfp8 are for one matrix: the tiles of their scales run over all "
          "rows"};
}

// Constraints of such a contract: its own, then those of the output. `one_matrix`: as above.
template <size_t N>
consteval auto with_rows_output(const Constraint (&own)[N], const char* one_matrix) {
  std::array<Constraint, N + std::size(kGemmConstraints)> all{};
  std::copy(std::begin(own), std::end(own), all.begin());
  std::copy(std::begin(kGemmConstraints), std::end(kGemmConstraints), all.begin() + N);
  all[N + kGemmOneMatrix] = only_matrices(one_matrix);
  return all;
}

}  // namespace pestle::ops
