// A tile of queries against a tile of keys, as attention and its backward do it on the CPU.
//
// Tiles lie transposed, one lane a query: logits [keys, kQueries], sums of values [columns,
// kQueries]. So the largest logit and the sum of exponentials need no work across lanes, the row of
// one query never meets another's, and keys and values are read as they lie, one float broadcast
// at a time.
#if defined(PESTLE_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_ATTENTION_TILE_INL_H_
#undef PESTLE_ATTENTION_TILE_INL_H_
#else
#define PESTLE_ATTENTION_TILE_INL_H_
#endif

#include <limits>

#include "backends/cpu/simd/blocks-inl.h"
#include "ops/attention/attention_args.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::attention_tile::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;
using simd::DF;
using simd::VF;

inline constexpr int64_t kLanes = simd::kN;
inline constexpr int64_t kQueries = 96;                          // of a tile
inline constexpr int64_t kKeys = 64;                             // of a tile
inline constexpr int64_t kDepth = 256;                           // columns of q, k, v at most
inline constexpr int kRows = 4;                                  // of a product at once
inline constexpr int kVectors = HWY_TARGET <= HWY_AVX3 ? 6 : 2;  // by the number of registers
static_assert(kQueries % (kVectors * kLanes) == 0 && kKeys % kRows == 0 && kDepth % kRows == 0);

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr double kLn2 = 0.693147180559945309;

HWY_INLINE VF set(float v) { return hn::Set(DF(), v); }
HWY_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// 2^y for y <= 0, within 2 ulp; 0 below 2^-126; NaN of NaN. With kAny for any y: 2^127 for those
// above it.
template <bool kAny = false>
HWY_INLINE VF exp2_of(VF y) {
  if constexpr (kAny) y = hn::IfThenElse(hn::Gt(y, set(127)), set(127), y);
  const VF low = set(-126.0f);
  const VF near = hn::IfThenElse(hn::Lt(y, low), low, y);
  const VF whole = hn::Round(near);
  const VF r = hn::Sub(near, whole);
  VF p = set(1.535336188e-4f);
  p = hn::MulAdd(p, r, set(1.339887440e-3f));
  p = hn::MulAdd(p, r, set(9.618437357e-3f));
  p = hn::MulAdd(p, r, set(5.550332471e-2f));
  p = hn::MulAdd(p, r, set(2.402264791e-1f));
  p = hn::MulAdd(p, r, set(6.931472028e-1f));
  p = hn::MulAdd(p, r, set(1.0f));
#if HWY_TARGET <= HWY_AVX3
  const VF power = VF{_mm512_scalef_ps(p.raw, whole.raw)};
#else
  const simd::DI di;
  const auto bits = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, whole), hn::Set(di, 127)));
  const VF power = hn::Mul(p, hn::BitCast(DF(), bits));
#endif
  return hn::IfThenZeroElse(hn::Lt(y, low), power);
}

