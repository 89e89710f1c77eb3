// Softmax and log_softmax of x as it is (no mask, no scale), rows that are too long for a cluster,
// or for a block where there are no clusters: by groups of CTAs (cta_groups.cuh). A block
// holds 32 KiB of a row in registers, f32 as exponentials from bases of the threads' own, as
// register_kernel does.
#pragma once

#include "ops/shared/cta_groups.cuh"
#include "ops/softmax/softmax_registers.cuh"

namespace pestle::ops {

struct CooperativeJob {
  SoftmaxJob softmax;
  CtaGroups cta_groups;
};

#ifdef __CUDACC__
namespace softmax_device {

using namespace cta_group_device;

struct JoinSoftmax {
  __device__ static float2 none() { return make_float2(-kInfinity, 0); }
  __device__ static float2 join(float2 a, float2 b) {
    const float largest = fmaxf(a.x, b.x), base = base_of(largest);
    return make_float2(largest, a.y * exp_of(a.x - base) + b.y * exp_of(b.x - base));
  }
  __device__ static float2 over_lanes(float2 v, int width) {
    const SoftmaxPart all = SoftmaxPart{v.x, v.y, 0}.pair_over_lanes(width);
    return make_float2(all.largest, all.sum);
  }
};

// The row once more, from memory: it has infinities or NaN, or its exponents leave f32.
template <class T, SoftmaxKind kKind>
__device__ __noinline__ void general_group_row(const CooperativeJob& job, RowPlace place,
                                               uint64_t* words, CtaGroupParts& parts) {
  const StagedRow<T> row(job.softmax, place);
  const auto* x = reinterpret_cast<const uint4*>(row.x);
  const auto piece = [&](int chunk) {
    return x + min(chunk * row.lanes + row.lane, row.pieces - 1);
  };
  SoftmaxPart part = SoftmaxPart::none();
  add_general(row, piece, 0, row.chunks, part);
  const float2 own = JoinSoftmax::over_lanes(make_float2(part.largest, part.sum), 32);
  const float2 all = exchange<JoinSoftmax>(parts, job.cta_groups, place.rank, own, words, words);
  if (place.units == 0) return;
  const StagedResult<T, kKind> result(SoftmaxPart{all.x, all.y, 0}, false);
  char* out = job.softmax.out.any.data + place.row * job.softmax.out.distance +
              place.first * (kUnit * T::kBytes);
  for (int c = 0; c < row.chunks && row.has(c); ++c) result.write(row, c, *piece(c), out);
}

template <class T, SoftmaxKind kKind>
__global__ void __launch_bounds__(kGroupThreads, 3)
    cooperative_kernel(const __grid_constant__ CooperativeJob job) {
  constexpr int kCount = Piece<T>::kCount, kPieces = kGroupPieces;
  constexpr bool kKept = kKeeps<T, kKind, kPieces>;
  extern __shared__ uint4 staged[];
  __shared__ CtaGroupParts parts;
  RowPlace place = group_place(job.cta_groups, job.softmax.groups);
  const int64_t rows = job.softmax.groups.rows, step = job.cta_groups.group_count;
  const int left = place.units * (kUnit / kCount) - place.lane;  // pieces, from this thread's first
  const int64_t first = place.first * (kUnit * T::kBytes) + place.lane * 16;
  const auto buffer = [&](int turn, int piece) {
    return staged + ((turn % kGroupBuffers) * kPieces + piece) * kGroupThreads + threadIdx.x;
  };
  const auto fetch = [&](int64_t row, int turn) {
    if (row < rows) {
      const char* x = job.softmax.x.any.data + row * job.softmax.x.distance + first;
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        if (c * kGroupThreads < left) copy_async(buffer(turn, c), x + c * kGroupThreads * 16);
      }
    }
    commit_copies();
  };
  const auto read = [&](int turn, int c) {
    return c * kGroupThreads < left ? *buffer(turn, c) : all_lowest<T>();
  };
  const auto words_of = [&](int64_t row) {
    return job.cta_groups.words + 2 * row * job.cta_groups.blocks;
  };
  // This thread's base, and its warp's pair, of a row that is there.
  float base;
  const auto pair_of = [&](int turn) {
    PlainPart part;
#pragma unroll
    for (int c = 0; c < kPieces; c += kTogether) {
      uint4 pieces[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) pieces[k] = read(turn, c + k);
      part.template add<T>(pieces);
    }
    base = part.base;
    const SoftmaxPart own = part.part();
    return JoinSoftmax::over_lanes(make_float2(own.largest, own.sum), 32);
  };
  uint4 raw[kPieces];
  float kept[kKept ? kPieces : 1][kCount], register_base;
  const auto hold = [&](int turn) {
    register_base = base;
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      raw[c] = read(turn, c);
      if constexpr (kKept) {
        Piece<T>::values(raw[c], kept[c]);
        for (float& e : kept[c]) e = quick_exp2(__fmaf_rn(e, kLog2E, -base));
      }
    }
  };
  fetch(place.row, 0);
  fetch(place.row + step, 1);
  wait_for_copies<1>();
  exchange<JoinSoftmax>(parts, job.cta_groups, place.rank, pair_of(0), words_of(place.row),
                        nullptr);
  hold(0);
  for (int turn = 0; place.row < rows; ++turn, place.row += step) {
    const int64_t next = place.row + step;
    fetch(next + step, turn);
    float2 own = JoinSoftmax::none();
    if (next < rows) {
      wait_for_copies<1>();
      own = pair_of(turn + 1);
    }
    const float2 pair =
        exchange<JoinSoftmax>(parts, job.cta_groups, place.rank, own,
                              next < rows ? words_of(next) : nullptr, words_of(place.row));
    const SoftmaxPart all{pair.x, pair.y, 0};
    if (is_regular(all)) {
      char* out = job.softmax.out.any.data + place.row * job.softmax.out.distance + first;
      if constexpr (kKept) {
        const RegisterFactor factor(all, register_base);
#pragma unroll
        for (int c = 0; c < kPieces; ++c) {
          for (float& e : kept[c]) e = e * factor.far * factor.by;
          if (c * kGroupThreads < left) store_plain<T>(out + c * kGroupThreads * 16, kept[c]);
        }
      } else {
        const StagedResult<T, kKind> result(all, true);
#pragma unroll
        for (int c = 0; c < kPieces; ++c) {
          float v[kCount];
          Piece<T>::values(raw[c], v);
          for (float& t : v) t = result.plain_of(t);
          if (c * kGroupThreads < left) store_plain<T>(out + c * kGroupThreads * 16, v);
        }
      }
    } else {  // the same in all of the row's threads
      general_group_row<T, kKind>(job, place, words_of(place.row) + job.cta_groups.blocks, parts);
    }
    if (next < rows) hold(turn + 1);
  }
}

}  // namespace softmax_device

