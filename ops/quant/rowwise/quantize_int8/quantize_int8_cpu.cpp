// quantize_int8 on the CPU: SIMD over runs that share a scale, threads over rows. A rotated row is
// kept as floats on the stack while its scale is found, or rotated twice if it is too long.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/rowwise/quantize_int8/quantize_int8_cpu.cpp"
#include <hwy/foreach_target.h>

#include <atomic>
#include <numeric>

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/divide-inl.h"
#include "backends/cpu/simd/hadamard-inl.h"
#include "backends/cpu/simd/int8_encode-inl.h"
#include "backends/cpu/simd/philox-inl.h"
#include "backends/cpu/simd/reduce-inl.h"
#include "core/op.h"
#include "formats/int8.h"
#include "ops/quant/rowwise/int8_scale_grid.h"
#include "ops/quant/rowwise/quantize_int8/quantize_int8_limits.h"
#include "ops/quant/rowwise/quantize_int8/quantize_int8_spec.h"
#include "ops/quant/rowwise/quantize_transposed.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::quantize_int8::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kN;
using simd::VF;
using simd::VI;
using simd::VU;

constexpr int kX = arg_index(spec, "x");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kQT = arg_index(spec, "q_t");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

constexpr uint32_t kUnknownAmax = 0xFFFFFFFFu;
constexpr int64_t kAhead = 4096;  // bytes of x to fetch ahead, where rows do not matter

HWY_INLINE void put_codes(bool stream, const VI (&code)[4], uint8_t* out) {
  if (stream) {
    simd::put_i8<true>(code[0], code[1], code[2], code[3], out);
  } else {
    simd::put_i8<false>(code[0], code[1], code[2], code[3], out);
  }
}

// formats::round_clamp but for the clamp to int8, which storing does: nearest even, NaN gives 0.
HWY_INLINE VI nearest(VF v) {
  const VF limit = hn::Set(simd::DF(), 1024.0f);
  const VF zeroed = hn::IfThenElse(simd::nan_lanes(v), hn::Zero(simd::DF()), v);
  return hn::NearestInt(hn::Min(hn::Max(zeroed, hn::Neg(limit)), limit));
}

// formats::int_stochastic but for the clamp.
HWY_INLINE VI stochastic_int(VF v, VU u) {
  const VF limit = hn::Set(simd::DF(), 1024.0f);
  const VF zeroed = hn::IfThenElse(simd::nan_lanes(v), hn::Zero(simd::DF()), v);
  const VF t = hn::Min(hn::Max(zeroed, hn::Neg(limit)), limit);
  const VF down = hn::Floor(t);
  const VF part = hn::Mul(hn::Sub(t, down), hn::Set(simd::DF(), 65536.0f));
  const VF random = hn::ConvertTo(simd::DF(), hn::BitCast(simd::DI(), u));
  const VF up = hn::IfThenElseZero(hn::Lt(random, part), hn::Set(simd::DF(), 1.0f));
  return hn::ConvertTo(simd::DI(), hn::Add(down, up));
}

struct Rounding {
  bool stochastic;
  uint64_t seed;
  bool stream;
};

template <class T>
void quantize_stochastic(const void* from, uint8_t* to, int64_t count, float scale,
                         uint64_t element, const Rounding& rounding) {
  const VF by = hn::Set(simd::DF(), scale);
  simd::RandomBits random;
  for (int64_t i = 0; i < count; i += simd::kRandomChunk) {
    const int64_t length = std::min(simd::kRandomChunk, count - i);
    const uint16_t* bits =
        simd::fill_random(rounding.seed, element + static_cast<uint64_t>(i), length, random);
    simd::run_blocks<T::kBytes, 1>(
        static_cast<const uint8_t*>(from) + i * static_cast<int64_t>(T::kBytes), to + i, length,
        {.stream = rounding.stream},
        [&](const uint8_t* in, uint8_t* out, int64_t at, bool streams) HWY_ATTR {
          VI code[4];
          for (size_t j = 0; j < 4; ++j) {
            const VF v = hn::Div(T::load(in + j * kN * T::kBytes), by);
            code[j] = stochastic_int(v, simd::load_random(bits + at + j * kN));
          }
          put_codes(streams, code, out);
        });
  }
}

