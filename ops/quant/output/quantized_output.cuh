// Quantised output of row ops on CUDA, from registers: a thread's two runs of 16 neighbours
// (row_ring.cuh), already rounded to x's dtype, as four units of 8 (T::Raw), to codes and scales.
// Rules: docs/formats; contract: quantized_output.h. Whole warps call these.
#pragma once

#include "backends/cuda/device/numeric/divide.cuh"
#include "backends/cuda/device/numeric/e2m1.cuh"
#include "backends/cuda/device/numeric/largest.cuh"
#include "backends/cuda/device/row/row_ring.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/block_scales.cuh"
#include "backends/cuda/host/tensor_amax.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "ops/quant/block/e2m1_ties.cuh"
#include "ops/quant/hadamard/hadamard.cuh"
#include "ops/quant/output/quantized_output.h"
#include "ops/quant/rowwise/quantize_by_reciprocal.cuh"
#include "ops/quant/rowwise/quantize_unit.cuh"

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
  bool wide = false;  // rows of q lie at multiples of 16 bytes

  RowQuantizer() = default;
  explicit RowQuantizer(const QuantizedOutput& o) {
    if (o.format == OutFormat::kNone) return;
    q = o.q.as<char>();
    q_row_bytes = cuda::row_distance(o.q);
    wide = reinterpret_cast<uintptr_t>(q) % 16 == 0 && q_row_bytes % 16 == 0;
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
  __device__ uint8_t* scale_row(uint32_t row) const {
    if (!swizzled) return block_scales + row * scale_row_bytes;
    const uint32_t in = row % 32 * 16 + row % 128 / 32 * 4;
    return block_scales + row / 128 * (scale_tiles * 512) + in;
  }
  __device__ uint32_t scale_place(uint32_t block) const {
    return swizzled ? block / 4 * 512 + block % 4 : block;
  }
  // Zeros where no block is: the row's own end, and rows past the last, shared out over all rows.
  __device__ void clear_padding(int row, int rows, int thread, int threads) const {
    if (!swizzled || (blocks == padded_blocks && rows + row >= padded_rows)) return;
    for (int b = blocks + thread; b < padded_blocks; b += threads) {
      scale_row(row)[scale_place(b)] = 0;
    }
    for (uint32_t r = static_cast<uint32_t>(rows) + row; r < padded_rows; r += rows) {
      for (int b = thread; b < padded_blocks; b += threads) scale_row(r)[scale_place(b)] = 0;
    }
  }
#endif
};

#ifdef __CUDACC__
namespace row_quantizer {

using namespace pestle::cuda;

// What a kernel is compiled for.
struct PlainOutput {
  static constexpr bool kQuantizes = false, kBytes = false;
};
template <class C>
struct ByteOutput {
  static constexpr bool kQuantizes = true, kBytes = true;
  using Code = C;
};
// int8 after rotation: values are f32 by then.
struct RotatedOutput {
  static constexpr bool kQuantizes = true, kBytes = false;
};
struct Nvfp4Output {
  static constexpr bool kQuantizes = true, kBytes = false;
  static constexpr int kRuns = 1;  // of 16 elements, of a block
};
struct Mxfp8Output {
  static constexpr bool kQuantizes = true, kBytes = false;
  static constexpr int kRuns = 2;
};

// f(kind) for the codes that are wanted, which are some.
template <class F>
Status with_quantized(const QuantizedOutput& o, const F& f) {
  switch (o.format) {
    case OutFormat::kInt8Row:
      return o.hadamard > 0 ? f(RotatedOutput{}) : f(ByteOutput<Int8Code>{});
    case OutFormat::kNvfp4: return f(Nvfp4Output{});
    case OutFormat::kMxfp8: return f(Mxfp8Output{});
    default: return f(ByteOutput<Fp8Code<formats::E4m3>>{});
  }
}

inline constexpr int kRun = 16;       // neighbours of a thread
inline constexpr int kCodeUnits = 4;  // of 8, of a thread: unit i is half i % 2 of run i / 2
template <class T>
using CodeMap = RowMap<T, kRun>;

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
  uint32_t plain;   // magnitudes from kSmallest on whose quotients need no care; none where g does
  E2m1Moves moves;  // how products come to the quotients' codes

  static constexpr uint32_t kSmallest = (127u - 40u) << 23, kLargest = (127u + 40u) << 23;

