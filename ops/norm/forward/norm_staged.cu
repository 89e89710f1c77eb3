// The norms' rows without a sum before the norm, in shared memory.
// Map      a row a warp, a block of 128 or 256 threads, or a cluster; all of it is asked for at
//          once (staged_rows.cuh), so that 64 to 128 KiB a multiprocessor are under way. Then three
//          walks over the thread's granules: statistics, values, and, where bytes have a scale of
//          the row, codes; between them values lie, rounded, where x lay.
// Traffic  x once, out or codes once; weight, bias, scale, shift out of the L1 or L2.
// Numerics norm_rows.h; 16-bit sums and sums of squares by the tensor cores (exact products, f32
//          sums), squared differences from the mean by the others. Codes:
//          quantize_by_reciprocal.cuh.
// Measured norm_rows.md
#include "backends/cuda/device/tensor/tensor_sums.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "core/machine.h"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/norm/forward/norm_staged.h"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

using namespace row_quantizer;

// ---- statistics ----

// Sums of what f makes of the thread's values.
template <class T, class Row, class Each, class F>
__device__ inline float sum_over(const Row& row, Each&& each, F f) {
  constexpr int kCount = kPieceBytes / T::kBytes;
  float sums[4] = {0, 0, 0, 0};
  each([&](int step) {
    if (!row.has(step)) return;
#pragma unroll
    for (int q = 0; q < Row::kPieces; ++q) {
      float v[kCount];
      unpack_piece<T>(row.load(step, q), v);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[j % 4] = f(v[j], sums[j % 4]);
    }
  });
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
template <class Sum, class Row, class Each>
__device__ inline float tensor_sum(const Row& row, Each&& each) {
  Sum sum;
  each([&](int step) {
    const bool has = row.has(step);
#pragma unroll
    for (int q = 0; q < Row::kPieces; ++q) {
      sum.add(has ? row.load(step, q) : make_uint4(0, 0, 0, 0));
    }
  });
  return sum.share();
}

struct Statistics {
  float mean = 0, rstd = 0;
};
template <class T, class Row>
__device__ inline Statistics statistics(const NormJob& p, const ThreadGroup& thread_group,
                                        ReductionSlots<3>& parts, const Row& row) {
  const auto coming = [&](auto f) { row.each_as_it_comes(p.staged, f); };
  const auto square = [](float v, float sum) { return __fmaf_rn(v, v, sum); };
  Statistics s;
  float own;
  if (p.subtract_mean) {
    if constexpr (T::kBytes == 2)
      own = tensor_sum<TensorSum<T>>(row, coming);
    else
      own = sum_over<T>(row, coming, [](float v, float sum) { return sum + v; });
    s.mean = thread_group.sum(parts, 0, own) * p.share;
    own = sum_over<T>(
        row, [&](auto f) { row.each(f); },
        [&](float v, float sum) { return square(v - s.mean, sum); });
  } else {
    if constexpr (T::kBytes == 2)
      own = tensor_sum<TensorSquares<T>>(row, coming);
    else
      own = sum_over<T>(row, coming, square);
  }
  s.rstd = rsqrtf(__fmaf_rn(thread_group.sum(parts, 1, own), p.share, p.eps));
  return s;
}

// ---- parameters ----

template <class E, int kChunk>
__device__ inline void load_parameters(const char* row, int element, float (&w)[kChunk]) {
  OperandChunk<E, kChunk> raw;
  raw.load(row + static_cast<uint64_t>(static_cast<uint32_t>(element)) * E::kBytes);
  raw.values(w);
}

__device__ inline const char* row_of(const Operand& o, int row) {
  return o.data == nullptr ? nullptr : row_at(o.data, o.row_bytes, row);
}
// All have one dtype, and a weight and perhaps a bias, or scale and shift, are all there are.
template <class E, bool kModulates, bool kAdds>
struct Parameters {
  const char *w, *b;

  __device__ Parameters(const NormJob& p, int group)
      : w(kModulates ? row_of(p.scale, group) : row_of(p.weight, 0)),
        b(kModulates ? row_of(p.shift, group) : row_of(p.bias, 0)) {
    asm volatile("" : "+l"(w));
    asm volatile("" : "+l"(b));
  }
  template <int kChunk>
  __device__ void apply_to(int element, float* v) const {
    float x[kChunk], y[kChunk];
    load_parameters<E>(w, element, x);
    if constexpr (kAdds) load_parameters<E>(b, element, y);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float factor = kModulates ? 1.0f + x[j] : x[j];
      v[j] = kAdds ? __fmaf_rn(v[j], factor, y[j]) : v[j] * factor;
    }
  }
};
// Out of line, since what calls it is compiled many times.
template <int kChunk>
__device__ __noinline__ F32::Raw any_parameters(const char* row, DType dtype, int element) {
  float w[kChunk];
  if (dtype == DType::kF32)
    load_parameters<F32>(row, element, w);
  else if (dtype == DType::kBF16)
    load_parameters<Bf16>(row, element, w);
  else
    load_parameters<F16>(row, element, w);
  float v[kUnit] = {};
  for (int j = 0; j < kChunk; ++j) v[j] = w[j];
  return F32::pack_numbers(v);
}
struct AnyParameters {
  const NormJob& p;
  int group;

