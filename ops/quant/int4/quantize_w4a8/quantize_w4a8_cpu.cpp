// quantize_w4a8 on the CPU: a lane is a group, so that the sums of the fit are vector additions in
// the rule's order. Two passes over a row (fit, then codes), which prepare the values anew.
#include "core/op.h"
#include "formats/hadamard.h"
#include "ops/quant/int4/quantize_w4a8/quantize_w4a8_spec.h"
#include "ops/quant/int4/w4a8_codebook.h"
#include "ops/shared/cpu_rows.h"
#include "ops/shared/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/int4/quantize_w4a8/quantize_w4a8_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/fp8-inl.h"
#include "backends/cpu/simd/hadamard-inl.h"
#include "backends/cpu/simd/nibbles-inl.h"
#include "backends/cpu/simd/reduce-inl.h"

#ifndef PESTLE_OPS_QUANTIZE_W4A8_JOB
#define PESTLE_OPS_QUANTIZE_W4A8_JOB
namespace pestle::ops::quantize_w4a8 {
struct Job {
  TensorView x;
  TensorView q;
  TensorView scale_rel;
  TensorView scale_channel;
  formats::W4a8Table table;
  int64_t hadamard;
};
// Groups whose fitted scales one thread keeps on its stack: rows of up to 262144 columns.
inline constexpr int64_t kMaxGroups = 16384;
}  // namespace pestle::ops::quantize_w4a8
#endif

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::quantize_w4a8::HWY_NAMESPACE {
using namespace pestle::cpu::HWY_NAMESPACE;

constexpr int kGroup = 16;
constexpr auto kLanes = static_cast<int64_t>(kN);
constexpr int64_t kTile = kLanes * kGroup;  // elements of kN groups
constexpr int64_t kPiece = formats::kHadamardMax;
static_assert(kPiece % kTile == 0);

// Element j of kN groups in lane order, for j = 0..15.
struct Tile {
  VF x[kGroup];
};

// Transposes kN groups: twice into four streams of every fourth element.
HWY_INLINE void load_tile(const float* v, Tile& tile) {
  HWY_ALIGN float streams[4][4 * kN];
  for (size_t part = 0; part < 4; ++part) {
    VF a, b, c, d;
    hn::LoadInterleaved4(DF(), v + part * 4 * kN, a, b, c, d);
    hn::Store(a, DF(), streams[0] + part * kN);
    hn::Store(b, DF(), streams[1] + part * kN);
    hn::Store(c, DF(), streams[2] + part * kN);
    hn::Store(d, DF(), streams[3] + part * kN);
  }
  for (int s = 0; s < 4; ++s) {
    hn::LoadInterleaved4(DF(), streams[s], tile.x[s], tile.x[4 + s], tile.x[8 + s], tile.x[12 + s]);
  }
}

// formats::max_keep_nan
HWY_INLINE VF max_keep_nan(VF x, float floor) {
  const VF f = hn::Set(DF(), floor);
  const VF larger = hn::IfThenElse(hn::Gt(x, f), x, f);
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(DF(), formats::f32_nan()), larger);
}

// The codebook as searches want it.
#if HWY_TARGET <= HWY_AVX3
// Midpoints in a register as a binary tree (children of node i are 2i and 2i + 1): four lookups.
class Levels {
 public:
  explicit HWY_INLINE Levels(const formats::W4a8Table& table) {
    HWY_ALIGN float tree[16] = {};
    for (int node = 1, depth = 0; depth < 4; ++depth) {
      for (int i = 0; i < 1 << depth; ++i, ++node) {
        tree[node] = table.mid[((2 * i + 1) << (3 - depth)) - 1];
      }
    }
    tree_ = _mm512_load_ps(tree);
    levels_ = _mm512_loadu_ps(table.level);
  }
  // The level nearest to v; the lowest for NaN.
  HWY_INLINE VF nearest(VF v) const {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i node = one;
    for (int step = 0; step < 4; ++step) {
      const __m512 mid = _mm512_permutexvar_ps(node, tree_);
      const __mmask16 above = _mm512_cmp_ps_mask(v.raw, mid, _CMP_GT_OQ);
      node = _mm512_add_epi32(node, node);
      node = _mm512_mask_add_epi32(node, above, node, one);
    }
    return VF{_mm512_permutexvar_ps(node, levels_)};
  }

