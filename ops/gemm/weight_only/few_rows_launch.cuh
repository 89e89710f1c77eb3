// Starting few_rows.cuh, and what it refuses.
#pragma once

#include <array>

#include "ops/gemm/weight_only/few_rows.cuh"
#include "ops/gemm/weight_only/many_rows_launch.cuh"

namespace pestle::ops {

#ifdef __CUDACC__

template <class Format>
int few_rows_scale_row(int64_t k) {
  return Format{}.row_bytes(k);
}

template <class Format>
FewRowsShape few_rows_shape(const Call& call, const cuda::many_rows::Job& job) {
  const int device = cuda::device_index(call);
  FewRowsShape shape;
  shape.m = job.m, shape.n = job.n, shape.k = job.k;
  shape.bits = Format::kBits;
  shape.scale_row = few_rows_scale_row<Format>;
  shape.most_shared = cuda::most_shared_bytes(device);
  shape.most_threads = few_rows::most_threads<Format>(few_rows_eights(job.m));
  shape.multiprocessors = static_cast<int>(cuda::multiprocessors(device));
  shape.clusters = cuda::largest_cluster(cuda::compute_capability(device)) > 1;
  return shape;
}

template <bool kBf16, int kN8, class Format>
Status start_few_rows_tile(const Call& call, const char* name, const cuda::many_rows::Job& job,
                           const Format& format, const FewRowsPlan& plan) {
  few_rows::FewRowsJob of;
  of.job = job;
  of.job.m_tiles = static_cast<int>(cuda::ceil_div(job.m, kN8 * 8));
  of.job.n_tiles = static_cast<int>(cuda::ceil_div(job.n, plan.tile_n()));
  of.n_warps = plan.n_warps, of.k_warps = plan.k_warps, of.parts = plan.parts;
  of.chunks = plan.chunks;
  of.scale_row = plan.scale_row;
  of.x_slots = plan.x_slots;
  of.code_place = static_cast<int>(plan.x_bytes(Format::kBits));
  of.beside = plan.beside;
  of.sum_place = static_cast<int>(plan.sum_place(Format::kBits));
  of.scale_place = static_cast<int>(plan.scale_place(Format::kBits));
  of.flag_place = static_cast<int>(plan.flag_place(Format::kBits));
  of.barrier_place = static_cast<int>(plan.barrier_place(Format::kBits));
  const cuda::Grid grid{int64_t{of.job.m_tiles} * of.job.n_tiles * plan.parts, plan.warps() * 32,
                        static_cast<size_t>(plan.shared_bytes(Format::kBits)), plan.parts};
  return cuda::launch_early(call, name, grid, few_rows::few_rows_kernel<kBf16, Format, kN8>, of,
                            format);
}

template <bool kBf16, class Format>
Status start_few_rows(const Call& call, const char* name, const WeightOnlyArgs& args,
                      const Format& format) {
  const cuda::many_rows::Job job = many_rows_job(call, args, call.tensor(args.x), Format::kBits);
  const FewRowsPlan plan = choose_few_rows(few_rows_shape<Format>(call, job));
  switch (plan.eights) {
    case 1: return start_few_rows_tile<kBf16, 1>(call, name, job, format, plan);
    case 2: return start_few_rows_tile<kBf16, 2>(call, name, job, format, plan);
    case 4: return start_few_rows_tile<kBf16, 4>(call, name, job, format, plan);
    case 0: return unsupported("few_rows: no plan fits");
    default: return start_few_rows_tile<kBf16, 8>(call, name, job, format, plan);
  }
}

template <class Format>
Status run_few_rows(const Call& call, const char* name, const WeightOnlyArgs& args,
                    const Format& format) {
  return call.tensor(args.x).dtype == DType::kBF16
             ? start_few_rows<true>(call, name, args, format)
             : start_few_rows<false>(call, name, args, format);
}

// As run_row_bytes_gemv and run_group_bytes_gemv.
template <many_rows::ByteCode kCode>
Status run_row_bytes_few(const Call& call, const char* name, const WeightOnlyArgs& args,
                         const TensorView& scale) {
  return run_few_rows(call, name, args, gemv_row_bytes<kCode>(call, args, scale));
}
template <many_rows::ByteCode kCode>
Status run_group_bytes_few(const Call& call, const char* name, const WeightOnlyArgs& args,
                           const TensorView& scale, int rows, int columns) {
  return run_few_rows(call, name, args, gemv_group_bytes<kCode>(call, args, scale, rows, columns));
}

#endif  // __CUDACC__

// Op, beside what WeightOnlyOp asks for: refuse_gemv(call), mma_scale_row(call), run_few(call).
template <class Op>
std::string refuses_few_rows(const Call& call, const Machine& machine) {
  const TensorView& x = call.tensor(Op::kArgs.x);
  if (x.dtype == DType::kF32) return "is for x of bf16 or f16";
  const int64_t rows = row_count(x);
  if (rows > kFewRowsMost) return "is for at most 128 rows of x";
  if (rows < kFewRowsLeast) return "is for 5 rows of x or more";
  if (row_kernel<Op>(call, machine) != RowKernel::kFewRows)
    return "others are as fast with so many rows of x and such a weight";
  std::string why = WeightOnlyOp<Op>::refuses_many(call, machine);
  if (why.empty()) why = Op::refuse_gemv(call);
  if (!why.empty()) return why;
  // One warp along n and k, and no parts: the least that is planned. Scales are those of whole chunks.
  FewRowsPlan least;
  least.eights = few_rows_eights(row_count(x));
  least.n_warps = 1;
  least.x_slots = kFewRowsSlots;
  least.scale_row = Op::mma_scale_row(call) + 128;
  return least.shared_bytes(Op::kBits) > gemv::shared_room(machine)
             ? "x and scales of 32 rows of the weight don't fit in shared memory"
             : "";
}

template <class Op>
constexpr Impl few_rows_impl(const char* id) {
  return {.id = id,
          .device = DeviceType::kCuda,
          .min_compute_capability = 80,
          .refuses = refuses_few_rows<Op>,
          .run = Op::run_few};
}
// Behind the others' slabs.
template <class Op, size_t kCount>
constexpr std::array<Impl, kCount + 1> with_few_rows(const char* id,
                                                     const std::array<Impl, kCount>& others) {
  std::array<Impl, kCount + 1> all{};
  for (size_t i = 0; i < kCount; ++i) all[i + (i > 0 ? 1 : 0)] = others[i];
  all[1] = few_rows_impl<Op>(id);
  return all;
}

}  // namespace pestle::ops
