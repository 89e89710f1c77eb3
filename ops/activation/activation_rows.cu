// activation and gated_activation on CUDA.
// Map      plain: activation_rows.cuh. codes alone, without a gate: activation_quantized.cu. Other
//          codes: a row, and its gate's, in the shared memory of a warp, a block or a cluster
//          (quantize_staged.cuh), whose blocks know one another only where its scale is computed.
//          units: rows that begin anywhere, with one scale a row or one of all (row_units.cuh).
//          any: a block a row, pieces of 1024 elements in shared memory.
// Traffic  x, gate and out (or codes) once.
// Numerics f32, one rounding to x's dtype; codes: ops/quant/output/quantized_output.h.
// Measured activation.md, gated_activation.md
#include "ops/activation/activation_rows.h"

#include "backends/cuda/host/shared_memory.h"
#include "ops/activation/activation_quantized.cuh"
#include "ops/activation/activation_rows.cuh"
#include "ops/quant/output/quantized_any.cuh"
#include "ops/quant/output/quantized_output.cuh"
#include "ops/quant/rowwise/quantize_staged.cuh"
#include "ops/quant/rowwise/quantize_units.cuh"

namespace pestle::ops {
namespace {

using namespace pestle::cuda;
using namespace row_quantizer;
using activation_codes::activate_roughly;

struct QuantizedJob {
  StagedShape shape;
  const char* x = nullptr;
  const char* gate = nullptr;
  char* out = nullptr;
  int64_t x_row_bytes = 0, gate_row_bytes = 0, out_row_bytes = 0;
  Activation act = Activation::kSilu;
  RowQuantizer codes;
};

// A granule of a row and of its gate, which lies `behind` bytes behind it.
template <class T, class Row>
struct Activated {
  static constexpr int kN = Row::kElements, kCount = kPieceBytes / T::kBytes;
  const QuantizedJob& p;
  const Row& row;
  uint32_t behind;
  char* out;

  __device__ void values(int step, float (&v)[kN]) const {
#pragma unroll
    for (int u = 0; u < kN / kUnit; ++u) {
      float x[kUnit];
      read(step, u, 0, x);
      if constexpr (T::kBytes == 2)
        activate_roughly(p.act, x);
      else
        activate(p.act, x);
      if (p.gate != nullptr) {
        float g[kUnit];
        read(step, u, behind, g);
        for (int j = 0; j < kUnit; ++j) x[j] *= g[j];
      }
      for (int j = 0; j < kUnit; ++j) v[u * kUnit + j] = x[j];
    }
  }
  // Rounded, and stored where the output is asked for.
  __device__ void rounded(int step, uint4 (&w)[Row::kPieces]) const {
    float v[kN];
    values(step, v);
    round_granule<T, true>(v, w);
    if (out != nullptr && row.has(step)) store_granule<T>(out, row.granule(step), v);
  }

