// Starting cluster_k.cuh behind the kernel that makes a's codes, and whether it is to be.
#pragma once

#include "ops/gemm/linear/linear_quantized.cuh"
#include "ops/gemm/select/gemm_advice.cuh"
#include "ops/gemm/sm90/cluster_k.cuh"

namespace pestle::ops {

inline ClusterShape cluster_shape(const Operands& o, int multiprocessors) {
  return {o.out.rows, o.out.columns, o.a.columns, multiprocessors};
}

inline std::string refuse_cluster(const Call& call, const LinearQuantizedArgs& args) {
  if (wants_pairs(call)) return "gated: takes no pairs of columns";
  const bool shares = row_length(call.tensor(args.weight)) > kClusterBox;
  return shares ? "" : "K of 128 or less is one step, which no cluster shares";
}

// Is the kernel of clusters to serve a call that it takes?
inline bool advises_cluster(const Call& call, const Machine& machine,
                            const LinearQuantizedArgs& args) {
  Operands o;
  return read_linear(call, args, &o).empty() &&
         prefers_cluster(cluster_shape(o, multiprocessors_for(call, machine)));
}
inline std::string cluster_plan_of(const Call& call, const Machine& machine,
                                   const LinearQuantizedArgs& args) {
  Operands o;
  return read_linear(call, args, &o).empty()
             ? describe(choose_cluster(cluster_shape(o, multiprocessors_for(call, machine))))
             : "";
}

#ifdef __CUDACC__

template <hopper::WgmmaType kWgmma, int kRows>
Status start_cluster_tile(const Call& call, const char* name, const ClusterPlan& p,
                          const cluster_k::Job& job) {
  const cuda::Grid grid{int64_t{p.clusters()} * p.parts, p.groups * 128 + 32,
                        static_cast<size_t>(p.shared_bytes()), p.parts};
  return cuda::launch_early(call, name, grid, cluster_k::cluster_k_kernel<kWgmma, kRows>, job);
}

// `early`: the kernel in front lets this one begin when all before it has ended, and writes no weight.
template <hopper::WgmmaType kWgmma>
Status start_cluster(const Call& call, const char* name, const Operands& o,
                     const hopper::EpilogueArguments& epilogue, bool early) {
  const ClusterPlan p = choose_cluster(
      cluster_shape(o, static_cast<int>(cuda::multiprocessors(cuda::device_index(call)))));
  if (p.rows == 0) return unsupported(std::string(name) + ": no plan fits");
  cluster_k::Job job;
  job.epilogue = epilogue;
  job.m = static_cast<int>(o.out.rows);
  job.n = static_cast<int>(o.out.columns);
  job.a_rows = std::min(job.m, p.rows);
  job.groups = p.groups, job.parts = p.parts, job.boxes = p.boxes, job.stages = p.stages;
  job.m_tiles = p.m_tiles, job.n_tiles = p.n_tiles, job.sweeps = p.sweeps;
  job.sum_place = static_cast<int>(p.sum_place());
  job.barrier_place = static_cast<int>(p.barrier_place());
  job.early = early;
  job.plain = cuda::many_rows::is_plain(epilogue);
  BoxedTensor weight = boxes_of(o.b, false, true), a = boxes_of(o.a, true, true);
  weight.box[1] = p.tile_n();
  a.box[1] = job.a_rows;
  PESTLE_TRY(cuda::make_tensor_map(weight, &job.weight));
  PESTLE_TRY(cuda::make_tensor_map(a, &job.a));
  return p.rows == 64 ? start_cluster_tile<kWgmma, 64>(call, name, p, job)
                      : start_cluster_tile<kWgmma, 128>(call, name, p, job);
}

#endif  // __CUDACC__

}  // namespace pestle::ops