HWY_INLINE VF tanh_of(VF x) {
  const VF size = hn::Abs(x);
  const VF z = hn::Mul(x, x);
  VF p = set(-5.70498872745e-3f);
  for (float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
    p = hn::MulAdd(p, z, set(c));
  const VF small = hn::MulAdd(hn::Mul(p, z), x, x);
  const VF e = exp2_of(hn::Mul(size, set(-2 * kLog2e)));
  const VF large = hn::Div(hn::Sub(set(1), e), hn::Add(set(1), e));
  return hn::IfThenElse(hn::Lt(size, set(0.625f)), small, hn::CopySign(large, x));
}

// sums[m, n] = factor * (sum over k of a[m, k] * b[k, n]), or added to what is there. Rows of b and
// sums are kQueries apart; m is a multiple of kRows, n of kLanes.
struct Product {
  const float* a = nullptr;
  int64_t a_row = 0, a_step = 0;  // from row to row, and along k
  const float* b = nullptr;
  float* sums = nullptr;
  int64_t m = 0, k = 0, n = 0;
  float factor = 1;
};

enum class Sums { kNew, kAdd, kAddSkippingZeros };  // the last: 0 * infinity counts as nothing

template <int V, Sums kSums>
HWY_NOINLINE void product_block(const Product& p, int64_t m, int64_t n) {
  const DF d;
  const float* HWY_RESTRICT a = p.a + m * p.a_row;
  const float* HWY_RESTRICT b = p.b + n;
  float* HWY_RESTRICT sums = p.sums + m * kQueries + n;
  VF acc[kRows][V];
  // Unrolled, or the sums would go through memory before and after.
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
    for (int v = 0; v < V; ++v) {
      acc[r][v] = kSums == Sums::kNew ? hn::Zero(d) : hn::Load(d, sums + r * kQueries + v * kLanes);
    }
  }
  for (int64_t k = 0; k < p.k; ++k) {
    const float* HWY_RESTRICT at = a + k * p.a_step;
    const VF a0 = set(at[0]), a1 = set(at[p.a_row]);
    const VF a2 = set(at[2 * p.a_row]), a3 = set(at[3 * p.a_row]);
    for (int v = 0; v < V; ++v) {
      const VF bv = hn::Load(d, b + k * kQueries + v * kLanes);
      if constexpr (kSums == Sums::kAddSkippingZeros) {
        const auto gone = hn::Eq(bv, hn::Zero(d));
        acc[0][v] = hn::IfThenElse(gone, acc[0][v], hn::MulAdd(a0, bv, acc[0][v]));
        acc[1][v] = hn::IfThenElse(gone, acc[1][v], hn::MulAdd(a1, bv, acc[1][v]));
        acc[2][v] = hn::IfThenElse(gone, acc[2][v], hn::MulAdd(a2, bv, acc[2][v]));
        acc[3][v] = hn::IfThenElse(gone, acc[3][v], hn::MulAdd(a3, bv, acc[3][v]));
      } else {
        acc[0][v] = hn::MulAdd(a0, bv, acc[0][v]);
        acc[1][v] = hn::MulAdd(a1, bv, acc[1][v]);
        acc[2][v] = hn::MulAdd(a2, bv, acc[2][v]);
        acc[3][v] = hn::MulAdd(a3, bv, acc[3][v]);
      }
    }
  }
  const VF factor = set(p.factor);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
    for (int v = 0; v < V; ++v) {
      const VF sum = kSums == Sums::kNew ? hn::Mul(acc[r][v], factor) : acc[r][v];
      hn::Store(sum, d, sums + r * kQueries + v * kLanes);
    }
  }
}

template <Sums kSums>
void product(const Product& p) {
  int64_t n = 0;
  for (; n + kVectors * kLanes <= p.n; n += kVectors * kLanes) {
    for (int64_t m = 0; m < p.m; m += kRows) product_block<kVectors, kSums>(p, m, n);
  }
  if constexpr (kVectors > 2) {
    for (; n + 2 * kLanes <= p.n; n += 2 * kLanes) {
      for (int64_t m = 0; m < p.m; m += kRows) product_block<2, kSums>(p, m, n);
    }
  }
  for (; n < p.n; n += kLanes) {
    for (int64_t m = 0; m < p.m; m += kRows) product_block<1, kSums>(p, m, n);
  }
}

// `count` elements `stride` elements apart, as floats.
inline void load_run(const char* from, DType dtype, int64_t stride, int64_t count, float* to) {
  if (stride == 1) {
    simd::with_element(dtype, [&]<class T>(T) { simd::load_floats<T>(from, to, count); });
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    to[i] = load_f32(from + i * stride * dtype_bytes(dtype), dtype);
}
inline void store_run(const float* from, DType dtype, int64_t stride, int64_t count, char* to) {
  if (stride == 1) {
    simd::with_element(dtype, [&]<class T>(T) { simd::store_floats<T>(from, to, count, false); });
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    store_f32(to + i * stride * dtype_bytes(dtype), dtype, from[i]);
}

// Rows of t from address_of(i), transposed: to [columns, kQueries]; lanes from count on are 0.
template <class AddressOf>
void load_lanes(const TensorView& t, int64_t count, int64_t lanes, AddressOf&& address_of,
                float* to) {
  alignas(64) float values[kDepth];
  const int64_t columns = t.shape[3];
  for (int64_t i = 0; i < count; ++i) {
    load_run(address_of(i), t.dtype, t.strides[3], columns, values);
    for (int64_t c = 0; c < columns; ++c) to[c * kQueries + i] = values[c];
  }
  for (int64_t c = 0; c < columns; ++c)
    std::fill(to + c * kQueries + count, to + c * kQueries + lanes, 0.0f);
}
template <class AddressOf>
void store_lanes(const float* from, const TensorView& t, int64_t count, AddressOf&& address_of) {
  alignas(64) float values[kDepth];
  const int64_t columns = t.shape[3];
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < columns; ++c) values[c] = from[c * kQueries + i];
    store_run(values, t.dtype, t.strides[3], columns, address_of(i));
  }
}