  // By whole warps.
  template <class T>
  __device__ static Nvfp4Scale from(const char* global_scale) {
    const float g = __uint_as_float(AnyTensor::bits(global_scale, 4));
    const bool plain = g >= 0x1p-50f && g <= 0x1p50f;
    return {g, short_reciprocal(g), plain ? kLargest - kSmallest : 0u, e2m1_moves<T>(g)};
  }
  // Every quotient is in the range of short_quotient.
  __device__ bool is_plain(uint32_t amax) const { return amax - kSmallest < plain; }
  // The scale of a plain block: 448 at most.
  __device__ uint8_t quickly(uint32_t amax) const {
    const float sixth = short_quotient(__uint_as_float(amax), 6.0f, 1.0f / 6.0f);
    return e4m3_of_magnitude(short_quotient(sixth, g, reciprocal));
  }
  __device__ uint8_t of(uint32_t amax) const {
    return is_plain(amax) ? quickly(amax) : any_nvfp4_scale(amax, g);
  }
};

// The codes of a run: 16 bytes, or 8 where its second half lies past the row's end.
template <class At>
__device__ inline void store_run(const RowQuantizer& o, const At& at, int run, char* q, uint2 low,
                                 uint2 high) {
  if (!at.stores(2 * run)) return;
  char* to = at_element<1>(q, at.places[run]);
  if (o.wide && at.has(2 * run + 1)) {
    store16(to, make_uint4(low.x, low.y, high.x, high.y));
    return;
  }
  store8(to, low);
  if (at.has(2 * run + 1)) store8(to + kUnit, high);
}

template <class T, class Code>
__device__ __noinline__ uint2 any_byte_codes(typename T::Raw raw, float scale) {
  float v[kUnit];
  T::to_f32(raw, v);
  for (int i = 0; i < kUnit; ++i) v[i] = __fdiv_rn(v[i], scale);
  return Code::codes(v);
}
template <class T, class Code, bool kBounded>
__device__ inline uint2 short_byte_codes(const typename T::Raw& raw, const Divider& by) {
  return Code::template quotients<T, kBounded>(raw, by);
}

// Codes of a byte; a scale that is computed is the row's: by a join of the largest, in the slot.
template <class T, class Code, class At, int kSlots>
__device__ inline void put_bytes(const RowQuantizer& o, const ThreadGroup& thread_group,
                                 const At& at, ReductionSlots<kSlots>& parts, int slot,
                                 const typename T::Raw (&raw)[kCodeUnits]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kCodeUnits; i += 2) {
    if (at.has(i + 1))
      largest = max(largest, largest_of<T>(raw[i], raw[i + 1]));
    else if (at.has(i))
      largest = max(largest, largest_of_unit<T>(raw[i]));
  }
  float scale;
  if (o.given != nullptr) {
    scale = __ldg(o.given + (o.one_scale ? 0 : thread_group.row));
  } else {
    largest = thread_group.largest(parts, slot, largest);
    scale = Code::scale(largest);
    if (thread_group.inside && thread_group.leads()) o.scale_out[thread_group.row] = scale;
  }
  const Divider by = Divider::by(scale);
  uint2 codes[kCodeUnits];
  if (!by.is_short(__uint_as_float(largest))) {
#pragma unroll
    for (int i = 0; i < kCodeUnits; ++i) codes[i] = any_byte_codes<T, Code>(raw[i], scale);
  } else if (o.given != nullptr) {
#pragma unroll
    for (int i = 0; i < kCodeUnits; ++i) codes[i] = short_byte_codes<T, Code, false>(raw[i], by);
  } else {
#pragma unroll
    for (int i = 0; i < kCodeUnits; ++i) codes[i] = short_byte_codes<T, Code, true>(raw[i], by);
  }
  char* q = row_at(o.q, o.q_row_bytes, thread_group.row);
  store_run(o, at, 0, q, codes[0], codes[1]);
  store_run(o, at, 1, q, codes[2], codes[3]);
}

// A block's two words of codes and its scale.
template <class T>
__device__ inline uint3 quotient_nvfp4(const typename T::Raw& low, const typename T::Raw& high,
                                       uint32_t amax, float g, float reciprocal, uint32_t plain,
                                       bool high_first) {
  const Nvfp4Scale global{g, reciprocal, plain, {}};
  const uint32_t code = global.of(amax);
  const float value = code == 0x7F ? formats::f32_nan() : __uint_as_float(code << 20) * 0x1p120f;
  const float factor = value * g;
  if (code == 0 || factor == 0.0f) return make_uint3(0, 0, code);
  const Divider by = Divider::by(factor);
  uint2 words;
  if (!global.is_plain(amax) || !by.is_short(__uint_as_float(amax))) {
    words = make_uint2(any_e2m1_codes<T>(low, factor), any_e2m1_codes<T>(high, factor));
  } else {
    const E2m1Factors factors = E2m1Factors::of(1.0f);
    const auto half = [&](const typename T::Raw& raw) {
      float x[kUnit], v[kUnit];
      T::to_f32(raw, x);
      for (int i = 0; i < kUnit; ++i) v[i] = fminf(fabsf(by.shortly(x[i])), 6.0f);
      return e2m1_words(v, factors, x);
    };
    words = make_uint2(half(low), half(high));
  }
  if (high_first) words = make_uint2(swap_all_nibbles(words.x), swap_all_nibbles(words.y));
  return make_uint3(words.x, words.y, code);
}
template <class T>
__device__ __noinline__ uint3 rare_nvfp4(typename T::Raw low, typename T::Raw high, uint32_t amax,
                                         float g, float reciprocal, uint32_t plain,
                                         bool high_first) {
  return quotient_nvfp4<T>(low, high, amax, g, reciprocal, plain, high_first);
}

