// What qkv_project and its gradient have in common: three weights of any format in their contracts,
// and those of a call as dequantising and linear ops take them.
#pragma once

#include "core/op.h"
#include "ops/quant/block/block_scales.h"
#include "ops/quant/int4/int4_args.h"

namespace pestle::ops {

// ---- for contracts: symbols are K and, of one product, `n` ----

inline constexpr const char* kQkvFormats = "float|int8_tensor|int8_row|int4|nvfp4";
inline constexpr Arg kQkvFormatArg = choice(
    "format", kQkvFormats,
    "how the weights are stored: floats, or codes of quantize_int8 (a scale of all or of each "
    "row), quantize_int4 or quantize_nvfp4");
inline constexpr const char* kQkvWeightDtypes =
    "float: =x; int8_tensor|int8_row: i8; int4|nvfp4: u8";
#define PESTLE_QKV_WEIGHT(n) "float|int8_tensor|int8_row: " n ", K; int4|nvfp4: " n ", K/2"
inline constexpr const char* kQkvScaleDtypes = "float|int8_tensor|int8_row|int4: f32; nvfp4: e4m3";
#define PESTLE_QKV_GROUPS "cdiv(K, if(group_size == 0, max(K, 1), group_size))"
#define PESTLE_QKV_SCALE(n)                                                   \
  "float|int8_tensor: 1; int8_row: " n ", 1; int4: " n ", " PESTLE_QKV_GROUPS \
  "; nvfp4: if(scale_layout == swizzled, round_up(" n ",128), " n             \
  "), if(scale_layout == swizzled, round_up(cdiv(K,16),4), cdiv(K,16))"
#define PESTLE_QKV_ZERO(n) n ", " PESTLE_QKV_GROUPS

constexpr Arg qkv_weight(const char* name, const char* shape, const char* doc) {
  return input(name, kQkvWeightDtypes, shape, doc).selected_by("format");
}
constexpr Arg qkv_scale(const char* name, const char* shape) {
  return input(name, kQkvScaleDtypes, shape, "decode scales of the weight's codes")
      .selected_by("format")
      .only_if("format != float");
}
constexpr Arg qkv_zero(const char* name, const char* shape) {
  return input(name, "u8", shape, "zero point of each group")
      .only_if("format == int4 && mode == asymmetric");
}
constexpr Arg qkv_global_scale(const char* name) {
  return input(name, "f32", "1", "decode scale of the whole weight").only_if("format == nvfp4");
}

inline constexpr Arg kQkvFormatArgs[6] = {
    kQkvFormatArg,
    int_attr("group_size", 0, "format=int4: columns that share a scale; 0: the whole row"),
    choice("mode", kInt4Modes,
           "format=int4: symmetric: two's complement codes; asymmetric: codes 0..15 and zeros"),
    int_attr("hadamard", 0,
             "the weights were rotated in groups of this many columns, so x is too, in f32; 0: "
             "neither"),
    choice("nibbles", "high_first|low_first", kNibblesDoc),
    choice("scale_layout", kScaleLayouts, kScaleLayoutDoc),
};

inline constexpr Constraint kQkvConstraints[5] = {
    kInt4GroupRule,
    kHadamardRule,
    {"hadamard == 0 || (format != float && format != nvfp4)",
     "hadamard belongs to weights of INT8 and INT4"},
    {"format != int4 || K % 2 == 0", "K must be even: two codes share a byte"},
    {"format != nvfp4 || K % 16 == 0",
     "K must be a multiple of 16, the block; pad x and the weights with zeros"},
};

// ---- for implementations ----

enum class QkvFormat : int64_t { kFloat, kInt8Tensor, kInt8Row, kInt4, kNvfp4 };

// Places of one product's arguments. out, bias: in qkv_project the output and the bias; in the
// gradient those of d_*.
struct QkvPart {
  int weight, bias, scale, zero, global_scale, out;
};
consteval QkvPart qkv_part(const OpSpec& spec, const char* weight, const char* bias,
                           const char* scale, const char* zero, const char* global_scale,
                           const char* out) {
  return {arg_index(spec, weight), arg_index(spec, bias),         arg_index(spec, scale),
          arg_index(spec, zero),   arg_index(spec, global_scale), arg_index(spec, out)};
}

QkvFormat qkv_format(const Call& call);

// All leading dimensions as one; false where they are not evenly spaced.
bool as_matrix(const TensorView& t, TensorView* matrix);

// out = x @ W^T + bias of a quantised weight, by the linear op of its format.
Status run_qkv_linear(const Call& call, const QkvPart& part);
// The weight, decoded into `out` by the dequantising op of its format.
Status decode_qkv_weight(const Call& call, const QkvPart& part, const TensorView& out,
                         void* workspace, int64_t bytes);

// ---- for references ----

// Row n of the weight, decoded, not rotated back, to `values`.
void read_qkv_row(const Call& call, const QkvPart& part, int64_t n, double* values);

}  // namespace pestle::ops
