// quantize_int4 on the CPU: per group one pass for the range, one for the codes, the second out of
// the first-level cache. Even and odd columns go through separate vectors, so that two codes meet
// in a byte by a shift.
#include <cfloat>
#include <cmath>

#include "core/op.h"
#include "formats/int4.h"
#include "formats/packing.h"
#include "formats/stochastic.h"
#include "ops/quant/int4/int4_rows.h"
#include "ops/quant/int4/quantize_int4/quantize_int4_spec.h"
#include "ops/shared/cpu_rows.h"
#include "ops/shared/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/int4/quantize_int4/quantize_int4_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/divide-inl.h"
#include "backends/cpu/simd/hadamard-inl.h"
#include "backends/cpu/simd/nibbles-inl.h"
#include "backends/cpu/simd/philox-inl.h"
#include "backends/cpu/simd/reduce-inl.h"

#ifndef PESTLE_OPS_QUANTIZE_INT4_JOB
#define PESTLE_OPS_QUANTIZE_INT4_JOB
namespace pestle::ops::quantize_int4 {
struct Job : Int4Rows {
  using Int4Rows::Int4Rows;
  bool stochastic = false;
  uint64_t seed = 0;
};
}  // namespace pestle::ops::quantize_int4
#endif

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::quantize_int4::HWY_NAMESPACE {
using namespace pestle::cpu::HWY_NAMESPACE;

// What a group's scale depends on. `lo` and `hi` count where amax is finite and mode asymmetric.
struct Range {
  uint32_t amax = 0;
  float lo = 0;
  float hi = 0;
};

template <class T, bool kAsymmetric>
HWY_INLINE void widen(Range& range, const uint8_t* x, int64_t count) {
  const uint32_t amax = amax_bits<T>(x, count);
  range.amax = HWY_MAX(range.amax, amax);
  if constexpr (kAsymmetric) {
    VF lo = hn::Set(DF(), range.lo);
    VF hi = hn::Set(DF(), range.hi);
    for (int64_t i = 0; i < count; i += kN) {
      const uint8_t* p = x + i * int64_t{T::kBytes};
      const int64_t left = count - i;
      const VF v =
          left >= static_cast<int64_t>(kN) ? T::load(p) : load_n<T>(p, static_cast<size_t>(left));
      lo = hn::Min(lo, v);
      hi = hn::Max(hi, v);
    }
    range.lo = hn::GetLane(hn::MinOfLanes(DF(), lo));
    range.hi = hn::GetLane(hn::MaxOfLanes(DF(), hi));
  }
}

// formats::int4_scale and int4_asym_scale.
template <bool kAsymmetric>
HWY_INLINE formats::Int4Zero group_of(const Range& range) {
  if (!kAsymmetric) return {formats::int4_scale(range.amax), 0};
  if (range.amax >= formats::kF32Inf) {
    return {formats::abs_is_nan(range.amax) ? formats::f32_nan() : INFINITY, 0};
  }
  const float scale = formats::max_keep_nan((range.hi - range.lo) / 15.0f, formats::kIntMinScale);
  return {scale, formats::round_clamp(-range.lo / scale, 0, 15)};
}

// Elements 0, 2, 4 ... and 1, 3, 5 ... of 2 * kN.
struct Pairs {
  VF even;
  VF odd;
};
template <class T>
HWY_INLINE Pairs load_pairs(const uint8_t* p) {
#if HWY_TARGET <= HWY_AVX2
  if constexpr (T::kDType == DType::kBF16) {
    const VU both = hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p));
    return {hn::BitCast(DF(), hn::ShiftLeft<16>(both)),
            hn::BitCast(DF(), hn::And(both, hn::Set(DU(), 0xFFFF0000u)))};
  } else {
    const VF a = T::load(p);
    const VF b = T::load(p + kN * T::kBytes);
    return {hn::ConcatEven(DF(), b, a), hn::ConcatOdd(DF(), b, a)};
  }
#else
  HWY_ALIGN float even[kN];
  HWY_ALIGN float odd[kN];
  for (size_t i = 0; i < kN; ++i) {
    F32::store(T::load(p + 2 * i * T::kBytes), even + i);
    F32::store(T::load(p + (2 * i + 1) * T::kBytes), odd + i);
  }
  return {hn::Load(DF(), even), hn::Load(DF(), odd)};
