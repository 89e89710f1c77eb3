// stochastic_round_fp8 on CUDA.
// Map      units  a thread rounds 8 neighbouring elements in each of kRows rows
//          anywhere the same of rows that begin anywhere (row_units.cuh)
//          any    a thread an element, any strides
// Traffic  x and rng once, q once.
// Numerics the rule of formats/stochastic.h, two elements an instruction on bits of f16
//          (pair_codes); units with a NaN by the scalar rule.
// Measured 32768 x 16384 bf16 to E4M3 on an H200: 481 us, 4.47 TB/s, 110 % of the copy.
#include "backends/cuda/device/row/row_units.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "formats/stochastic.h"
#include "ops/quant/rowwise/stochastic_round_fp8/stochastic_round_fp8_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::stochastic_round_fp8 {
namespace {

using namespace pestle::cuda;

constexpr int kX = arg_index(spec, "x");
constexpr int kRng = arg_index(spec, "rng");
constexpr int kQ = arg_index(spec, "q");

constexpr int kRows = 4;
constexpr int kThreads = 256;
constexpr int kAnyEach = 4;  // elements of a thread, a block's threads apart

struct Job {
  const char* x;
  const char* rng;
  char* q;
  int64_t x_row_bytes, rng_row_bytes, q_row_bytes;
  int64_t rows;
  int units;
  FastDivisor column_blocks;
};

// Units with a NaN: the scalar rule, by value.
struct UnitValues {
  float v[kUnit];
};
template <class F>
__device__ __noinline__ uint2 slow_codes(UnitValues x, uint2 random) {
  uint32_t w[2] = {0, 0};
  for (int i = 0; i < kUnit; ++i) {
    const auto byte = static_cast<uint8_t>((i < 4 ? random.x : random.y) >> (8 * (i % 4)));
    w[i / 4] |= static_cast<uint32_t>(formats::code_stochastic_byte<F>(x.v[i], byte))
                << (8 * (i % 4));
  }
  return make_uint2(w[0], w[1]);
}

// A unit's elements as f16, two a word, and those or the elements themselves as f32.
template <class T>
__device__ void as_halves(const typename T::Raw& raw, uint32_t (&w)[4], float (&v)[kUnit]) {
  T::to_f32(raw, v);
  const typename F16::Raw halves = F16::pack_numbers(v);
  const uint32_t words[4] = {halves.v.x, halves.v.y, halves.v.z, halves.v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = words[i];
  // bf16 needs no f16 first, see below.
  if constexpr (T::kBytes == 4) F16::to_f32(halves, v);
}

__device__ inline uint32_t halves_toward_zero(float low, float high) {
  uint32_t w;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}

// Codes of two f16 `w` in bytes 1 and 3, `bytes` in bytes 0 and 2. E5M2: an f16 is a code and 8
// bits that the byte is added to. E4M3: 2 |w| - 2^14 is, for |w| >= 2^-6, and below
// floor(|w| * 2^17), the larger of the two: the bits of |w| * 2^-7 as an f16 cut off, which is
// subnormal or in the first binade above. What is added there takes the one bf16 that f16 rounds up
// to 2^-17 over it and no other number over a multiple of 2^-24.
template <class F>
__device__ inline uint32_t pair_codes(uint32_t w, float low, float high, uint32_t bytes) {
  const uint32_t abs = w & 0x7FFF7FFFu;
  uint32_t sum;
  if constexpr (F::kMan == 2) {
    sum = abs + bytes;
  } else {
    const uint32_t small = halves_toward_zero(__fmaf_rn(fabsf(low), 0x1p-7f, 0x1p-32f),
                                              __fmaf_rn(fabsf(high), 0x1p-7f, 0x1p-32f));
    sum = max_u16x2(abs + abs, small + 0x40004000u) + bytes - 0x40004000u;
  }
  constexpr uint32_t kMost = F::kMaxCode << 8 | 0xFFu;
  return __vminu2(sum, kMost << 16 | kMost) | (w & 0x80008000u);
}

template <class T, class F>
__device__ uint2 unit_codes(const typename T::Raw& raw, uint2 random) {
  uint32_t w[4];
  float v[kUnit];
  as_halves<T>(raw, w, v);
  if (maybe_nan(v)) {
    UnitValues x;
    T::to_f32(raw, x.v);
    return slow_codes<F>(x, random);
  }
  uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bytes =
        __byte_perm(i < 2 ? random.x : random.y, 0, i % 2 == 0 ? 0x4140 : 0x4342);
    codes[i] = pair_codes<F>(w[i], v[2 * i], v[2 * i + 1], bytes);
  }
  return make_uint2(__byte_perm(codes[0], codes[1], 0x7531),
                    __byte_perm(codes[2], codes[3], 0x7531));
}

template <class T, class F>
__global__ void __launch_bounds__(384) units_kernel(Job job) {
  wait_previous_kernel();
  const TilePlace place = tile_place(job.column_blocks, kRows, blockIdx.x);
  if (place.unit >= job.units) return;
  const int rows = rows_left(job.rows, place.row, kRows);
  const char* x = job.x + place.row * job.x_row_bytes + place.unit * (kUnit * T::kBytes);
  const char* rng = job.rng + place.row * job.rng_row_bytes + place.unit * kUnit;
  char* q = job.q + place.row * job.q_row_bytes + place.unit * kUnit;
  typename T::Raw raw[kRows];
  uint2 random[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    raw[r] = T::load(x);
    random[r] = __ldg(reinterpret_cast<const uint2*>(rng));
    x += job.x_row_bytes;
    rng += job.rng_row_bytes;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    store8(q, unit_codes<T, F>(raw[r], random[r]));
    q += job.q_row_bytes;
  }
}

struct AnywhereJob {
  RowGroups groups;
  RowTensor x, rng, q;
};
template <class T, class F>
__global__ void __launch_bounds__(kRowThreads)
    anywhere_kernel(const __grid_constant__ AnywhereJob job) {
  wait_previous_kernel();
  const RowPlace place = row_place(job.groups);
  const RowUnits at(place, job.q);
  if (place.row >= job.groups.rows) return;
  const UnitSource<1> rng(job.rng, place.row, at);
  UnitSource<1>::Words random[kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) rng.fetch(at, c, random[c]);
  typename T::Raw raw[kRowChunks];
  load_units<T>(job.x, place.row, at, raw);
  const UnitTarget q(job.q, place.row, at);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    rng.align(random[c]);
    const uint2 bytes = make_uint2(random[c].w[0], random[c].w[1]);
    q.put_bytes(at, c, unit_codes<T, F>(raw[c], bytes));
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads)
    any_kernel(AnyTensor x, AnyTensor rng, AnyTensor q, int64_t count) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kAnyEach) + threadIdx.x;
  float v[kAnyEach];
  uint8_t bytes[kAnyEach];