  __device__ AnyParameters(const NormJob& job, int g) : p(job), group(g) {}
  template <int kChunk>
  __device__ void apply_to(int element, float* v) const {
    apply_one<kChunk>(p.weight, 0, element, [&](int j, float w) { v[j] *= w; });
    apply_one<kChunk>(p.bias, 0, element, [&](int j, float w) { v[j] += w; });
    apply_one<kChunk>(p.scale, group, element, [&](int j, float w) { v[j] *= 1.0f + w; });
    apply_one<kChunk>(p.shift, group, element, [&](int j, float w) { v[j] += w; });
  }

 private:
  template <int kChunk, class F>
  __device__ static void apply_one(const Operand& o, int row, int element, F f) {
    if (o.data == nullptr) return;
    float w[kUnit];
    F32::to_f32(any_parameters<kChunk>(row_at(o.data, o.row_bytes, row), o.dtype, element), w);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) f(j, w[j]);
  }
};
// f(parameters), with what the kernel needs not ask again.
template <class T, class F>
__device__ inline void with_parameters(const NormJob& p, int group, F&& f) {
  switch (p.parameters) {
    case ParameterKind::kWeight: return f(Parameters<T, false, false>(p, group));
    case ParameterKind::kBiased: return f(Parameters<T, false, true>(p, group));
    case ParameterKind::kModulated: return f(Parameters<T, true, true>(p, group));
    case ParameterKind::kWeightF32:
      if constexpr (T::kBytes == 2) return f(Parameters<F32, false, false>(p, group));
    case ParameterKind::kBiasedF32:
      if constexpr (T::kBytes == 2) return f(Parameters<F32, false, true>(p, group));
    default: return f(AnyParameters(p, group));
  }
}

// ---- values ----

// The granules of a row as they leave the norm.
template <class T, class Row, class Given>
struct Normalized {
  static constexpr int kN = Row::kElements, kChunk = kN < kUnit ? kN : kUnit;
  static constexpr int kCount = kPieceBytes / T::kBytes;
  const Row& row;
  const Given& given;
  Statistics s;
  float negative;  // -mean * rstd

  // Lanes without a granule have parameters of the last.
  __device__ void values(int step, float (&v)[kN]) const {
#pragma unroll
    for (int q = 0; q < Row::kPieces; ++q) unpack_piece<T>(row.load(step, q), v + q * kCount);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      v[j] = T::kBytes == 2 ? __fmaf_rn(v[j], s.rstd, negative) : (v[j] - s.mean) * s.rstd;
    }
    const int first = min(row.granule(step), row.granules - 1) * kN;
#pragma unroll
    for (int c = 0; c < kN; c += kChunk) given.template apply_to<kChunk>(first + c, v + c);
  }
  // Rounded, and stored where the output is asked for beside codes.
  __device__ void rounded(char* out, int step, uint4 (&w)[Row::kPieces]) const {
    float v[kN];
    values(step, v);
    round_granule<T, true>(v, w);
    if (out != nullptr && row.has(step)) store_granule<T>(out, row.granule(step), v);
  }
};

// ---- the kernel ----

template <class T, class Kind, class Norm, class Row>
__device__ inline void put_row(const NormJob& p, const ThreadGroup& thread_group,
                               ReductionSlots<3>& parts, const Norm& norm, const Row& row,
                               char* after, const Nvfp4Scale& global) {
  const RowQuantizer& o = p.codes;
  char* out = p.out == nullptr ? nullptr : row_at(p.out, p.out_row_bytes, thread_group.row);
  if constexpr (!Kind::kQuantizes) {
    row.each([&](int step) {
      if (!row.has(step)) return;
      float v[Row::kElements];
      norm.values(step, v);
      store_granule<T>(out, row.granule(step), v);
    });
  } else if constexpr (Kind::kBytes) {
    StagedBytes<T, typename Kind::Code> bytes(o, thread_group);
    row.each([&](int step) {
      if (!row.has(step)) return;
      uint4 w[Row::kPieces];
      norm.rounded(out, step, w);
      bytes.put(row, step, w);
    });
    bytes.finish(o, thread_group, parts, row);
  } else if constexpr (std::is_same_v<Kind, RotatedOutput>) {
    StagedRotation rotation(p.staged, after);
    row.each([&](int step) {
      uint4 w[Row::kPieces];
      norm.rounded(out, step, w);
      rotation.put<T>(o.hadamard, step, row.has(step), w);
    });
    rotation.finish(o, thread_group, parts, row);
  } else {
    const BlockPlace place(o, thread_group.row, row.first, row.shift, Kind::kRuns);
    row.each([&](int step) {
      uint4 w[Row::kPieces];
      norm.rounded(out, step, w);
      put_block_run<T, Kind>(o, place, step, row.has(step), global, w);
    });
    o.clear_padding(thread_group.row, thread_group.rows, thread_group.first, thread_group.step);
  }
}