#endif
}

// x / scale for values that the scale came from, so that quotients are within the codes' range.
template <class T>
class Quotient {
 public:
  explicit HWY_INLINE Quotient(float scale)
      : scale_(hn::Set(DF(), scale)), reciprocal_(hn::Set(DF(), 1.0f / scale)) {}
  // The exact quotient in three multiplications where Divider proves it; a sign is of no effect.
  static HWY_INLINE bool fast(float scale) { return Divider::by<T>(scale).fast(); }
  template <bool kFast>
  HWY_INLINE VF of(VF x) const {
    if constexpr (!kFast) return hn::Div(x, scale_);
    const VF q = hn::Mul(x, reciprocal_);
    return hn::MulAdd(hn::NegMulAdd(q, scale_, x), reciprocal_, q);
  }

 private:
  VF scale_;
  VF reciprocal_;
};

// Codes in the low four bits of quotients; above them anything.
template <bool kAsymmetric>
HWY_INLINE VU codes(VF t, VF lowest, VI zero) {
  const VF magic = hn::Set(DF(), 12582912.0f);
  if constexpr (kAsymmetric) {
    t = hn::Min(hn::Max(t, lowest), hn::Add(lowest, hn::Set(DF(), 15.0f)));
    return hn::BitCast(DU(), hn::Add(hn::BitCast(DI(), hn::Add(t, magic)), zero));
  }
  return hn::BitCast(DU(), hn::Add(t, magic));
}

// kN bytes out of the low four bits of each lane.
HWY_INLINE void store_codes(VU even, VU odd, uint8_t* q) {
  const VU low = hn::And(even, hn::Set(DU(), 15u));
  const VU high = hn::And(hn::ShiftLeft<4>(odd), hn::Set(DU(), 0xF0u));
  hn::StoreU(hn::TruncateTo(D8(), hn::Or(low, high)), D8(), q);
}

// Codes of one group with a finite scale; count even.
template <class T, bool kAsymmetric, bool kFast>
HWY_INLINE void encode_by(const uint8_t* x, int64_t count, const formats::Int4Zero& group,
                          uint8_t* q) {
  constexpr auto kStep = static_cast<int64_t>(2 * kN);
  const Quotient<T> quotient(group.scale);
  const VF lowest = hn::Set(DF(), static_cast<float>(-group.zero));
  const VI zero = hn::Set(DI(), group.zero);
  const auto step = [&](const uint8_t* from, uint8_t* to) HWY_ATTR {
    const Pairs v = load_pairs<T>(from);
    store_codes(codes<kAsymmetric>(quotient.template of<kFast>(v.even), lowest, zero),
                codes<kAsymmetric>(quotient.template of<kFast>(v.odd), lowest, zero), to);
  };
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) step(x + i * int64_t{T::kBytes}, q + i / 2);
  if (i == count) return;
  HWY_ALIGN uint8_t from[2 * kN * T::kBytes] = {};
  HWY_ALIGN uint8_t to[kN];
  std::memcpy(from, x + i * int64_t{T::kBytes}, static_cast<size_t>(count - i) * T::kBytes);
  step(from, to);
  std::memcpy(q + i / 2, to, static_cast<size_t>(count - i) / 2);
}
template <class T, bool kAsymmetric>
HWY_INLINE void encode(const uint8_t* x, int64_t count, const formats::Int4Zero& group,
                       uint8_t* q) {
  if (Quotient<T>::fast(group.scale)) return encode_by<T, kAsymmetric, true>(x, count, group, q);
  encode_by<T, kAsymmetric, false>(x, count, group, q);
}

