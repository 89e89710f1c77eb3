// Quantised output of ops that make rows (norms, gated activations): what contracts share, and the
// host's codes of a row. The rule: values are first rounded to x's dtype, as if the op's output had
// been stored; codes and scales are those of the stand-alone quantiser for that.
#pragma once

#include "core/codes.h"
#include "core/op.h"
#include "ops/quant/block/block_scales.h"

namespace pestle::ops {

// ---- for contracts: symbols are *M (rows), K; the output is called `out` ----

inline constexpr const char* kOutFormats = "none|fp8_tensor|fp8_row|int8_row|nvfp4|mxfp8";
inline constexpr const char* kOutFormatDoc =
    "none: out; else q holds out's codes, and out is given only with keep_out";

// The output itself: `arg` is output("out", "=x", ...).
constexpr Arg kept_output(Arg arg) { return arg.only_if("out_format == none || keep_out"); }

// Which stand-alone quantiser says what q and scale_out must be.
inline constexpr const char* kQuantRule =
    "keep_out;"
    "fp8_tensor: quantize_fp8 x=out scale=q_scale;"
    "fp8_row: quantize_fp8 x=out scale=q_scale granularity=row;"
    "int8_row: quantize_int8 x=out scale=q_scale granularity=row hadamard=hadamard;"
    "nvfp4: quantize_nvfp4 x=out global_scale=global_scale nibbles=nibbles"
    " scale_layout=scale_layout;"
    "mxfp8: quantize_mxfp8 x=out scale_layout=scale_layout";

// Inputs.
inline constexpr Arg kQuantScaleArg =
    input("q_scale", "f32", "none|fp8_tensor|nvfp4|mxfp8: 1; fp8_row|int8_row: *M, 1",
          "decode scale of q; fp8_tensor needs it, fp8_row and int8_row compute it where absent")
        .selected_by("out_format")
        .optional();
inline constexpr Arg kQuantGlobalScaleArg =
    input("global_scale", "f32", "1", "decode scale of the whole tensor, out_format=nvfp4")
        .only_if("out_format == nvfp4");
// Outputs.
inline constexpr Arg kQuantCodesArg =
    codes_by(output("q", "none|nvfp4: u8; fp8_tensor|fp8_row|mxfp8: e4m3; int8_row: i8",
                    "none|fp8_tensor|fp8_row|int8_row|mxfp8: *M, K; nvfp4: *M, K/2",
                    "codes of out; nvfp4: two a byte")
                 .selected_by("out_format")
                 .only_if("out_format != none"),
             kQuantRule);
inline constexpr Arg kQuantScaleOutArg = codes_by(
    output("scale_out", "none|fp8_tensor|fp8_row|int8_row: f32; nvfp4: e4m3; mxfp8: e8m0",
           "none|fp8_tensor|fp8_row|int8_row: *M, 1;"
           "nvfp4: if(scale_layout == swizzled, round_up(M,128), M),"
           " if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16));"
           "mxfp8: if(scale_layout == swizzled, round_up(M,128), M),"
           " if(scale_layout == swizzled, round_up(cdiv(K,32),4), cdiv(K,32))",
           "decode scales of q that were computed: of rows, or of blocks of 16 or 32 along K")
        .selected_by("out_format")
        .only_if("out_format == nvfp4 || out_format == mxfp8 || "
                 "((out_format == fp8_row || out_format == int8_row) && !has(q_scale))"),
    kQuantRule);
// Attributes.
inline constexpr Arg kOutFormatArg = choice("out_format", kOutFormats, kOutFormatDoc);
inline constexpr Arg kKeepOutArg =
    bool_attr("keep_out", false, "give out beside its codes, rounded to x's dtype");
inline constexpr Arg kQuantHadamardArg =
    int_attr("hadamard", 0,
             "elements along K of out that are rotated together before int8_row: 4, 16, 64, 256 "
             "or 1024; 0: no rotation");
inline constexpr Arg kQuantNibblesArg = choice("nibbles", "high_first|low_first", kNibblesDoc);
inline constexpr Arg kQuantScaleLayoutArg = choice("scale_layout", kScaleLayouts, kScaleLayoutDoc);

// Constraints.
inline constexpr Constraint kQuantConstraints[] = {
    {"has(q_scale) || out_format != fp8_tensor",
     "out_format=fp8_tensor needs q_scale: the largest of a whole tensor is not known in one pass"},
    {"!has(q_scale) || out_format == fp8_tensor || out_format == fp8_row || out_format == int8_row",
     "q_scale belongs to out_format fp8_tensor, fp8_row and int8_row"},
    {"out_format != nvfp4 || K % 16 == 0", "nvfp4 needs K to be a multiple of 16, its block"},
    {"out_format != mxfp8 || K % 32 == 0", "mxfp8 needs K to be a multiple of 32, its block"},
    {"hadamard == 0 || out_format == int8_row", "hadamard belongs to out_format=int8_row"},
    {"hadamard == 0 || hadamard == 4 || hadamard == 16 || hadamard == 64 || hadamard == 256 || "
     "hadamard == 1024",
     "hadamard must be 0 (no rotation), 4, 16, 64, 256 or 1024"},
    {"hadamard == 0 || K % max(hadamard,1) == 0",
     "K must be a multiple of hadamard, the elements that are rotated together"},
};

// ---- for implementations ----

enum class OutFormat : int { kNone, kFp8Tensor, kFp8Row, kInt8Row, kNvfp4, kMxfp8 };

// The tensors and attributes of one call; absent tensors have no data.
struct QuantizedOutput {
  OutFormat format = OutFormat::kNone;
  TensorView q;
  TensorView q_scale;  // given
  TensorView global_scale;
  TensorView scale_out;
  int hadamard = 0;
  bool high_first = true;
  bool swizzled = true;

