// Quantised output of row ops on CUDA, from registers: units of 8 elements, already rounded to x's
// dtype (T::Raw), to codes and scales. Rules: docs/formats; contract: quantized_output.h. Whole
// warps call these; the lanes of a block of 16 or 32 elements are neighbours.
#pragma once

#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/block_scales.cuh"
#include "backends/cuda/device/divide.cuh"
#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/row_team.cuh"
#include "backends/cuda/tensor_amax.h"
#include "formats/hadamard.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "ops/common/quantized_output.h"
#include "ops/common/row_codes.cuh"

namespace pestle::ops {

// For kernels whose tensors have neighbouring elements and aligned rows.
struct RowQuantizer {
  char* q = nullptr;
  int64_t q_row_bytes = 0;
  const float* given = nullptr;  // one scale, or one a row
  bool one_scale = false;
  float* scale_out = nullptr;  // of rows
  const char* global_scale = nullptr;
  uint8_t* block_scales = nullptr;
  int64_t scale_row_bytes = 0;  // plain
  int64_t scale_tiles = 0;      // swizzled: of 4 blocks, in a row
  int64_t padded_rows = 0;
  int blocks = 0;  // of a row
  int padded_blocks = 0;
  int hadamard = 0;
  bool swizzled = false;
  bool high_first = false;

  RowQuantizer() = default;
  explicit RowQuantizer(const QuantizedOutput& o) {
    if (o.format == OutFormat::kNone) return;
    q = o.q.as<char>();
    q_row_bytes = cuda::row_distance(o.q);
    given = o.q_scale.as<const float>();
    one_scale = o.format == OutFormat::kFp8Tensor;
    high_first = o.high_first;
    hadamard = o.hadamard;
    if (!o.block_scales()) {
      scale_out = o.scale_out.as<float>();
      return;
    }
    global_scale = o.global_scale.as<const char>();
    block_scales = o.scale_out.as<uint8_t>();
    swizzled = o.swizzled;
    scale_row_bytes = o.scale_out.strides[0];
    padded_rows = o.scale_out.shape[0];
    padded_blocks = static_cast<int>(o.scale_out.shape[1]);
    const int64_t codes = row_length(o.q) * (o.format == OutFormat::kNvfp4 ? 2 : 1);
    blocks = static_cast<int>(codes / o.block());
    scale_tiles = padded_blocks / 4;
  }

#ifdef __CUDACC__
  __device__ uint8_t* scale_row(int64_t row) const {
    if (!swizzled) return block_scales + row * scale_row_bytes;
    const int64_t in = row % 32 * 16 + row % 128 / 32 * 4;
    return block_scales + row / 128 * scale_tiles * 512 + in;
  }
  __device__ int scale_place(int block) const {
    return swizzled ? block / 4 * 512 + block % 4 : block;
  }
  // Zeros where no block is: the row's own end, and rows past the last, shared out over all rows.
  __device__ void clear_padding(int64_t row, int64_t rows, int thread, int threads) const {
    if (!swizzled) return;
    for (int b = blocks + thread; b < padded_blocks; b += threads) {
      scale_row(row)[scale_place(b)] = 0;
    }
    for (int64_t r = rows + row; r < padded_rows; r += rows) {
      for (int b = thread; b < padded_blocks; b += threads) scale_row(r)[scale_place(b)] = 0;
    }
  }
#endif
};

#ifdef __CUDACC__
namespace row_quantizer {

using namespace pestle::cuda;

// What a kernel is compiled for.
struct NoCodes {
  static constexpr bool kCodes = false, kBytes = false;
};
template <class C>
struct ByteCodes {
  static constexpr bool kCodes = true, kBytes = true;
  using Code = C;
};
// int8 after rotation: values are f32 by then.
struct RotatedCodes {
  static constexpr bool kCodes = true, kBytes = false;
};
struct Nvfp4Codes {
  static constexpr bool kCodes = true, kBytes = false;
};
struct Mxfp8Codes {
  static constexpr bool kCodes = true, kBytes = false;
};

template <class T, class Code, bool kComputed>
__device__ inline void put_bytes(char* q, const typename T::Raw& raw, const Divider& by) {
  store8(q, encode_unit<T, Code, kComputed>(raw, by, RandomRounding{false, 0}, 0));
}

// One stage of formats::hadamard_rotate over lanes: the four values that are joined lie in lanes
// `distance` apart. Signs are factors, so that each sum has the rule's order and roundings.
__device__ inline float rotate_lanes(float v, int distance) {
  const int lane = threadIdx.x % 32;
  const int role = lane / distance % 4;
  const int first = lane - role * distance;
  const auto sign = [&](int of) { return role == of ? -1.0f : 1.0f; };
  float sum = sign(3) * __shfl_sync(~0u, v, first);
  sum = __fmaf_rn(sign(2), __shfl_sync(~0u, v, first + distance), sum);
  sum = __fmaf_rn(sign(1), __shfl_sync(~0u, v, first + 2 * distance), sum);
  return __fmaf_rn(sign(0), __shfl_sync(~0u, v, first + 3 * distance), sum);
}
// Rotates groups of n = 4 to 256 elements: units of n / 8 neighbouring lanes. By whole warps.
__device__ inline void rotate_unit(float (&v)[kUnit], int n) {
  for (int i = 0; i < kUnit; i += 4) {
    const float a = v[i], b = v[i + 1], c = v[i + 2], d = v[i + 3];
    v[i] = ((a + b) + c) - d;
    v[i + 1] = ((a + b) - c) + d;
    v[i + 2] = ((a - b) + c) + d;
    v[i + 3] = ((b - a) + c) + d;
  }
  if (n >= 16) {
    const bool upper = threadIdx.x % 2 == 1;
    for (int i = 0; i < 4; ++i) {
      const float low = __shfl_xor_sync(~0u, v[i], 1), high = __shfl_xor_sync(~0u, v[i + 4], 1);
      const float a = upper ? low : v[i], b = upper ? high : v[i + 4];
      const float c = upper ? v[i] : low, d = upper ? v[i + 4] : high;
      v[i] = upper ? ((a - b) + c) + d : ((a + b) + c) - d;
      v[i + 4] = upper ? ((b - a) + c) + d : ((a + b) - c) + d;
    }
  }
  if (n >= 64) {
    for (int i = 0; i < kUnit; ++i) v[i] = rotate_lanes(v[i], 2);
  }
  if (n >= 256) {
    for (int i = 0; i < kUnit; ++i) v[i] = rotate_lanes(v[i], 8);
  }
  const float norm = formats::hadamard_norm(n);
  for (int i = 0; i < kUnit; ++i) v[i] *= norm;
}

__device__ __noinline__ inline uint8_t any_nvfp4_scale(uint32_t amax, float g) {
  return formats::nvfp4_block_scale(amax, g);
}
// Codes of a unit by the scalar rule.
template <class T>
__device__ __noinline__ uint32_t any_e2m1_codes(typename T::Raw raw, float factor) {
  float x[kUnit];
  T::to_f32(raw, x);
  uint32_t word = 0;
  for (int i = 0; i < kUnit; ++i) {
    word |= static_cast<uint32_t>(formats::e2m1_from_f32(__fdiv_rn(x[i], factor))) << (4 * i);
  }
  return word;
}

// What all blocks of a call share.
struct Nvfp4Scale {
  float g, reciprocal;
  bool plain;  // quotients by g need no care