 private:
  __device__ void read(int step, int unit, uint32_t at, float (&v)[kUnit]) const {
    constexpr int kEach = kUnit / kCount;  // pieces of a unit
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      unpack_piece<T>(row.load(step, unit * kEach + i, at), v + i * kCount);
    }
  }
};

template <class T, class Kind>
__global__ void __launch_bounds__(kStagedBlock, 4)
    quantized_kernel(const __grid_constant__ QuantizedJob p) {
  using Row = StagedRow<T, kGranule<T, Kind>>;
  extern __shared__ __align__(128) char shared[];
  __shared__ ReductionSlots<3> parts;
  ThreadGroup thread_group(p.shape.thread_group, p.shape.cluster_shift);
  if (thread_group.lanes == 32 && !thread_group.inside)
    return;  // whole warps, which meet no others
  const Row row(p.shape, thread_group, shared_place(shared));
  thread_group.announce(parts);
  const uint32_t tensor = p.shape.granules_bytes(Row::kBytes);
  row.fetch(p.shape, row_at(p.x, p.x_row_bytes, thread_group.row),
            p.gate == nullptr ? nullptr : row_at(p.gate, p.gate_row_bytes, thread_group.row),
            tensor);
  const RowQuantizer& o = p.codes;
  const Activated<T, Row> act{
      p, row, tensor,
      p.out == nullptr ? nullptr : row_at(p.out, p.out_row_bytes, thread_group.row)};
  thread_group.await_others();
  if constexpr (Kind::kBytes) {
    StagedBytes<T, typename Kind::Code> bytes(o, thread_group);
    row.each_as_it_comes(p.shape, [&](int step) {
      if (!row.has(step)) return;
      uint4 w[Row::kPieces];
      act.rounded(step, w);
      bytes.put(row, step, w);
    });
    bytes.finish(o, thread_group, parts, row);
  } else if constexpr (std::is_same_v<Kind, RotatedOutput>) {
    StagedRotation rotation(p.shape, shared + (p.gate == nullptr ? 1 : 2) * tensor);
    row.each_as_it_comes(p.shape, [&](int step) {
      uint4 w[Row::kPieces];
      act.rounded(step, w);
      rotation.put<T>(o.hadamard, step, row.has(step), w);
    });
    rotation.finish(o, thread_group, parts, row);
  } else {
    Nvfp4Scale global{};
    if constexpr (std::is_same_v<Kind, Nvfp4Output>) global = Nvfp4Scale::from<T>(o.global_scale);
    const BlockPlace place(o, thread_group.row, row.first, row.shift, Kind::kRuns);
    row.each_as_it_comes(p.shape, [&](int step) {
      uint4 w[Row::kPieces];
      act.rounded(step, w);
      put_block_run<T, Kind>(o, place, step, row.has(step), global, w);
    });
    o.clear_padding(thread_group.row, thread_group.rows, thread_group.first, thread_group.step);
  }
}

// ---- units ----

struct ActivationUnits {
  RowGroups groups;
  RowTensor x, gate, out;
  UnitCodes codes;
  Activation act;
};

template <class T, class Code>
__global__ void __launch_bounds__(kRowThreads)
    units_kernel(const __grid_constant__ ActivationUnits p) {
  wait_previous_kernel();
  __shared__ RowParts parts;
  const RowPlace place = row_place(p.groups);
  const RowUnits at(place, p.codes.q);
  const int64_t row = min(place.row, p.groups.rows - 1);
  typename T::Raw raw[kRowChunks], gate[kRowChunks];
  load_units<T>(p.x, row, at, raw);
  if (p.gate.is_present) load_units<T>(p.gate, row, at, gate);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    float v[kUnit], g[kUnit];
    T::to_f32(raw[c], v);
    if constexpr (T::kBytes == 2)
      activate_roughly(p.act, v);
    else
      activate(p.act, v);
    if (p.gate.is_present) {
      T::to_f32(gate[c], g);
      for (int i = 0; i < kUnit; ++i) v[i] *= g[i];
    }
    raw[c] = T::pack(v);
  }
  if (p.out.is_present) {
    const UnitTarget out(p.out, row, at);
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) out.put<T>(at, c, raw[c]);
  }
  put_unit_codes<T, Code>(p.codes, place, at, parts, raw, row);
}

// ---- any ----

struct AnyActivation {
  AnyTensor x, gate, out;
  AnyQuantized codes;
  Activation act;
};

// Values of a piece as codes are made of them; kStore: and where they belong.
template <bool kStore>
__device__ int any_piece(const AnyActivation& p, int64_t row, int64_t first, float* values) {
  const int64_t left = p.codes.columns - first;
  const int count = static_cast<int>(min(static_cast<int64_t>(kAnyColumns), left));
  __syncthreads();
  const AnyRow x(p.x, row), gate(p.gate, row), out(p.out, row);
  const int have = any_count(count);
  float v[kUnit] = {}, g[kAnyEach], own[kAnyEach];
  x.load_each(first + threadIdx.x, kAnyThreads, have, own);
  if (gate.present()) gate.load_each(first + threadIdx.x, kAnyThreads, have, g);
  static_assert(kAnyEach <= kUnit);
#pragma unroll
  for (int k = 0; k < kAnyEach; ++k) v[k] = own[k];
  activate(p.act, v);
#pragma unroll
  for (int k = 0; k < kAnyEach; ++k) {
    if (k >= have) continue;
    const int i = threadIdx.x + k * kAnyThreads;
    float y = v[k];
    if (gate.present()) y *= g[k];
    if (kStore && out.present()) out.store(first + i, y);
    if (p.x.dtype == DType::kBF16) y = formats::f32_from_bf16(formats::bf16_from_f32(y));
    if (p.x.dtype == DType::kF16) y = formats::f32_from_f16(formats::f16_from_f32(y));
    values[i] = y;
  }
  if (p.codes.hadamard > 0) rotate_shared(values, count, p.codes.hadamard);
  __syncthreads();
  return count;
}

