// Which kernel multiplies so many rows of x by a quantised weight. Pure functions of the shape and the
// format, as measured on an H200; tested on a CPU.
#pragma once

#include <cstdint>

namespace pestle::ops {

enum class RowKernel {
  kGemv,     // ops/gemm/gemv/gemv_weight_mma.cuh, up to 16 rows
  kFewRows,  // few_rows.cuh, up to 128
  kMany,     // many_rows_hopper.cuh, or many_rows.cuh where there is no wgmma
};

struct RowCall {
  int64_t m, n, k;
  int bits;                // of a code
  int summed = 0;          // columns whose sums are scaled together; 0: codes are, or whole rows
  bool row_bytes = false;  // codes of 8 bits with scales of whole rows
  bool wgmma = true;       // sm_90a
  bool clusters = true;
};

inline constexpr int64_t kFewRowsLeast = 5, kFewRowsMost = 128;
inline constexpr int64_t kGemvMostRows = 16;
inline constexpr int64_t kFewRowsUsual = 32;  // beyond, few_rows.cuh sums groups without wgmma only
inline constexpr int64_t kLargeWeight = 24 << 20;  // bytes
// GEMV has 16 rows of x of so many columns in shared memory, and in one wave so many rows of the weight.
inline constexpr int64_t kGemvColumns = 4608;
inline constexpr int64_t kGemvWave = 16 * 132;
inline constexpr int64_t kShortRow = 2048;
inline constexpr int64_t kLongRow = 8192;  // columns of x of which 8 rows don't fit there either

// Of groups of a multiple of 32 columns.
constexpr int columns_summed(int64_t group) {
  return group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
}
inline bool is_large_weight(const RowCall& c) { return c.n * c.k * c.bits / 8 >= kLargeWeight; }

inline RowKernel choose_without_wgmma(const RowCall& c) {
  if (c.m <= kGemvMostRows)
    return c.clusters && is_large_weight(c) ? RowKernel::kFewRows : RowKernel::kGemv;
  if (c.summed != 0) return RowKernel::kFewRows;
  if (c.m > kFewRowsUsual) return RowKernel::kMany;
  return c.row_bytes && !is_large_weight(c) ? RowKernel::kMany : RowKernel::kFewRows;
}
// 5 to 16 rows of x: a tile of wgmma has 16, one of the others' 8 or 16.
inline RowKernel choose_for_16_rows(const RowCall& c) {
  const bool eight = c.m <= 8, streams = is_large_weight(c) || c.k > kLongRow;
  const bool scaled_sums_of_4_bits = c.summed != 0 && c.bits == 4;
  if (streams && (c.summed == 32 || scaled_sums_of_4_bits || (eight && c.bits == 4)))
    return RowKernel::kFewRows;
  if (c.summed == 32 || (eight && scaled_sums_of_4_bits)) return RowKernel::kGemv;
  // By wgmma a product of two waves takes no longer than GEMV's, but for these.
  if (scaled_sums_of_4_bits || (eight && c.bits == 4))
    return c.k <= kGemvColumns && c.n <= 2 * kGemvWave ? RowKernel::kGemv : RowKernel::kMany;
  const int64_t columns = eight ? kGemvColumns : kShortRow;
  return c.k <= columns && c.n <= kGemvWave ? RowKernel::kGemv : RowKernel::kMany;
}
inline RowKernel choose_row_kernel(const RowCall& c) {
  if (c.m < kFewRowsLeast) return RowKernel::kGemv;
  if (c.m > kFewRowsMost) return RowKernel::kMany;
  if (!c.wgmma) return choose_without_wgmma(c);
  if (c.m > kFewRowsUsual) return RowKernel::kMany;
  if (c.m > kGemvMostRows) return c.summed == 32 ? RowKernel::kFewRows : RowKernel::kMany;
  return choose_for_16_rows(c);
}

}  // namespace pestle::ops
