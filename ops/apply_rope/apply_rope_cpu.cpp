// apply_rope on the CPU: freqs of a few positions are turned into two factors an element, then used
// for every head:  out[i] = own[i] * x[i] + other[i] * x[partner of i].
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/apply_rope/apply_rope_cpu.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/blocks-inl.h"
#include "core/op.h"
#include "ops/apply_rope/apply_rope_limits.h"
#include "ops/apply_rope/apply_rope_spec.h"
#include "ops/common/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::apply_rope::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kN;
using simd::VF;

constexpr int kX = arg_index(spec, "x");
constexpr int kFreqs = arg_index(spec, "freqs");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");
constexpr int kPairs = arg_index(spec, "pairs");

constexpr auto kLanes = static_cast<int64_t>(kN);

// Factors of the positions of a tile, one row of D each.
struct Factors {
  HWY_ALIGN float own[kTileFloats];
  HWY_ALIGN float other[kTileFloats];
};

int64_t index_or_0(const TensorView& freqs, int dim, int64_t i) {
  return freqs.shape[dim] == 1 ? 0 : i * freqs.strides[dim];
}

template <class TFreqs>
void load_factors(const TensorView& freqs, int64_t b, int64_t h, int64_t s, bool split, float* own,
                  float* other) {
  const int64_t half = freqs.shape[3];
  const int64_t bytes = static_cast<int64_t>(TFreqs::kBytes);
  const char* row = freqs.as<char>() + bytes * (index_or_0(freqs, 0, b) + index_or_0(freqs, 1, h) +
                                                index_or_0(freqs, 2, s));
  const int64_t step = split ? 1 : 2;
  const int64_t partner = split ? half : 1;
  for (int64_t pair = 0; pair < half; ++pair) {
    float f[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t offset =
          pair * freqs.strides[3] + i / 2 * freqs.strides[4] + i % 2 * freqs.strides[5];
      f[i] = load_f32(row + offset * bytes, TFreqs::kDType);
    }
    const int64_t first = pair * step;
    own[first] = f[0];
    other[first] = f[1];
    other[first + partner] = f[2];
    own[first + partner] = f[3];
  }
}

#if HWY_TARGET <= HWY_AVX2
HWY_INLINE VF swap_neighbours(VF v) { return hn::Shuffle2301(v); }
#else
// Portable targets may have one lane only: neighbours are found in memory instead.
HWY_INLINE VF swap_neighbours(VF v) { return v; }
#endif

template <class T>
HWY_INLINE float rotate_one(const char* x, int64_t i, int64_t partner, const float* own,
                            const float* other) {
  const float a = load_f32(x + i * static_cast<int64_t>(T::kBytes), T::kDType);
  const float b = load_f32(x + partner * static_cast<int64_t>(T::kBytes), T::kDType);
  return own[i] * a + other[i] * b;
}

// Pairs (2i, 2i + 1) of one head.
template <class T>
void rotate_interleaved(const char* x, char* out, int64_t d, const float* own, const float* other) {
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  int64_t i = 0;
  if constexpr (HWY_TARGET <= HWY_AVX2) {
    for (; i + kLanes <= d; i += kLanes) {
      const VF v = T::load(x + i * kBytes);
      const VF a = hn::Mul(simd::F32::load(own + i), v);
      const VF b = hn::Mul(simd::F32::load(other + i), swap_neighbours(v));
      T::store(hn::Add(a, b), out + i * kBytes);
    }
  }
  for (; i < d; i += 2) {
    const float first = rotate_one<T>(x, i, i + 1, own, other);
    const float second = rotate_one<T>(x, i + 1, i, own, other);
    store_f32(out + i * kBytes, T::kDType, first);
    store_f32(out + (i + 1) * kBytes, T::kDType, second);
  }
}

