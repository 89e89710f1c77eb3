// Gradients of softmax and log_softmax, rows that are too long for a cluster, or for a block where
// there are no clusters: by teams of blocks (row_teams.cuh).
#pragma once

#include "ops/shared/row_teams.cuh"
#include "ops/softmax/softmax_backward_rows.cuh"

namespace pestle::ops {

struct TeamBackwardJob {
  SoftmaxBackwardJob job;
  Team team;
};

#ifdef __CUDACC__
namespace softmax_device {

using namespace team_device;

struct JoinSums {
  __device__ static float2 none() { return make_float2(0, 1); }
  __device__ static float2 join(float2 a, float2 b) { return make_float2(a.x + b.x, 1); }
  __device__ static float2 over_lanes(float2 v, int width) {
    return make_float2(sum_over_lanes(v.x, width), 1);
  }
};

// A block has 16 KiB of both tensors.
template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kTeamThreads, 3)
    team_backward_kernel(const __grid_constant__ TeamBackwardJob p) {
  constexpr int kCount = Piece<T>::kCount;
  extern __shared__ uint4 staged[];
  __shared__ TeamParts parts;
  const SoftmaxBackwardJob& job = p.job;
  RowPlace place = team_place(p.team, job.groups);
  const int64_t rows = job.groups.rows, step = p.team.teams;
  const int left = place.units * (kUnit / kCount) - place.lane;  // pieces, from this thread's first
  const int64_t first = place.first * (kUnit * T::kBytes) + place.lane * 16;
  const auto buffer = [&](int turn, int tensor, int c) {
    return staged + ((turn % kTeamBuffers * 2 + tensor) * kHeldPairs + c) * kTeamThreads +
           threadIdx.x;
  };
  const auto fetch = [&](int64_t row, int turn) {
    if (row < rows) {
      const char* d_out = job.d_out.any.data + row * job.d_out.distance + first;
      const char* out = job.out.any.data + row * job.out.distance + first;
#pragma unroll
      for (int c = 0; c < kHeldPairs; ++c) {
        if (c * kTeamThreads >= left) continue;
        copy_async(buffer(turn, 0, c), d_out + c * kTeamThreads * 16);
        copy_async(buffer(turn, 1, c), out + c * kTeamThreads * 16);
      }
    }
    commit_copies();
  };
  const auto read = [&](int turn, int tensor, int c) {
    return c * kTeamThreads < left ? *buffer(turn, tensor, c) : make_uint4(0, 0, 0, 0);
  };
  const auto pair_of = [&](int turn) {
    float sums[2] = {};
#pragma unroll
    for (int c = 0; c < kHeldPairs; ++c) {
      float v[2][kCount];
      Piece<T>::values(read(turn, 0, c), v[0]);
      Piece<T>::values(read(turn, 1, c), v[1]);
      add_terms<kKind>(v[0], v[1], sums);
    }
    return JoinSums::over_lanes(make_float2(sums[0] + sums[1], 1), 32);
  };
  uint4 raw[2][kHeldPairs];
  const auto hold = [&](int turn) {
#pragma unroll
    for (int c = 0; c < kHeldPairs; ++c) {
      raw[0][c] = read(turn, 0, c);
      raw[1][c] = read(turn, 1, c);
    }
  };
  const auto words_of = [&](int64_t row) { return p.team.words + row * p.team.blocks; };
  fetch(place.row, 0);
  fetch(place.row + step, 1);
  wait_for_copies<1>();
  exchange<JoinSums>(parts, p.team, place.rank, pair_of(0), words_of(place.row), nullptr);
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
        exchange<JoinSums>(parts, p.team, place.rank, own, next < rows ? words_of(next) : nullptr,
                           words_of(place.row))
            .x;
    char* d_x = job.d_x.any.data + place.row * job.d_x.distance + first;
#pragma unroll
    for (int c = 0; c < kHeldPairs; ++c) {
      float v[2][kCount];
      Piece<T>::values(raw[0][c], v[0]);
      Piece<T>::values(raw[1][c], v[1]);
      to_gradient<kKind>(v[0], v[1], sum, job.scale);
      if (c * kTeamThreads < left) Piece<T>::store(d_x + c * kTeamThreads * 16, v[0]);
    }
    if (next < rows) hold(turn + 1);
  }
}

}  // namespace softmax_device

// A word for each block of each row.
inline constexpr const char* kTeamBackwardWorkspace =
    "8 * (numel(out) / size(out, dim)) * cdiv(size(out, dim), 4096)";

// Where refuse_teams has nothing against it.
template <SoftmaxKind kKind, class T>
Status start_softmax_backward_teams(const Call& call, const char* name, SoftmaxBackwardJob& job) {
  using namespace softmax_device;
  static BlocksAtOnce at_once;
  auto* kernel = team_backward_kernel<T, kKind>;
  TeamBackwardJob team{job, {}};
  RowGroups& g = team.job.groups;
  g.units = ceil_div(job.out.count, kUnit);
  auto fits = make_team(call, reinterpret_cast<const void*>(kernel), at_once,
                        g.units * kUnit * T::kBytes, kTeamRowBytes / 2, g, team.team);
  PESTLE_TRY(fits.status());
  if (!fits.value()) return start_softmax_backward<kKind, T>(call, name, job, false);
  PESTLE_TRY(clear(call, team.team.words, g.rows * team.team.blocks * 8));
  return launch_together(call, name, team.team.grid(), kernel, team);
}

template <SoftmaxKind kKind>
Status run_softmax_backward_teams(const Call& call, const char* name, SoftmaxBackwardJob& job) {
  switch (job.out.any.dtype) {
    case DType::kBF16: return start_softmax_backward_teams<kKind, cuda::Bf16>(call, name, job);
    case DType::kF16: return start_softmax_backward_teams<kKind, cuda::F16>(call, name, job);
    default: return start_softmax_backward_teams<kKind, cuda::F32>(call, name, job);
  }
}
#endif

}  // namespace pestle::ops