// Codes of `count` elements that share a scale. `element`: row-major index of the first. `amax`:
// f32 bits of the largest magnitude, where the scale was computed from it, or kUnknownAmax.
template <class T>
void quantize_run(const void* from, uint8_t* to, int64_t count, float scale,
                  [[maybe_unused]] uint32_t amax, int64_t element, const Rounding& rounding,
                  int64_t ahead = 0) {
  const simd::RunOptions options{.stream = rounding.stream, .ahead = ahead};
  const auto divider = simd::Divider::by<T>(scale);
  if (rounding.stochastic) {
    quantize_stochastic<T>(from, to, count, scale, static_cast<uint64_t>(element), rounding);
    return;
  }
#if HWY_TARGET <= HWY_AVX3
  if constexpr (T::kDType == DType::kBF16) {
    if (divider.fast() && amax < formats::kF32Inf) {
      simd::encode_int8_bounded(from, to, count, divider, options);
      return;
    }
  }
#endif
  if (divider.fast()) {
    const auto quotient = divider.fast_form();
    simd::run_blocks<T::kBytes, 1>(
        from, to, count, options,
        [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
          VI code[4];
          for (size_t j = 0; j < 4; ++j) {
            const VF v = quotient.of_signed(T::load(in + j * kN * T::kBytes));
            // At most 2^17 in magnitude, so only NaN needs care; it converts to INT_MIN.
            const VF zeroed = hn::IfThenElse(simd::nan_lanes(v), hn::Zero(simd::DF()), v);
            code[j] = hn::NearestInt(zeroed);
          }
          put_codes(streams, code, out);
        });
  } else {
    const VF by = divider.scale();
    simd::run_blocks<T::kBytes, 1>(
        from, to, count, options,
        [&](const uint8_t* in, uint8_t* out, int64_t, bool streams) HWY_ATTR {
          VI code[4];
          for (size_t j = 0; j < 4; ++j) {
            code[j] = nearest(hn::Div(T::load(in + j * kN * T::kBytes), by));
          }
          put_codes(streams, code, out);
        });
  }
}

// T: element type of x.
template <class T>
struct Quantizer {
  const Call& call;
  const TensorView& x = call.tensor(kX);
  const TensorView& q = call.tensor(kQ);
  const bool computes = !call.has(kScale);
  const TensorView& scale = call.tensor(computes ? kScaleOut : kScale);
  const int64_t hadamard = call.integer(kHadamard);
  const int64_t m = row_count(x);
  const int64_t k = row_length(x);
  const Int8ScaleGrid grid{static_cast<Int8Granularity>(call.integer(kGranularity)), m, k,
                           call.integer(kGroupSize)};
  const Rounding rounding{call.integer(kRounding) == 1, static_cast<uint64_t>(call.integer(kSeed)),
                          m* k >= simd::kStreamBytes && !call.has(kQT)};

  const char* x_at(int64_t i, int64_t j) const {
    return row_address(x, i) + j * static_cast<int64_t>(T::kBytes);
  }
  uint8_t* q_at(int64_t i, int64_t j) const {
    return reinterpret_cast<uint8_t*>(row_address(q, i)) + j;
  }
  // The scale of grid place `index`: amax's, which is then stored, or the given one.
  float take_scale(int64_t index, uint32_t amax) const {
    char* address = int8_scale_at(scale, grid, index);
    if (!computes) return load<float>(address);
    const float s = formats::int8_scale(amax);
    store(address, s);
    return s;
  }

  // ---- without rotation ----

  void plain_tensor() const {
    const FlatRows flat(x, q);
    std::atomic<uint32_t> amax{0};
    if (computes) {
      parallel_pieces(flat, [&](int64_t i, int64_t j, int64_t count) {
        raise(amax, simd::amax_bits<T>(x_at(i, j), count));
      });
    }
    const float s = take_scale(0, amax.load());
    const uint32_t known = computes ? amax.load() : kUnknownAmax;
    parallel_pieces(flat, [&](int64_t i, int64_t j, int64_t count) {
      quantize_run<T>(x_at(i, j), q_at(i, j), count, s, known, i * flat.length + j, rounding,
                      kAhead);
      hwy::FlushStream();
    });
  }

