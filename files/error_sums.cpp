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

// Codes of one run of elements, to find those that clipped. codes == nullptr: not asked.
struct RunCodes {
  const uint8_t* codes;
  const TopCodes& top;
};

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

template <class T>
bool is_clipped(const T* w, const float* decoded, int64_t i, const RunCodes& run) {
  return is_top(code_at(run.codes, i, run.top), run.top) &&
         std::fabs(load_one(w + i)) > std::fabs(decoded[i]) * kBeyond;
}

constexpr int64_t kBlock = 64;

#if HWY_TARGET != HWY_SCALAR
template <class D>
HWY_INLINE uint64_t mask_bits(D d, hn::Mask<D> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return hn::Lanes(d) < 64 ? bits & ((uint64_t{1} << (hn::Lanes(d) % 64)) - 1) : bits;
}

// One code a byte, from packed nibbles.
template <class D>
HWY_INLINE hn::Vec<D> unpack_nibbles(D d, const uint8_t* bytes, bool low_first) {
  const hn::RepartitionToWide<D> wide;
  const hn::Rebind<uint8_t, decltype(wide)> half;
  const auto pair = hn::PromoteTo(wide, hn::LoadU(half, bytes));
  const auto apart = low_first ? hn::Or(pair, hn::ShiftLeft<4>(pair))
                               : hn::Or(hn::ShiftRight<4>(pair), hn::ShiftLeft<8>(pair));
  return hn::And(hn::BitCast(d, apart), hn::Set(d, 0x0F));
}

// Bit i of the result: code i of the kBlock codes from `first` on is among the largest.
HWY_INLINE uint64_t top_bits(const RunCodes& run, int64_t first) {
  const hn::CappedTag<uint8_t, kBlock> d;
  const TopCodes& top = run.top;
  uint64_t bits = 0;
  for (int64_t i = 0; i < kBlock; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto code =
        hn::And(hn::Set(d, top.mask),
                top.nibbles ? unpack_nibbles(d, run.codes + (first + i) / 2, top.low_first)
                            : hn::LoadU(d, run.codes + first + i));
    const auto is_largest = hn::Or(
        hn::Eq(code, hn::Set(d, top.values[0])),
        hn::Or(hn::Eq(code, hn::Set(d, top.values[1])), hn::Eq(code, hn::Set(d, top.values[2]))));
    bits |= mask_bits(d, is_largest) << i;
  }
  return bits;
}

// Bit i: element i of the kBlock lies beyond what its code decodes to.
template <class T>
HWY_INLINE uint64_t beyond_bits(const T* w, const float* decoded) {
  const hn::CappedTag<float, 16> d;
  uint64_t bits = 0;
  for (int64_t i = 0; i < kBlock; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto x = hn::Abs(load_as(d, w + i));
    const auto y = hn::Mul(hn::Abs(hn::LoadU(d, decoded + i)), hn::Set(d, kBeyond));
    bits |= mask_bits(d, hn::Gt(x, y)) << i;
  }
  return bits;
}

template <class T>
HWY_INLINE uint64_t clipped_in_block(const T* w, const float* decoded, const RunCodes& run,
                                     int64_t i) {
  const uint64_t largest = top_bits(run, i);
  if (largest == 0) return 0;
  return static_cast<uint64_t>(hwy::PopCount(largest & beyond_bits(w + i, decoded + i)));
}
#else
template <class T>
uint64_t clipped_in_block(const T* w, const float* decoded, const RunCodes& run, int64_t i) {
  uint64_t clipped = 0;
  for (int64_t j = i; j < i + kBlock; ++j) clipped += is_clipped(w, decoded, j, run);
  return clipped;
}
#endif

// f32 lanes hold sums of at most kRun / (2 * lanes) terms; beyond, double.
constexpr int64_t kRun = 4096;