// Rows [first, first + count) of a head as floats, padded with zeros to multiples of kRows in both
// directions; rows are round_up(columns, kRows) apart.
inline void load_tile(const TensorView& t, int64_t batch, int64_t head, int64_t first,
                      int64_t count, float* to) {
  const int64_t columns = t.shape[3];
  const int64_t width = round_up(columns, kRows);
  for (int64_t i = 0; i < round_up(count, kRows); ++i, to += width) {
    if (i < count)
      load_run(AttentionInputs::row(t, batch, head, first + i), t.dtype, t.strides[3], columns, to);
    std::fill(to + (i < count ? columns : 0), to + width, 0.0f);
  }
}

// A tile of k or v: where it lies if that will do, else a copy in `room`.
struct TileRows {
  const float* data;
  int64_t stride;
};
inline TileRows tile_rows(const TensorView& t, int64_t batch, int64_t head, int64_t first,
                          int64_t count, float* room) {
  const char* at = AttentionInputs::row(t, batch, head, first);
  const bool whole = t.shape[3] % kRows == 0 && count % kRows == 0;
  if (t.dtype == DType::kF32 && whole && t.strides[3] == 1 &&
      reinterpret_cast<uintptr_t>(at) % sizeof(float) == 0) {
    return {reinterpret_cast<const float*>(at), t.strides[2]};
  }
  load_tile(t, batch, head, first, count, room);
  return {room, round_up(t.shape[3], kRows)};
}

inline bool all_finite(const float* x, int64_t count) {
  const simd::DU du;
  auto largest = hn::Zero(du);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    largest = hn::Max(largest, simd::abs_bits(hn::LoadU(DF(), x + i)));
  uint32_t most = hn::GetLane(hn::MaxOfLanes(du, largest));
  for (; i < count; ++i) most = std::max(most, formats::bits_from_f32(x[i]) & 0x7FFFFFFFu);
  return most < 0x7F800000u;
}

inline bool all_finite(const TileRows& rows, int64_t count, int64_t columns) {
  if (rows.stride == columns) return all_finite(rows.data, count * columns);
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) finite &= all_finite(rows.data + i * rows.stride, columns);
  return finite;
}

// A tile's queries: rows [first, first + count) of the heads that share one of k, head by head. Of
// lanes beyond, up to `lanes`, nothing comes out.
struct Queries {
  const AttentionInputs* in;
  int64_t batch, key_head, first, count, lanes;
  KeyRange range[kQueries];
  KeyRange any;   // keys that one of them sees
  KeyRange each;  // keys that all of them see

  Queries(const AttentionInputs& inputs, int64_t b, int64_t h, int64_t row)
      : in(&inputs), batch(b), key_head(h), first(row) {
    count = std::min(kQueries, in->group() * in->queries() - first);
    lanes = round_up(count, kLanes);
    any = {in->keys(), 0};
    each = {0, in->keys()};
    for (int64_t i = 0; i < count; ++i) {
      range[i] = in->key_range(batch, query(i));
      each = {std::max(each.begin, range[i].begin), std::min(each.end, range[i].end)};
      if (range[i].end <= range[i].begin) continue;
      any = {std::min(any.begin, range[i].begin), std::max(any.end, range[i].end)};
    }
    std::fill(range + count, range + lanes, range[0]);
  }
  int64_t head(int64_t i) const { return key_head * in->group() + (first + i) / in->queries(); }
  int64_t query(int64_t i) const { return (first + i) % in->queries(); }
  char* row(const TensorView& t, int64_t i) const {
    return AttentionInputs::row(t, batch, head(i), query(i));
  }
  // Rows of a tensor of q's shape but for its columns.
  void load_transposed(const TensorView& t, float* to) const {
    load_lanes(t, count, lanes, [&](int64_t i) { return row(t, i); }, to);
  }
  void store_transposed(const float* from, const TensorView& t) const {
    store_lanes(from, t, count, [&](int64_t i) { return row(t, i); });
  }
};

// What becomes of scaled products s [keys, kQueries] of the keys from `first` on: logits, times
// log2(e) or what `unit` is, -infinity where a query does not see the key.
class Logits {
 public:
  // `slopes`, like s: of the soft cap, where there is one.
  Logits(const Queries& queries, int64_t first, int64_t count, float* s, float* slopes = nullptr,
         float unit = kLog2e)
      : queries_(queries),
        in_(*queries.in),
        first_(first),
        count_(count),
        s_(s),
        slopes_(slopes),
        unit_(unit) {}

