// dequantize_int4 on the CPU: a table of 16 outputs per group, looked up by nibbles.
#include "core/op.h"
#include "ops/quant/int4/dequantize_int4/dequantize_int4_spec.h"
#include "ops/quant/int4/int4_rows.h"
#include "ops/shared/cpu_rows.h"
#include "ops/shared/element.h"
#include "ops/shared/streaming.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/int4/dequantize_int4/dequantize_int4_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/hadamard-inl.h"
#include "backends/cpu/simd/nibbles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_int4::HWY_NAMESPACE {
using namespace pestle::cpu::HWY_NAMESPACE;

// Values of the codes before the scale: two's complement, and 0..15 for asymmetric groups.
alignas(64) constexpr float kSigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
alignas(64) constexpr float kUnsigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Row {
  const uint8_t* q;
  const char* scale;
  const char* zero;  // nullptr: symmetric
  uint8_t* out;
};

template <class T>
HWY_INLINE NibbleTable<T> group_table(const Int4Rows& job, const Row& row, int64_t group) {
  const VF scale = hn::Set(DF(), load<float>(row.scale + group * job.scale_step));
  if (row.zero == nullptr) {
    return NibbleTable<T>(
        map_sixteen(load_sixteen(kSigned), [&](VF v) HWY_ATTR { return hn::Mul(v, scale); }));
  }
  const VF zero =
      hn::Set(DF(), static_cast<float>(load<uint8_t>(row.zero + group * job.zero_step)));
  return NibbleTable<T>(map_sixteen(
      load_sixteen(kUnsigned), [&](VF v) HWY_ATTR { return hn::Mul(hn::Sub(v, zero), scale); }));
}

// Columns [begin, end) in groups, as elements of type T at `out`.
template <class T, bool kStream>
HWY_INLINE void decode(const Int4Rows& job, const Row& row, int64_t begin, int64_t end,
                       uint8_t* out) {
  for (int64_t k = begin; k < end;) {
    const int64_t group = k / job.group;
    const int64_t stop = HWY_MIN((group + 1) * job.group, end);
    expand_pairs<kStream>(group_table<T>(job, row, group), row.q + k / 2, stop - k, out);
    out += (stop - k) * int64_t{T::kBytes};
    k = stop;
  }
}

template <class T, bool kStream>
void decode_rotated(const Int4Rows& job, const Row& row) {
  HWY_ALIGN float values[formats::kHadamardMax];
  for (int64_t k = 0; k < job.columns; k += formats::kHadamardMax) {
    const int64_t count = HWY_MIN(job.columns - k, int64_t{formats::kHadamardMax});
    decode<F32, false>(job, row, k, k + count, reinterpret_cast<uint8_t*>(values));
    hadamard_run(values, count, job.hadamard);
    convert_run<kStream, T>(values, count, row.out + k * int64_t{T::kBytes});
  }
}

template <class T, bool kStream>
void decode_rows(const Int4Rows& job, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const Row row{reinterpret_cast<const uint8_t*>(job.codes + n * job.codes_row),
                  job.scale + n * job.scale_row,
                  job.zero == nullptr ? nullptr : job.zero + n * job.zero_row,
                  reinterpret_cast<uint8_t*>(job.values + n * job.values_row)};
    if (job.hadamard != 0)
      decode_rotated<T, kStream>(job, row);
    else
      decode<T, kStream>(job, row, 0, job.columns, row.out);
  }
  if constexpr (kStream) hwy::FlushStream();
}

void rows(const Int4Rows& job, int64_t begin, int64_t end) {
  with_element(job.dtype, [&]<class T>(T) HWY_ATTR {
    if (job.stream)
      decode_rows<T, true>(job, begin, end);
    else
      decode_rows<T, false>(job, begin, end);
  });
}

}  // namespace pestle::ops::dequantize_int4::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_int4 {
namespace {

HWY_EXPORT(rows);

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kZero = arg_index(spec, "zero");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kQ, kOut});
}

Status run(const Call& call) {
  Int4Rows job(call.tensor(kOut), call.tensor(kQ), call.tensor(kScale),
               call.has(kZero) ? &call.tensor(kZero) : nullptr, call.integer(kGroupSize),
               call.integer(kHadamard));
  job.stream = streams(call.tensor(kOut)) && (job.hadamard != 0 || job.group % 32 == 0);
  parallel_rows(job.rows, job.columns, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rows)(job, begin, end);
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/dequantize_int4_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_int4
#endif
