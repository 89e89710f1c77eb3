// Norms of long rows by blocks that all run at once (row_teams.cuh): GPUs without clusters, and
// what is too long for those with.
// Map      A team of blocks shares rows, 16 KiB of each a block. A block's columns are the same in
//          all its rows, so that its parameters lie in its shared memory, as f32 factors and
//          addends, made once. Its up to four crews of 256 threads have rows of their own. A row's
//          statistics are told while the row before is finished from registers, and the row after
//          is on its way to shared memory.
// Traffic  x and out once, parameters once a block, 8 bytes a block and row.
// Numerics norm_rows.h: f32; each warp's mean first, then its squared differences from it; what
//          warps and blocks have (count, mean, squares) is joined about the common mean, in a fixed
//          order.
// Measured H200, code of sm_80, share of the copy: rms_norm 256 x 262144 82 %, 1024 x 65536 79, f32
//          512 x 65536 83; layer_norm 1024 x 65536 77 (norm_long.cu: 52, 71, 69, 56).
#include "ops/norm/forward/norm_teams.h"

#include "backends/cuda/host/launch_together.h"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/quant/rowwise/staged_codes.cuh"

// Its Team is another one than theirs.
#include "ops/shared/row_teams.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

using team_device::kTeamWarps;
using team_device::kTeamWords;

constexpr int kPartPieces = 4;  // of 16 bytes, of a thread
constexpr int64_t kPartBytes = int64_t{kPartPieces} * kTeamThreads * kPieceBytes;

struct TeamNorm {
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  Operand factor, addend;
  float one = 0;  // added to factors
  float eps = 0, share = 1;
  bool subtract_mean = false;
  RowGroups groups;
  ops::Team team;
};

constexpr int kMostCrews = 4;
constexpr int64_t kCrewBytes = 2 * kPartBytes;
// Bytes of factors and addends.
template <class T, bool kAdds>
constexpr int64_t kKeptBytes = (kAdds ? 2 : 1) * kPartBytes * 4 / T::kBytes;

// Numbers' mean and the sum of their squared differences from it.
struct Moments {
  float mean, squares;
};
struct MomentParts {
  Moments warps[kTeamWarps];
  float counts[kTeamWarps];
  float mean, rstd;
};

__device__ inline float lanes_sum(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
  return v;
}
// Of all lanes' numbers: `count` of them each, `share` is 1 / all of them.
template <int kParts>
__device__ inline Moments join_moments(const Moments (&own)[kParts], const float (&count)[kParts],
                                       float share, bool subtract_mean) {
  Moments all{0, 0};
  if (subtract_mean) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kParts; ++k) sum = __fmaf_rn(own[k].mean, count[k], sum);
    all.mean = lanes_sum(sum) * share;
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kParts; ++k) {
    const float apart = own[k].mean - all.mean;
    squares += __fmaf_rn(apart * count[k], apart, own[k].squares);
  }
  all.squares = lanes_sum(squares);
  return all;
}

__device__ inline float inverse_of(float count) { return count > 0 ? 1.0f / count : 0.0f; }

// What the blocks told of a row. By one warp.
__device__ inline Moments hear_moments(const TeamNorm& p, const uint64_t* words) {
  const int lane = threadIdx.x % 32, blocks = p.team.blocks;
  Moments own[kTeamWords];
  float count[kTeamWords];
  uint64_t heard[kTeamWords];
  bool missing = true;
  while (missing) {
    missing = false;
#pragma unroll
    for (int k = 0; k < kTeamWords; ++k) {
      heard[k] = look_at(words + min(lane + 32 * k, blocks - 1));
      missing |= heard[k] == 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kTeamWords; ++k) {
    const int64_t left = p.groups.units - (lane + 32 * k) * p.groups.block_units;
    const bool is_there = lane + 32 * k < blocks && left > 0;
    const float2 pair = told(heard[k]);
    own[k] = is_there ? Moments{pair.x, pair.y} : Moments{0, 0};
    count[k] = is_there ? static_cast<float>(min(left, p.groups.block_units) * kUnit) : 0.0f;
  }
  __syncwarp();
  return join_moments(own, count, p.share, p.subtract_mean);
}

// By a crew: tells the team the block's part of one row and sets what all told of another.
// Null: not that. No word is 0.
__device__ inline void exchange_moments(const TeamNorm& p, MomentParts& parts, unsigned rank,
                                        float share, Moments own, uint64_t* tell,
                                        const uint64_t* hear) {
  const int warp = threadIdx.x % kTeamThreads / 32, lane = threadIdx.x % 32;
  const auto meet = [] {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / kTeamThreads + 1), "n"(kTeamThreads)
                 : "memory");
  };
  if (lane == 0) parts.warps[warp] = own;
  meet();
  if (warp == 0 && tell != nullptr) {
    const bool is_there = lane < kTeamWarps;
    const Moments one[1] = {is_there ? parts.warps[lane % kTeamWarps] : Moments{0, 0}};
    const float count[1] = {is_there ? parts.counts[lane % kTeamWarps] : 0.0f};
    const Moments block = join_moments(one, count, share, p.subtract_mean);
    if (lane == 0) {
      tell_all(tell + rank, make_float2(block.mean, block.squares == 0 ? -0.0f : block.squares));
    }
  }
  if (warp == 1 && hear != nullptr) {
    const Moments all = hear_moments(p, hear);
    if (lane == 0) {
      parts.mean = all.mean;
      parts.rstd = rsqrtf(__fmaf_rn(all.squares, p.share, p.eps));
    }
  }
  meet();
}