  // The next row is fetched while this one is in the caches.
  void plain_rows() const {
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t ahead = i + 1 < end ? x_at(i + 1, 0) - x_at(i, 0) : 0;
        for (int64_t g = 0; g < grid.columns; ++g) {
          const int64_t j = g * grid.width;
          const int64_t count = std::min(grid.width, k - j);
          const uint32_t amax = computes ? simd::amax_bits<T>(x_at(i, j), count) : kUnknownAmax;
          quantize_run<T>(x_at(i, j), q_at(i, j), count, take_scale(i * grid.columns + g, amax),
                          amax, i * k + j, rounding, ahead);
        }
      }
      hwy::FlushStream();
    });
  }

  // ---- rotated ----

  // Elements [j, j + count) of row i, rotated; both are multiples of the rotation's size.
  void rotate(int64_t i, int64_t j, int64_t count, float* values) const {
    simd::load_floats<T>(x_at(i, j), values, count);
    simd::hadamard_run(values, count, hadamard);
  }
  // Pieces of a row hold whole rotations and whole groups.
  int64_t piece() const {
    const bool groups = grid.columns > 1;
    const int64_t unit = groups ? std::lcm(hadamard, grid.width) : hadamard;
    return std::max<int64_t>(1, kKept / unit) * unit;
  }
  uint32_t rotated_amax(int64_t i, float* values) const {
    uint32_t amax = 0;
    for (int64_t j = 0; j < k; j += piece()) {
      const int64_t count = std::min(piece(), k - j);
      rotate(i, j, count, values);
      amax = std::max(amax, simd::amax_bits<simd::F32>(values, count));
    }
    return amax;
  }

  void rotated_tensor() const {
    std::atomic<uint32_t> amax{0};
    if (computes) {
      parallel_rows(m, k, [&](int64_t begin, int64_t end) {
        HWY_ALIGN float values[kKept];
        for (int64_t i = begin; i < end; ++i) raise(amax, rotated_amax(i, values));
      });
    }
    const float s = take_scale(0, amax.load());
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      HWY_ALIGN float values[kKept];
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < k; j += piece()) {
          const int64_t count = std::min(piece(), k - j);
          rotate(i, j, count, values);
          quantize_run<simd::F32>(values, q_at(i, j), count, s, kUnknownAmax, i * k + j, rounding);
        }
      }
      hwy::FlushStream();
    });
  }

  void rotated_rows() const {
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      HWY_ALIGN float values[kKept];
      for (int64_t i = begin; i < end; ++i) {
        if (grid.columns > 1)
          rotated_groups(i, values);
        else if (grid.columns == 1)
          rotated_row(i, values);
      }
      hwy::FlushStream();
    });
  }

  void rotated_row(int64_t i, float* values) const {
    const bool kept = k <= kKept;  // then the loop below has one round, and values are ready
    const uint32_t amax = computes ? rotated_amax(i, values) : 0;
    const float s = take_scale(i * grid.columns, amax);
    for (int64_t j = 0; j < k; j += piece()) {
      const int64_t count = std::min(piece(), k - j);
      if (!kept || !computes) rotate(i, j, count, values);
      quantize_run<simd::F32>(values, q_at(i, j), count, s, kUnknownAmax, i * k + j, rounding);
    }
  }

  void rotated_groups(int64_t i, float* values) const {
    for (int64_t j = 0; j < k; j += piece()) {
      const int64_t count = std::min(piece(), k - j);
      rotate(i, j, count, values);
      for (int64_t g = 0; g < count; g += grid.width) {
        const int64_t length = std::min(grid.width, count - g);
        const uint32_t amax = simd::amax_bits<simd::F32>(values + g, length);
        const float s = take_scale(i * grid.columns + (j + g) / grid.width, amax);
        quantize_run<simd::F32>(values + g, q_at(i, j + g), length, s, kUnknownAmax, i * k + j + g,
                                rounding);
      }
    }
  }

  static void raise(std::atomic<uint32_t>& amax, uint32_t bits) {
    uint32_t seen = amax.load(std::memory_order_relaxed);
    while (bits > seen && !amax.compare_exchange_weak(seen, bits)) {
    }
  }

  Status quantize() const {
    const bool whole =
        static_cast<Int8Granularity>(call.integer(kGranularity)) == Int8Granularity::kTensor;
    if (hadamard > 0) {
      whole ? rotated_tensor() : rotated_rows();
    } else {
      whole ? plain_tensor() : plain_rows();
    }
    if (call.has(kQT)) transpose_codes(q, call.tensor(kQT));
    return {};
  }
};

}  // namespace

Status run(const Call& call) {
  return simd::with_element(call.tensor(kX).dtype,
                            [&]<class T>(T) { return Quantizer<T>{call}.quantize(); });
}

}  // namespace pestle::ops::quantize_int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::quantize_int8 {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  const int64_t hadamard = call.integer(arg_index(spec, "hadamard"));
  const int64_t group = call.integer(arg_index(spec, "group_size"));
  const bool groups =
      call.integer(arg_index(spec, "granularity")) == static_cast<int64_t>(Int8Granularity::kGroup);
  const TensorView& x = call.tensor(arg_index(spec, "x"));
  if (groups && hadamard > 0 && group < row_length(x) && std::lcm(hadamard, group) > kKept) {
    return "hadamard=" + std::to_string(hadamard) + " and group_size=" + std::to_string(group) +
           " have no common multiple up to " + std::to_string(kKept) + "; the fast path needs one";
  }
  return refuse_strided_rows(call, {arg_index(spec, "x"), arg_index(spec, "q")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/quantize_int8_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_int8
#endif  // HWY_ONCE
