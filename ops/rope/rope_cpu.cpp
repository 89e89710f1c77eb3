// RoPE on the CPU: rotations of a few positions are turned into two factors an element, then used
// for every head:  out[i] = own[i] * x[i] + other[i] * x[partner of i].
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/rope_cpu.cpp"
#include <hwy/foreach_target.h>

#include <cmath>

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/row_math.h"
#include "ops/rope/rope_cpu.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kN;
using simd::VF;

constexpr auto kLanes = static_cast<int64_t>(kN);

// Factors of the positions of a tile, one row of rot floats each.
struct Factors {
  HWY_ALIGN float own[kRopeTileFloats];
  HWY_ALIGN float other[kRopeTileFloats];
};

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
template <class T, class TOut>
void rotate_interleaved(const char* x, char* out, int64_t rot, const float* own,
                        const float* other) {
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  constexpr auto kOutBytes = static_cast<int64_t>(TOut::kBytes);
  int64_t i = 0;
  if constexpr (HWY_TARGET <= HWY_AVX2) {
    for (; i + kLanes <= rot; i += kLanes) {
      const VF v = T::load(x + i * kBytes);
      const VF a = hn::Mul(simd::F32::load(own + i), v);
      const VF b = hn::Mul(simd::F32::load(other + i), swap_neighbours(v));
      TOut::store(hn::Add(a, b), out + i * kOutBytes);
    }
  }
  for (; i < rot; i += 2) {
    const float first = rotate_one<T>(x, i, i + 1, own, other);
    const float second = rotate_one<T>(x, i + 1, i, own, other);
    store_f32(out + i * kOutBytes, TOut::kDType, first);
    store_f32(out + (i + 1) * kOutBytes, TOut::kDType, second);
  }
}

// Pairs (i, i + rot/2) of one head.
template <class T, class TOut>
void rotate_split(const char* x, char* out, int64_t rot, const float* own, const float* other) {
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  constexpr auto kOutBytes = static_cast<int64_t>(TOut::kBytes);
  const int64_t half = rot / 2;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const int64_t j = i + half;
    const VF v0 = T::load(x + i * kBytes);
    const VF v1 = T::load(x + j * kBytes);
    const VF y0 =
        hn::Add(hn::Mul(simd::F32::load(own + i), v0), hn::Mul(simd::F32::load(other + i), v1));
    const VF y1 =
        hn::Add(hn::Mul(simd::F32::load(other + j), v0), hn::Mul(simd::F32::load(own + j), v1));
    TOut::store(y0, out + i * kOutBytes);
    TOut::store(y1, out + j * kOutBytes);
  }
  for (; i < half; ++i) {
    const float first = rotate_one<T>(x, i, i + half, own, other);
    const float second = rotate_one<T>(x, i + half, i, own, other);
    store_f32(out + i * kOutBytes, TOut::kDType, first);
    store_f32(out + (i + half) * kOutBytes, TOut::kDType, second);
  }
}

template <class T, class TOut>
void rotate_head(const char* x, char* out, const Rotations& r, const float* own,
                 const float* other) {
  if (r.split)
    rotate_split<T, TOut>(x, out, r.rot, own, other);
  else
    rotate_interleaved<T, TOut>(x, out, r.rot, own, other);
}

// The head in f32, normalised and weighted.
template <class T>
void normalise_head(const char* x, int64_t d, const float* weight, float eps, float* v) {
  simd::load_floats<T>(x, v, d);
  const float mean = static_cast<float>(cpu::row_sum_squares(v, d)) / static_cast<float>(d);
  const float by = 1.0f / std::sqrt(mean + eps);
  const auto by_lanes = hn::Set(simd::DF(), by);
  int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    const VF normal = hn::Mul(simd::F32::load(v + i), by_lanes);
    simd::F32::store(hn::Mul(normal, simd::F32::load(weight + i)), v + i);
  }
  for (; i < d; ++i) v[i] = v[i] * by * weight[i];
}

struct Tile {
  int64_t b, h, h_end, s, count;  // positions [s, s + count) of the heads [h, h_end), which share
};