template <class T>
void add_run(const T* w, const float* decoded, int64_t count, const RunCodes& run,
             ErrorSums& sums) {
  const hn::CappedTag<float, 32> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto signal0 = hn::Zero(d);
  auto signal1 = hn::Zero(d);
  auto noise0 = hn::Zero(d);
  auto noise1 = hn::Zero(d);
  auto worst = hn::Zero(d);
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (int64_t j = i; j < i + kBlock; j += 2 * lanes) {
      const auto x0 = load_as(d, w + j);
      const auto x1 = load_as(d, w + j + lanes);
      const auto e0 = hn::Sub(x0, hn::LoadU(d, decoded + j));
      const auto e1 = hn::Sub(x1, hn::LoadU(d, decoded + j + lanes));
      signal0 = hn::MulAdd(x0, x0, signal0);
      signal1 = hn::MulAdd(x1, x1, signal1);
      noise0 = hn::MulAdd(e0, e0, noise0);
      noise1 = hn::MulAdd(e1, e1, noise1);
      worst = hn::Max(worst, hn::Max(hn::Abs(e0), hn::Abs(e1)));
    }
    if (run.codes != nullptr) sums.clipped += clipped_in_block(w, decoded, run, i);
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
    if (run.codes != nullptr) sums.clipped += is_clipped(w, decoded, i, run);
  }
  sums.signal += signal;
  sums.noise += noise;
  sums.max_error = std::max(sums.max_error, largest);
}

template <class T>
void add_long_run(const void* weights, const float* decoded, int64_t count, const RunCodes& run,
                  ErrorSums& sums) {
  const T* w = static_cast<const T*>(weights);
  for (int64_t i = 0; i < count; i += kRun) {
    const uint8_t* codes = run.codes;
    if (codes != nullptr) codes += run.top.nibbles ? i / 2 : i;
    add_run(w + i, decoded + i, std::min(kRun, count - i), {codes, run.top}, sums);
  }
}

}  // namespace

uint32_t Amax16(const void* w, int64_t count) {
  return amax_u16(static_cast<const uint16_t*>(w), count);
}
uint32_t Amax32(const void* w, int64_t count) {
  return amax_u32(static_cast<const uint32_t*>(w), count);
}

void AddErrors(const void* w, DType dtype, const float* decoded, int64_t count,
               const uint8_t* codes, const TopCodes& top, ErrorSums& sums) {
  const RunCodes run{codes, top};
  if (dtype == DType::kBF16) {
    add_long_run<hwy::bfloat16_t>(w, decoded, count, run, sums);
  } else if (dtype == DType::kF16) {
    add_long_run<hwy::float16_t>(w, decoded, count, run, sums);
  } else {
    add_long_run<float>(w, decoded, count, run, sums);
  }
}

}  // namespace pestle::files::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::files {

HWY_EXPORT(Amax16);
HWY_EXPORT(Amax32);
HWY_EXPORT(AddErrors);

uint32_t largest_magnitude_bits(const TensorView& w) {
  const int64_t count = numel(w);
  if (w.dtype == DType::kF32) return HWY_DYNAMIC_DISPATCH(Amax32)(w.data, count);
  const auto bits = static_cast<uint16_t>(HWY_DYNAMIC_DISPATCH(Amax16)(w.data, count));
  return formats::bits_from_f32(w.dtype == DType::kBF16 ? formats::f32_from_bf16(bits)
                                                        : formats::f32_from_f16(bits));
}

ErrorSums error_sums(const TensorView& w, const float* decoded, int64_t stride,
                     const StoredCodes& codes) {
  int64_t rows = w.rank == 2 ? w.shape[0] : 1;
  int64_t count = w.shape[w.rank - 1];
  const int64_t code_bytes = codes.top.nibbles ? (count + 1) / 2 : count;
  const bool whole_bytes = !codes.top.nibbles || count % 2 == 0;
  ErrorSums sums;
  sums.elements = static_cast<uint64_t>(rows * count);
  if (stride == count && (codes.data == nullptr || (codes.stride == code_bytes && whole_bytes))) {
    count *= rows;
    rows = 1;
  }
  const auto* row = static_cast<const char*>(w.data);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* code = codes.data == nullptr ? nullptr : codes.data + r * codes.stride;
    HWY_DYNAMIC_DISPATCH(AddErrors)
    (row + r * count * dtype_bytes(w.dtype), w.dtype, decoded + r * stride, count, code, codes.top,
     sums);
  }
  return sums;
}

ErrorSums error_sums_of_run(const void* w, DType dtype, const float* decoded, int64_t count) {
  ErrorSums sums;
  sums.elements = static_cast<uint64_t>(count);
  HWY_DYNAMIC_DISPATCH(AddErrors)(w, dtype, decoded, count, nullptr, {}, sums);
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

}  // namespace pestle::files
#endif  // HWY_ONCE