// The same by products where those decide.
template <class T>
__device__ inline uint3 nvfp4_block(const typename T::Raw& low, const typename T::Raw& high,
                                    uint32_t amax, const Nvfp4Scale& global, bool high_first) {
  if constexpr (T::kBytes == 4) {
    return quotient_nvfp4<T>(low, high, amax, global.g, global.reciprocal, global.plain,
                             high_first);
  } else {
    if (global.is_plain(amax)) {
      const uint32_t code = global.quickly(amax);
      // The code as the upper bits of an f32 is its value * 2^-120. Factors lie in [2^-59, 2^59].
      const float s = __uint_as_float(code << 20) * 0x1p120f;
      const uint32_t place = E2m1Moves::place(s);
      const int move = global.moves.at(place);
      const float by = E2m1Moves::moved(short_reciprocal(s * global.g), move);
      if (code != 0 && __uint_as_float(amax) * by < 6.75f && move != E2m1Moves::kUndecided) {
        const auto half = [&](const typename T::Raw& raw) {
          float x[kUnit];
          T::to_f32(raw, x);
          if (global.moves.promoted == 0) return e2m1_word(x, by * 0x1p-14f, high_first);
          const uint32_t promotion = global.moves.promotes(place) ? kPromotion : 0;
          return e2m1_word<true>(x, by * 0x1p-14f, high_first, promotion);
        };
        return make_uint3(half(low), half(high), code);
      }
    }
    return rare_nvfp4<T>(low, high, amax, global.g, global.reciprocal, global.plain, high_first);
  }
}
template <class T, class At>
__device__ inline void put_nvfp4(const RowQuantizer& o, const ThreadGroup& thread_group,
                                 const At& at, const Nvfp4Scale& global,
                                 const typename T::Raw (&raw)[kCodeUnits]) {
  char* q = row_at(o.q, o.q_row_bytes, thread_group.row);
  uint8_t* scales = o.scale_row(thread_group.row);
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const auto &low = raw[2 * run], &high = raw[2 * run + 1];
    const uint32_t amax = largest_of<T>(low, high);
    const uint3 done = nvfp4_block<T>(low, high, amax, global, o.high_first);
    if (!at.stores(2 * run)) continue;
    store8(at_element<1>(q, at.places[run] / 2), make_uint2(done.x, done.y));
    scales[o.scale_place(at.places[run] / kRun)] = static_cast<uint8_t>(done.z);
  }
}

// A unit by the scalar rule.
template <class T>
__device__ __noinline__ uint2 any_mxfp8_codes(typename T::Raw raw, uint8_t e) {
  float v[kUnit];
  T::to_f32(raw, v);
  const float inverse = formats::e8m0_inverse(e);
  for (int i = 0; i < kUnit; ++i) v[i] *= inverse;
  return fp8_codes<formats::E4m3>(v);
}
// A block's scale, and codes by it.
struct Mxfp8Scale {
  float inverse;
  uint32_t amax;
  uint8_t code;

  __device__ static Mxfp8Scale of(uint32_t amax) {
    using F = formats::E4m3;
    const auto up = static_cast<int32_t>((amax + (0x007FFFFFu - F::kMaxFraction)) >> 23);
    const auto e = amax > formats::kF32Inf ? formats::kE8m0Nan
                                           : static_cast<uint8_t>(max(up - F::kMaxExponent, 0));
    return {__uint_as_float(static_cast<uint32_t>(254 - e) << 23), amax, e};
  }
  template <class T>
  __device__ uint2 codes(const typename T::Raw& raw) const {
    if (amax >= formats::kF32Inf) return any_mxfp8_codes<T>(raw, code);
    if (amax == 0) return make_uint2(0, 0);
    return fp8_codes_of_products<T, formats::E4m3, true>(raw, inverse);
  }
};
// Two neighbouring lanes hold a block.
template <class T, class At>
__device__ inline void put_mxfp8(const RowQuantizer& o, const ThreadGroup& thread_group,
                                 const At& at, const typename T::Raw (&raw)[kCodeUnits]) {
  char* q = row_at(o.q, o.q_row_bytes, thread_group.row);
  uint8_t* scales = o.scale_row(thread_group.row);
#pragma unroll
  for (int run = 0; run < 2; ++run) {
    const auto &low = raw[2 * run], &high = raw[2 * run + 1];
    uint32_t amax = largest_of<T>(low, high);
    amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
    const Mxfp8Scale scale = Mxfp8Scale::of(amax);
    store_run(o, at, run, q, scale.codes<T>(low), scale.codes<T>(high));
    const int granule = at.places[run] / kRun;
    if (at.stores(2 * run) && granule % 2 == 0) scales[o.scale_place(granule / 2)] = scale.code;
  }
}