__global__ void __launch_bounds__(kAnyThreads, 3)
    any_quantized_kernel(const __grid_constant__ AnyActivation p) {
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
Status start_quantized(const Call& call, const char* name, QuantizedJob& job,
                       const ActivationRows& a) {
  constexpr int kN = kGranule<T, Kind>, kBytes = kN * T::kBytes;
  const int clusters = blocks_of_cluster(call);
  const int kept = kKeptBytes<Kind> + (a.gate.data != nullptr ? kBytes : 0);
  job.shape = StagedShape::over(a.rows(), a.columns() / kN, kBytes, kept, clusters, kWarpRow);
  return launch_staged<Kind>(call, name, quantized_kernel<T, Kind>, job.shape, kBytes + kept, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, QuantizedJob& job, const ActivationRows& a) {
  return with_quantized(
      a.quant, [&](auto kind) { return start_quantized<T, decltype(kind)>(call, name, job, a); });
}

// No blocks: not taken. Codes of rows without rotation, whose elements are neighbours.
ActivationUnits activation_units(const Call& call, const ActivationRows& a) {
  ActivationUnits p{};
  if (a.quant.block_scales() || a.quant.hadamard > 0 || a.columns() == 0) return p;
  p.x = RowTensor(a.x);
  if (a.gate.data != nullptr) p.gate = RowTensor(a.gate);
  if (a.out.data != nullptr) p.out = RowTensor(a.out);
  p.codes = unit_codes(a.quant, a.rows(), a.columns());
  p.act = a.act;
  for (const RowTensor* t : {&p.x, &p.gate, &p.out, &p.codes.q}) {
    if (!has_neighbours(*t)) return p;
  }
  p.groups = unit_groups(call, a.rows(), a.columns(), a.quant.computes_row_scale());
  return p;
}

template <class T>
Status start_units(const Call& call, const char* name, const ActivationRows& a,
                   const ActivationUnits& p) {
  Grid grid{p.groups.blocks(), p.groups.threads()};
  if (a.quant.computes_row_scale()) grid.cluster = p.groups.cluster;
  if (a.quant.format == OutFormat::kInt8Row)
    return launch_early(call, name, grid, units_kernel<T, Int8Code>, p);
  return launch_early(call, name, grid, units_kernel<T, Fp8Code<formats::E4m3>>, p);
}

}  // namespace

Status activation_cuda(const Call& call, const char* name, const ActivationRows& a) {
  if (a.quant.format == OutFormat::kNone) {
    return run_activation(call, name, activation_job(tensors_of(a), a.act, false), false);
  }
  if (takes_direct_quantized(a)) return quantized_activation_direct(call, name, a);
  QuantizedJob job;
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
  if (const ActivationUnits p = activation_units(call, a); p.groups.blocks() > 0) {
    switch (a.x.dtype) {
      case DType::kBF16: return start_units<Bf16>(call, name, a, p);
      case DType::kF16: return start_units<F16>(call, name, a, p);
      default: return start_units<F32>(call, name, a, p);
    }
  }
  const AnyActivation job{AnyTensor(a.x), AnyTensor(a.gate), AnyTensor(a.out),
                          AnyQuantized(a.quant, a.rows(), a.columns()), a.act};
  return launch(call, name, {a.rows(), kAnyThreads}, any_quantized_kernel, job);
}

std::string refuse_activation_cuda(const ActivationRows& a, const Machine& machine) {
  if (a.quant.format == OutFormat::kNone) return refuse_activation(tensors_of(a));
  if (a.rows() == 0 || a.columns() == 0) return "the tensor is empty";
  const int multiple = a.quant.block_scales() || a.quant.hadamard > 0 ? kRun : kUnit;
  if (a.columns() % multiple != 0) return "K is no multiple of " + std::to_string(multiple);
  const int bytes = dtype_bytes(a.x.dtype);
  const int64_t longest =
      StagedShape::longest(largest_cluster(machine.compute_capability), bytes,
                           (a.gate.data != nullptr ? bytes : 0) + (a.quant.hadamard > 0 ? 4 : 0));
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
