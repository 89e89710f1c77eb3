// activation and gated_activation on CUDA.
// Map      plain: activation_rows.cuh. codes: a team walks over rows (row_team.cuh), 32 elements a
//          thread, the next rows on their way to shared memory (row_ring.cuh); blocks of a row know
//          one another only where its scale is computed. any: a block a row, pieces of 1024
//          elements in shared memory.
// Traffic  x, gate and out (or codes) once.
// Numerics f32, one rounding to x's dtype; codes: ops/common/quantized_output.h.
// Measured activation.md, gated_activation.md
#include "ops/common/activation_rows.h"

#include "backends/cuda/device/row_ring.cuh"
#include "backends/cuda/shared_memory.h"
#include "ops/common/activation_rows.cuh"
#include "ops/common/quantized_any.cuh"
#include "ops/common/quantized_output.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace row_quantizer;

constexpr int kCodeThreads = 256;
constexpr int kCodeBlocks = 3;  // of a multiprocessor, at least

struct CodesJob {
  TeamShape shape;
  const char* x = nullptr;
  const char* gate = nullptr;
  char* out = nullptr;
  int64_t x_row_bytes = 0, gate_row_bytes = 0, out_row_bytes = 0;
  int columns = 0;
  int stages = 1;  // rows that are on their way or in use
  Activation act = Activation::kSilu;
  RowQuantizer codes;
};

// A unit's values, rounded to T.
template <class T>
__device__ inline typename T::Raw activated(const CodesJob& p, const RowRing<CodeMap<T>>& ring,
                                            int stage, int gate, int unit) {
  using Map = CodeMap<T>;
  constexpr int kEach = kUnit / Map::kPieceElements;  // pieces of a unit
  const int run = unit / 2, first = unit % 2 * kEach;
  float v[kUnit];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    ring.read(stage, run, first + i, v + i * Map::kPieceElements);
  }
  activate(p.act, v);
  if (p.gate != nullptr) {
    float g[kUnit];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      ring.read(gate, run, first + i, g + i * Map::kPieceElements);
    }
    for (int j = 0; j < kUnit; ++j) v[j] *= g[j];
  }
  return round_unit<T>(v);
}

template <class T, class Kind>
__global__ void __launch_bounds__(kCodeThreads, kCodeBlocks)
    codes_kernel(const __grid_constant__ CodesJob p) {
  using Map = CodeMap<T>;
  extern __shared__ uint4 shared[];
  __shared__ TeamJoins<2> parts;  // of rows in turn: one is read while the next is written
  Team team(p.shape);
  RowElements<Map> at(team, p.columns);
  const int tensor = blockDim.x * (Map::kStageBytes * p.stages);
  char* after = reinterpret_cast<char*>(shared) + (p.gate != nullptr ? 2 : 1) * tensor;
  const RowRing<Map> ring(team, p.columns, shared, p.stages);
  const auto fetch = [&](int k, int stage) {
    if (team.walks_on(k)) {
      const int row = team.row_after(k);
      ring.fetch(row_at(p.x, p.x_row_bytes, row), stage);
      if (p.gate != nullptr) ring.fetch(row_at(p.gate, p.gate_row_bytes, row), stage + tensor);
    }
    commit_copies();
  };
  Nvfp4Scale global{};
  if constexpr (std::is_same_v<Kind, Nvfp4Codes>) global = Nvfp4Scale::from(p.codes.global_scale);
  for (int k = 0; k < p.stages; ++k) fetch(k, k * ring.kStride);
  team.begin(parts);
  int stage = 0, slot = 0;
  for (; team.walks_on(0); team.go_on(), slot ^= 1) {
    at.begin_row(team);
    if (p.stages == 2)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    __syncwarp();  // pieces that other lanes asked for
    typename T::Raw raw[kCodeUnits];
    char* out = row_at(p.out, p.out_row_bytes, team.row);
#pragma unroll
    for (int i = 0; i < kCodeUnits; ++i) {
      raw[i] = activated<T>(p, ring, stage, stage + tensor, i);
      if (p.out != nullptr && at.stores(i)) {
        T::put(at_element<T::kBytes>(out, at.element(i)), raw[i]);
      }
    }
    __syncwarp();
    fetch(p.stages, stage);
    stage = p.stages == 2 ? ring.kStride - stage : 0;
    put_codes<T, Kind>(p.codes, team, at, parts, slot, after, global, raw);
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
  using Map = CodeMap<T>;
  TeamShape& s = job.shape;
  s = team_over<Map>(a.rows(), a.columns(), kMostBlocksOfTeam, kCodeThreads);
  const int rings = a.gate.data != nullptr ? 2 : 1;
  job.stages = rings == 1 && T::kBytes == 2 ? 2 : 1;
  int bytes = ring_bytes<Map>(s.threads, rings, job.stages);
  if (std::is_same_v<Kind, RotatedCodes>) bytes += rotation_bytes(s.threads);
  const auto kernel = codes_kernel<T, Kind>;
  s.choose_walk(resident_blocks(device_index(call), s.threads, kCodeThreads * kCodeBlocks, bytes));
  PESTLE_TRY(allow_shared(call, kernel, bytes));
  const int cluster = a.quant.computes_row_scale() ? s.cluster : 1;
  return launch(call, name, {s.blocks(), s.threads, static_cast<size_t>(bytes), cluster}, kernel,
                job);
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
  job.columns = static_cast<int>(a.columns());
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
  const bool joins = a.quant.computes_row_scale() && machine.compute_capability < 90;
  const int64_t longest = int64_t{kCodeThreads} * kRowElements * (joins ? 1 : kMostBlocksOfTeam);
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