  __device__ static Nvfp4Scale from(const char* global_scale) {
    const float g = __uint_as_float(AnyTensor::bits(global_scale, 4));
    return {g, short_reciprocal(g), g >= 0x1p-60f && g <= 0x1p60f};
  }
  // amax in [2^-40, 2^40] keeps every quotient in the range of short_quotient.
  __device__ bool is_plain(uint32_t amax) const {
    constexpr uint32_t kSmallest = (127u - 40u) << 23, kLargest = (127u + 40u) << 23;
    return plain && amax - kSmallest <= kLargest - kSmallest;
  }
  __device__ uint8_t of(uint32_t amax) const {
    if (!is_plain(amax)) return any_nvfp4_scale(amax, g);
    const float sixth = short_quotient(__uint_as_float(amax), 6.0f, 1.0f / 6.0f);
    const float t = short_quotient(sixth, g, reciprocal);
    return static_cast<uint8_t>(fp8_pair<formats::E4m3>(t > 448.0f ? 448.0f : t, 0.0f));
  }
};

// Unit `unit` of a row: half a block. `inside`: it exists. By whole warps.
template <class T>
__device__ inline void put_nvfp4(const RowQuantizer& o, char* q, uint8_t* scales, int unit,
                                 bool inside, const typename T::Raw& raw,
                                 const Nvfp4Scale& global) {
  uint32_t amax = T::amax(raw);
  amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
  const uint8_t code = global.of(amax);
  const float factor = e4m3_value(code) * global.g;
  uint32_t word = 0;
  if (code != 0 && factor != 0.0f) {
    const Divider by = Divider::by(factor);
    if (global.is_plain(amax) && by.is_short(__uint_as_float(amax))) {
      float x[kUnit], v[kUnit];
      T::to_f32(raw, x);
      for (int i = 0; i < kUnit; ++i) v[i] = by.shortly(x[i]);
      word = e2m1_codes(v, x);
    } else {
      word = any_e2m1_codes<T>(raw, factor);
    }
    if (o.high_first) word = swap_all_nibbles(word);
  }
  if (!inside) return;
  store4(q + unit * 4, word);
  if (unit % 2 == 0) scales[o.scale_place(unit / 2)] = code;
}

// A quarter of a block.
template <class T>
__device__ __noinline__ uint2 any_mxfp8_codes(typename T::Raw raw, uint8_t e) {
  float v[kUnit];
  T::to_f32(raw, v);
  const float inverse = formats::e8m0_inverse(e);
  for (int i = 0; i < kUnit; ++i) v[i] *= inverse;
  return fp8_codes<formats::E4m3>(v);
}
template <class T>
__device__ inline void put_mxfp8(const RowQuantizer& o, char* q, uint8_t* scales, int unit,
                                 bool inside, const typename T::Raw& raw) {
  using F = formats::E4m3;
  uint32_t amax = T::amax(raw);
  amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
  amax = max(amax, __shfl_xor_sync(~0u, amax, 2));
  const auto up = static_cast<int32_t>((amax + (0x007FFFFFu - F::kMaxFraction)) >> 23);
  const auto e = amax > formats::kF32Inf ? formats::kE8m0Nan
                                         : static_cast<uint8_t>(max(up - F::kMaxExponent, 0));
  uint2 codes = make_uint2(0, 0);
  if (amax >= formats::kF32Inf) {
    codes = any_mxfp8_codes<T>(raw, e);
  } else if (amax != 0) {
    float v[kUnit];
    T::to_f32(raw, v);
    const float inverse = __uint_as_float(static_cast<uint32_t>(254 - e) << 23);
    for (int i = 0; i < kUnit; ++i) v[i] *= inverse;
    codes = fp8_codes<F>(v);
  }
  if (!inside) return;
  store8(q + unit * 8, codes);
  if (unit % 4 == 0) scales[o.scale_place(unit / 4)] = e;
}

// int8 codes of rotated rows; v: the row's values, rounded to x's dtype.
template <int kSlots>
__device__ inline void put_rotated(const RowQuantizer& o, const Team& team,
                                   TeamParts<kSlots>& parts, int slot,
                                   float (&v)[kTeamUnits][kUnit]) {
  char* q = o.q + team.row * o.q_row_bytes;
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    rotate_unit(v[i], o.hadamard);
    if (!team.has(i)) continue;
    for (int j = 0; j < kUnit; ++j) amax = max(amax, formats::abs_bits(v[i][j]));
  }
  const float scale = o.given != nullptr ? __ldg(o.given + team.row)
                                         : Int8Code::scale(team.largest(parts, slot, amax));
  if (o.given == nullptr && team.inside && team.leads()) o.scale_out[team.row] = scale;
  const Divider by = Divider::by(scale);
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    if (team.inside && team.has(i)) {
      put_bytes<F32, Int8Code, false>(q + team.unit(i) * 8, F32::pack(v[i]), by);
    }
  }
}

