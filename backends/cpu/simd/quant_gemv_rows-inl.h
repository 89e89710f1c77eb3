// What the kernels for one row of x share: the weight rows in flight, and their way along the
// scales.
#if defined(PESTLE_SIMD_QUANT_GEMV_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_QUANT_GEMV_ROWS_INL_H_
#undef PESTLE_SIMD_QUANT_GEMV_ROWS_INL_H_
#else
#define PESTLE_SIMD_QUANT_GEMV_ROWS_INL_H_
#endif

#include "backends/cpu/simd/quant_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace quant {

inline constexpr int kRows = 4;  // weight rows in flight

struct GemvRows {
  const uint8_t* codes[kRows];
  int64_t ahead;  // bytes from a row's codes to those to fetch meanwhile
  alignas(64) float scales[kRows][kMaxScales + kScaleSlack];
  alignas(64) float zeros[kRows][kMaxScales + kScaleSlack];
};

// Rows of a few KiB end before the hardware has learnt to run ahead of them, so what comes next is
// fetched by hand: short rows' successors, or what follows in long ones. Into the second-level
// cache: fetches into the first are few at a time, which halves the speed from memory.
HWY_INLINE int64_t prefetch_distance(int64_t row_bytes) {
  return row_bytes <= 4096 ? kRows * row_bytes : 2048;
}
HWY_INLINE void prefetch_line(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
HWY_INLINE void prefetch(const GemvRows& r, int64_t offset) {
  for (int i = 0; i < kRows; ++i) prefetch_line(r.codes[i] + offset + r.ahead);
}

// The scales of kRows rows from `row` on: swizzled ones lie in many places, each of them in a line
// that these rows share.
HWY_INLINE void prefetch_scales(const QuantMatrix& q, int64_t row, int64_t first, int64_t count) {
  if (q.scales == nullptr || row >= q.rows) return;
  const auto* base = static_cast<const uint8_t*>(q.scales);
  if (q.swizzled) {
    const int64_t columns = (q.columns + q.group - 1) / q.group;
    const uint8_t* p = base + formats::swizzle_offset(row, first, columns);
    for (int64_t c = 0; c < count; c += 4, p += 512) prefetch_line(p);
    return;
  }
  const int64_t size = q.scale_kind == ScaleKind::kF32 ? 4 : 1;
  for (int64_t n = row; n < std::min(row + kRows, q.rows); ++n) {
    const uint8_t* p = base + (scale_row(q, n) * q.scale_row_stride + first) * size;
    for (int64_t b = 0; b < count * size; b += 64) prefetch_line(p + b);
  }
}

// The first scale of each block of 128 nibbles: scales advance by so many a block, or by one each
// so many blocks.
struct ScaleCursor {
  explicit ScaleCursor(const QuantMatrix& q)
      : per_block(q.group >= q.columns ? 0 : kQuantBlock / q.group),
        blocks_per_scale(q.group >= q.columns || per_block > 0 ? INT64_MAX : q.group / kQuantBlock),
        blocks_left(blocks_per_scale) {}
  HWY_INLINE void next_block() {
    at += per_block;
    if (--blocks_left == 0) {
      ++at;
      blocks_left = blocks_per_scale;
    }
  }

  int64_t at = 0;
  int64_t per_block;
  int64_t blocks_per_scale;
  int64_t blocks_left;
};

}  // namespace quant
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_QUANT_GEMV_ROWS_INL_H_
