// scaled_mm_int8 on the CPU: both sides widened to 16 bits by tiles, products added up in pairs by
// the 16-bit multiply-add, 32-bit sums joined in 64 bits once a panel.
#include <algorithm>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "ops/gemm/linear/linear_rows.h"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_host.h"
#include "ops/gemm/scaled_mm_int8/scaled_mm_int8_spec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/scaled_mm_int8/scaled_mm_int8_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef PESTLE_SCALED_MM_INT8_SHARED_
#define PESTLE_SCALED_MM_INT8_SHARED_
namespace pestle::ops::scaled_mm_int8 {

inline constexpr int kA = arg_index(spec, "a");
inline constexpr int kB = arg_index(spec, "b");
inline constexpr int kScaleA = arg_index(spec, "scale_a");
inline constexpr int kScaleB = arg_index(spec, "scale_b");
inline constexpr int kOut = arg_index(spec, "out");
inline constexpr int kGranularity = arg_index(spec, "granularity");
inline constexpr int kEpilogue = arg_index(spec, "alpha");

inline constexpr int64_t kPad = 64;         // columns; a multiple of every vector
inline constexpr int64_t kChunkRows = 128;  // rows of a at a time
inline constexpr int64_t kTileRows = 48;    // rows of b a thread holds
// 2^9 products of at most 2^14 in pairs: a lane's sum stays below 2^31 at any width.
inline constexpr int64_t kPanel = 1024;

struct Problem {
  const Call& call;
  const Epilogue& epilogue;
  int64_t k = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0, b_step = 1;  // from row to row, from column to column
  int16_t* wide = nullptr;           // this chunk of a, rows of `stride`
  int64_t stride = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

inline float scale_of(const Call& call, int index, int64_t row) {
  const TensorView& t = call.tensor(index);
  return load<float>(row_address(t, call.integer(kGranularity) == 0 ? 0 : row));
}

}  // namespace pestle::ops::scaled_mm_int8
#endif

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::scaled_mm_int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D16 = hn::ScalableTag<int16_t>;
using D32 = hn::ScalableTag<int32_t>;
using D8 = hn::Rebind<int8_t, D16>;
constexpr int64_t kLanes = HWY_LANES(int16_t);
constexpr int kTileA = 4;
constexpr int kTileB = HWY_TARGET <= HWY_AVX3 ? 6 : 2;

// `columns` codes as 16 bits, zeros up to a multiple of kPad.
void widen(const int8_t* codes, int64_t columns, int16_t* HWY_RESTRICT out) {
  int64_t k = 0;
  for (; k + kLanes <= columns; k += kLanes) {
    hn::StoreU(hn::PromoteTo(D16(), hn::LoadU(D8(), codes + k)), D16(), out + k);
  }
  for (; k < columns; ++k) out[k] = codes[k];
  for (; k % kPad != 0; ++k) out[k] = 0;
}

void widen_a(const Problem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    int16_t* out = p.wide + row * p.stride;
    if (row < p.rows) {
      widen(p.call.tensor(kA).as<int8_t>() + (p.first_row + row) * p.a_stride, p.k, out);
    } else {
      std::fill(out, out + p.stride, int16_t{0});
    }
  }
}

// sums[n][m] += a rows m times b rows n over `columns`, a multiple of kPad, at most kPanel.
HWY_NOINLINE void tile(const int16_t* HWY_RESTRICT a, int64_t a_stride,
                       const int16_t* HWY_RESTRICT b, int64_t columns, int64_t* HWY_RESTRICT sums,
                       int64_t sums_stride) {
  hn::Vec<D32> acc[kTileA][kTileB];
  hn::Vec<D32> other[kTileA][kTileB];  // used on targets that split a product's lanes in two
  for (int m = 0; m < kTileA; ++m) {
    for (int n = 0; n < kTileB; ++n) acc[m][n] = other[m][n] = hn::Zero(D32());
  }
  for (int64_t k = 0; k < columns; k += kLanes) {
    hn::Vec<D16> av[kTileA];
    for (int m = 0; m < kTileA; ++m) av[m] = hn::LoadU(D16(), a + m * a_stride + k);
    for (int n = 0; n < kTileB; ++n) {
      const auto bv = hn::LoadU(D16(), b + n * kPanel + k);
      for (int m = 0; m < kTileA; ++m) {
        acc[m][n] = hn::ReorderWidenMulAccumulate(D32(), av[m], bv, acc[m][n], other[m][n]);
      }
    }
  }
  for (int n = 0; n < kTileB; ++n) {
    for (int m = 0; m < kTileA; ++m) {
      const auto all = hn::Add(acc[m][n], other[m][n]);
      alignas(64) int32_t lanes[HWY_LANES(int32_t)];
      hn::Store(all, D32(), lanes);
      int64_t sum = 0;
      for (const int32_t lane : lanes) sum += lane;
      sums[n * sums_stride + m] += sum;
    }
  }
}