  bool row_scale() const { return format == OutFormat::kFp8Row || format == OutFormat::kInt8Row; }
  bool block_scales() const { return format == OutFormat::kNvfp4 || format == OutFormat::kMxfp8; }
  // Must the largest of a row be known before its codes are made?
  bool computes_row_scale() const { return row_scale() && q_scale.data == nullptr; }
  int64_t block() const { return format == OutFormat::kNvfp4 ? 16 : 32; }
};

// Reads them by the shared names above.
template <const OpSpec& spec>
QuantizedOutput quantized_output(const Call& call) {
  QuantizedOutput o;
  o.format = static_cast<OutFormat>(call.integer(arg_index(spec, "out_format")));
  if (o.format == OutFormat::kNone) return o;
  const auto view = [&](int index) { return call.has(index) ? call.tensor(index) : TensorView(); };
  o.q = view(arg_index(spec, "q"));
  o.q_scale = view(arg_index(spec, "q_scale"));
  o.global_scale = view(arg_index(spec, "global_scale"));
  o.scale_out = view(arg_index(spec, "scale_out"));
  o.hadamard = static_cast<int>(call.integer(arg_index(spec, "hadamard")));
  o.high_first = call.integer(arg_index(spec, "nibbles")) == 0;
  o.swizzled = call.integer(arg_index(spec, "scale_layout")) == 0;
  return o;
}

// ---- the host's codes ----

// Padding of swizzled scales; once a call, before rows.
void clear_scale_padding(const QuantizedOutput& o);
// Largest |value| of a piece of a row, rotated first if the format says so (values then change):
// f32 bits, to be joined by maximum over the pieces. Pieces begin at multiples of 1024.
uint32_t quantized_amax(const QuantizedOutput& o, float* values, int64_t count);
// The scale of row `row`: the given one, or that of `amax`, which is then stored.
float quantized_row_scale(const QuantizedOutput& o, int64_t row, uint32_t amax);
// Codes of elements [column, column + count) of a row, already rounded to x's dtype and, for a
// computed row scale with rotation, already rotated by quantized_amax (`rotated`).
void quantize_piece(const QuantizedOutput& o, int64_t row, int64_t column, float* values,
                    int64_t count, float row_scale, bool rotated);

}  // namespace pestle::ops
