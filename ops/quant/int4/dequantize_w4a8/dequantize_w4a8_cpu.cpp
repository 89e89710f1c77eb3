// dequantize_w4a8 on the CPU: 16 decoded values per group of 16 columns, looked up by nibbles.
#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "core/op.h"
#include "ops/quant/int4/dequantize_w4a8/dequantize_w4a8_spec.h"
#include "ops/quant/int4/w4a8_codebook.h"
#include "ops/shared/cpu_rows.h"
#include "ops/shared/element.h"
#include "ops/shared/streaming.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/int4/dequantize_w4a8/dequantize_w4a8_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/hadamard-inl.h"
#include "backends/cpu/simd/nibbles-inl.h"
#include "formats/hadamard.h"

#ifndef PESTLE_OPS_DEQUANTIZE_W4A8_JOB
#define PESTLE_OPS_DEQUANTIZE_W4A8_JOB
namespace pestle::ops::dequantize_w4a8 {
struct Job {
  TensorView q;
  TensorView scale_rel;
  TensorView scale_channel;
  TensorView out;
  float levels[formats::kW4a8Levels];
  int64_t hadamard;
  bool stream;
};
}  // namespace pestle::ops::dequantize_w4a8
#endif

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_w4a8::HWY_NAMESPACE {
using namespace pestle::cpu::HWY_NAMESPACE;

// The 16 values of a group: formats::w4a8_decode_int8 times the row's scale. Adding 1.5 * 2^23
// rounds to nearest even. The levels are finite (see run), so only the scale can be NaN.
HWY_INLINE Sixteen group_values(const Sixteen& levels, uint8_t scale_rel, VF channel) {
  const float relative = formats::f32_from_e4m3(scale_rel);
  const VF scale = hn::Set(DF(), relative == relative ? relative : 0.0f);
  return map_sixteen(levels, [&](VF level) HWY_ATTR {
    const VF magic = hn::Set(DF(), 12582912.0f);
    const VF v = hn::Mul(level, scale);
    const VF inside = hn::Min(hn::Max(v, hn::Set(DF(), -127.0f)), hn::Set(DF(), 127.0f));
    return hn::Mul(hn::Sub(hn::Add(inside, magic), magic), channel);
  });
}

struct Row {
  const uint8_t* q;
  const uint8_t* relative;
  int64_t relative_step;
  VF channel;
};

// A row has few different scales, so a table is made once for each that occurs.
template <class T>
class Tables {
 public:
  explicit Tables(const Job& job) : levels_(load_sixteen(job.levels)) {}
  HWY_INLINE void start_row(VF channel) {
    channel_ = channel;
    std::memset(ready_, 0, sizeof(ready_));
  }
  HWY_INLINE const NibbleTable<T>& of(uint8_t scale_rel) {
    if (!ready_[scale_rel]) {
      table_[scale_rel] = NibbleTable<T>(group_values(levels_, scale_rel, channel_));
      ready_[scale_rel] = true;
    }
    return table_[scale_rel];
  }

 private:
  Sixteen levels_;
  VF channel_ = hn::Zero(DF());
  NibbleTable<T> table_[256];
  bool ready_[256];
};

// Columns [begin, end) as elements of type T.
template <class T, bool kStream>
HWY_INLINE void decode(Tables<T>& tables, const Row& row, int64_t begin, int64_t end,
                       uint8_t* out) {
  for (int64_t k = begin; k < end; k += formats::kW4a8Group) {
    const uint8_t relative = row.relative[k / formats::kW4a8Group * row.relative_step];
    tables.of(relative).template pairs16<kStream>(row.q + k / 2, out);
    out += formats::kW4a8Group * int64_t{T::kBytes};
  }
}

template <class T, bool kStream>
void decode_rotated(const Job& job, Tables<F32>& tables, const Row& row, uint8_t* out) {
  HWY_ALIGN float values[formats::kHadamardMax];
  for (int64_t k = 0; k < job.out.shape[1]; k += formats::kHadamardMax) {
    const int64_t count = HWY_MIN(job.out.shape[1] - k, int64_t{formats::kHadamardMax});
    decode<F32, false>(tables, row, k, k + count, reinterpret_cast<uint8_t*>(values));
    hadamard_run(values, count, job.hadamard);
    convert_run<kStream, T>(values, count, out + k * int64_t{T::kBytes});
  }
}

// Table: what the tables hold, f32 where the rotation comes after.
template <class T, class Table, bool kStream>
void decode_rows(const Job& job, int64_t begin, int64_t end) {
  Tables<Table> tables(job);
  for (int64_t n = begin; n < end; ++n) {
    const Row row{reinterpret_cast<const uint8_t*>(at(job.q, n)),
                  reinterpret_cast<const uint8_t*>(at(job.scale_rel, n)), job.scale_rel.strides[1],
                  hn::Set(DF(), load<float>(at(job.scale_channel, n)))};
    auto* out = reinterpret_cast<uint8_t*>(at(job.out, n));
    tables.start_row(row.channel);
    if constexpr (std::is_same_v<T, Table>) {
      if (job.hadamard == 0) {
        decode<T, kStream>(tables, row, 0, job.out.shape[1], out);
        continue;
      }
    }
    if constexpr (std::is_same_v<Table, F32>) decode_rotated<T, kStream>(job, tables, row, out);
  }
  if constexpr (kStream) hwy::FlushStream();
}

template <class T, class Table>
void rows_by(const Job& job, int64_t begin, int64_t end) {
  if (job.stream)
    decode_rows<T, Table, true>(job, begin, end);
  else
    decode_rows<T, Table, false>(job, begin, end);
}

void rows(const Job& job, int64_t begin, int64_t end) {
  with_element(job.out.dtype, [&]<class T>(T) HWY_ATTR {
    if (job.hadamard == 0)
      rows_by<T, T>(job, begin, end);
    else
      rows_by<T, F32>(job, begin, end);
  });
}

}  // namespace pestle::ops::dequantize_w4a8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_w4a8 {
namespace {

HWY_EXPORT(rows);

constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kOut = arg_index(spec, "out");
constexpr int kHadamard = arg_index(spec, "hadamard");

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kQ, kOut});
}

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  Job job{.q = call.tensor(kQ),
          .scale_rel = call.tensor(kScaleRel),
          .scale_channel = call.tensor(kScaleChannel),
          .out = out,
          .levels = {},
          .hadamard = call.integer(kHadamard),
          .stream = streams(out)};
  load_codebook(call, kCodebook, job.levels);
  // These decode like the NaN and infinities that they replace, for every scale.
  for (float& level : job.levels) {
    level = level != level ? 0.0f : std::clamp(level, -FLT_MAX, FLT_MAX);
  }
  parallel_rows(out.shape[0], out.shape[1], [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rows)(job, begin, end);
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/dequantize_w4a8_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_w4a8
#endif