// Rows [first, first + rows) of b at columns k0 on, in 16 bits.
void widen_b(const Problem& p, int64_t first, int64_t rows, int64_t k0, int64_t columns,
             int16_t* HWY_RESTRICT wide) {
  const int8_t* b = p.call.tensor(kB).as<int8_t>() + first * p.b_stride + k0 * p.b_step;
  if (p.b_step == 1) {
    for (int64_t n = 0; n < rows; ++n) widen(b + n * p.b_stride, columns, wide + n * kPanel);
    return;
  }
  const int64_t padded = (columns + kPad - 1) / kPad * kPad;
  for (int64_t k = 0; k < columns; ++k)  // as a weight [K, N] lies: neighbours are rows
    for (int64_t n = 0; n < rows; ++n) wide[n * kPanel + k] = b[n * p.b_stride + k * p.b_step];
  for (int64_t n = 0; n < rows; ++n)
    std::fill(wide + n * kPanel + columns, wide + n * kPanel + padded, int16_t{0});
}

void tile_row(const Problem& p, int64_t first) {
  alignas(64) int16_t wide[kTileRows * kPanel];
  alignas(64) int64_t sums[kTileRows * kChunkRows];
  const TensorView& b = p.call.tensor(kB);
  const TensorView& out = p.call.tensor(kOut);
  const int64_t rows = std::min(kTileRows, row_count(b) - first);
  const int64_t rows_padded = (rows + kTileB - 1) / kTileB * kTileB;
  const int64_t m_padded = (p.rows + kTileA - 1) / kTileA * kTileA;
  std::fill(sums, sums + rows_padded * m_padded, int64_t{0});
  std::fill(wide + rows * kPanel, wide + rows_padded * kPanel, int16_t{0});
  for (int64_t k0 = 0; k0 < p.k; k0 += kPanel) {
    const int64_t columns = std::min(kPanel, p.k - k0);
    widen_b(p, first, rows, k0, columns, wide);
    for (int64_t n = 0; n < rows_padded; n += kTileB) {
      for (int64_t m = 0; m < m_padded; m += kTileA) {
        tile(p.wide + m * p.stride + k0, p.stride, wide + n * kPanel,
             (columns + kPad - 1) / kPad * kPad, sums + n * m_padded + m, m_padded);
      }
    }
  }
  for (int64_t m = 0; m < p.rows; ++m) {
    const int64_t row = p.first_row + m;
    const float scale_a = scale_of(p.call, kScaleA, row);
    char* address = row_address(out, row) + first * last_stride_bytes(out);
    for (int64_t n = 0; n < rows; ++n, address += last_stride_bytes(out)) {
      const float acc = static_cast<float>(sums[n * m_padded + m]);
      const float y = acc * scale_a * scale_of(p.call, kScaleB, first + n);
      store_f32(address, out.dtype, p.epilogue.apply(y, row, first + n));
    }
  }
}

void tiles(const Problem& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) tile_row(p, t * kTileRows);
}

}  // namespace pestle::ops::scaled_mm_int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::scaled_mm_int8 {
namespace {

HWY_EXPORT(widen_a);
HWY_EXPORT(tiles);

std::string refuses(const Call& call, const Machine&) {
  if (wants_quantized_output(call)) return refuse_quantized_output(call);
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  const std::string why = refuse_host_scale(call);
  return why.empty() ? refuse_uneven_rows(call, {kA}) : why;
}

std::string refuses_host(const Call& call, const Machine&) {
  if (std::string why = refuse_pairs(call); !why.empty()) return why;
  return wants_quantized_output(call) ? refuse_quantized_output(call) : refuse_device_scales(call);
}

Status run_host(const Call& call) {
  float* scales = host_scale_memory(call);
  scales[0] = call.number(kHostScale);
  scales[1] = 1;
  return run_with_scales(call, scales);
}

Status run(const Call& call) {
  const Epilogue epilogue(call, kEpilogue, call.tensor(kOut));
  Problem p{call, epilogue};
  p.k = row_length(call.tensor(kA));
  even_rows(call.tensor(kA), p.a_stride);
  p.b_stride = call.tensor(kB).strides[0];
  p.b_step = call.tensor(kB).strides[1];
  p.stride = (p.k + kPad - 1) / kPad * kPad;
  p.wide = reinterpret_cast<int16_t*>((reinterpret_cast<uintptr_t>(call.workspace) + 63) &
                                      ~uintptr_t{63});
  const int64_t m = row_count(call.tensor(kA));
  const int64_t n = row_count(call.tensor(kB));
  for (p.first_row = 0; p.first_row < m && n > 0; p.first_row += kChunkRows) {
    p.rows = std::min(kChunkRows, m - p.first_row);
    cpu::parallel_for((p.rows + 3) / 4 * 4, 8, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(widen_a)(p, begin, end);
    });
    cpu::parallel_for((n + kTileRows - 1) / kTileRows, 1, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(tiles)(p, begin, end);
    });
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/scaled_mm_int8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = "(min(M,128) + 4) * round_up(K,64) * 2 + 64"},
    {.id = "cpu/scaled_mm_int8_pairs",
     .refuses = refuse_without_plain_pairs,
     .run = run_with_pairs,
     .workspace = kPairsWorkspace},
    {.id = "cpu/scaled_mm_int8_host",
     .refuses = refuses_host,
     .run = run_host,
     .workspace = "512 + (min(M,128) + 4) * round_up(K,64) * 2 + 64"},
    {.id = "cpu/scaled_mm_int8_codes",
     .refuses = refuse_plain,
     .run = run_with_quantized_output,
     .workspace = kCpuScaledQuantizedOutputWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::scaled_mm_int8
#endif  // HWY_ONCE