 private:
  __m512 tree_;
  __m512 levels_;
};
#else
class Levels {
 public:
  explicit HWY_INLINE Levels(const formats::W4a8Table& table) : table_(table) {}
  // Midpoints ascend, so the last one below v decides.
  HWY_INLINE VF nearest(VF v) const {
    VF level = hn::Set(DF(), table_.level[0]);
    for (int i = 0; i < 15; ++i) {
      level = hn::IfThenElse(hn::Gt(v, hn::Set(DF(), table_.mid[i])),
                             hn::Set(DF(), table_.level[i + 1]), level);
    }
    return level;
  }

 private:
  const formats::W4a8Table& table_;
};
#endif

// formats::w4a8_sum of lanes.
HWY_INLINE VF fold(VF* p) {
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) p[i] = hn::Add(p[i], p[i + half]);
  }
  return p[0];
}

struct Fit {
  VF scale;
  VU peak;
};

// formats::w4a8_fit_group of kN groups.
HWY_INLINE Fit fit_tile(const Tile& tile, const Levels& levels) {
  VI amax = hn::Zero(DI());
  for (const VF& x : tile.x) amax = hn::Max(amax, hn::BitCast(DI(), abs_bits(x)));
  VF scale = max_keep_nan(hn::BitCast(DF(), amax), formats::kW4a8MinScale);
  for (int pass = 0; pass < formats::kW4a8Passes; ++pass) {
    VF xl[kGroup];
    VF ll[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      const VF level = levels.nearest(hn::Div(tile.x[i], scale));
      xl[i] = hn::Mul(tile.x[i], level);
      ll[i] = hn::Mul(level, level);
    }
    const VF num = fold(xl);
    const VF den = max_keep_nan(fold(ll), formats::kW4a8MinScale);
    scale = max_keep_nan(hn::Div(num, den), formats::kW4a8MinScale);
  }
  VI peak = hn::Zero(DI());
  for (const VF& x : tile.x) {
    const VF value = hn::Mul(levels.nearest(hn::Div(x, scale)), scale);
    peak = hn::Max(peak, hn::BitCast(DI(), abs_bits(value)));
  }
  const auto finite = hn::Lt(amax, hn::Set(DI(), static_cast<int32_t>(formats::kF32Inf)));
  const VI nan = hn::Set(DI(), static_cast<int32_t>(formats::kF32Nan));
  return {hn::BitCast(DF(), hn::IfThenElse(finite, hn::BitCast(DI(), scale), nan)),
          hn::BitCast(DU(), hn::IfThenElse(finite, peak, nan))};
}

// formats::w4a8_decode_int8 as a float.
HWY_INLINE VF decoded(VF level, VF scale_rel) {
  const VF magic = hn::Set(DF(), 12582912.0f);
  const VF v = hn::Mul(level, scale_rel);
  const VF number = hn::IfThenZeroElse(hn::IsNaN(v), v);
  const VF inside = hn::Min(hn::Max(number, hn::Set(DF(), -127.0f)), hn::Set(DF(), 127.0f));
  return hn::Sub(hn::Add(inside, magic), magic);
}

// Codes of kN groups, 8 bytes each.
HWY_INLINE void encode_tile(const Tile& tile, const formats::W4a8Table& table, VU scale_rel,
                            VF channel, uint8_t* q) {
  const VF relative = f32_from_fp8<formats::E4m3>(scale_rel);
  VF mid[15];
  VF below = decoded(hn::Set(DF(), table.level[0]), relative);
  for (int i = 0; i < 15; ++i) {
    const VF above = decoded(hn::Set(DF(), table.level[i + 1]), relative);
    mid[i] = hn::Mul(hn::Add(below, above), hn::Set(DF(), 0.5f));
    below = above;
  }
  VU words[2];
  for (int w = 0; w < 2; ++w) {
    VU word = hn::Zero(DU());
    for (int i = 7; i >= 0; --i) {
      const VF v = hn::Div(tile.x[w * 8 + i], channel);
      VU index = hn::Zero(DU());
      for (int m = 0; m < 15; ++m) {
        index = hn::IfThenElse(hn::RebindMask(DU(), hn::Gt(v, mid[m])),
                               hn::Set(DU(), static_cast<uint32_t>(m + 1)), index);
      }
      word = hn::Or(hn::ShiftLeft<4>(word), index);
    }
    words[w] = word;
  }
  hn::StoreInterleaved2(words[0], words[1], DU(), reinterpret_cast<uint32_t*>(q));
}