// A word for each block of each row, twice; f32's parts are the shorter ones, and there may be
// twice as many blocks as needed.
inline constexpr const char* kCooperativeWorkspace =
    "32 * (numel(x) / size(x, dim)) * cdiv(size(x, dim), 8192)";

// Starts the kernel, if the device runs as many blocks at once as a row needs; false: it does not.
template <class T, SoftmaxKind kKind>
Result<bool> start_cooperative(const Call& call, const char* name, const SoftmaxJob& softmax) {
  using namespace softmax_device;
  static cuda::BlocksAtOnce at_once;
  auto* kernel = cooperative_kernel<T, kKind>;
  CooperativeJob job{softmax, {}};
  RowGroups& g = job.softmax.groups;
  g.units = ceil_div(softmax.x.count, kUnit);
  auto fits = make_cta_groups(call, reinterpret_cast<const void*>(kernel), at_once,
                              g.units * kUnit * T::kBytes, kGroupRowBytes, g, job.cta_groups, 2);
  PESTLE_TRY(fits.status());
  if (!fits.value()) return false;
  PESTLE_TRY(clear(call, job.cta_groups.words, g.rows * job.cta_groups.blocks * 16));
  PESTLE_TRY(launch_together(call, name, job.cta_groups.grid(), kernel, job));
  return true;
}
#endif

}  // namespace pestle::ops