template <class T, bool kAdds>
__global__ void __launch_bounds__(kTeamThreads* kMostCrews, 1)
    team_norm_kernel(const __grid_constant__ TeamNorm p) {
  constexpr int kCount = kPieceBytes / T::kBytes, kPieces = kPartPieces, kQuads = kCount / 4;
  extern __shared__ uint4 staged[];
  __shared__ MomentParts parts_of[kMostCrews];
  const int crew = threadIdx.x / kTeamThreads, crews = blockDim.x / kTeamThreads;
  MomentParts& parts = parts_of[crew];
  RowPlace place = team_device::team_place(p.team, p.groups);
  place.lane = threadIdx.x % kTeamThreads;
  int row = static_cast<int>(place.row) * crews + crew;  // of fewer than 2^31
  const int rows = static_cast<int>(p.groups.rows), step = p.team.teams * crews;
  const int left = place.units * (kUnit / kCount) - place.lane;  // pieces, from this thread's first
  const int64_t first = place.first * (kUnit * T::kBytes) + place.lane * kPieceBytes;
  const auto has = [&](int c) { return c * kTeamThreads < left; };
  const auto buffer = [&](int turn, int c) {
    return staged + kKeptBytes<T, kAdds> / 16 +
           ((crew * 2 + turn % 2) * kPieces + c) * kTeamThreads + place.lane;
  };
  const auto fetch = [&](int of, int turn) {
    if (of < rows) {
      const char* x = p.x + of * p.x_row_bytes + first;
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        if (has(c)) copy_async(buffer(turn, c), x + c * kTeamThreads * kPieceBytes);
      }
    }
    commit_copies();
  };
  const auto words_of = [&](int of) { return p.team.words + int64_t{of} * p.team.blocks; };
  fetch(row, 0);
  fetch(row + step, 1);

  // A lane's factors and addends, a quad of them and the next lane's side by side; the crews share
  // the work.
  auto* kept = reinterpret_cast<float4*>(staged) + place.lane;
  constexpr int kAddends = kPieces * kQuads * kTeamThreads;
#pragma unroll 1
  for (int i = crew; i < kPieces * kQuads; i += crews) {
    const int c = i / kQuads;
    const int column = static_cast<int>(place.first * kUnit) +
                       (c * kTeamThreads + place.lane) * kCount + i % kQuads * 4;
    float4 factor = make_float4(1, 1, 1, 1), addend = make_float4(0, 0, 0, 0);
    if (has(c) && p.factor.data != nullptr) {
      factor = four_of(p.factor, p.factor.data, column);
      factor = make_float4(p.one + factor.x, p.one + factor.y, p.one + factor.z, p.one + factor.w);
    }
    kept[i * kTeamThreads] = factor;
    if constexpr (kAdds) {
      if (has(c)) addend = four_of(p.addend, p.addend.data, column);
      kept[kAddends + i * kTeamThreads] = addend;
    }
  }
  float own_count = 0;
#pragma unroll
  for (int c = 0; c < kPieces; ++c) own_count += has(c) ? static_cast<float>(kCount) : 0.0f;
  const float warp_count = lanes_sum(own_count), warp_share = inverse_of(warp_count);
  const float block_share = inverse_of(static_cast<float>(place.units * kUnit));
  if (threadIdx.x % 32 == 0) parts.counts[place.lane / 32] = warp_count;
  __syncthreads();
  if (row >= rows) return;

  // What this thread's warp has of a row that is there.
  const auto moments_of = [&](int turn) {
    Moments own{0, 0};
    float v[kCount];
    if (p.subtract_mean) {
      float sums[4] = {};
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        if (!has(c)) continue;
        unpack_piece<T>(*buffer(turn, c), v);
#pragma unroll
        for (int j = 0; j < kCount; ++j) sums[j % 4] += v[j];
      }
      own.mean = lanes_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) * warp_share;
    }
    float sums[4] = {};
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      if (!has(c)) continue;
      unpack_piece<T>(*buffer(turn, c), v);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float apart = v[j] - own.mean;
        sums[j % 4] = __fmaf_rn(apart, apart, sums[j % 4]);
      }
    }
    own.squares = lanes_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    return own;
  };
  uint4 raw[kPieces];
  const auto hold = [&](int turn) {
#pragma unroll
    for (int c = 0; c < kPieces; ++c) raw[c] = has(c) ? *buffer(turn, c) : make_uint4(0, 0, 0, 0);
  };
  wait_for_copies<1>();
  exchange_moments(p, parts, place.rank, block_share, moments_of(0), words_of(row), nullptr);
  hold(0);
  for (int turn = 0; row < rows; ++turn, row += step) {
    const int next = row + step;
    fetch(next + step, turn);
    Moments own{0, 0};
    if (next < rows) {
      wait_for_copies<1>();
      own = moments_of(turn + 1);
    }
    exchange_moments(p, parts, place.rank, block_share, own, next < rows ? words_of(next) : nullptr,
                     words_of(row));
    const float mean = parts.mean, rstd = parts.rstd;
    char* out = p.out + row * p.out_row_bytes + first;
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      float v[kCount];
      unpack_piece<T>(raw[c], v);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float4 f = kept[(c * kQuads + q) * kTeamThreads];
        const float by[4] = {f.x, f.y, f.z, f.w};
        float add[4] = {};
        if constexpr (kAdds) {
          const float4 a = kept[kAddends + (c * kQuads + q) * kTeamThreads];
          add[0] = a.x, add[1] = a.y, add[2] = a.z, add[3] = a.w;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& one = v[4 * q + j];
          one = (one - mean) * rstd;
          one = kAdds ? __fmaf_rn(one, by[j], add[j]) : one * by[j];
        }
      }
      if (has(c)) {
        row_quantizer::store_plain(out + c * kTeamThreads * kPieceBytes,
                                   row_quantizer::rounded_piece<T, false>(v));
      }
    }
    if (next < rows) hold(turn + 1);
  }
}

