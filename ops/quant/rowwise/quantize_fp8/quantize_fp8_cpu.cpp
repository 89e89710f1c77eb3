// quantize_fp8 on the CPU: SIMD over runs that share a scale, threads over rows, tiles or columns.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/rowwise/quantize_fp8/quantize_fp8_cpu.cpp"
#include <hwy/foreach_target.h>

#include <atomic>

#include "backends/cpu/simd/fp8_encode-inl.h"
#include "backends/cpu/simd/philox-inl.h"
#include "core/op.h"
#include "formats/fp8.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"
#include "ops/quant/rowwise/quantize_fp8/quantize_fp8_spec.h"
#include "ops/quant/rowwise/quantize_transposed.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::quantize_fp8::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kBlock;
using simd::kN;
using simd::VF;
using simd::VU;

constexpr int kX = arg_index(spec, "x");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kQT = arg_index(spec, "q_t");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

constexpr int64_t kPanel = 1024;   // columns of a row of tiles: 128 rows of them stay in the L2
constexpr int64_t kColumns = 512;  // columns that one task scales, granularity=column
constexpr int64_t kAhead = 4096;   // bytes of x to fetch ahead of what is coded

// T: element type of x. F: format of q.
template <class T, class F>
struct Quantizer {
  const Call& call;
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const bool computes = !call.has(kScale);
  const TensorView& scale = call.tensor(computes ? kScaleOut : kScale);
  const bool stochastic = call.integer(kRounding) == 1;
  const uint64_t seed = static_cast<uint64_t>(call.integer(kSeed));
  const int64_t m = row_count(x);
  const int64_t k = row_length(x);
  const Fp8ScaleGrid grid{static_cast<Fp8Granularity>(call.integer(kGranularity)), m, k};
  const bool stream = m * k >= simd::kStreamBytes && !call.has(kQT);  // q is read again for q_t

  static int64_t bytes(int64_t elements) { return elements * static_cast<int64_t>(T::kBytes); }
  const char* x_at(int64_t i, int64_t j) const { return row_address(x, i) + bytes(j); }
  uint8_t* q_at(int64_t i, int64_t j) const {
    return reinterpret_cast<uint8_t*>(row_address(q, i)) + j;
  }
  // The scale of grid place `index`: amax's, which is then stored, or the given one.
  float take_scale(int64_t index, uint32_t amax) const {
    char* address = fp8_scale_at(scale, grid, index);
    if (!computes) return load<float>(address);
    const float s = formats::fp8_scale<F>(amax);
    store(address, s);
    return s;
  }

  // Codes of `count` elements that share scale s. `element`: row-major index of the first. `amax`
  // belongs to them where s is computed.
  void run(const char* from, uint8_t* to, int64_t count, float s, uint32_t amax, int64_t element,
           simd::RunOptions options) const {
    if (stochastic) {
      const VF by = hn::Set(simd::DF(), s);
      run_stochastic(from, to, count, by, static_cast<uint64_t>(element), options);
    } else {
      simd::encode_fp8<T, F>(from, to, count, s, computes ? amax : simd::kUnknownAmax, options);
    }
  }

  void run_stochastic(const char* from, uint8_t* to, int64_t count, VF by, uint64_t element,
                      simd::RunOptions options) const {
    simd::RandomBits random;
    for (int64_t i = 0; i < count; i += simd::kRandomChunk) {
      const int64_t length = std::min(simd::kRandomChunk, count - i);
      const uint16_t* bits =
          simd::fill_random(seed, element + static_cast<uint64_t>(i), length, random);
      simd::run_blocks<T::kBytes, 1>(
          from + bytes(i), to + i, length, options,
          [&](const uint8_t* in, uint8_t* out, int64_t at, bool streams) HWY_ATTR {
            VU code[4];
            for (size_t j = 0; j < 4; ++j) {
              const VF v = hn::Div(T::load(in + j * kN * T::kBytes), by);
              const VU u = simd::load_random(bits + at + j * kN);
              code[j] = simd::fp8_codes_stochastic<F>(v, u);
            }
            simd::put_fp8(streams, code, out);
          });
    }
  }

  void by_tensor() const {
    const FlatRows flat(x, q);
    std::atomic<uint32_t> amax{0};
    if (computes) {
      parallel_pieces(flat, [&](int64_t i, int64_t j, int64_t count) {
        const uint32_t bits = simd::amax_bits<T>(x_at(i, j), count);
        uint32_t seen = amax.load(std::memory_order_relaxed);
        while (bits > seen && !amax.compare_exchange_weak(seen, bits)) {
        }
      });
    }
    const float s = take_scale(0, amax.load());
    const simd::RunOptions options{.stream = stream, .ahead = kAhead};
    parallel_pieces(flat, [&](int64_t i, int64_t j, int64_t count) {
      run(x_at(i, j), q_at(i, j), count, s, amax, i * flat.length + j, options);
      hwy::FlushStream();
    });
  }

