#include "files/error_sums.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "files/error_sums.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
#include <hwy/highway.h>

#include "formats/float_bits.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::files::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;

// Loads one vector of f32 from bf16 (T = hwy::bfloat16_t), f16 or f32 memory.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_as(D d, const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> du;
    const auto raw = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, raw)));
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, from));
  }
}

template <class T>
float load_one(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  } else {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return std::is_same_v<T, hwy::bfloat16_t> ? formats::f32_from_bf16(bits)
                                              : formats::f32_from_f16(bits);
  }
}

// 16-bit types compare their own bits: both orders are the same.
uint32_t amax_u16(const uint16_t* w, int64_t count) {
  const hn::ScalableTag<uint16_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, uint16_t{0x7FFF});
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    a = hn::Max(a, hn::And(hn::LoadU(d, w + i), mask));
    b = hn::Max(b, hn::And(hn::LoadU(d, w + i + lanes), mask));
  }
  uint16_t best = 0;
  uint16_t stored[HWY_MAX_BYTES / 2];
  hn::StoreU(hn::Max(a, b), d, stored);
  for (int64_t l = 0; l < lanes; ++l) best = std::max(best, stored[l]);
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, w + i, sizeof bits);
    best = std::max<uint16_t>(best, bits & 0x7FFF);
  }
  return best;
}

uint32_t amax_u32(const uint32_t* w, int64_t count) {
  const DU d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, 0x7FFFFFFFu);
  auto a = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) a = hn::Max(a, hn::And(hn::LoadU(d, w + i), mask));
  uint32_t stored[HWY_MAX_BYTES / 4];
  hn::StoreU(a, d, stored);
  uint32_t best = 0;
  for (int64_t l = 0; l < lanes; ++l) best = std::max(best, stored[l]);
  for (; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, w + i, sizeof bits);
    best = std::max(best, bits & 0x7FFFFFFFu);
  }
  return best;
}

// f32 lanes hold sums of at most kRun / lanes terms; beyond, double.
constexpr int64_t kRun = 4096;

template <class T>
void add_run(const T* w, const float* decoded, int64_t count, ErrorSums& sums) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto signal0 = hn::Zero(d);
  auto signal1 = hn::Zero(d);
  auto noise0 = hn::Zero(d);
  auto noise1 = hn::Zero(d);
  auto worst = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto x0 = load_as(d, w + i);
    const auto x1 = load_as(d, w + i + lanes);
    const auto e0 = hn::Sub(x0, hn::LoadU(d, decoded + i));
    const auto e1 = hn::Sub(x1, hn::LoadU(d, decoded + i + lanes));
    signal0 = hn::MulAdd(x0, x0, signal0);
    signal1 = hn::MulAdd(x1, x1, signal1);
    noise0 = hn::MulAdd(e0, e0, noise0);
    noise1 = hn::MulAdd(e1, e1, noise1);
    worst = hn::Max(worst, hn::Max(hn::Abs(e0), hn::Abs(e1)));
  }
  double signal = hn::GetLane(hn::SumOfLanes(d, hn::Add(signal0, signal1)));
  double noise = hn::GetLane(hn::SumOfLanes(d, hn::Add(noise0, noise1)));
  float largest = hn::GetLane(hn::MaxOfLanes(d, worst));
  for (; i < count; ++i) {
    const float x = load_one(w + i);
    const float e = x - decoded[i];
    signal += static_cast<double>(x) * x;
    noise += static_cast<double>(e) * e;
    largest = std::max(largest, std::fabs(e));
  }
  sums.signal += signal;
  sums.noise += noise;
  sums.max_error = std::max(sums.max_error, largest);
}

template <class T>
void add_long_run(const T* w, const float* decoded, int64_t count, ErrorSums& sums) {
  for (int64_t i = 0; i < count; i += kRun) {
    add_run(w + i, decoded + i, std::min(kRun, count - i), sums);
  }
}