// Calls body(values, first group, groups) over tiles of the rotated row; a short last tile is
// filled up with zeros.
template <class T, class Body>
HWY_INLINE void over_tiles(const Job& job, const uint8_t* x, Body&& body) {
  HWY_ALIGN float values[kPiece];
  const int64_t columns = job.x.shape[1];
  for (int64_t k = 0; k < columns; k += kPiece) {
    const int64_t count = HWY_MIN(columns - k, kPiece);
    convert_to_f32<T>(x + k * int64_t{T::kBytes}, count, values);
    if (job.hadamard != 0) hadamard_run(values, count, job.hadamard);
    const int64_t padded = (count + kTile - 1) / kTile * kTile;
    for (int64_t i = count; i < padded; ++i) values[i] = 0;
    for (int64_t i = 0; i < count; i += kTile) {
      body(values + i, (k + i) / kGroup, HWY_MIN(kLanes, (count - i) / kGroup));
    }
  }
}

template <class T>
void encode_row(const Job& job, int64_t n, float* fitted) {
  const auto* x = reinterpret_cast<const uint8_t*>(at(job.x, n));
  const Levels levels(job.table);
  VI largest = hn::Zero(DI());
  over_tiles<T>(job, x, [&](const float* v, int64_t first, int64_t groups) HWY_ATTR {
    Tile tile;
    load_tile(v, tile);
    const Fit fit = fit_tile(tile, levels);
    hn::StoreU(fit.scale, DF(), fitted + first);
    // The groups that fill up the last tile have a small peak of their own.
    const auto real = hn::FirstN(DI(), static_cast<size_t>(groups));
    largest = hn::Max(largest, hn::IfThenElseZero(real, hn::BitCast(DI(), fit.peak)));
  });
  const float channel = formats::w4a8_channel_scale(largest_lane(largest));
  store(at(job.scale_channel, n), channel);

  auto* q = reinterpret_cast<uint8_t*>(at(job.q, n));
  auto* scale_rel = reinterpret_cast<uint8_t*>(at(job.scale_rel, n));
  const int64_t relative_step = job.scale_rel.strides[1];
  over_tiles<T>(job, x, [&](const float* v, int64_t first, int64_t groups) HWY_ATTR {
    Tile tile;
    load_tile(v, tile);
    const VF by_row = hn::Set(DF(), channel);
    const VU codes = fp8_codes<formats::E4m3>(hn::Div(hn::LoadU(DF(), fitted + first), by_row));
    HWY_ALIGN uint32_t relative[kN];
    HWY_ALIGN uint8_t packed[kN * 8];
    hn::Store(codes, DU(), relative);
    for (int64_t g = 0; g < groups; ++g) {
      scale_rel[(first + g) * relative_step] = static_cast<uint8_t>(relative[g]);
    }
    encode_tile(tile, job.table, codes, by_row, packed);
    std::memcpy(q + first * 8, packed, static_cast<size_t>(groups) * 8);
  });
}

void rows(const Job& job, int64_t begin, int64_t end) {
  HWY_ALIGN float fitted[kMaxGroups + kN];
  with_element(job.x.dtype, [&]<class T>(T) HWY_ATTR {
    for (int64_t n = begin; n < end; ++n) encode_row<T>(job, n, fitted);
  });
}

}  // namespace pestle::ops::quantize_w4a8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::quantize_w4a8 {
namespace {

HWY_EXPORT(rows);

constexpr int kX = arg_index(spec, "x");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kHadamard = arg_index(spec, "hadamard");

std::string refuses(const Call& call, const Machine&) {
  const int64_t columns = call.tensor(kX).shape[1];
  if (columns > kMaxGroups * formats::kW4a8Group) {
    return "K is " + std::to_string(columns) + ", this path keeps the scales of rows up to " +
           std::to_string(kMaxGroups * formats::kW4a8Group);
  }
  return refuse_strided_rows(call, {kX, kQ});
}

Status run(const Call& call) {
  float levels[formats::kW4a8Levels];
  load_codebook(call, kCodebook, levels);
  PESTLE_TRY(check_ascending(call, levels));
  const TensorView& x = call.tensor(kX);
  const Job job{.x = x,
                .q = call.tensor(kQ),
                .scale_rel = call.tensor(kScaleRel),
                .scale_channel = call.tensor(kScaleChannel),
                .table = formats::w4a8_table(levels),
                .hadamard = call.integer(kHadamard)};
  parallel_rows(x.shape[0], x.shape[1], [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rows)(job, begin, end);
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/quantize_w4a8_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_w4a8
#endif
