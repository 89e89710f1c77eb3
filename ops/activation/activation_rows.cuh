// Activations on CUDA, plain and gated, and their gradients: element by element, kRowChunks units
// of 8 neighbours of every operand in flight in each thread. Where tensors are dense they are one
// row.
#pragma once

#include "backends/cuda/device/numeric/activations.cuh"
#include "backends/cuda/device/row/row_access.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/activation/gated_views.h"

namespace pestle::ops {

// in: x, gate, d_out; out: out, or d_x and d_gate. Absent ones are not present.
struct ActivationJob {
  cuda::RowGroups groups;
  cuda::RowTensor x, gate, grad, out[2];
  Activation act = Activation::kSilu;
};

#ifdef __CUDACC__
namespace activation_device {

using namespace pestle::cuda;

constexpr int kThreads = 128;

template <class Access>
struct Operand {
  typename Access::Raw raw[kRowChunks];
  __device__ Operand(const RowTensor& t, const RowPlace& place) {
    if (!t.is_present) return;
    const Access access(t, place);
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) raw[c] = access.load(c);
  }
};

// A chunk of the output, without a hint: where as much is written as read, evict-first stores cost
// 1 to 2 %.
template <class T>
__device__ inline void store_chunk(const Vectors<T>& out, int chunk, const float (&v)[kUnit]) {
  if (!out.has(chunk)) return;
  const typename T::Raw raw = T::pack(v);
  auto* to = reinterpret_cast<uint4*>(out.row + int64_t{out.unit(chunk)} * (kUnit * T::kBytes));
  const auto* from = reinterpret_cast<const uint4*>(&raw);
#pragma unroll
  for (unsigned i = 0; i < sizeof(raw) / sizeof(uint4); ++i) to[i] = from[i];
}
template <class T>
__device__ inline void store_chunk(const Elements<T>& out, int chunk, const float (&v)[kUnit]) {
  out.store(chunk, v);
}

// A row of f32 for what treats every element alike: a thread's unit is two pieces of 16 bytes that
// lie apart, so that neighbouring threads' pieces are neighbours and a warp asks for whole sectors.
struct Apart {
  static constexpr int kBytes = 4;
  using Raw = F32::Raw;
  char* row;
  int lane, lanes, pieces;

  __device__ static void spread(const RowPlace&, const RowTensor&, const RowTensor&) {}
  __device__ static void spread(const RowPlace&, const RowTensor&) {}
  __device__ Apart(const RowTensor& t, const RowPlace& p)
      : row(Vectors<F32>(t, p).row), lane(p.lane), lanes(p.lanes), pieces(2 * p.units) {}
  __device__ int piece(int chunk, int half) const { return (2 * chunk + half) * lanes + lane; }
  __device__ uint4 load_piece(int number) const {
    return number < pieces ? load16(row + int64_t{number} * 16) : make_uint4(0, 0, 0, 0);
  }
  __device__ Raw load(int chunk) const {
    return {load_piece(piece(chunk, 0)), load_piece(piece(chunk, 1))};
  }
  __device__ static void values(const Raw& raw, float (&v)[kUnit]) { F32::to_f32(raw, v); }
  __device__ void store(int chunk, const float (&v)[kUnit]) const {
    const Raw raw = F32::pack(v);
    if (piece(chunk, 0) < pieces) store16(row + int64_t{piece(chunk, 0)} * 16, raw.low);
    if (piece(chunk, 1) < pieces) store16(row + int64_t{piece(chunk, 1)} * 16, raw.high);
  }
};
__device__ inline void store_chunk(const Apart& out, int chunk, const float (&v)[kUnit]) {
  const F32::Raw raw = F32::pack(v);
  const int low = out.piece(chunk, 0), high = out.piece(chunk, 1);
  if (low < out.pieces) reinterpret_cast<uint4*>(out.row)[low] = raw.low;
  if (high < out.pieces) reinterpret_cast<uint4*>(out.row)[high] = raw.high;
}

// Blocks of a multiprocessor; single elements need more registers.
template <class Access>
constexpr int kForwardBlocks = Access::kBytes == 2 ? 8 : 5;
template <class T>
constexpr int kForwardBlocks<Elements<T>> = 5;
template <class Access>
constexpr int kBackwardBlocks = Access::kBytes == 2 ? 5 : 4;
template <class T>
constexpr int kBackwardBlocks<Elements<T>> = T::kBytes == 2 ? 4 : 3;

template <class Access>
__global__ void __launch_bounds__(kThreads, kForwardBlocks<Access>)
    forward_kernel(ActivationJob job) {
  cuda::wait_previous_kernel();
  cuda::start_next_kernel();
  RowPlace place = row_place(job.groups);
  Access::spread(place, job.out[0]);
  const Operand<Access> x(job.x, place);
  const Operand<Access> gate(job.gate, place);
  const Access out(job.out[0], place);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    if (c * place.lanes >= place.units) break;
    float v[kUnit];
    Access::values(x.raw[c], v);
    activate(job.act, v);
    if (job.gate.is_present) {
      float g[kUnit];
      Access::values(gate.raw[c], g);
      for (int i = 0; i < kUnit; ++i) v[i] *= g[i];
    }
    store_chunk(out, c, v);
  }
}