// Codes of a team's row, and its scale where that is computed: by a join of the largest, in the
// slot.
template <class T, class Kind, int kSlots>
__device__ inline void put_codes(const RowQuantizer& o, int64_t rows, const Team& team,
                                 TeamParts<kSlots>& parts, int slot,
                                 const typename T::Raw (&raw)[kTeamUnits]) {
  char* q = o.q + team.row * o.q_row_bytes;
  if constexpr (Kind::kBytes) {
    using Code = typename Kind::Code;
    float scale;
    if (o.given != nullptr) {
      scale = __ldg(o.given + (o.one_scale ? 0 : team.row));
    } else {
      uint32_t amax = 0;
#pragma unroll
      for (int i = 0; i < kTeamUnits; ++i) {
        if (team.has(i)) amax = max(amax, T::amax(raw[i]));
      }
      scale = Code::scale(team.largest(parts, slot, amax));
      if (team.inside && team.leads()) o.scale_out[team.row] = scale;
    }
    const Divider by = Divider::by(scale);
#pragma unroll
    for (int i = 0; i < kTeamUnits; ++i) {
      if (team.inside && team.has(i)) put_bytes<T, Code, false>(q + team.unit(i) * 8, raw[i], by);
    }
  } else {
    uint8_t* scales = o.scale_row(team.row);
    if constexpr (std::is_same_v<Kind, Nvfp4Codes>) {
      const Nvfp4Scale global = Nvfp4Scale::from(o.global_scale);
#pragma unroll
      for (int i = 0; i < kTeamUnits; ++i) {
        put_nvfp4<T>(o, q, scales, team.unit(i), team.inside && team.has(i), raw[i], global);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTeamUnits; ++i) {
        put_mxfp8<T>(o, q, scales, team.unit(i), team.inside && team.has(i), raw[i]);
      }
    }
    if (team.inside) {
      o.clear_padding(team.row, rows, team.first, team.step);
    }
  }
}

}  // namespace row_quantizer
#endif

// Why a fast kernel can't write it; empty: it can.
inline std::string refuse_row_quantizer(const QuantizedOutput& o) {
  if (o.format == OutFormat::kNone) return "";
  if (o.hadamard > 256) return "it rotates up to 256 elements together";
  if (std::string why = cuda::refuse_unaligned("q", o.q, 8); !why.empty()) return why;
  for (const TensorView* t : {&o.q_scale, &o.scale_out}) {
    if (t->data == nullptr || o.block_scales()) continue;
    if (!is_contiguous(*t) || reinterpret_cast<uintptr_t>(t->data) % 4 != 0) {
      return "the scales have gaps between them or are not aligned to 4 bytes";
    }
  }
  return o.block_scales() ? cuda::refuse_scale_strides("scale_out", o.scale_out, o.swizzled) : "";
}

}  // namespace pestle::ops