// An amax scale is itself rounded, so that the largest weight may miss its code by an ulp.
constexpr float kBeyond = 1 + 0x1p-20f;

HWY_INLINE bool is_top(uint8_t code, const TopCodes& top) {
  code &= top.mask;
  return code == top.values[0] || code == top.values[1] || code == top.values[2];
}

HWY_INLINE uint8_t code_at(const uint8_t* codes, int64_t index, const TopCodes& top) {
  if (!top.nibbles) return codes[index];
  const bool high = (index % 2 == 0) != top.low_first;
  return high ? codes[index / 2] >> 4 : codes[index / 2] & 0xF;
}

#if HWY_TARGET != HWY_SCALAR
// Bit i of the result: code i of these 16 is among the largest.
HWY_INLINE uint32_t top_bits(const uint8_t* codes, const TopCodes& top) {
  const hn::Full128<uint8_t> d;
  hn::Vec<decltype(d)> code;
  if (top.nibbles) {
    const hn::Full64<uint8_t> half;
    const auto bytes = hn::ZeroExtendVector(d, hn::LoadU(half, codes));
    const auto low = hn::And(bytes, hn::Set(d, 0xF));
    const hn::RepartitionToWide<decltype(d)> wide;
    const auto high =
        hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(wide, bytes))), hn::Set(d, 0xF));
    code = top.low_first ? hn::InterleaveLower(d, low, high) : hn::InterleaveLower(d, high, low);
  } else {
    code = hn::LoadU(d, codes);
  }
  code = hn::And(code, hn::Set(d, top.mask));
  const auto is_largest = hn::Or(
      hn::Eq(code, hn::Set(d, top.values[0])),
      hn::Or(hn::Eq(code, hn::Set(d, top.values[1])), hn::Eq(code, hn::Set(d, top.values[2]))));
  uint8_t bits[8] = {};
  hn::StoreMaskBits(d, is_largest, bits);
  return bits[0] | static_cast<uint32_t>(bits[1]) << 8;
}

// As clipped_run below, of whole groups of 16; `i` moves past them.
template <class T>
uint64_t clipped_groups(const T* w, const float* decoded, const uint8_t* codes, int64_t count,
                        const TopCodes& top, int64_t& i) {
  const hn::CappedTag<float, 16> d;
  constexpr int64_t kGroup = 16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto beyond = hn::Set(d, kBeyond);
  uint64_t clipped = 0;
  for (; i + kGroup <= count; i += kGroup) {
    const uint32_t largest = top_bits(codes + (top.nibbles ? i / 2 : i), top);
    if (largest == 0) continue;
    for (int64_t j = 0; j < kGroup; j += lanes) {
      const auto x = hn::Abs(load_as(d, w + i + j));
      const auto y = hn::Mul(hn::Abs(hn::LoadU(d, decoded + i + j)), beyond);
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Gt(x, y), bits);
      const uint32_t outside = bits[0] | static_cast<uint32_t>(bits[1]) << 8;
      clipped +=
          static_cast<uint64_t>(hwy::PopCount(outside & (largest >> j) & ((1u << lanes) - 1)));
    }
  }
  return clipped;
}
#endif

template <class T>
uint64_t clipped_run(const T* w, const float* decoded, const uint8_t* codes, int64_t count,
                     const TopCodes& top) {
  int64_t i = 0;
  uint64_t clipped = 0;
#if HWY_TARGET != HWY_SCALAR
  clipped = clipped_groups(w, decoded, codes, count, top, i);
#endif
  for (; i < count; ++i) {
    clipped += is_top(code_at(codes, i, top), top) &&
               std::fabs(load_one(w + i)) > std::fabs(decoded[i]) * kBeyond;
  }
  return clipped;
}

}  // namespace

