// activation and gated_activation on CUDA.
// Map      plain: activation_rows.cuh. codes: rows in registers as norms have them (row_team.cuh),
// 32
//          elements a thread; blocks of a row know one another only where its scale is computed.
//          any: a block a row, pieces of 1024 elements in shared memory.
// Traffic  x, gate and out (or codes) once.
// Numerics f32, one rounding to x's dtype; codes: ops/common/quantized_output.h.
// Measured activation.md, gated_activation.md; codes not yet run on a GPU.
#include "ops/common/activation_rows.h"

#include "backends/cuda/device/row_team.cuh"
#include "ops/common/activation_rows.cuh"
#include "ops/common/quantized_any.cuh"
#include "ops/common/quantized_output.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace row_quantizer;

constexpr int kCodeThreads = 256;

struct CodesJob {
  TeamShape shape;
  const char* x = nullptr;
  const char* gate = nullptr;
  char* out = nullptr;
  int64_t x_row_bytes = 0, gate_row_bytes = 0, out_row_bytes = 0;
  Activation act = Activation::kSilu;
  RowQuantizer codes;
};

template <class T>
__device__ inline void load_units(const char* row, const Team& team,
                                  typename T::Raw (&raw)[kTeamUnits]) {
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    raw[i] = T::load(row + team.near_unit(i) * (kUnit * T::kBytes));
  }
}

template <class T, class Kind>
__global__ void __launch_bounds__(kCodeThreads, 3)
    codes_kernel(const __grid_constant__ CodesJob p) {
  __shared__ TeamParts<1> parts;
  const Team team(p.shape);
  typename T::Raw raw[kTeamUnits];
  typename T::Raw gate[kTeamUnits];
  load_units<T>(p.x + team.row * p.x_row_bytes, team, raw);
  if (p.gate != nullptr) load_units<T>(p.gate + team.row * p.gate_row_bytes, team, gate);
  team.begin_joins();
  char* out = p.out + team.row * p.out_row_bytes;
#pragma unroll
  for (int i = 0; i < kTeamUnits; ++i) {
    float v[kUnit];
    T::to_f32(raw[i], v);
    activate(p.act, v);
    if (p.gate != nullptr) {
      float g[kUnit];
      T::to_f32(gate[i], g);
      for (int j = 0; j < kUnit; ++j) v[j] *= g[j];
    }
    raw[i] = T::pack(v);
    if (p.out != nullptr && team.inside && team.has(i)) {
      T::put(out + team.unit(i) * (kUnit * T::kBytes), raw[i]);
    }
  }
  if constexpr (std::is_same_v<Kind, RotatedCodes>) {
    float v[kTeamUnits][kUnit];
#pragma unroll
    for (int i = 0; i < kTeamUnits; ++i) T::to_f32(raw[i], v[i]);
    put_rotated(p.codes, team, parts, 0, v);
  } else {
    put_codes<T, Kind>(p.codes, p.shape.rows, team, parts, 0, raw);
  }
}

// ---- any ----

struct AnyActivation {
  AnyTensor x, gate, out;
  AnyCodes codes;
  Activation act;
};

// Values of a piece as codes are made of them; kStore: and where they belong.
template <bool kStore>
__device__ int any_piece(const AnyActivation& p, int64_t row, int64_t first, float* values) {
  const int64_t left = p.codes.columns - first;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), left));
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kAnyThreads) {
    float v[kUnit] = {p.x.load(p.x.at(row, first + i))};
    activate(p.act, v);
    float y = v[0];
    if (p.gate.data != nullptr) y *= p.gate.load(p.gate.at(row, first + i));
    if (kStore && p.out.data != nullptr) p.out.store(p.out.at(row, first + i), y);
    if (p.x.dtype == DType::kBF16) y = formats::f32_from_bf16(formats::bf16_from_f32(y));
    if (p.x.dtype == DType::kF16) y = formats::f32_from_f16(formats::f16_from_f32(y));
    values[i] = y;
  }
  if (p.codes.hadamard > 0) rotate_shared(values, count, p.codes.hadamard);
  __syncthreads();
  return count;
}

__global__ void __launch_bounds__(kAnyThreads)
    any_codes_kernel(const __grid_constant__ AnyActivation p) {
  __shared__ float v[kAnyColumns];
  const int64_t row = blockIdx.x;
  const float scale = any_row_scale(
      p.codes, row, v, [&](int64_t first) { return any_piece<false>(p, row, first, v); });
  for (int64_t first = 0; first < p.codes.columns; first += kAnyColumns) {
    const int count = any_piece<true>(p, row, first, v);
    put_any_codes(p.codes, row, first, count, v, scale);
  }
  clear_any_padding(p.codes, row);
}

