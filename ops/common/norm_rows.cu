// rms_norm, layer_norm, adaln and rms_adaln on CUDA.
// Map      rows: a row lies in the registers of 4 to 32 lanes, a block, or a cluster of up to 16
//          blocks (row_team.cuh), 32 elements a thread; one kernel for each dtype of x and kind of
//          output, everything optional is a uniform branch. any: a block a row, in pieces of 1024
//          elements in shared memory, read again for each pass; any strides and offsets.
// Traffic  x (and residual) once, out (or codes) once; weight, bias, scale, shift out of the L2.
// Numerics f32; mean first, then squared differences from it, both by fixed trees of additions.
//          Codes: ops/common/quantized_output.h.
// Measured H200: bf16 32760 x 5120: rms 3.37 TB/s (86 % of the copy), adaln 2.77 (71 %), f32 97 %;
//          codes 29-62 %, rows of 65536 and more 46-66 %. Rotation: not yet run. norm_rows.md
#include "backends/cuda/device/row_team.cuh"
#include "backends/cuda/device/tiles.h"
#include "backends/cuda/launch.h"
#include "ops/common/norm_rows.h"
#include "ops/common/quantize_rows.cuh"
#include "ops/common/quantized_any.cuh"
#include "ops/common/quantized_output.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace row_quantizer;

constexpr int64_t kMostRows = int64_t{1} << 31;

// A tensor that is read beside x: rows of its own dtype.
struct Operand {
  const char* data = nullptr;
  int64_t row_bytes = 0;
  DType dtype = DType::kNone;

  Operand() = default;
  explicit Operand(const TensorView& t) {
    if (t.data == nullptr) return;
    data = t.as<const char>();
    row_bytes = t.rank == 1 ? 0 : row_distance(t);
    dtype = t.dtype;
  }
};

struct NormJob {
  TeamShape shape;
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  char* residual_out = nullptr;
  int64_t residual_out_row_bytes = 0;
  Operand residual, gate, weight, bias, scale, shift;
  FastDivisor rows_of_group;
  float eps = 0;
  float count = 1;
  bool subtract_mean = false;
  RowQuantizer codes;
};

// f(i, values) for each of the thread's units of a row of an operand. Units past the row's end are
// neighbours' values.
template <class E, class F>
__device__ inline void for_units_of(const char* row, const Team& team, F& f) {
#pragma unroll
  for (int i = 0; i < kTeamUnits; i += 2) {
    const auto a = E::load(row + team.near_unit(i) * (kUnit * E::kBytes));
    const auto b = E::load(row + team.near_unit(i + 1) * (kUnit * E::kBytes));
    float w[kUnit];
    E::to_f32(a, w);
    f(i, w);
    E::to_f32(b, w);
    f(i + 1, w);
  }
}
template <class F>
__device__ inline void for_units(const Operand& o, int64_t row, const Team& team, F f) {
  if (o.data == nullptr) return;
  const char* at = o.data + row * o.row_bytes;
  if (o.dtype == DType::kF32) {
    for_units_of<F32>(at, team, f);
  } else if (o.dtype == DType::kBF16) {
    for_units_of<Bf16>(at, team, f);
  } else {
    for_units_of<F16>(at, team, f);
  }
}

using Values = float[kTeamUnits][kUnit];

__device__ inline void clear_missing(const Team& team, Values& v) {
  if (team.whole) return;
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    if (team.has(i)) continue;
    for (int j = 0; j < kUnit; ++j) v[i][j] = 0;
  }
}

// One sum a unit, so that additions do not wait for one another.
template <class Term>
__device__ inline float sum_of(const Values& v, Term term) {
  float sums[kTeamUnits];
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    sums[i] = term(v[i][0], 0.0f);
    for (int j = 1; j < kUnit; ++j) sums[i] = term(v[i][j], sums[i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
__device__ inline void load_sums(const NormJob& p, const Team& team, int64_t group, Values& v) {
  const char* x = p.x + team.row * p.x_row_bytes;
  typename T::Raw raw[kTeamUnits];
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    raw[i] = T::load(x + team.near_unit(i) * (kUnit * T::kBytes));
  }
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) T::to_f32(raw[i], v[i]);
  for_units(p.gate, group, team, [&](int i, const float(&w)[kUnit]) {
    for (int j = 0; j < kUnit; ++j) v[i][j] *= w[j];
  });
  if (p.residual.data == nullptr) return;
  const char* residual = p.residual.data + team.row * p.residual.row_bytes;
  char* sum = p.residual_out + team.row * p.residual_out_row_bytes;
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    raw[i] = T::load(residual + team.near_unit(i) * (kUnit * T::kBytes));
  }
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    float w[kUnit];
    T::to_f32(raw[i], w);
    for (int j = 0; j < kUnit; ++j) v[i][j] += w[j];
    if (team.inside && team.has(i)) T::store(sum + team.unit(i) * (kUnit * T::kBytes), v[i]);
  }
}