// Blocks of a multiprocessor that registers leave room for.
template <class T, class Kind>
constexpr int kResident =
    std::is_same_v<Kind, Nvfp4Output> || std::is_same_v<Kind, RotatedOutput> ? 3 : 4;

template <class T, class Kind>
__global__ void __launch_bounds__(kStagedBlock, kResident<T, Kind>)
    staged_kernel(const __grid_constant__ NormJob p) {
  using Row = StagedRow<T, kGranule<T, Kind>>;
  extern __shared__ __align__(128) char shared[];
  __shared__ ReductionSlots<3> parts;
  ThreadGroup thread_group(p.staged.thread_group, p.staged.cluster_shift);
  if (thread_group.lanes == 32 && !thread_group.inside)
    return;  // whole warps, which meet no others
  const Row row(p.staged, thread_group, shared_place(shared));
  thread_group.announce(parts);
  row.fetch(p.staged, row_at(p.x, p.x_row_bytes, thread_group.row));
  Nvfp4Scale global{};
  if constexpr (std::is_same_v<Kind, Nvfp4Output>) {
    global = Nvfp4Scale::from<T>(p.codes.global_scale);
  }
  thread_group.await_others();
  const Statistics s = statistics<T>(p, thread_group, parts, row);
  const int group = p.rows_of_group.divide(static_cast<uint32_t>(thread_group.row));
  char* after = shared + p.staged.granules_bytes(Row::kBytes);
  with_parameters<T>(p, group, [&](const auto& given) {
    const Normalized<T, Row, std::remove_cvref_t<decltype(given)>> norm{
        row, given, s, p.subtract_mean ? -s.mean * s.rstd : -0.0f};
    put_row<T, Kind>(p, thread_group, parts, norm, row, after, global);
  });
}

// ---- host ----

ParameterKind kind_of(const NormRows& n) {
  const bool weight = n.weight.data != nullptr, bias = n.bias.data != nullptr;
  const bool scale = n.scale.data != nullptr, shift = n.shift.data != nullptr;
  if (weight && !scale && !shift && (!bias || n.bias.dtype == n.weight.dtype)) {
    if (n.weight.dtype == n.x.dtype) return bias ? ParameterKind::kBiased : ParameterKind::kWeight;
    if (n.weight.dtype == DType::kF32) {
      return bias ? ParameterKind::kBiasedF32 : ParameterKind::kWeightF32;
    }
  }
  if (!weight && !bias && scale && shift && n.scale.dtype == n.x.dtype &&
      n.shift.dtype == n.x.dtype) {
    return ParameterKind::kModulated;
  }
  return ParameterKind::kAny;
}

template <class T, class Kind>
Status start(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  constexpr int kN = kGranule<T, Kind>, kBytes = kN * T::kBytes;
  const int clusters = blocks_of_cluster(call);
  job.staged = StagedShape::over(n.rows(), n.columns() / kN, kBytes, kKeptBytes<Kind>, clusters,
                                 std::is_same_v<Kind, Nvfp4Output> ? kLongWarpRow : kWarpRow);
  return launch_staged<Kind>(call, name, staged_kernel<T, Kind>, job.staged,
                             kBytes + kKeptBytes<Kind>, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  if (n.quant.format == OutFormat::kNone) return start<T, PlainOutput>(call, name, job, n);
  return with_quantized(n.quant,
                        [&](auto kind) { return start<T, decltype(kind)>(call, name, job, n); });
}

}  // namespace

Status start_staged_norm(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  job.parameters = kind_of(n);
  switch (n.x.dtype) {
    case DType::kBF16: return start_kind<Bf16>(call, name, job, n);
    case DType::kF16: return start_kind<F16>(call, name, job, n);
    default: return start_kind<F32>(call, name, job, n);
  }
}

}  // namespace norm_device
}  // namespace pestle::ops