// ---- host ----

ActivationTensors tensors_of(const ActivationRows& a) {
  return {.x = a.x, .gate = a.gate, .grad = {}, .out = {a.out, {}}};
}

template <class T, class Kind>
Status start_codes(const Call& call, const char* name, CodesJob& job, const ActivationRows& a) {
  TeamShape& s = job.shape;
  s = TeamShape::over(a.rows(), a.columns() / kUnit, kMostBlocksOfTeam, kTeamUnits, kCodeThreads);
  const int cluster = a.quant.computes_row_scale() ? s.cluster : 1;
  return launch(call, name, {s.blocks(), s.threads, 0, cluster}, codes_kernel<T, Kind>, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, CodesJob& job, const ActivationRows& a) {
  switch (a.quant.format) {
    case OutFormat::kInt8Row:
      if (a.quant.hadamard > 0) return start_codes<T, RotatedCodes>(call, name, job, a);
      return start_codes<T, ByteCodes<Int8Code>>(call, name, job, a);
    case OutFormat::kNvfp4: return start_codes<T, Nvfp4Codes>(call, name, job, a);
    case OutFormat::kMxfp8: return start_codes<T, Mxfp8Codes>(call, name, job, a);
    default: return start_codes<T, ByteCodes<Fp8Code<formats::E4m3>>>(call, name, job, a);
  }
}

}  // namespace

Status activation_cuda(const Call& call, const char* name, const ActivationRows& a) {
  if (a.quant.format == OutFormat::kNone) {
    return run_activation(call, name, activation_job(tensors_of(a), a.act, false), false);
  }
  CodesJob job;
  job.x = a.x.as<const char>();
  job.gate = a.gate.as<const char>();
  job.out = a.out.as<char>();
  job.x_row_bytes = row_distance(a.x);
  job.gate_row_bytes = a.gate.data ? row_distance(a.gate) : 0;
  job.out_row_bytes = a.out.data ? row_distance(a.out) : 0;
  job.act = a.act;
  job.codes = RowQuantizer(a.quant);
  switch (a.x.dtype) {
    case DType::kBF16: return start_kind<Bf16>(call, name, job, a);
    case DType::kF16: return start_kind<F16>(call, name, job, a);
    default: return start_kind<F32>(call, name, job, a);
  }
}

Status activation_cuda_any(const Call& call, const char* name, const ActivationRows& a) {
  if (a.quant.format == OutFormat::kNone) {
    return run_activation(call, name, activation_job(tensors_of(a), a.act, true), true);
  }
  const AnyActivation job{AnyTensor(a.x), AnyTensor(a.gate), AnyTensor(a.out),
                          AnyCodes(a.quant, a.rows(), a.columns()), a.act};
  return launch(call, name, {a.rows(), kAnyThreads}, any_codes_kernel, job);
}

std::string refuse_activation_cuda(const ActivationRows& a, const Machine& machine) {
  if (a.quant.format == OutFormat::kNone) return refuse_activation(tensors_of(a));
  if (a.rows() == 0 || a.columns() == 0) return "the tensor is empty";
  if (a.columns() % kUnit != 0) return "K is no multiple of 8";
  // The lanes of a short row hold fewer elements than are rotated together.
  const int64_t rotated = a.quant.hadamard / kUnit;
  if (a.quant.hadamard > 32 && rotated * kTeamUnits > a.columns() / kUnit) {
    return "rows are too short to rotate " + std::to_string(a.quant.hadamard) +
           " elements in a warp";
  }
  const bool joins = a.quant.computes_row_scale() && machine.compute_capability < 90;
  const int64_t longest =
      int64_t{kCodeThreads} * kTeamUnits * kUnit * (joins ? 1 : kMostBlocksOfTeam);
  if (a.columns() > longest) return "rows of more than " + std::to_string(longest) + " elements";
  const struct {
    const char* name;
    const TensorView& tensor;
  } all[] = {{"x", a.x}, {"gate", a.gate}, {"out", a.out}};
  for (const auto& [name, tensor] : all) {
    if (tensor.data == nullptr) continue;
    if (std::string why = refuse_unaligned(name, tensor); !why.empty()) return why;
  }
  return refuse_row_quantizer(a.quant);
}

}  // namespace pestle::ops
