// One row of x times the rows of a QuantMatrix: bound by reading the codes, so codes are decoded in
// registers, four rows at a time over the same x, and never written.
//
// Numerics: f32; sums of at most 512 columns (128 of nibbles) a lane, then times the scale into the
// row's sum. A row whose scales are so large that this order could overflow or lose a subnormal, or
// that holds an E4M3 NaN, is decoded exactly first.
#if defined(PESTLE_SIMD_QUANT_GEMV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_QUANT_GEMV_INL_H_
#undef PESTLE_SIMD_QUANT_GEMV_INL_H_
#else
#define PESTLE_SIMD_QUANT_GEMV_INL_H_
#endif

#include "backends/cpu/simd/quant_gemv_bf16-inl.h"
#include "backends/cpu/simd/quant_gemv_rows-inl.h"
#include "backends/cpu/simd/quant_gemv_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace quant {

inline constexpr int64_t kPanel = 8192;   // columns whose scales are decoded at once
inline constexpr int64_t kSegment = 512;  // longest f32 sum before it joins the row's
inline constexpr uint32_t kPlainScale = (127u + 24u) << 23;  // 2^24
inline constexpr uint32_t kPlainX = (127u + 64u) << 23;      // 2^64

// Row by decoded values: exact for every scale and code.
HWY_INLINE float exact_row(const QuantMatrix& q, const float* x, int64_t row) {
  constexpr int64_t kColumns = 512;
  alignas(64) float values[kColumns];
  const DF d;
  VF total = hn::Zero(d);
  for (int64_t k0 = 0; k0 < q.columns; k0 += kColumns) {
    const int64_t columns = std::min(kColumns, q.columns - k0);
    decode_panel(q, row, k0, columns, values);
    const int64_t padded = (columns + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
    VF s0 = hn::Zero(d);
    VF s1 = hn::Zero(d);
    for (int64_t k = 0; k < padded; k += 2 * kLanes) {
      s0 = hn::MulAdd(hn::LoadU(d, values + k), hn::LoadU(d, x + k0 + k), s0);
      s1 = hn::MulAdd(hn::LoadU(d, values + k + kLanes), hn::LoadU(d, x + k0 + k + kLanes), s1);
    }
    total = hn::Add(total, hn::Add(s0, s1));
  }
  return hn::GetLane(hn::SumOfLanes(d, total));
}

// Adds the panel's columns to acc; true if an E4M3 NaN was among the codes.
template <CodeKind kCode>
HWY_INLINE bool byte_panel(const GemvRows& r, const float* HWY_RESTRICT x, int64_t columns,
                           int64_t group, VF (&acc)[kRows]) {
  const DF d;
  const DU8 d8;
  auto largest = hn::Zero(d8);
  const auto sign = hn::Set(d8, uint8_t{0x80});
  int64_t k = 0;
  int64_t group_end = group;
  for (int64_t g = 0; k < columns;) {
    const int64_t end = std::min(std::min(columns, group_end), k + kSegment);
    VF t0 = hn::Zero(d), t1 = t0, t2 = t0, t3 = t0;
    const auto step = [&](const uint8_t* p0, const uint8_t* p1, const uint8_t* p2,
                          const uint8_t* p3, VF xv) HWY_ATTR {
      if constexpr (kCode == CodeKind::kE4M3) {
        // Codes 0x7F and 0xFF are 255 with the sign set: a maximum finds them.
        const auto a = hn::Max(hn::Or(hn::LoadU(d8, p0), sign), hn::Or(hn::LoadU(d8, p1), sign));
        const auto b = hn::Max(hn::Or(hn::LoadU(d8, p2), sign), hn::Or(hn::LoadU(d8, p3), sign));
        largest = hn::Max(largest, hn::Max(a, b));
      }
      t0 = hn::MulAdd(decode_fast<kCode>(p0), xv, t0);
      t1 = hn::MulAdd(decode_fast<kCode>(p1), xv, t1);
      t2 = hn::MulAdd(decode_fast<kCode>(p2), xv, t2);
      t3 = hn::MulAdd(decode_fast<kCode>(p3), xv, t3);
    };
    for (; kLanes == 16 && k + 64 <= end; k += 64) {
      prefetch(r, k);
      for (int64_t j = k; j < k + 64; j += kLanes) {
        step(r.codes[0] + j, r.codes[1] + j, r.codes[2] + j, r.codes[3] + j, hn::LoadU(d, x + j));
      }
    }
    if (kLanes == 16 && k < end) prefetch(r, k);
    for (; k + kLanes <= end; k += kLanes) {
      step(r.codes[0] + k, r.codes[1] + k, r.codes[2] + k, r.codes[3] + k, hn::LoadU(d, x + k));
    }
    if (k < end) {
      uint8_t tail[kRows][kLanes] = {};
      for (int i = 0; i < kRows; ++i) {
        std::memcpy(tail[i], r.codes[i] + k, static_cast<size_t>(end - k));
      }
      step(tail[0], tail[1], tail[2], tail[3], hn::LoadU(d, x + k));  // x is padded with zeros
      k = end;
    }
    acc[0] = hn::MulAdd(t0, hn::Set(d, r.scales[0][g]), acc[0]);
    acc[1] = hn::MulAdd(t1, hn::Set(d, r.scales[1][g]), acc[1]);
    acc[2] = hn::MulAdd(t2, hn::Set(d, r.scales[2][g]), acc[2]);
    acc[3] = hn::MulAdd(t3, hn::Set(d, r.scales[3][g]), acc[3]);
    if (k == group_end) {
      ++g;
      group_end += group;
    }
  }
  if constexpr (kCode == CodeKind::kE4M3) {
    return !hn::AllFalse(d8, hn::Eq(largest, hn::Set(d8, uint8_t{0xFF})));
  }
  return false;
}

#if HWY_TARGET <= HWY_AVX3
enum class Finish { kScale, kZeroScale };  // what becomes of a nibble's table value

// sums[i] += the 128 columns of row i whose codes are at codes[i] + offset, times their scales,
// which begin with number `scale` of the panel.
template <Finish kFinish>
HWY_INLINE void nibble_block(VF table, hn::Vec<DI> lane_group, const uint8_t* const (&codes)[kRows],
                             int64_t offset, const GemvRows& r, int64_t scale,
                             const float* HWY_RESTRICT x, VF (&sums)[kRows]) {
  const DF d;
  hn::Vec<DI> index[kRows];
  VF z[kRows];
  VF t[kRows];
  for (int i = 0; i < kRows; ++i) {
    index[i] = hn::LoadU(DI(), reinterpret_cast<const int32_t*>(codes[i] + offset));
    if constexpr (kFinish == Finish::kZeroScale) z[i] = spread(r.zeros[i] + scale, lane_group);
    t[i] = hn::Zero(d);
  }
  for (int nibble = 0; nibble < 8; ++nibble) {
    const VF xv = hn::LoadU(d, x + 16 * nibble);
    for (int i = 0; i < kRows; ++i) {
      VF v = permute(table, index[i]);
      index[i] = hn::ShiftRight<4>(index[i]);
      if constexpr (kFinish == Finish::kZeroScale) v = hn::Sub(v, z[i]);
      t[i] = hn::MulAdd(v, xv, t[i]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    sums[i] = hn::MulAdd(t[i], spread(r.scales[i] + scale, lane_group), sums[i]);
  }
}

template <Finish kFinish>
HWY_NOINLINE void nibble_panel(const QuantMatrix& q, const GemvRows& r, const float* HWY_RESTRICT x,
                               int64_t columns, VF (&acc)[kRows]) {
  const VF table = hn::LoadU(DF(), q.table);
  const auto lane_group = group_of_lane(q);
  VF sums[kRows] = {acc[0], acc[1], acc[2], acc[3]};
  ScaleCursor g(q);
  int64_t k = 0;
  for (; k + kQuantBlock <= columns; k += kQuantBlock, g.next_block()) {
    prefetch(r, k / 2);
    nibble_block<kFinish>(table, lane_group, r.codes, k / 2, r, g.at, x + k, sums);
  }
  if (k < columns) {
    uint8_t tail[kRows][64] = {};
    for (int i = 0; i < kRows; ++i) {
      std::memcpy(tail[i], r.codes[i] + k / 2, static_cast<size_t>((columns - k + 1) / 2));
    }
    const uint8_t* const codes[kRows] = {tail[0], tail[1], tail[2], tail[3]};
    nibble_block<kFinish>(table, lane_group, codes, 0, r, g.at, x + k, sums);
  }
  for (int i = 0; i < kRows; ++i) acc[i] = sums[i];
}
#endif

// x as gemv_rows takes it. For E4M3 in units of 2^-8, for round_to_int8 in another order with the
// tables behind it, for other nibbles in bf16 parts if they can be: all written to `scaled`.
HWY_INLINE GemvX gemv_x(const QuantMatrix& q, const float* x, float* scaled) {
  const DF d;
  const auto mask = hn::Set(DI(), 0x7FFFFFFF);
  auto largest = hn::Zero(DI());
  const int64_t padded = (q.columns + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
  const bool scale = q.code == CodeKind::kE4M3;
  for (int64_t k = 0; k < padded; k += kLanes) {
    const VF v = hn::LoadU(d, x + k);
    largest = hn::Max(largest, hn::And(hn::BitCast(DI(), v), mask));
    if (scale) hn::StoreU(hn::Mul(v, hn::Set(d, kE4M3Unit)), d, scaled + k);
  }
  if (largest_lane(largest) > kPlainX) return {};
  if (scale) return {.x = scaled};
  if (q.code != CodeKind::kNibble) return {.x = x};
#if HWY_TARGET <= HWY_AVX3
  if (q.round_to_int8) {
    order_for_tables(x, padded, scaled);
    fill_tables(q, scaled + padded);
    return {.x = scaled};
  }
  if (!q.zeros && has_bf16_dots() && table_is_halves(q)) {
    const int exponent = bf16_exponent(x, padded);
    if (exponent != kNoExponent) {
      auto* words = reinterpret_cast<uint16_t*>(scaled);
      const int parts = bf16_parts(x, padded, exponent, words);
      if (parts > 0)
        return {.x = x, .bf16 = words, .parts = parts, .unit = std::ldexp(1.0f, -exponent)};
    }
  }
#endif
  for (const float level : q.table) {
    if (formats::abs_bits(level) > kPlainScale) return {};
  }
  return {.x = kNibblesInLanes ? x : nullptr};
}

#if HWY_TARGET <= HWY_AVX3
// gemv_rows for round_to_int8.
HWY_INLINE void gemv_rounded(const QuantMatrix& q, const float* x, const float* exact_x,
                             int64_t row, int count, float* out) {
  const int64_t padded = (q.columns + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
  int64_t rows[kRows];
  float sums[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = row + std::min(i, count - 1);
  table_rows(q, x + padded, x, rows, sums);
  for (int i = 0; i < count; ++i) {
    const float post = float_at(q.row_scale, row + i);
    out[i] =
        formats::abs_bits(post) <= kPlainScale ? sums[i] * post : exact_row(q, exact_x, row + i);
  }
}
#endif

// acc += columns [k0, k0 + columns) of the rows; true if a row needs exact decoding.
HWY_INLINE bool gemv_panel(const QuantMatrix& q, const GemvRows& r, const GemvX& x, int64_t k0,
                           int64_t columns, VF (&acc)[kRows]) {
  const float* xk = x.x + k0;
  switch (q.code) {
    case CodeKind::kE4M3: return byte_panel<CodeKind::kE4M3>(r, xk, columns, q.group, acc);
    case CodeKind::kE5M2: return byte_panel<CodeKind::kE5M2>(r, xk, columns, q.group, acc);
    case CodeKind::kI8: return byte_panel<CodeKind::kI8>(r, xk, columns, q.group, acc);
    case CodeKind::kNibble: break;
  }
#if HWY_TARGET <= HWY_AVX3
  const int64_t padded = (q.columns + kQuantBlock - 1) / kQuantBlock * kQuantBlock;
  if (x.parts == 1)
    bf16_panel<1>(q, r, x.bf16 + k0, padded, columns, acc);
  else if (x.parts == 2)
    bf16_panel<2>(q, r, x.bf16 + k0, padded, columns, acc);
  else if (q.zeros)
    nibble_panel<Finish::kZeroScale>(q, r, xk, columns, acc);
  else
    nibble_panel<Finish::kScale>(q, r, xk, columns, acc);
#endif
  return false;
}

// out[i] = sum over k of exact_x[k] * value(row + i, k) for i < count <= kRows; x is gemv_x's.
HWY_INLINE void gemv_rows(const QuantMatrix& q, const GemvX& x, const float* exact_x, int64_t row,
                          int count, float* out) {
  const DF d;
#if HWY_TARGET <= HWY_AVX3
  if (q.round_to_int8) return gemv_rounded(q, x.x, exact_x, row, count, out);
#endif
  GemvRows r;
  VF acc[kRows] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  uint32_t largest[kRows] = {};
  bool nan = false;
  // Panels begin where a group does.
  const int64_t step =
      q.group >= q.columns ? kPanel : std::max(kPanel / q.group * q.group, q.group);
  for (int64_t k0 = 0; k0 < q.columns; k0 += step) {
    const int64_t columns = std::min(step, q.columns - k0);
    const int64_t first = first_scale(q, k0);
    const int64_t scales = scale_count(q, k0, columns);
    r.ahead = prefetch_distance(q.row_bytes);
    for (int i = 0; i < kRows; ++i) {
      const int64_t n = row + std::min(i, count - 1);  // a short batch repeats its last row
      r.codes[i] = q.codes + n * q.row_bytes + (q.code == CodeKind::kNibble ? k0 / 2 : k0);
      largest[i] = std::max(largest[i], fill_scales(q, n, first, scales, r.scales[i]));
      if (q.zeros) fill_zeros(q, n, first, scales, r.zeros[i]);
    }
    const int64_t next = k0 + step < q.columns ? k0 + step : 0;
    prefetch_scales(q, next == 0 ? row + kRows : row, first_scale(q, next),
                    scale_count(q, next, std::min(step, q.columns - next)));
    nan |= gemv_panel(q, r, x, k0, columns, acc);
  }
  for (int i = 0; i < count; ++i) {
    const bool plain = largest[i] <= kPlainScale && !nan;
    out[i] =
        plain ? hn::GetLane(hn::SumOfLanes(d, acc[i])) * x.unit : exact_row(q, exact_x, row + i);
  }
}

}  // namespace quant
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_QUANT_GEMV_INL_H_