// formats::int_stochastic of finite values plus the zero point, in the low four bits; the bounds
// are integers, so clamping first is the same.
template <bool kAsymmetric>
HWY_INLINE VU codes_stochastic(VF v, VF scale, VF lowest, VI zero, VU random) {
  const VF highest = hn::Add(lowest, hn::Set(DF(), 15.0f));
  const VF t = hn::Min(hn::Max(hn::Div(v, scale), lowest), highest);
  const VF down = hn::Floor(t);
  const VF part = hn::Mul(hn::Sub(t, down), hn::Set(DF(), 65536.0f));
  const VF threshold = hn::ConvertTo(DF(), hn::BitCast(DI(), random));
  const VF up = hn::IfThenElseZero(hn::Lt(threshold, part), hn::Set(DF(), 1.0f));
  const VI code = hn::ConvertTo(DI(), hn::Add(down, up));
  return hn::BitCast(DU(), kAsymmetric ? hn::Add(code, zero) : code);
}

// encode by Philox bits; `element` is the index of x[0] in the matrix.
template <bool kAsymmetric>
HWY_INLINE void encode_stochastic(const float* x, int64_t count, const formats::Int4Zero& group,
                                  uint8_t* q, uint64_t seed, uint64_t element) {
  constexpr auto kStep = static_cast<int64_t>(2 * kN);
  const VF scale = hn::Set(DF(), group.scale);
  const VF lowest = hn::Set(DF(), static_cast<float>(kAsymmetric ? -group.zero : -8));
  const VI zero = hn::Set(DI(), group.zero);
  RandomBits random;
  for (int64_t begin = 0; begin < count; begin += kRandomChunk) {
    const int64_t end = HWY_MIN(begin + kRandomChunk, count);
    const uint16_t* bits =
        fill_random(seed, element + static_cast<uint64_t>(begin), end - begin, random);
    for (int64_t i = begin; i < end; i += kStep, bits += kStep) {
      const auto left = static_cast<size_t>(HWY_MIN(end - i, kStep));
      HWY_ALIGN float few[2 * kN] = {};
      HWY_ALIGN uint8_t packed[kN];
      std::memcpy(few, x + i, left * sizeof(float));
      const Pairs v = load_pairs<F32>(reinterpret_cast<const uint8_t*>(few));
      VU both;
      std::memcpy(static_cast<void*>(&both), bits, sizeof(both));
      const VU even = codes_stochastic<kAsymmetric>(v.even, scale, lowest, zero,
                                                    hn::And(both, hn::Set(DU(), 0xFFFFu)));
      const VU odd =
          codes_stochastic<kAsymmetric>(v.odd, scale, lowest, zero, hn::ShiftRight<16>(both));
      store_codes(even, odd, packed);
      std::memcpy(q + i / 2, packed, left / 2);
    }
  }
}

struct Row {
  int64_t n;
  const uint8_t* x;
  uint8_t* q;
};

template <bool kAsymmetric>
HWY_INLINE formats::Int4Zero store_group(const Job& job, int64_t n, int64_t index,
                                         const Range& range) {
  const formats::Int4Zero group = group_of<kAsymmetric>(range);
  store(job.scale + n * job.scale_row + index * job.scale_step, group.scale);
  if constexpr (kAsymmetric) {
    store(job.zero + n * job.zero_row + index * job.zero_step, static_cast<uint8_t>(group.zero));
  }
  return group;
}

// Groups straight from x.
template <class T, bool kAsymmetric>
HWY_INLINE void direct(const Job& job, const Row& row) {
  for (int64_t begin = 0, index = 0; begin < job.columns; begin += job.group, ++index) {
    const int64_t count = HWY_MIN(job.group, job.columns - begin);
    const uint8_t* x = row.x + begin * int64_t{T::kBytes};
    Range range;
    widen<T, kAsymmetric>(range, x, count);
    const formats::Int4Zero group = store_group<kAsymmetric>(job, row.n, index, range);
    // NaN and infinite scales have codes 0 (docs/formats/int4.md).
    if (range.amax >= formats::kF32Inf || !(group.scale <= FLT_MAX)) {
      std::memset(row.q + begin / 2, 0, static_cast<size_t>(count) / 2);
    } else {
      encode<T, kAsymmetric>(x, count, group, row.q + begin / 2);
    }
  }
}

// Pieces of a row as f32, rotated. Groups longer than the buffer are prepared twice, once for their
// range and once for their codes.
constexpr int64_t kPieceMax = 16 * formats::kHadamardMax;