// v: sums to the normalised row.
__device__ inline void normalize(const NormJob& p, const Team& team, TeamParts<3>& parts,
                                 Values& v) {
  team.begin_joins();
  clear_missing(team, v);
  if (p.subtract_mean) {
    const float sum = team.sum(parts, 0, sum_of(v, [](float a, float s) { return s + a; }));
    const float mean = sum / p.count;
#pragma unroll
    for (int i = 0; i < kTeamUnits; ++i) {
      for (int j = 0; j < kUnit; ++j) v[i][j] -= mean;
    }
    clear_missing(team, v);
  }
  const float own = sum_of(v, [](float a, float s) { return __fmaf_rn(a, a, s); });
  const float squares = team.sum(parts, 1, own);
  const float rstd = __frsqrt_rn(squares / p.count + p.eps);
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    for (int j = 0; j < kUnit; ++j) v[i][j] *= rstd;
  }
}

__device__ inline void modulate(const NormJob& p, const Team& team, int64_t group, Values& v) {
  for_units(p.weight, 0, team, [&](int i, const float(&w)[kUnit]) {
    for (int j = 0; j < kUnit; ++j) v[i][j] *= w[j];
  });
  for_units(p.bias, 0, team, [&](int i, const float(&w)[kUnit]) {
    for (int j = 0; j < kUnit; ++j) v[i][j] += w[j];
  });
  for_units(p.scale, group, team, [&](int i, const float(&w)[kUnit]) {
    for (int j = 0; j < kUnit; ++j) v[i][j] *= 1.0f + w[j];
  });
  for_units(p.shift, group, team, [&](int i, const float(&w)[kUnit]) {
    for (int j = 0; j < kUnit; ++j) v[i][j] += w[j];
  });
}

// Rows of up to 8192 elements lie in blocks of up to 256 threads, several on a multiprocessor;
// longer ones, without codes, in blocks of up to 512, whose registers leave room for two.
constexpr int kSmallBlock = 256;
constexpr int kLargeBlock = 512;

template <class T, class Kind, int kThreads>
__global__ void __launch_bounds__(kThreads, kThreads == kLargeBlock || Kind::kCodes ? 2 : 3)
    rows_kernel(const __grid_constant__ NormJob p) {
  __shared__ TeamParts<3> parts;
  const Team team(p.shape);
  const int64_t group = p.rows_of_group.divide(static_cast<uint32_t>(team.row));
  Values v;
  load_sums<T>(p, team, group, v);
  normalize(p, team, parts, v);
  modulate(p, team, group, v);
  char* out = p.out + team.row * p.out_row_bytes;
  if constexpr (!Kind::kCodes) {
#pragma unroll
    for (int i = 0; i < kTeamUnits; ++i) {
      if (team.inside && team.has(i)) T::store(out + team.unit(i) * (kUnit * T::kBytes), v[i]);
    }
  } else {
    typename T::Raw raw[kTeamUnits];
#pragma unroll
    for (int i = 0; i < kTeamUnits; ++i) {
      raw[i] = T::pack(v[i]);
      if (p.out != nullptr && team.inside && team.has(i)) {
        T::put(out + team.unit(i) * (kUnit * T::kBytes), raw[i]);
      }
    }
    if constexpr (std::is_same_v<Kind, RotatedCodes>) {
#pragma unroll
      for (int i = 0; i < kTeamUnits; ++i) T::to_f32(raw[i], v[i]);
      put_rotated(p.codes, team, parts, 2, v);
    } else {
      put_codes<T, Kind>(p.codes, p.shape.rows, team, parts, 2, raw);
    }
  }
}

// ---- any ----

struct AnyNorm {
  AnyTensor x, residual, gate, weight, bias, scale, shift, out, residual_out;
  AnyCodes codes;
  int64_t columns, rows_of_group;
  float eps;
  bool subtract_mean;
};

constexpr int kPiece = kAnyColumns;