  // The factor that products are to have before.
  static float factor(const AttentionInputs& in, float unit = kLog2e) {
    return static_cast<float>(in.softcap != 0 ? in.scale / in.softcap : in.scale * double{unit});
  }
  // A key that the mask takes away is away whatever its product is.
  static VF masked(VF s, VF mask, bool is_bool) {
    return is_bool ? hn::IfThenElse(hn::Eq(mask, set(0)), s, mask) : hn::Add(s, mask);
  }

  void make() {
    if (in_.softcap != 0) bend();
    if (in_.has_mask()) add_mask();
    if (first_ < queries_.each.begin || first_ + count_ > queries_.each.end) hide();
  }

 private:
  void bend() {
    const VF cap = set(static_cast<float>(in_.softcap * double{unit_}));
    for (int64_t j = 0; j < count_; ++j) {
      for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
        float* at = s_ + j * kQueries + n;
        const VF bent = tanh_of(hn::Load(DF(), at));
        hn::Store(hn::Mul(bent, cap), DF(), at);
        if (slopes_ != nullptr)
          hn::Store(hn::NegMulAdd(bent, bent, set(1)), DF(), slopes_ + (at - s_));
      }
    }
  }

  // The mask of one row of logits.
  void load_mask(const char* row, float* to) const {
    const int64_t step = in_.mask_step(3);
    const char* from = row + first_ * step * dtype_bytes(in_.mask.dtype);
    if (in_.mask.dtype == DType::kBool) {
      for (int64_t j = 0; j < count_; ++j) to[j] = from[j * step] != 0 ? 0 : -kInf;
      return;
    }
    load_run(from, in_.mask.dtype, step, count_, to);
    for (int64_t j = 0; j < count_; ++j) to[j] *= unit_;
  }

  void add_mask() {
    const bool is_bool = in_.mask.dtype == DType::kBool;
    alignas(64) float values[kKeys];
    if (in_.mask.shape[1] == 1 && in_.mask.shape[2] == 1) {
      load_mask(in_.mask_row(queries_.batch, 0, 0), values);
      for (int64_t j = 0; j < count_; ++j) {
        for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
          float* at = s_ + j * kQueries + n;
          hn::Store(masked(hn::Load(DF(), at), set(values[j]), is_bool), DF(), at);
        }
      }
      return;
    }
    alignas(64) float all[kKeys * kQueries];
    for (int64_t i = 0; i < queries_.count; ++i) {
      load_mask(in_.mask_row(queries_.batch, queries_.head(i), queries_.query(i)), values);
      for (int64_t j = 0; j < count_; ++j) all[j * kQueries + i] = values[j];
    }
    for (int64_t j = 0; j < count_; ++j) {
      std::fill(all + j * kQueries + queries_.count, all + j * kQueries + queries_.lanes, 0.0f);
      for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
        float* at = s_ + j * kQueries + n;
        const VF mask = hn::Load(DF(), all + j * kQueries + n);
        hn::Store(masked(hn::Load(DF(), at), mask, is_bool), DF(), at);
      }
    }
  }

  void hide() {
    const simd::DI di;
    HWY_ALIGN int32_t begin[kQueries], end[kQueries];
    for (int64_t i = 0; i < queries_.lanes; ++i) {
      const auto within = [&](int64_t key) {
        return static_cast<int32_t>(std::clamp<int64_t>(key - first_, 0, count_));
      };
      begin[i] = within(queries_.range[i].begin);
      end[i] = within(queries_.range[i].end);
    }
    for (int64_t j = 0; j < count_; ++j) {
      const auto key = hn::Set(di, static_cast<int32_t>(j));
      for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
        float* at = s_ + j * kQueries + n;
        const auto before = hn::Lt(key, hn::Load(di, begin + n));
        const auto seen = hn::AndNot(before, hn::Lt(key, hn::Load(di, end + n)));
        const VF s = hn::Load(DF(), at);
        hn::Store(hn::IfThenElse(hn::RebindMask(DF(), seen), s, set(-kInf)), DF(), at);
      }
    }
  }

  const Queries& queries_;
  const AttentionInputs& in_;
  int64_t first_, count_;
  float* s_;
  float* slopes_;
  float unit_;
};

}  // namespace pestle::ops::attention_tile::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_ATTENTION_TILE_INL_H_