template <class T>
class Pieces {
 public:
  Pieces(const Job& job, const uint8_t* x, float* buffer)
      : job_(job),
        x_(x),
        buffer_(buffer),
        size_(HWY_MIN(kPieceMax, (job.group + 1023) / 1024 * 1024)) {}

  // Calls body(values, count, column) over [begin, end).
  template <class Body>
  HWY_INLINE void over(int64_t begin, int64_t end, Body&& body) {
    while (begin < end) {
      const int64_t piece = begin / size_ * size_;
      const int64_t stop = HWY_MIN(end, piece + size_);
      if (piece != current_) prepare(piece);
      body(buffer_ + (begin - piece), stop - begin, begin);
      begin = stop;
    }
  }

 private:
  void prepare(int64_t piece) {
    const int64_t count = HWY_MIN(size_, job_.columns - piece);
    convert_to_f32<T>(x_ + piece * int64_t{T::kBytes}, count, buffer_);
    if (job_.hadamard != 0) hadamard_run(buffer_, count, job_.hadamard);
    current_ = piece;
  }

  const Job& job_;
  const uint8_t* x_;
  float* buffer_;
  int64_t size_;
  int64_t current_ = -1;
};

template <class T, bool kAsymmetric>
HWY_INLINE void staged(const Job& job, const Row& row, float* buffer) {
  Pieces<T> pieces(job, row.x, buffer);
  for (int64_t begin = 0, index = 0; begin < job.columns; begin += job.group, ++index) {
    const int64_t end = HWY_MIN(begin + job.group, job.columns);
    Range range;
    pieces.over(begin, end, [&](const float* x, int64_t count, int64_t) HWY_ATTR {
      widen<F32, kAsymmetric>(range, reinterpret_cast<const uint8_t*>(x), count);
    });
    const formats::Int4Zero group = store_group<kAsymmetric>(job, row.n, index, range);
    const bool finite = range.amax < formats::kF32Inf && group.scale <= FLT_MAX;
    pieces.over(begin, end, [&](const float* x, int64_t count, int64_t k) HWY_ATTR {
      if (!finite) {
        std::memset(row.q + k / 2, 0, static_cast<size_t>(count) / 2);
      } else if (job.stochastic) {
        encode_stochastic<kAsymmetric>(x, count, group, row.q + k / 2, job.seed,
                                       static_cast<uint64_t>(row.n * job.columns + k));
      } else {
        encode<F32, kAsymmetric>(reinterpret_cast<const uint8_t*>(x), count, group, row.q + k / 2);
      }
    });
  }
}

template <class T, bool kAsymmetric>
void encode_rows(const Job& job, int64_t begin, int64_t end) {
  HWY_ALIGN float buffer[kPieceMax];
  for (int64_t n = begin; n < end; ++n) {
    const Row row{n, reinterpret_cast<const uint8_t*>(job.values + n * job.values_row),
                  reinterpret_cast<uint8_t*>(job.codes + n * job.codes_row)};
    if (job.hadamard != 0 || job.stochastic)
      staged<T, kAsymmetric>(job, row, buffer);
    else
      direct<T, kAsymmetric>(job, row);
  }
}

void rows(const Job& job, int64_t begin, int64_t end) {
  with_element(job.dtype, [&]<class T>(T) HWY_ATTR {
    if (job.zero != nullptr)
      encode_rows<T, true>(job, begin, end);
    else
      encode_rows<T, false>(job, begin, end);
  });
}

}  // namespace pestle::ops::quantize_int4::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::quantize_int4 {
namespace {

HWY_EXPORT(rows);

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kZeroOut = arg_index(spec, "zero_out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kX, kQ});
}

Status run(const Call& call) {
  Job job(call.tensor(kX), call.tensor(kQ), call.tensor(kScaleOut),
          call.has(kZeroOut) ? &call.tensor(kZeroOut) : nullptr, call.integer(kGroupSize),
          call.integer(kHadamard));
  job.stochastic = call.integer(kRounding) == 1;
  job.seed = static_cast<uint64_t>(call.integer(kSeed));
  parallel_rows(job.rows, job.columns, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rows)(job, begin, end);
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/quantize_int4_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_int4
#endif