template <class Access>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks<Access>)
    backward_kernel(ActivationJob job) {
  cuda::wait_previous_kernel();
  RowPlace place = row_place(job.groups);
  if (job.gate.is_present)
    Access::spread(place, job.out[0], job.out[1]);
  else
    Access::spread(place, job.out[0]);
  const Operand<Access> x(job.x, place);
  const Operand<Access> grad(job.grad, place);
  const Operand<Access> gate(job.gate, place);
  const Access d_x(job.out[0], place);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    if (c * place.lanes >= place.units) break;
    float v[kUnit];
    float slope[kUnit];
    float g[kUnit];
    Access::values(x.raw[c], v);
    activate_with_slope(job.act, v, slope);
    Access::values(grad.raw[c], g);
    for (int i = 0; i < kUnit; ++i) slope[i] *= g[i];
    if (job.gate.is_present) {
      for (int i = 0; i < kUnit; ++i) v[i] *= g[i];
      Access(job.out[1], place).store(c, v);
      Access::values(gate.raw[c], g);
      for (int i = 0; i < kUnit; ++i) slope[i] *= g[i];
    }
    d_x.store(c, slope);
  }
}

}  // namespace activation_device

// How units are reached, where 16 bytes at a time do.
template <class T>
using Units = std::conditional_t<T::kBytes == 4, activation_device::Apart, cuda::Vectors<T>>;

template <class T>
Status start_activation(const Call& call, const char* name, const ActivationJob& job, bool any) {
  using namespace activation_device;
  const cuda::Grid grid{job.groups.blocks(), job.groups.threads()};
  if (job.grad.is_present) {
    return any ? launch_early(call, name, grid, backward_kernel<Elements<T>>, job)
               : launch_early(call, name, grid, backward_kernel<Units<T>>, job);
  }
  return any ? launch_early(call, name, grid, forward_kernel<Elements<T>>, job)
             : launch_early(call, name, grid, forward_kernel<Units<T>>, job);
}

inline Status run_activation(const Call& call, const char* name, const ActivationJob& job,
                             bool any) {
  switch (job.x.any.dtype) {
    case DType::kBF16: return start_activation<cuda::Bf16>(call, name, job, any);
    case DType::kF16: return start_activation<cuda::F16>(call, name, job, any);
    default: return start_activation<cuda::F32>(call, name, job, any);
  }
}
#endif

// The tensors of a call; those without memory are absent.
struct ActivationTensors {
  TensorView x = {}, gate = {}, grad = {}, out[2] = {};

  template <class Visit>
  bool all(Visit&& visit) const {
    for (const TensorView* t : {&x, &gate, &grad, &out[0], &out[1]}) {
      if (t->data != nullptr && !visit(*t)) return false;
    }
    return true;
  }
  bool is_dense() const {
    return all([](const TensorView& t) { return is_contiguous(t); });
  }
};

// A small tensor goes to every multiprocessor (of an H200, twice), with less for each thread.
inline void spread(cuda::RowGroups& g) {
  const int64_t enough = 2 * 132;
  const int64_t chunks = g.rows * g.units / (g.lanes * enough);
  g.block_units = std::clamp<int64_t>(chunks, 1, cuda::kRowChunks) * g.lanes;
  g.cluster = static_cast<int>((g.units + g.block_units - 1) / g.block_units);
}

inline ActivationJob activation_job(const ActivationTensors& t, Activation act, bool any) {
  ActivationJob job;
  job.act = act;
  const int64_t count = numel(t.x);
  const bool one_row = !any && t.is_dense();
  const auto row = [&](const TensorView& one) {
    if (one.data == nullptr) return cuda::RowTensor();
    if (one_row) return cuda::RowTensor(make_view(one.data, one.dtype, 1, &count));
    return cuda::RowTensor(one, cuda::row_distance(one));
  };
  job.x = row(t.x);
  job.gate = row(t.gate);
  job.grad = row(t.grad);
  job.out[0] = row(t.out[0]);
  job.out[1] = row(t.out[1]);
  const int64_t rows = count == 0 ? 0 : one_row ? 1 : count / job.x.count;
  const int64_t units =
      any ? cuda::units_at_most(job.out[0]) : cuda::ceil_div(job.x.count, cuda::kUnit);
  job.groups = cuda::RowGroups::sliced(rows, units, 128);
  if (rows > 0) spread(job.groups);
  return job;
}

// Why 16 bytes at a time do not do; empty: they do.
inline std::string refuse_activation(const ActivationTensors& t) {
  const bool dense = t.is_dense();
  const int64_t count = dense ? numel(t.x) : t.x.shape[t.x.rank - 1];
  if (count % cuda::kUnit != 0) {
    return std::string(dense ? "the tensors have " : "a row has ") + std::to_string(count) +
           " elements, no multiple of 8";
  }
  std::string why;
  t.all([&](const TensorView& one) {
    if (!dense)
      why = cuda::refuse_unaligned("a tensor", one);
    else if (reinterpret_cast<uintptr_t>(one.data) % 16 != 0)
      why = "a tensor does not start at a multiple of 16 bytes";
    return why.empty();
  });
  return why;
}

}  // namespace pestle::ops