// Pairs (i, i + D/2) of one head.
template <class T>
void rotate_split(const char* x, char* out, int64_t d, const float* own, const float* other) {
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  const int64_t half = d / 2;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const int64_t j = i + half;
    const VF v0 = T::load(x + i * kBytes);
    const VF v1 = T::load(x + j * kBytes);
    const VF y0 =
        hn::Add(hn::Mul(simd::F32::load(own + i), v0), hn::Mul(simd::F32::load(other + i), v1));
    const VF y1 =
        hn::Add(hn::Mul(simd::F32::load(other + j), v0), hn::Mul(simd::F32::load(own + j), v1));
    T::store(y0, out + i * kBytes);
    T::store(y1, out + j * kBytes);
  }
  for (; i < half; ++i) {
    const float first = rotate_one<T>(x, i, i + half, own, other);
    const float second = rotate_one<T>(x, i + half, i, own, other);
    store_f32(out + i * kBytes, T::kDType, first);
    store_f32(out + (i + half) * kBytes, T::kDType, second);
  }
}

// Positions [s, s + count) of the heads [h, h_end) of batch b, which share freqs.
template <class T>
void rotate_tile(const TensorView& x, const TensorView& out, int64_t b, int64_t h, int64_t h_end,
                 int64_t s, int64_t count, bool split, const Factors& factors) {
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  const int64_t d = x.shape[3];
  for (; h < h_end; ++h) {
    for (int64_t i = 0; i < count; ++i) {
      const char* from =
          x.as<char>() + kBytes * (b * x.strides[0] + h * x.strides[1] + (s + i) * x.strides[2]);
      char* to = out.as<char>() +
                 kBytes * (b * out.strides[0] + h * out.strides[1] + (s + i) * out.strides[2]);
      const float* own = factors.own + i * d;
      const float* other = factors.other + i * d;
      if (split)
        rotate_split<T>(from, to, d, own, other);
      else
        rotate_interleaved<T>(from, to, d, own, other);
    }
  }
}

void rotate(const Call& call, const TensorView& x, const TensorView& out) {
  const TensorView& freqs = call.tensor(kFreqs);
  const bool split = call.integer(kPairs) == 1;
  const int64_t heads = x.shape[1], positions = x.shape[2], d = x.shape[3];
  if (numel(x) == 0) return;
  // Heads share the factors unless freqs has rows for each.
  const int64_t shared = freqs.shape[1] == 1 ? heads : 1;
  const int64_t tile = std::max<int64_t>(1, kTileFloats / d);
  const int64_t tiles = (positions + tile - 1) / tile;
  const int64_t head_groups = heads / shared;
  const int64_t grain = std::max<int64_t>(1, kPieceElements / (tile * d * shared));
  cpu::parallel_for(x.shape[0] * head_groups * tiles, grain, [&](int64_t begin, int64_t end) {
    Factors factors;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t s = task % tiles * tile;
      const int64_t h = task / tiles % head_groups * shared;
      const int64_t b = task / tiles / head_groups;
      const int64_t count = std::min(tile, positions - s);
      simd::with_element(freqs.dtype, [&]<class TFreqs>(TFreqs) {
        for (int64_t i = 0; i < count; ++i) {
          load_factors<TFreqs>(freqs, b, h, s + i, split, factors.own + i * d,
                               factors.other + i * d);
        }
      });
      simd::with_element(x.dtype, [&]<class T>(T) {
        rotate_tile<T>(x, out, b, h, h + shared, s, count, split, factors);
      });
    }
  });
}

}  // namespace

Status run(const Call& call) {
  rotate(call, call.tensor(kX), call.tensor(kOut));
  if (call.has(kX2)) rotate(call, call.tensor(kX2), call.tensor(kOut2));
  return {};
}

}  // namespace pestle::ops::apply_rope::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::apply_rope {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  const int64_t d = call.tensor(arg_index(spec, "x")).shape[3];
  if (d > kTileFloats) {
    return "D is " + std::to_string(d) + "; the fast path takes heads of up to " +
           std::to_string(kTileFloats);
  }
  return refuse_strided_rows(call, {arg_index(spec, "x"), arg_index(spec, "out"),
                                    arg_index(spec, "x2"), arg_index(spec, "out2")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/apply_rope_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::apply_rope
#endif  // HWY_ONCE
