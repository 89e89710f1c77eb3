// One row of x times the rows of a matrix with round_to_int8: groups of 16 nibbles whose values are
// products rounded to integers. What the 16 codes of a group decode to depends on its scale's byte
// alone, so there is a table of 16 floats for each of the 256 bytes, filled once a call: 16 KiB, of
// which a weight uses the few KiB of its scales. Then 16 weights cost a shift, a permute from their
// scale's table and a multiply-add; no scale is decoded and nothing is rounded a second time.
//
// A lane pair gets the group's 8 bytes, as two dwords; lane 2 * i + h shifts nibble i of dword h to
// where the permute looks. x is stored in that order.
#if defined(PESTLE_SIMD_QUANT_GEMV_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_QUANT_GEMV_TABLES_INL_H_
#undef PESTLE_SIMD_QUANT_GEMV_TABLES_INL_H_
#else
#define PESTLE_SIMD_QUANT_GEMV_TABLES_INL_H_
#endif

#include "backends/cpu/simd/quant_gemv_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {
namespace quant {

#if HWY_TARGET <= HWY_AVX3
// tables[16 * b + c]: what code c decodes to under scale byte b, without the row's scale.
HWY_INLINE void fill_tables(const QuantMatrix& q, float* HWY_RESTRICT tables) {
  const DF d;
  const VF levels = hn::LoadU(d, q.table);
  for (int byte = 0; byte < 256; ++byte) {
    const float scale = formats::f32_from_code<formats::E4m3>(static_cast<uint8_t>(byte));
    hn::StoreU(round_int8(hn::Mul(levels, hn::Set(d, scale))), d, tables + 16 * byte);
  }
}

// From the order of decode_nibbles to the order of the lanes here.
HWY_INLINE void order_for_tables(const float* HWY_RESTRICT x, int64_t padded,
                                 float* HWY_RESTRICT out) {
  for (int64_t block = 0; block < padded; block += kQuantBlock) {
    for (int64_t group = 0; group < 8; ++group) {
      for (int64_t i = 0; i < 8; ++i) {
        const float* from = x + block + 16 * i + 2 * group;
        float* to = out + block + 16 * group + 2 * i;
        to[0] = from[0];
        to[1] = from[1];
      }
    }
  }
}

// sums[i] += 16 columns of row i, whose codes are at codes[i] and whose scale is the low byte of
// scales[i].
HWY_INLINE void table_step(const float* HWY_RESTRICT tables, VF xv, hn::Vec<DU> shifts,
                           const uint8_t* const (&codes)[4], int64_t offset,
                           const uint64_t (&scales)[4], int byte, VF (&sums)[4]) {
  const hn::Repartition<int64_t, DF> d64;
  for (int i = 0; i < 4; ++i) {
    int64_t bytes;
    std::memcpy(&bytes, codes[i] + offset, 8);
    const auto index = hn::Shr(hn::BitCast(DU(), hn::Set(d64, bytes)), shifts);
    const VF table = hn::LoadU(DF(), tables + 16 * ((scales[i] >> (8 * byte)) & 0xFF));
    sums[i] = hn::MulAdd(permute(table, hn::BitCast(DI(), index)), xv, sums[i]);
  }
}

// out[i] = sum over k of x[k] * value(rows[i], k) without the row's scale. Not inlined, because in
// a large function the compiler reads `shifts` from memory each time.
HWY_NOINLINE void table_rows(const QuantMatrix& q, const float* HWY_RESTRICT tables,
                             const float* HWY_RESTRICT x, const int64_t (&rows)[4],
                             float (&out)[4]) {
  const DF d;
  const auto shifts = hn::ShiftLeft<1>(hn::And(hn::Iota(DU(), 0), hn::Set(DU(), ~1u)));
  const auto* scale_base = static_cast<const uint8_t*>(q.scales);
  const uint8_t* codes[4];
  const uint8_t* scales[4];
  VF sums[4];
  for (int i = 0; i < 4; ++i) {
    codes[i] = q.codes + rows[i] * q.row_bytes;
    scales[i] = scale_base + scale_row(q, rows[i]) * q.scale_row_stride;
    sums[i] = hn::Zero(d);
  }
  const int64_t groups = q.columns / 16;
  const int64_t ahead = prefetch_distance(q.row_bytes);
  prefetch_scales(q, rows[0] + kRows, 0, groups);
  int64_t g = 0;
  uint64_t eight[4] = {};
  for (; g + 8 <= groups; g += 8) {
    for (int i = 0; i < 4; ++i) {
      prefetch_line(codes[i] + 8 * g + ahead);
      std::memcpy(&eight[i], scales[i] + g, 8);
    }
    HWY_UNROLL(8)
    for (int j = 0; j < 8; ++j) {
      table_step(tables, hn::LoadU(d, x + 16 * (g + j)), shifts, codes, 8 * (g + j), eight, j,
                 sums);
    }
  }
  for (; g < groups; ++g) {
    for (int i = 0; i < 4; ++i) eight[i] = scales[i][g];
    table_step(tables, hn::LoadU(d, x + 16 * g), shifts, codes, 8 * g, eight, 0, sums);
  }
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(hn::SumOfLanes(d, sums[i]));
}
#endif

}  // namespace quant
}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_QUANT_GEMV_TABLES_INL_H_