#pragma unroll
  for (int i = 0; i < kAnyEach; ++i) {
    const int64_t index = first + i * kThreads;
    v[i] = index < count ? x.load(x.element_at(index)) : 0.0f;
    bytes[i] = index < count ? static_cast<uint8_t>(*rng.element_at(index)) : 0;
  }
#pragma unroll
  for (int i = 0; i < kAnyEach; ++i) {
    const int64_t index = first + i * kThreads;
    if (index < count) {
      *q.element_at(index) = static_cast<char>(formats::code_stochastic_byte<F>(v[i], bytes[i]));
    }
  }
}

template <class F>
Status start(const Call& call, const Job& job, const Tiles& tiles) {
  const Grid grid{tiles.blocks(kRows), tiles.threads};
  switch (call.tensor(kX).dtype) {
    case DType::kBF16: return launch_early(call, spec.name, grid, units_kernel<Bf16, F>, job);
    case DType::kF16: return launch_early(call, spec.name, grid, units_kernel<F16, F>, job);
    default: return launch_early(call, spec.name, grid, units_kernel<F32, F>, job);
  }
}

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const int64_t units = row_length(x) / kUnit;
  const Tiles tiles = Tiles::over(row_count(x), units);
  const Job job{x.as<char>(),    call.tensor(kRng).as<char>(),    call.tensor(kQ).as<char>(),
                row_distance(x), row_distance(call.tensor(kRng)), row_distance(call.tensor(kQ)),
                row_count(x),    static_cast<int>(units),         tiles.column_blocks};
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) { return start<F>(call, job, tiles); });
}

template <class F>
Status start_anywhere(const Call& call, const AnywhereJob& job) {
  constexpr const char* kName = "stochastic_round_fp8_any";
  const Grid grid{job.groups.blocks(), job.groups.threads()};
  switch (call.tensor(kX).dtype) {
    case DType::kBF16: return launch_early(call, kName, grid, anywhere_kernel<Bf16, F>, job);
    case DType::kF16: return launch_early(call, kName, grid, anywhere_kernel<F16, F>, job);
    default: return launch_early(call, kName, grid, anywhere_kernel<F32, F>, job);
  }
}

Status run_any(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const AnywhereJob job{sliced_units(row_count(x), row_length(x)), RowTensor(x),
                        RowTensor(call.tensor(kRng)), RowTensor(call.tensor(kQ))};
  if (job.groups.blocks() > 0 && has_neighbours(job.x) && has_neighbours(job.rng) &&
      has_neighbours(job.q)) {
    return with_fp8(call.tensor(kQ).dtype,
                    [&]<class F>(F) { return start_anywhere<F>(call, job); });
  }
  return with_fp8(call.tensor(kQ).dtype, [&]<class F>(F) {
    return launch(call, "stochastic_round_fp8_any",
                  {ceil_div(numel(x), kThreads * kAnyEach), kThreads}, any_kernel<F>, AnyTensor(x),
                  AnyTensor(call.tensor(kRng)), AnyTensor(call.tensor(kQ)), numel(x));
  });
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& x = call.tensor(kX);
  if (numel(x) == 0) return "the tensor is empty";
  if (row_length(x) % kUnit != 0) return "K is no multiple of 8";
  if (row_length(x) / kUnit > kMostUnits) return "K is beyond 2^30";
  if (std::string why = refuse_unaligned("x", x); !why.empty()) return why;
  if (std::string why = refuse_unaligned("rng", call.tensor(kRng), 8); !why.empty()) return why;
  return refuse_unaligned("q", call.tensor(kQ), 8);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/stochastic_round_fp8",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/stochastic_round_fp8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::stochastic_round_fp8