  // A scale per row, or per 128 of a row. The next row is fetched while this one is in the caches.
  void by_row() const {
    const int64_t width = grid.grid_columns == 1 ? k : grid.columns;
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const char* row = x_at(i, 0);
        simd::RunOptions options{.stream = stream};
        if (i + 1 < end) options.ahead = x_at(i + 1, 0) - row;
        for (int64_t b = 0; b < grid.grid_columns; ++b) {
          const int64_t j = b * width;
          const int64_t count = std::min(width, k - j);
          const uint32_t amax = computes ? simd::amax_bits<T>(row + bytes(j), count) : 0;
          const float s = take_scale(i * grid.grid_columns + b, amax);
          run(row + bytes(j), q_at(i, j), count, s, amax, i * k + j, options);
        }
      }
      hwy::FlushStream();
    });
  }

  // Tiles of 128 x 128, a panel of eight at a time.
  void by_tile() const {
    const int64_t panels = (k + kPanel - 1) / kPanel;
    cpu::parallel_for(grid.grid_rows * panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t r = task / panels;
        const int64_t first = task % panels * kPanel;
        quantize_panel(r, first, std::min(kPanel, k - first));
      }
      hwy::FlushStream();
    });
  }

  void quantize_panel(int64_t r, int64_t first, int64_t columns) const {
    const int64_t side = formats::kFp8Block;
    const int64_t row_end = std::min(m, (r + 1) * side);
    uint32_t amax[kPanel / formats::kFp8Block] = {};
    float s[kPanel / formats::kFp8Block];
    for (int64_t i = r * side; computes && i < row_end; ++i) {
      for (int64_t j = 0; j < columns; j += side) {
        const uint32_t bits = simd::amax_bits<T>(x_at(i, first + j), std::min(side, columns - j));
        amax[j / side] = std::max(amax[j / side], bits);
      }
    }
    for (int64_t j = 0; j < columns; j += side) {
      s[j / side] = take_scale(r * grid.grid_columns + (first + j) / side, amax[j / side]);
    }
    for (int64_t i = r * side; i < row_end; ++i) {
      for (int64_t j = 0; j < columns; j += side) {
        run(x_at(i, first + j), q_at(i, first + j), std::min(side, columns - j), s[j / side],
            amax[j / side], i * k + first + j, {.stream = stream});
      }
    }
  }

  void by_column() const {
    cpu::parallel_for((k + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        quantize_columns(task * kColumns, std::min(kColumns, k - task * kColumns));
      }
      hwy::FlushStream();
    });
  }

  void quantize_columns(int64_t first, int64_t count) const {
    HWY_ALIGN uint32_t amax[kColumns + kBlock] = {};
    HWY_ALIGN float s[kColumns + kBlock];
    constexpr auto kLanes = static_cast<int64_t>(kN);
    for (int64_t i = 0; computes && i < m; ++i) {
      const char* row = x_at(i, first);
      for (int64_t j = 0; j < count; j += kLanes) {
        const VF v = j + kLanes <= count
                         ? T::load(row + bytes(j))
                         : simd::load_n<T>(row + bytes(j), static_cast<size_t>(count - j));
        auto* at = reinterpret_cast<int32_t*>(amax + j);
        const auto abs = hn::BitCast(simd::DI(), simd::abs_bits(v));
        hn::Store(hn::Max(hn::Load(simd::DI(), at), abs), simd::DI(), at);
      }
    }
    std::fill(s, s + kColumns + kBlock, 1.0f);
    for (int64_t j = 0; j < count; ++j) s[j] = take_scale(first + j, amax[j]);
    for (int64_t i = 0; i < m; ++i) {
      run_columns(x_at(i, first), q_at(i, first), count, s, static_cast<uint64_t>(i * k + first));
    }
  }

  void run_columns(const char* from, uint8_t* to, int64_t count, const float* s,
                   uint64_t element) const {
    static_assert(kColumns <= simd::kRandomChunk);
    simd::RandomBits random;
    const uint16_t* bits = stochastic ? simd::fill_random(seed, element, count, random) : nullptr;
    simd::run_blocks<T::kBytes, 1>(
        from, to, count, {.stream = stream},
        [&](const uint8_t* in, uint8_t* out, int64_t at, bool streams) HWY_ATTR {
          VU code[4];
          for (size_t j = 0; j < 4; ++j) {
            const VF by = simd::F32::load(s + at + j * kN);
            const VF v = hn::Div(T::load(in + j * kN * T::kBytes), by);
            code[j] = stochastic
                          ? simd::fp8_codes_stochastic<F>(v, simd::load_random(bits + at + j * kN))
                          : simd::fp8_codes<F>(v);
          }
          simd::put_fp8(streams, code, out);
        });
  }

  Status quantize() const {
    switch (static_cast<Fp8Granularity>(call.integer(kGranularity))) {
      case Fp8Granularity::kTensor: by_tensor(); break;
      case Fp8Granularity::kColumn: by_column(); break;
      case Fp8Granularity::kBlock128x128: by_tile(); break;
      default: by_row(); break;
    }
    if (call.has(kQT)) transpose_codes(q, call.tensor(kQT));
    return {};
  }
};

}  // namespace

Status run(const Call& call) {
  return simd::with_element(call.tensor(kX).dtype, [&]<class T>(T) {
    if (call.tensor(kQ).dtype == DType::kE4M3) return Quantizer<T, formats::E4m3>{call}.quantize();
    return Quantizer<T, formats::E5m2>{call}.quantize();
  });
}

}  // namespace pestle::ops::quantize_fp8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::quantize_fp8 {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {arg_index(spec, "x"), arg_index(spec, "q")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/quantize_fp8_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_fp8
#endif  // HWY_ONCE