__device__ float any_block_sum(float v) {
  __shared__ float warps[32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

struct AnyRow {
  const char* data = nullptr;
  int64_t stride = 0;
  const AnyTensor* tensor = nullptr;

  __device__ AnyRow(const AnyTensor& t, int64_t row) {
    if (t.data == nullptr) return;
    tensor = &t;
    data = t.row_at(row);
    stride = t.rank == 0 ? 0 : t.strides[t.rank - 1];
  }
  __device__ bool present() const { return tensor != nullptr; }
  __device__ float load(int64_t j) const { return tensor->load(data + j * stride); }
  __device__ void store(int64_t j, float v) const {
    tensor->store(const_cast<char*>(data) + j * stride, v);
  }
};

struct AnyRows {
  const AnyNorm& p;
  int64_t row;
  AnyRow x, residual, gate, weight, bias, scale, shift, out, residual_out;
  float mean = 0, rstd = 0;

  __device__ AnyRows(const AnyNorm& job, int64_t r)
      : p(job),
        row(r),
        x(p.x, r),
        residual(p.residual, r),
        gate(p.gate, r / p.rows_of_group),
        weight(p.weight, 0),
        bias(p.bias, 0),
        scale(p.scale, r / p.rows_of_group),
        shift(p.shift, r / p.rows_of_group),
        out(p.out, r),
        residual_out(p.residual_out, r) {}

  __device__ float sum_at(int64_t j) const {
    float v = x.load(j);
    if (gate.present()) v *= gate.load(j);
    if (residual.present()) v += residual.load(j);
    return v;
  }
  __device__ float output(int64_t j, float s) const {
    float v = (s - mean) * rstd;
    if (weight.present()) v *= weight.load(j);
    if (bias.present()) v += bias.load(j);
    if (scale.present()) v *= 1.0f + scale.load(j);
    if (shift.present()) v += shift.load(j);
    return v;
  }
  // One rounding to x's dtype.
  __device__ float rounded(float v) const {
    if (p.x.dtype == DType::kBF16) return formats::f32_from_bf16(formats::bf16_from_f32(v));
    if (p.x.dtype == DType::kF16) return formats::f32_from_f16(formats::f16_from_f32(v));
    return v;
  }
  __device__ void find_statistics() {
    const auto count = static_cast<float>(p.columns);
    if (p.subtract_mean) {
      float own = 0;
      for (int64_t j = threadIdx.x; j < p.columns; j += kAnyThreads) own += sum_at(j);
      mean = any_block_sum(own) / count;
    }
    float squares = 0;
    for (int64_t j = threadIdx.x; j < p.columns; j += kAnyThreads) {
      const float d = sum_at(j) - mean;
      squares = __fmaf_rn(d, d, squares);
    }
    rstd = __frsqrt_rn(any_block_sum(squares) / count + p.eps);
  }
  // Outputs of a piece as codes are made of them, in shared memory; kStore: and where they belong.
  template <bool kStore>
  __device__ int piece(int64_t first, float* v) const {
    const int count = static_cast<int>(min(static_cast<int64_t>(kPiece), p.columns - first));
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kAnyThreads) {
      const float s = sum_at(first + i);
      const float y = output(first + i, s);
      v[i] = rounded(y);
      if (kStore && residual_out.present()) residual_out.store(first + i, s);
      if (kStore && out.present()) out.store(first + i, y);
    }
    if (p.codes.hadamard > 0) rotate_shared(v, count, p.codes.hadamard);
    __syncthreads();
    return count;
  }
};

__global__ void __launch_bounds__(kAnyThreads) any_kernel(const __grid_constant__ AnyNorm p) {
  __shared__ float v[kPiece];
  AnyRows rows(p, blockIdx.x);
  rows.find_statistics();
  const float scale = any_row_scale(p.codes, rows.row, v,
                                    [&](int64_t first) { return rows.piece<false>(first, v); });
  for (int64_t first = 0; first < p.columns; first += kPiece) {
    const int count = rows.piece<true>(first, v);
    put_any_codes(p.codes, rows.row, first, count, v, scale);
  }
  clear_any_padding(p.codes, rows.row);
}

// ---- host ----

template <class T, class Kind, int kThreads>
Status start_blocks(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  TeamShape& s = job.shape;
  s = TeamShape::over(n.rows(), n.columns() / kUnit, kMostBlocksOfTeam, kTeamUnits, kThreads);
  return launch(call, name, {s.blocks(), s.threads, 0, s.cluster}, rows_kernel<T, Kind, kThreads>,
                job);
}

template <class T, class Kind>
Status start(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  if constexpr (!Kind::kCodes) {
    if (n.columns() > kSmallBlock * kTeamUnits * kUnit) {
      return start_blocks<T, Kind, kLargeBlock>(call, name, job, n);
    }
  }
  return start_blocks<T, Kind, kSmallBlock>(call, name, job, n);
}

template <class T>
Status start_kind(const Call& call, const char* name, NormJob& job, const NormRows& n) {
  switch (n.quant.format) {
    case OutFormat::kNone: return start<T, NoCodes>(call, name, job, n);
    case OutFormat::kInt8Row:
      if (n.quant.hadamard > 0) return start<T, RotatedCodes>(call, name, job, n);
      return start<T, ByteCodes<Int8Code>>(call, name, job, n);
    case OutFormat::kNvfp4: return start<T, Nvfp4Codes>(call, name, job, n);
    case OutFormat::kMxfp8: return start<T, Mxfp8Codes>(call, name, job, n);
    default: return start<T, ByteCodes<Fp8Code<formats::E4m3>>>(call, name, job, n);
  }
}

int64_t groups_of(const NormRows& n) {
  for (const TensorView* t : {&n.gate, &n.scale, &n.shift}) {
    if (t->data != nullptr) return row_count(*t);
  }
  return 1;
}

// Rows of no elements, or none: what is left to write is padding and scales of nothing.
bool is_empty(const NormRows& n) { return n.rows() == 0 || n.columns() == 0; }

}  // namespace