// taken: the device runs as many blocks at once as a row needs. All of them share rows then.
template <class T, bool kAdds>
Status start(const Call& call, const char* name, TeamNorm& job, bool& taken) {
  static BlocksAtOnce at_once;
  const int device = device_index(call);
  const int64_t room = most_shared_bytes(device) - (1 << 10) - kKeptBytes<T, kAdds>;
  const int64_t crews = std::min<int64_t>(room / kCrewBytes, kMostCrews);
  taken = crews > 0;
  if (!taken) return {};
  const auto shared = static_cast<size_t>(kKeptBytes<T, kAdds> + crews * kCrewBytes);
  const int threads = static_cast<int>(crews) * kTeamThreads;
  auto* kernel = team_norm_kernel<T, kAdds>;
  const auto blocks = at_once.of(device, reinterpret_cast<const void*>(kernel), threads, shared);
  PESTLE_TRY(blocks.status());
  RowGroups& g = job.groups;
  const int64_t needed = ceil_div(g.units * kUnit * T::kBytes, kPartBytes);
  constexpr int64_t kMost = 32 * kTeamWords;
  taken = needed <= std::min<int64_t>(blocks.value(), kMost);
  if (!taken) return {};
  const int64_t teams = std::min(ceil_div(g.rows, crews), blocks.value() / needed);
  const int64_t of_team = std::min({blocks.value() / teams, 2 * needed, kMost});
  g.block_units = ceil_div(ceil_div(g.units, of_team), 8) * 8;  // multiples of 128 bytes
  job.team.blocks = static_cast<int>(of_team);
  job.team.teams = static_cast<int>(teams);
  job.team.words = static_cast<uint64_t*>(call.workspace);
  PESTLE_TRY(clear(call, job.team.words, g.rows * of_team * 8));
  return launch_together(call, name, {of_team * teams, threads, shared, 1}, kernel, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, TeamNorm& job, bool& taken) {
  return job.addend.data != nullptr ? start<T, true>(call, name, job, taken)
                                    : start<T, false>(call, name, job, taken);
}

}  // namespace
}  // namespace norm_device

Status norm_teams_cuda(const Call& call, const char* name, const NormRows& n) {
  using namespace norm_device;
  TeamNorm job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = row_distance(n.out);
  job.factor = Operand(n.weight);
  job.addend = Operand(n.bias);
  job.eps = n.eps;
  job.share = 1.0f / static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  job.groups.rows = n.rows();
  job.groups.units = n.columns() / kUnit;
  bool taken = false;
  switch (n.x.dtype) {
    case DType::kBF16: PESTLE_TRY(start_kind<Bf16>(call, name, job, taken)); break;
    case DType::kF16: PESTLE_TRY(start_kind<F16>(call, name, job, taken)); break;
    default: PESTLE_TRY(start_kind<F32>(call, name, job, taken));
  }
  return taken ? Status() : norm_rows_cuda(call, name, n);
}

std::string refuse_norm_teams_cuda(const NormRows& n, const Machine& machine) {
  if (std::string why = refuse_norm_rows_cuda(n, machine); !why.empty()) return why;
  if (n.quant.format != OutFormat::kNone) return "it makes no codes";
  if (n.residual.data != nullptr || n.gate.data != nullptr || n.scale.data != nullptr ||
      n.shift.data != nullptr) {
    return "there is more than weight and bias";
  }
  const int blocks = cuda::largest_cluster(machine.compute_capability);
  const int64_t longest = cuda::StagedShape::longest(blocks, dtype_bytes(n.x.dtype), 0);
  if (n.columns() <= longest) {
    return "rows of up to " + std::to_string(longest) + " elements are held by a " +
           (blocks > 1 ? "cluster" : "block");
  }
  return {};
}

}  // namespace pestle::ops