// Rotates runs in place; whole groups lie in neighbouring lanes. `shared`: the warp's own
// kRotateFloats.
template <int kN, int kRuns>
__device__ inline void rotate_in_place(float (&v)[kRuns][kRun], float* shared) {
  const int lane = threadIdx.x % 32;
  const float norm = formats::hadamard_norm(kN);
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    float one[1][kRun];
    for (int j = 0; j < kRun; ++j) one[0][j] = v[run][j];
    warp_rotate<kN>(one, shared);
    if constexpr (kN >= 64) {
      __syncwarp();
      put_strided<kN>(shared, lane, one[0]);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(shared + lane_quad(lane, i));
        one[0][4 * i] = four.x;
        one[0][4 * i + 1] = four.y;
        one[0][4 * i + 2] = four.z;
        one[0][4 * i + 3] = four.w;
      }
    }
    for (int j = 0; j < kRun; ++j) v[run][j] = one[0][j] * norm;
  }
}
// Bytes of shared memory that rotated codes need.
constexpr int rotation_bytes(int threads) { return threads / 32 * kRotateFloats * 4; }

// int8 codes of rotated rows.
template <class T, class At, int kSlots>
__device__ inline void put_rotated(const RowQuantizer& o, const ThreadGroup& thread_group,
                                   const At& at, ReductionSlots<kSlots>& parts, int slot,
                                   char* shared, const typename T::Raw (&raw)[kCodeUnits]) {
  float v[2][kRun];
#pragma unroll
  for (int i = 0; i < kCodeUnits; ++i) {
    float w[kUnit];
    T::to_f32(raw[i], w);
    for (int j = 0; j < kUnit; ++j) v[i / 2][i % 2 * kUnit + j] = w[j];
  }
  float* own = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * kRotateFloats;
  switch (o.hadamard) {
    case 4: rotate_in_place<4>(v, own); break;
    case 16: rotate_in_place<16>(v, own); break;
    case 64: rotate_in_place<64>(v, own); break;
    default: rotate_in_place<256>(v, own);
  }
  F32::Raw rotated[kCodeUnits];
#pragma unroll
  for (int i = 0; i < kCodeUnits; ++i) {
    float w[kUnit];
    for (int j = 0; j < kUnit; ++j) w[j] = v[i / 2][i % 2 * kUnit + j];
    rotated[i] = F32::pack(w);
  }
  put_bytes<F32, Int8Code>(o, thread_group, at, parts, slot, rotated);
}

// Codes of a thread group's row, and its scales where those are computed.
template <class T, class Kind, class At, int kSlots>
__device__ inline void put_codes(const RowQuantizer& o, const ThreadGroup& thread_group,
                                 const At& at, ReductionSlots<kSlots>& parts, int slot,
                                 char* shared, const Nvfp4Scale& global,
                                 const typename T::Raw (&raw)[kCodeUnits]) {
  if constexpr (Kind::kBytes) {
    put_bytes<T, typename Kind::Code>(o, thread_group, at, parts, slot, raw);
  } else if constexpr (std::is_same_v<Kind, RotatedOutput>) {
    put_rotated<T>(o, thread_group, at, parts, slot, shared, raw);
  } else {
    if constexpr (std::is_same_v<Kind, Nvfp4Output>) {
      put_nvfp4<T>(o, thread_group, at, global, raw);
    } else {
      put_mxfp8<T>(o, thread_group, at, raw);
    }
    if (thread_group.inside)
      o.clear_padding(thread_group.row, thread_group.rows, thread_group.first, thread_group.step);
  }
}

}  // namespace row_quantizer
#endif

// Why a fast kernel can't write it; empty: it can.
inline std::string refuse_row_quantizer(const QuantizedOutput& o) {
  if (o.format == OutFormat::kNone) return "";
  if (o.hadamard > 256) return "it rotates up to 256 elements together";
  // Short rows have few lanes, which hold 16 elements of a group each.
  if (o.hadamard > 64 && row_length(o.q) < 2 * o.hadamard) {
    return "rows of fewer than two rotations";
  }
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