Status norm_rows_cuda(const Call& call, const char* name, const NormRows& n) {
  NormJob job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = n.out.data ? row_distance(n.out) : 0;
  job.residual_out = n.residual_out.as<char>();
  job.residual_out_row_bytes = n.residual_out.data ? row_distance(n.residual_out) : 0;
  job.residual = Operand(n.residual);
  job.gate = Operand(n.gate);
  job.weight = Operand(n.weight);
  job.bias = Operand(n.bias);
  job.scale = Operand(n.scale);
  job.shift = Operand(n.shift);
  job.rows_of_group = FastDivisor(static_cast<uint32_t>(n.rows() / groups_of(n)));
  job.eps = n.eps;
  job.count = static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  job.codes = RowQuantizer(n.quant);
  switch (n.x.dtype) {
    case DType::kBF16: return start_kind<Bf16>(call, name, job, n);
    case DType::kF16: return start_kind<F16>(call, name, job, n);
    default: return start_kind<F32>(call, name, job, n);
  }
}

Status norm_rows_cuda_any(const Call& call, const char* name, const NormRows& n) {
  if (n.rows() == 0) return {};
  const AnyNorm job{AnyTensor(n.x),
                    AnyTensor(n.residual),
                    AnyTensor(n.gate),
                    AnyTensor(n.weight),
                    AnyTensor(n.bias),
                    AnyTensor(n.scale),
                    AnyTensor(n.shift),
                    AnyTensor(n.out),
                    AnyTensor(n.residual_out),
                    AnyCodes(n.quant, n.rows(), n.columns()),
                    n.columns(),
                    n.rows() / groups_of(n),
                    n.eps,
                    n.subtract_mean};
  return launch(call, name, {n.rows(), kAnyThreads}, any_kernel, job);
}

std::string refuse_norm_rows_cuda(const NormRows& n, const Machine& machine) {
  if (is_empty(n)) return "the tensor is empty";
  if (n.columns() % kUnit != 0) return "K is no multiple of 8";
  if (n.rows() >= kMostRows) return "2^31 rows or more";
  const bool clusters = machine.compute_capability >= 90;
  const int threads = n.quant.format == OutFormat::kNone ? kLargeBlock : kSmallBlock;
  const int64_t longest =
      int64_t{threads} * kTeamUnits * kUnit * (clusters ? kMostBlocksOfTeam : 1);
  if (n.columns() > longest) return "rows of more than " + std::to_string(longest) + " elements";
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", n.x},           {"residual", n.residual}, {"gate", n.gate},
             {"weight", n.weight}, {"bias", n.bias},         {"scale", n.scale},
             {"shift", n.shift},   {"out", n.out},           {"residual_out", n.residual_out}};
  for (const auto& [name, tensor] : all) {
    if (tensor.data == nullptr) continue;
    if (std::string why = refuse_unaligned(name, tensor); !why.empty()) return why;
  }
  // The lanes of a short row hold fewer elements than are rotated together.
  if (n.quant.hadamard > 0 && n.quant.hadamard / kUnit * kTeamUnits > n.columns() / kUnit &&
      n.quant.hadamard > 32) {
    return "rows of fewer than four rotations";
  }
  return refuse_row_quantizer(n.quant);
}

}  // namespace pestle::ops
