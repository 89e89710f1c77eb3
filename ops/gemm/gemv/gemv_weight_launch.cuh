// Starting gemv_weight_mma.cuh, and what it refuses.
#pragma once

#include "ops/gemm/gemv/gemv_weight_mma.cuh"
#include "ops/gemm/weight_only/outputs.h"

namespace pestle::ops::gemv {

constexpr int64_t kMostStagedBytes = 1 << 16;  // of x, where several CTAs share a multiprocessor

// The most that a CTA can have. Up to 8 rows of x are for three CTAs a multiprocessor with 8 warps or 4,
// more for one with 16. Where x does not fit, it comes out of the L1.
inline SharedPlan shared_plan(int rows_of_x, int k, int bits, int scale_row, int64_t room) {
  const int step = 512 / bits, steps = (k + step - 1) / step;
  const int all_turns = (steps + kSteps - 1) / kSteps;
  const int x_row = steps * step * 2 + 64;  // whole steps of x
  SharedPlan plan{256, scale_row, 2, 2, rows_of_x, x_row};
  if (rows_of_x > 8) {
    plan.threads = 512;
    plan.sum_buffers = 1;
  } else if (all_turns < 8) {
    plan.threads = 128;
  }
  const int turns = (all_turns + plan.threads / 32 - 1) / (plan.threads / 32);
  plan.scale_buffers = 1 + (kAhead + turns - 1) / turns;
  const int64_t most = rows_of_x > 8 ? room : kMostStagedBytes;
  if (int64_t{rows_of_x} * plan.x_row > most || plan.total() > room) {
    plan.x_row = 0;
    if (rows_of_x > 8) plan.threads = 256;
  }
  return plan;
}

#ifdef __CUDACC__

inline FloatRows float_rows(const Stack& s) {
  FloatRows rows;
  rows.data = static_cast<char*>(const_cast<void*>(s.data));
  rows.dtype = s.dtype;
  rows.row = s.row_stride * dtype_bytes(s.dtype);
  return rows;
}

inline Job weight_mma_job(const Call& call, const WeightOnlyArgs& args, int bits) {
  const TensorView& weight = call.tensor(args.weight);
  const TensorView& x = call.tensor(args.x);
  Operands o;
  read_outputs(call, args, &o);
  Stack rows;
  read_even(call, args.x, &rows);
  Job job{};
  job.weight = weight.as<char>();
  job.weight_row = weight.strides[0];
  job.x = x.as<char>();
  job.x_row = rows.row_stride * 2;
  job.n = weight.shape[0];
  job.k = static_cast<int>(weight.shape[1] * 8 / bits);
  job.rows_of_x = static_cast<int>(row_count(x));
  job.tiles = static_cast<int>(cuda::ceil_div(job.n, kTileRows));
  job.out = float_rows(o.out);
  if (call.has(args.alpha + 2)) job.residual = float_rows(o.residual);
  if (call.has(args.alpha)) job.alpha = call.tensor(args.alpha).as<float>();
  if (call.has(args.alpha + 1)) {
    const TensorView& bias = call.tensor(args.alpha + 1);
    job.bias.data = bias.as<char>();
    job.bias.dtype = bias.dtype;
    job.bias_step = bias.strides[0];
  }
  job.activation = static_cast<int>(call.integer(args.alpha + 3));
  return job;
}

// The plan of shared memory, and what the kernel has to know of it.
template <class Format>
SharedPlan plan_of(const Format& format, int64_t room, Job* job) {
  const SharedPlan plan =
      shared_plan(job->rows_of_x, job->k, Format::kBits, format.row_bytes(job->k), room);
  job->scale_row = plan.scale_row;
  job->scale_buffers = plan.scale_buffers;
  job->sum_buffers = plan.sum_buffers;
  return plan;
}

// As many CTAs as run at a time.
inline cuda::Grid grid_of(const SharedPlan& plan, int64_t room, int64_t tiles, int device) {
  const int64_t ctas = std::clamp<int64_t>(room / (plan.total() + 1024), 1,
                                           plan.threads == 512 ? 1 : 768 / plan.threads);
  return {.blocks = std::min<int64_t>(tiles, ctas * cuda::multiprocessors(device)),
          .threads = plan.threads,
          .shared_bytes = static_cast<size_t>(plan.total())};
}

template <bool kBf16, class Format>
Status start_weight_mma(const Call& call, const char* name, const WeightOnlyArgs& args,
                        const Format& format) {
  const int device = cuda::device_index(call);
  const int64_t room = cuda::most_shared_bytes(device);
  Job job = weight_mma_job(call, args, Format::kBits);
  const SharedPlan plan = plan_of(format, room, &job);
  const cuda::Grid grid = grid_of(plan, room, job.tiles, device);
  const auto start = [&](auto kernel) {
    return cuda::launch(call, name, grid, kernel, job, format);
  };
  if (job.rows_of_x > 8)
    return plan.x_row > 0 ? start(weight_mma_kernel<kBf16, Format, 2, true>)
                          : start(weight_mma_kernel<kBf16, Format, 2, false>);
  return plan.x_row > 0 ? start(weight_mma_kernel<kBf16, Format, 1, true>)
                        : start(weight_mma_kernel<kBf16, Format, 1, false>);
}

// So many weights, whose jobs lack the plan.
template <bool kBf16, class Format>
Status start_weight_parts(const Call& call, const char* name, int count,
                          WeightParts<Format> weights) {
  const int device = cuda::device_index(call);
  const int64_t room = cuda::most_shared_bytes(device);
  SharedPlan plan{};
  for (int p = 0; p < count; ++p) plan = plan_of(weights.formats[p], room, &weights.jobs[p]);
  for (int p = count; p < kGemvParts; ++p) {
    weights.jobs[p] = weights.jobs[0];
    weights.formats[p] = weights.formats[0];
  }
  const cuda::Grid grid = grid_of(plan, room, weights.parts.tiles, device);
  const auto start = [&](auto kernel) { return cuda::launch(call, name, grid, kernel, weights); };
  if (plan.rows_of_x > 8)
    return plan.x_row > 0 ? start(weight_mma_parts_kernel<kBf16, Format, 2, true>)
                          : start(weight_mma_parts_kernel<kBf16, Format, 2, false>);
  return plan.x_row > 0 ? start(weight_mma_parts_kernel<kBf16, Format, 1, true>)
                        : start(weight_mma_parts_kernel<kBf16, Format, 1, false>);
}

#endif  // __CUDACC__

// Bytes of shared memory that a CTA can have.
inline int64_t shared_room(const Machine& machine) {
  const int cc = machine.compute_capability;
  return ((cc == 80 || cc == 87) ? 163 : cc >= 90 && cc < 120 ? 227 : 99) << 10;
}

inline std::string refuse_plan(const Machine& machine, int rows, int k, int bits, int scale_row) {
  const int64_t room = shared_room(machine);
  SharedPlan plan = shared_plan(rows, k, bits, scale_row, room);
  plan.x_row = 0;
  return plan.total() > room ? "scales of 16 rows of the weight don't fit in shared memory" : "";
}

inline std::string refuse_x(const TensorView& x, const Stack& even) {
  if (even.rows > 1 && even.row_stride * 2 % 16 != 0)
    return "x's rows must lie at multiples of 16 bytes";
  return reinterpret_cast<uintptr_t>(x.data) % 16 != 0 ? "x must begin at a multiple of 16 bytes"
                                                       : "";
}

// Why this kernel does not take a call that gemv_weight_only.cuh takes, or would with f32 x.
inline std::string refuse_mma(const Call& call, const WeightOnlyArgs& args, const Machine& machine,
                              int bits, int scale_row) {
  const TensorView& x = call.tensor(args.x);
  const TensorView& weight = call.tensor(args.weight);
  if (x.dtype == DType::kF32) return "x: is for bf16 and f16";
  if (numel(x) == 0 || weight.shape[0] == 0) return "is for products that are not empty";
  if (weight.shape[1] > INT_MAX / 4 || weight.shape[0] > INT_MAX / 4)
    return "N and K must be below 2^29";
  const int k = static_cast<int>(weight.shape[1] * 8 / bits);
  const int rows = static_cast<int>(row_count(x));
  if (std::string why = refuse_plan(machine, rows, k, bits, scale_row); !why.empty()) return why;
  Operands o;
  if (std::string why = read_outputs(call, args, &o); !why.empty()) return why;
  Stack even;
  if (std::string why = read_even(call, args.x, &even); !why.empty()) return why;
  return refuse_x(x, even);
}

}  // namespace pestle::ops::gemv