uint64_t ClippedRun(const void* w, DType dtype, const float* decoded, const uint8_t* codes,
                    int64_t count, const TopCodes& top) {
  if (dtype == DType::kBF16) {
    return clipped_run(static_cast<const hwy::bfloat16_t*>(w), decoded, codes, count, top);
  }
  if (dtype == DType::kF16) {
    return clipped_run(static_cast<const hwy::float16_t*>(w), decoded, codes, count, top);
  }
  return clipped_run(static_cast<const float*>(w), decoded, codes, count, top);
}

uint32_t Amax16(const void* w, int64_t count) {
  return amax_u16(static_cast<const uint16_t*>(w), count);
}
uint32_t Amax32(const void* w, int64_t count) {
  return amax_u32(static_cast<const uint32_t*>(w), count);
}

void AddErrors(const void* w, DType dtype, const float* decoded, int64_t count, ErrorSums& sums) {
  if (dtype == DType::kBF16) {
    add_long_run(static_cast<const hwy::bfloat16_t*>(w), decoded, count, sums);
  } else if (dtype == DType::kF16) {
    add_long_run(static_cast<const hwy::float16_t*>(w), decoded, count, sums);
  } else {
    add_long_run(static_cast<const float*>(w), decoded, count, sums);
  }
}

}  // namespace pestle::files::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::files {

HWY_EXPORT(Amax16);
HWY_EXPORT(Amax32);
HWY_EXPORT(AddErrors);
HWY_EXPORT(ClippedRun);

uint32_t largest_magnitude_bits(const TensorView& w) {
  const int64_t count = numel(w);
  if (w.dtype == DType::kF32) return HWY_DYNAMIC_DISPATCH(Amax32)(w.data, count);
  const auto bits = static_cast<uint16_t>(HWY_DYNAMIC_DISPATCH(Amax16)(w.data, count));
  return formats::bits_from_f32(w.dtype == DType::kBF16 ? formats::f32_from_bf16(bits)
                                                        : formats::f32_from_f16(bits));
}

ErrorSums error_sums(const TensorView& w, const float* decoded, int64_t stride) {
  const int64_t rows = w.rank == 2 ? w.shape[0] : 1;
  const int64_t count = w.shape[w.rank - 1];
  ErrorSums sums;
  sums.elements = static_cast<uint64_t>(rows * count);
  if (stride == count) {
    HWY_DYNAMIC_DISPATCH(AddErrors)(w.data, w.dtype, decoded, rows * count, sums);
    return sums;
  }
  const auto* row = static_cast<const char*>(w.data);
  for (int64_t r = 0; r < rows; ++r) {
    HWY_DYNAMIC_DISPATCH(AddErrors)
    (row + r * count * dtype_bytes(w.dtype), w.dtype, decoded + r * stride, count, sums);
  }
  return sums;
}

ErrorSums error_sums_of_run(const void* w, DType dtype, const float* decoded, int64_t count) {
  ErrorSums sums;
  sums.elements = static_cast<uint64_t>(count);
  HWY_DYNAMIC_DISPATCH(AddErrors)(w, dtype, decoded, count, sums);
  return sums;
}

float load_weight(const void* data, DType dtype, int64_t index) {
  const char* at = static_cast<const char*>(data) + index * dtype_bytes(dtype);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::kBF16 ? formats::f32_from_bf16(bits) : formats::f32_from_f16(bits);
}

uint64_t count_clipped(const TensorView& w, const float* decoded, int64_t stride,
                       const uint8_t* codes, int64_t code_stride, const TopCodes& top) {
  const int64_t k = w.shape[1];
  const auto* row = static_cast<const char*>(w.data);
  uint64_t clipped = 0;
  for (int64_t r = 0; r < w.shape[0]; ++r) {
    clipped +=
        HWY_DYNAMIC_DISPATCH(ClippedRun)(row + r * k * dtype_bytes(w.dtype), w.dtype,
                                         decoded + r * stride, codes + r * code_stride, k, top);
  }
  return clipped;
}

}  // namespace pestle::files
#endif  // HWY_ONCE
