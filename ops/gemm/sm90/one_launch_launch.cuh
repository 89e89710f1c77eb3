// Starting one_launch.cuh, and what it refuses.
#pragma once

#include "ops/gemm/linear/linear_quantized.cuh"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/one_launch.cuh"

namespace pestle::ops {

inline OneLaunchShape one_launch_shape(const Call& call, const LinearQuantizedArgs& args,
                                       int multiprocessors) {
  const TensorView& weight = call.tensor(args.weight);
  return {row_count(call.tensor(args.x)), row_count(weight), row_length(weight),
          dtype_bytes(call.tensor(args.x).dtype), multiprocessors};
}

// What the two launches refuse is refused here, too. hadamard: of the call.
inline std::string refuse_one_launch(const Call& call, const Machine& machine,
                                     const LinearQuantizedArgs& args, int64_t hadamard) {
  std::string why = refuse_machine(machine);
  if (why.empty()) why = refuse_linear_quantized(call, args);
  if (!why.empty()) return why;
  if (wants_pairs(call)) return "gated: pairs of columns have two launches";
  if (has_input_act(call)) return "input_act: x after it has a launch of its own";
  if (hadamard != 0) return "hadamard: x rotated has a launch of its own";
  const TensorView& x = call.tensor(args.x);
  int64_t stride = 0;
  if (!even_rows(x, stride)) return "x's rows are not dense and evenly spaced";
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                       stride * dtype_bytes(x.dtype) % 16 == 0 && row_length(x) % cuda::kUnit == 0;
  if (!aligned) return "x's rows are no units of 8 elements at multiples of 16 bytes";
  const OneLaunchShape shape = one_launch_shape(call, args, multiprocessors_for(call, machine));
  return choose_one_launch(shape).rows == 0 ? "codes of x don't fit in a cluster's shared memory"
                                            : "";
}

// Whether it is to serve a call that it takes.
inline bool advises_one_launch(const Call& call, const Machine& machine,
                               const LinearQuantizedArgs& args, int64_t hadamard) {
  return refuse_one_launch(call, machine, args, hadamard).empty() &&
         prefers_one_launch(one_launch_shape(call, args, multiprocessors_for(call, machine)));
}

#ifdef __CUDACC__

template <hopper::WgmmaType kWgmma, class X, class Code, int kRows>
Status start_one_launch_tile(const Call& call, const char* name, const one_launch::Job& job,
                             const OneLaunchPlan& p) {
  const cuda::Grid grid{int64_t{p.clusters()} * p.parts, p.groups * 128 + 32,
                        static_cast<size_t>(p.shared_bytes()), p.parts};
  return cuda::launch_early(call, name, grid, one_launch::one_launch_kernel<kWgmma, X, Code, kRows>,
                            job);
}

inline void fill_one_launch_plan(const OneLaunchPlan& p, one_launch::Job* job) {
  job->groups = p.groups, job->parts = p.parts, job->boxes = p.boxes, job->stages = p.stages;
  job->n_tiles = p.n_tiles, job->sweeps = p.sweeps;
  job->code_place = static_cast<int>(p.code_place());
  job->sum_place = static_cast<int>(p.sum_place());
  job->largest_place = static_cast<int>(p.largest_place());
  job->scale_place = static_cast<int>(p.scale_place());
  job->barrier_place = static_cast<int>(p.barrier_place());
}

// All but the weight's map.
inline void fill_one_launch(const Call& call, const LinearQuantizedArgs& args, const Operands& o,
                            one_launch::Job* job) {
  fill_epilogue_values(call, args.alpha, o, &job->epilogue);
  fill_extended_parts(call, args.alpha, o, &job->epilogue);
  const TensorView& scale = call.tensor(args.scale);
  const TensorView& x = call.tensor(args.x);
  int64_t step = 0, x_row = 0;
  if (call.integer(args.granularity) == 1) even_rows(scale, step);
  even_rows(x, x_row);
  job->epilogue.columns = {scale.as<float>(), step, o.b.dtype != DType::kI8};
  job->x = static_cast<const char*>(x.data);
  job->x_row_bytes = x_row * dtype_bytes(x.dtype);
  job->m = static_cast<int>(o.out.rows);
  job->n = static_cast<int>(o.out.columns);
  job->k = static_cast<int>(o.a.columns);
}

template <hopper::WgmmaType kWgmma, class Code>
Status run_one_launch(const Call& call, const char* name, const LinearQuantizedArgs& args) {
  Operands o;
  if (const std::string why = read_linear(call, args, &o); !why.empty()) return unsupported(why);
  const OneLaunchPlan plan = choose_one_launch(one_launch_shape(
      call, args, static_cast<int>(cuda::multiprocessors(cuda::device_index(call)))));
  if (plan.rows == 0) return unsupported("one_launch: no plan fits");
  one_launch::Job job;
  fill_one_launch(call, args, o, &job);
  fill_one_launch_plan(plan, &job);
  BoxedTensor weight = boxes_of(o.b, false, true);
  weight.box[1] = plan.tile_n();
  PESTLE_TRY(cuda::make_tensor_map(weight, &job.weight));
  const auto start = [&]<class X>(X) {
    return plan.rows == 64 ? start_one_launch_tile<kWgmma, X, Code, 64>(call, name, job, plan)
                           : start_one_launch_tile<kWgmma, X, Code, 128>(call, name, job, plan);
  };
  switch (call.tensor(args.x).dtype) {
    case DType::kBF16: return start(cuda::Bf16{});
    case DType::kF16: return start(cuda::F16{});
    default: return start(cuda::F32{});
  }
}

#endif  // __CUDACC__

}  // namespace pestle::ops
