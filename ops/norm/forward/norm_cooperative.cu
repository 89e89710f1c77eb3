// Norms of long rows by CTAs that all run at once (cta_groups.cuh): GPUs without clusters, and
// what is too long for those with.
// Map      A group of CTAs shares rows, 16 KiB of each a CTA. A block's columns are the
//          same in all its rows, so that its parameters lie in its shared memory, as f32 factors
//          and addends, made once. Its up to four subgroups of 256 threads have rows of their own.
//          A row's statistics are told while the row before is finished from registers, and the row
//          after is on its way to shared memory.
// Traffic  x and out once, parameters once a block, 8 bytes a block and row.
// Numerics norm_rows.h: f32; each warp's mean first, then its squared differences from it; what
//          warps and blocks have (count, mean, squares) is joined about the common mean, in a fixed
//          order.
// Measured H200, code of sm_80, share of the copy: rms_norm 256 x 262144 82 %, 1024 x 65536 79, f32
//          512 x 65536 83; layer_norm 1024 x 65536 77 (norm_long.cu: 52, 71, 69, 56).
#include "ops/norm/forward/norm_cooperative.h"

#include "backends/cuda/host/launch_together.h"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/quant/rowwise/quantize_staged.cuh"

#include "ops/shared/cta_groups.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

using cta_group_device::kGroupWarps;
using cta_group_device::kGroupWords;

constexpr int kPartPieces = 4;  // of 16 bytes, of a thread
constexpr int64_t kPartBytes = int64_t{kPartPieces} * kGroupThreads * kPieceBytes;

struct CooperativeNorm {
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  Operand factor, addend;
  float one = 0;  // added to factors
  float eps = 0, share = 1;
  bool subtract_mean = false;
  RowGroups groups;
  ops::CtaGroups cta_groups;
};

constexpr int kMostSubgroups = 4;
constexpr int64_t kSubgroupBytes = 2 * kPartBytes;
// Bytes of factors and addends.
template <class T, bool kAdds>
constexpr int64_t kKeptBytes = (kAdds ? 2 : 1) * kPartBytes * 4 / T::kBytes;