template <class T>
void rotate_tile(const RopeTensor& t, const Rotations& r, const Tile& tile, const Factors& factors,
                 const float* weight) {
  constexpr auto kBytes = static_cast<int64_t>(T::kBytes);
  const int64_t d = t.x.shape[3];
  HWY_ALIGN float v[kRopeTileFloats];
  for (int64_t h = tile.h; h < tile.h_end; ++h) {
    for (int64_t i = 0; i < tile.count; ++i) {
      const char* from = head_at(t.x, tile.b, h, tile.s + i);
      char* to = head_at(t.out, tile.b, h, tile.s + i);
      const float* own = factors.own + i * r.rot;
      const float* other = factors.other + i * r.rot;
      if (weight != nullptr) {
        normalise_head<T>(from, d, weight, t.eps, v);
        rotate_head<simd::F32, T>(reinterpret_cast<const char*>(v), to, r, own, other);
        simd::store_floats<T>(v + r.rot, to + r.rot * kBytes, d - r.rot, false);
      } else {
        rotate_head<T, T>(from, to, r, own, other);
        if (from != to && r.rot < d) {
          std::memcpy(to + r.rot * kBytes, from + r.rot * kBytes,
                      static_cast<size_t>((d - r.rot) * kBytes));
        }
      }
    }
  }
}

}  // namespace

void rope(const Rotations& r, const RopeTensor& t) {
  const int64_t heads = t.x.shape[1], positions = t.x.shape[2], d = t.x.shape[3];
  if (numel(t.x) == 0) return;
  // Heads share the factors unless there are rotations for each.
  const int64_t shared = r.shared_by_heads() ? heads : 1;
  const int64_t rows = std::max<int64_t>(1, kRopeTileFloats / d);
  const int64_t tiles = (positions + rows - 1) / rows;
  const int64_t head_groups = heads / shared;
  const int64_t grain = std::max<int64_t>(1, kPieceElements / (rows * d * shared));
  cpu::parallel_for(t.x.shape[0] * head_groups * tiles, grain, [&](int64_t begin, int64_t end) {
    Factors factors;
    HWY_ALIGN float weight[kRopeTileFloats];
    if (t.weight != nullptr) {
      for (int64_t i = 0; i < d; ++i) weight[i] = load_f32(at(*t.weight, i), t.weight->dtype);
    }
    for (int64_t task = begin; task < end; ++task) {
      const int64_t s = task % tiles * rows;
      const int64_t h = task / tiles % head_groups * shared;
      const Tile tile{task / tiles / head_groups, h, h + shared, s, std::min(rows, positions - s)};
      load_rope_factors(r, tile.b, h, s, tile.count, factors.own, factors.other);
      simd::with_element(t.x.dtype, [&]<class T>(T) {
        rotate_tile<T>(t, r, tile, factors, t.weight != nullptr ? weight : nullptr);
      });
    }
  });
}

}  // namespace pestle::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops {

HWY_EXPORT(rope);

void rope_on_cpu(const Rotations& rotations, const RopeTensor& tensor) {
  HWY_DYNAMIC_DISPATCH(rope)(rotations, tensor);
}

void load_rope_factors(const Rotations& r, int64_t b, int64_t h, int64_t s, int64_t count,
                       float* own, float* other) {
  for (int64_t i = 0; i < count; ++i) {
    const RotationRow row(r, b, h, s + i);
    for (int64_t pair = 0; pair < r.rot / 2; ++pair) {
      float f[4];
      row.load(pair, f);
      own[i * r.rot + r.first(pair)] = f[0];
      other[i * r.rot + r.first(pair)] = f[1];
      other[i * r.rot + r.second(pair)] = f[2];
      own[i * r.rot + r.second(pair)] = f[3];
    }
  }
}

std::string refuse_long_heads(int64_t d) {
  if (d <= kRopeTileFloats) return {};
  return "D is " + std::to_string(d) + "; the fast path takes heads of up to " +
         std::to_string(kRopeTileFloats);
}

}  // namespace pestle::ops
#endif  // HWY_ONCE
