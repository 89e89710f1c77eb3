// Gradients of softmax and log_softmax, rows that are too long for a cluster, or for a block where
// there are no clusters: by CTA groups of blocks (cta_groups.cuh).
#pragma once

#include "ops/shared/cta_groups.cuh"
#include "ops/softmax/softmax_backward_rows.cuh"

namespace pestle::ops {

struct CooperativeBackwardJob {
  SoftmaxBackwardJob job;
  CtaGroups cta_groups;
};

#ifdef __CUDACC__
namespace softmax_device {

using namespace cta_group_device;

struct JoinSums {
  __device__ static float2 none() { return make_float2(0, 1); }
  __device__ static float2 join(float2 a, float2 b) { return make_float2(a.x + b.x, 1); }
  __device__ static float2 over_lanes(float2 v, int width) {
    return make_float2(sum_over_lanes(v.x, width), 1);
  }
};

// A block has 16 KiB of both tensors.
template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kGroupThreads, 3)
    cooperative_backward_kernel(const __grid_constant__ CooperativeBackwardJob p) {
  constexpr int kCount = Piece<T>::kCount;
  extern __shared__ uint4 staged[];
  __shared__ CtaGroupParts parts;
  const SoftmaxBackwardJob& job = p.job;
  RowPlace place = group_place(p.cta_groups, job.groups);
  const int64_t rows = job.groups.rows, step = p.cta_groups.group_count;
  const int left = place.units * (kUnit / kCount) - place.lane;  // pieces, from this thread's first
  const int64_t first = place.first * (kUnit * T::kBytes) + place.lane * 16;
  const auto buffer = [&](int turn, int tensor, int c) {
    return staged + ((turn % kGroupBuffers * 2 + tensor) * kRegisterPairs + c) * kGroupThreads +
           threadIdx.x;
  };
  const auto fetch = [&](int64_t row, int turn) {
    if (row < rows) {
      const char* d_out = job.d_out.any.data + row * job.d_out.distance + first;
      const char* out = job.out.any.data + row * job.out.distance + first;
#pragma unroll
      for (int c = 0; c < kRegisterPairs; ++c) {
        if (c * kGroupThreads >= left) continue;
        copy_async(buffer(turn, 0, c), d_out + c * kGroupThreads * 16);
        copy_async(buffer(turn, 1, c), out + c * kGroupThreads * 16);
      }
    }
    commit_copies();
  };
  const auto read = [&](int turn, int tensor, int c) {
    return c * kGroupThreads < left ? *buffer(turn, tensor, c) : make_uint4(0, 0, 0, 0);
  };
  const auto pair_of = [&](int turn) {
    float sums[2] = {};
#pragma unroll
    for (int c = 0; c < kRegisterPairs; ++c) {
      float v[2][kCount];
      Piece<T>::values(read(turn, 0, c), v[0]);
      Piece<T>::values(read(turn, 1, c), v[1]);
      add_terms<kKind>(v[0], v[1], sums);
    }
    return JoinSums::over_lanes(make_float2(sums[0] + sums[1], 1), 32);
  };
  uint4 raw[2][kRegisterPairs];
  const auto hold = [&](int turn) {
#pragma unroll
    for (int c = 0; c < kRegisterPairs; ++c) {
      raw[0][c] = read(turn, 0, c);
      raw[1][c] = read(turn, 1, c);
    }
  };
  const auto words_of = [&](int64_t row) { return p.cta_groups.words + row * p.cta_groups.blocks; };
  fetch(place.row, 0);
  fetch(place.row + step, 1);
  wait_for_copies<1>();
  exchange<JoinSums>(parts, p.cta_groups, place.rank, pair_of(0), words_of(place.row), nullptr);
  hold(0);
  for (int turn = 0; place.row < rows; ++turn, place.row += step) {
    const int64_t next = place.row + step;
    fetch(next + step, turn);
    float2 own = JoinSums::none();
    if (next < rows) {
      wait_for_copies<1>();
      own = pair_of(turn + 1);
    }
    const float sum =
        exchange<JoinSums>(parts, p.cta_groups, place.rank, own,
                           next < rows ? words_of(next) : nullptr, words_of(place.row))
            .x;
    char* d_x = job.d_x.any.data + place.row * job.d_x.distance + first;
#pragma unroll
    for (int c = 0; c < kRegisterPairs; ++c) {
      float v[2][kCount];
      Piece<T>::values(raw[0][c], v[0]);
      Piece<T>::values(raw[1][c], v[1]);
      to_gradient<kKind>(v[0], v[1], sum, job.scale);
      if (c * kGroupThreads < left) Piece<T>::store(d_x + c * kGroupThreads * 16, v[0]);
    }
    if (next < rows) hold(turn + 1);
  }
}

}  // namespace softmax_device

// A word for each block of each row.
inline constexpr const char* kCooperativeBackwardWorkspace =
    "8 * (numel(out) / size(out, dim)) * cdiv(size(out, dim), 4096)";

// Where refuse_cooperative has nothing against it.
template <SoftmaxKind kKind, class T>
Status start_softmax_backward_cooperative(const Call& call, const char* name,
                                          SoftmaxBackwardJob& job) {
  using namespace softmax_device;
  static BlocksAtOnce at_once;
  auto* kernel = cooperative_backward_kernel<T, kKind>;
  CooperativeBackwardJob cta_groups{job, {}};
  RowGroups& g = cta_groups.job.groups;
  g.units = ceil_div(job.out.count, kUnit);
  auto fits =
      make_cta_groups(call, reinterpret_cast<const void*>(kernel), at_once,
                      g.units * kUnit * T::kBytes, kGroupRowBytes / 2, g, cta_groups.cta_groups);
  PESTLE_TRY(fits.status());
  if (!fits.value()) return start_softmax_backward<kKind, T>(call, name, job, false);
  PESTLE_TRY(clear(call, cta_groups.cta_groups.words, g.rows * cta_groups.cta_groups.blocks * 8));
  return launch_together(call, name, cta_groups.cta_groups.grid(), kernel, cta_groups);
}

template <SoftmaxKind kKind>
Status run_softmax_backward_cooperative(const Call& call, const char* name,
                                        SoftmaxBackwardJob& job) {
  switch (job.out.any.dtype) {
    case DType::kBF16:
      return start_softmax_backward_cooperative<kKind, cuda::Bf16>(call, name, job);
    case DType::kF16: return start_softmax_backward_cooperative<kKind, cuda::F16>(call, name, job);
    default: return start_softmax_backward_cooperative<kKind, cuda::F32>(call, name, job);
  }
}
#endif

}  // namespace pestle::ops