// Numbers' mean and the sum of their squared differences from it.
struct Moments {
  float mean, squares;
};
struct MomentParts {
  Moments warps[kGroupWarps];
  float counts[kGroupWarps];
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
__device__ inline Moments hear_moments(const CooperativeNorm& p, const uint64_t* words) {
  const int lane = threadIdx.x % 32, blocks = p.cta_groups.blocks;
  Moments own[kGroupWords];
  float count[kGroupWords];
  uint64_t heard[kGroupWords];
  bool missing = true;
  while (missing) {
    missing = false;
#pragma unroll
    for (int k = 0; k < kGroupWords; ++k) {
      heard[k] = look_at(words + min(lane + 32 * k, blocks - 1));
      missing |= heard[k] == 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kGroupWords; ++k) {
    const int64_t left = p.groups.units - (lane + 32 * k) * p.groups.block_units;
    const bool is_there = lane + 32 * k < blocks && left > 0;
    const float2 pair = told(heard[k]);
    own[k] = is_there ? Moments{pair.x, pair.y} : Moments{0, 0};
    count[k] = is_there ? static_cast<float>(min(left, p.groups.block_units) * kUnit) : 0.0f;
  }
  __syncwarp();
  return join_moments(own, count, p.share, p.subtract_mean);
}

// By a subgroup: tells the CTA group the block's part of one row and sets what all told of another.
// Null: not that. No word is 0.
__device__ inline void exchange_moments(const CooperativeNorm& p, MomentParts& parts, unsigned rank,
                                        float share, Moments own, uint64_t* tell,
                                        const uint64_t* hear) {
  const int warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  const auto meet = [] {
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / kGroupThreads + 1), "n"(kGroupThreads)
                 : "memory");
  };
  if (lane == 0) parts.warps[warp] = own;
  meet();
  if (warp == 0 && tell != nullptr) {
    const bool is_there = lane < kGroupWarps;
    const Moments one[1] = {is_there ? parts.warps[lane % kGroupWarps] : Moments{0, 0}};
    const float count[1] = {is_there ? parts.counts[lane % kGroupWarps] : 0.0f};
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
__global__ void __launch_bounds__(kGroupThreads* kMostSubgroups, 1)
    cooperative_norm_kernel(const __grid_constant__ CooperativeNorm p) {
  constexpr int kCount = kPieceBytes / T::kBytes, kPieces = kPartPieces, kQuads = kCount / 4;
  extern __shared__ uint4 staged[];
  __shared__ MomentParts parts_of[kMostSubgroups];
  const int subgroup = threadIdx.x / kGroupThreads, subgroups = blockDim.x / kGroupThreads;
  MomentParts& parts = parts_of[subgroup];
  RowPlace place = cta_group_device::group_place(p.cta_groups, p.groups);
  place.lane = threadIdx.x % kGroupThreads;
  int row = static_cast<int>(place.row) * subgroups + subgroup;  // of fewer than 2^31
  const int rows = static_cast<int>(p.groups.rows), step = p.cta_groups.group_count * subgroups;
  const int left = place.units * (kUnit / kCount) - place.lane;  // pieces, from this thread's first
  const int64_t first = place.first * (kUnit * T::kBytes) + place.lane * kPieceBytes;
  const auto has = [&](int c) { return c * kGroupThreads < left; };
  const auto buffer = [&](int turn, int c) {
    return staged + kKeptBytes<T, kAdds> / 16 +
           ((subgroup * 2 + turn % 2) * kPieces + c) * kGroupThreads + place.lane;
  };
  const auto fetch = [&](int of, int turn) {
    if (of < rows) {
      const char* x = p.x + of * p.x_row_bytes + first;
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        if (has(c)) copy_async(buffer(turn, c), x + c * kGroupThreads * kPieceBytes);
      }
    }
    commit_copies();
  };
  const auto words_of = [&](int of) {
    return p.cta_groups.words + int64_t{of} * p.cta_groups.blocks;
  };
  fetch(row, 0);
  fetch(row + step, 1);

  // A lane's factors and addends, a quad of them and the next lane's side by side; the subgroups
  // share the work.
  auto* kept = reinterpret_cast<float4*>(staged) + place.lane;
  constexpr int kAddends = kPieces * kQuads * kGroupThreads;
#pragma unroll 1
  for (int i = subgroup; i < kPieces * kQuads; i += subgroups) {
    const int c = i / kQuads;
    const int column = static_cast<int>(place.first * kUnit) +
                       (c * kGroupThreads + place.lane) * kCount + i % kQuads * 4;
    float4 factor = make_float4(1, 1, 1, 1), addend = make_float4(0, 0, 0, 0);
    if (has(c) && p.factor.data != nullptr) {
      factor = four_of(p.factor, p.factor.data, column);
      factor = make_float4(p.one + factor.x, p.one + factor.y, p.one + factor.z, p.one + factor.w);
    }
    kept[i * kGroupThreads] = factor;
    if constexpr (kAdds) {
      if (has(c)) addend = four_of(p.addend, p.addend.data, column);
      kept[kAddends + i * kGroupThreads] = addend;
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
        const float4 f = kept[(c * kQuads + q) * kGroupThreads];
        const float by[4] = {f.x, f.y, f.z, f.w};
        float add[4] = {};
        if constexpr (kAdds) {
          const float4 a = kept[kAddends + (c * kQuads + q) * kGroupThreads];
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
        row_quantizer::store_plain(out + c * kGroupThreads * kPieceBytes,
                                   row_quantizer::rounded_piece<T, false>(v));
      }
    }
    if (next < rows) hold(turn + 1);
  }
}

// taken: the device runs as many blocks at once as a row needs. All of them share rows then.
template <class T, bool kAdds>
Status start(const Call& call, const char* name, CooperativeNorm& job, bool& taken) {
  static BlocksAtOnce at_once;
  const int device = device_index(call);
  const int64_t room = most_shared_bytes(device) - (1 << 10) - kKeptBytes<T, kAdds>;
  const int64_t subgroups = std::min<int64_t>(room / kSubgroupBytes, kMostSubgroups);
  taken = subgroups > 0;
  if (!taken) return {};
  const auto shared = static_cast<size_t>(kKeptBytes<T, kAdds> + subgroups * kSubgroupBytes);
  const int threads = static_cast<int>(subgroups) * kGroupThreads;
  auto* kernel = cooperative_norm_kernel<T, kAdds>;
  const auto blocks = at_once.of(device, reinterpret_cast<const void*>(kernel), threads, shared);
  PESTLE_TRY(blocks.status());
  RowGroups& g = job.groups;
  const int64_t needed = ceil_div(g.units * kUnit * T::kBytes, kPartBytes);
  constexpr int64_t kMost = 32 * kGroupWords;
  taken = needed <= std::min<int64_t>(blocks.value(), kMost);
  if (!taken) return {};
  const int64_t group_count = std::min(ceil_div(g.rows, subgroups), blocks.value() / needed);
  const int64_t of_group = std::min({blocks.value() / group_count, 2 * needed, kMost});
  g.block_units = ceil_div(ceil_div(g.units, of_group), 8) * 8;  // multiples of 128 bytes
  job.cta_groups.blocks = static_cast<int>(of_group);
  job.cta_groups.group_count = static_cast<int>(group_count);
  job.cta_groups.words = static_cast<uint64_t*>(call.workspace);
  PESTLE_TRY(clear(call, job.cta_groups.words, g.rows * of_group * 8));
  return launch_together(call, name, {of_group * group_count, threads, shared, 1}, kernel, job);
}

template <class T>
Status start_kind(const Call& call, const char* name, CooperativeNorm& job, bool& taken) {
  return job.addend.data != nullptr ? start<T, true>(call, name, job, taken)
                                    : start<T, false>(call, name, job, taken);
}

}  // namespace
}  // namespace norm_device

Status norm_cooperative_cuda(const Call& call, const char* name, const NormRows& n) {
  using namespace norm_device;
  CooperativeNorm job;
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

std::string refuse_norm_cooperative_cuda(const NormRows& n, const Machine& machine) {
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
