// Register-resident softmax and log_softmax of x as it is (no mask, no scale), by pieces of 16
// bytes: some lanes of a warp, a block or a cluster a row. A thread has 64, 128 or 256 bytes, and
// no more than 64 registers for up to 128, so that four blocks of 256 threads share a
// multiprocessor: that, and nothing that waits for memory but the loads, is what keeps it busy.
// Short rows keep their exponentials as f32, made from a base of the warp's own, and multiply them
// by one factor; long ones of 16-bit elements make them again from the row's. Warps tell those of
// all the row's blocks their largest element and their sum in one message each.
#pragma once

#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "ops/softmax/softmax_staged.cuh"

namespace pestle::ops {

#ifdef __CUDACC__
namespace softmax_device {

constexpr int kRegisterThreads = 512;  // of a block, at most
constexpr int kRegisterWarps = kRegisterThreads / 32;

// (largest, sum) of all warps of a row, a second time for rows that go the general way.
struct RegisterParts {
  float2 parts[2][16 * kRegisterWarps];
  uint64_t arrived[2];
};

// Before the loads; others are waited for after them.
__device__ inline void announce_block(const RowPlace& p, RegisterParts& parts) {
  if (p.cluster == 1) return;
  if (threadIdx.x < 2) begin_barrier(&parts.arrived[threadIdx.x]);
  __syncwarp();
  cluster_begin();
}

// What each warp has of its row becomes what all of the row's threads have.
__device__ inline SoftmaxPart join_warps(const RowPlace& p, const SoftmaxPart& own,
                                         RegisterParts& parts, int turn) {
  if (p.lanes <= 32) return own;
  const int warps = p.lanes / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float2 packed = make_float2(own.largest, own.sum);
  if (p.cluster == 1) {
    if (lane == 0) parts.parts[turn][warp] = packed;
    __syncthreads();
  } else {
    if (threadIdx.x == 0) expect_bytes(&parts.arrived[turn], p.cluster * warps * 8);
    if (lane < p.cluster) {
      tell_block(&parts.parts[turn][p.rank * warps + warp], &parts.arrived[turn],
                 static_cast<unsigned>(lane), packed);
    }
    wait_bytes_here(&parts.arrived[turn], 0);
  }
  SoftmaxPart all = SoftmaxPart::none();
  for (int i = lane; i < p.cluster * warps; i += 32) {
    const float2 v = parts.parts[turn][i];
    const float largest = fmaxf(all.largest, v.x);
    all.sum =
        all.sum * exp_of(all.largest - base_of(largest)) + v.y * exp_of(v.x - base_of(largest));
    all.largest = largest;
  }
  return all.pair_over_lanes(32);
}

// The row once more, from memory: it has infinities or NaN, or its exponents leave f32.
template <class T, SoftmaxKind kKind>
__device__ __noinline__ void general_row(const SoftmaxJob& job, RowPlace place,
                                         RegisterParts& parts) {
  const StagedRow<T> row(job, place);
  const auto* x = reinterpret_cast<const uint4*>(row.x);
  const auto piece = [&](int chunk) {
    return x + min(chunk * row.lanes + row.lane, row.pieces - 1);
  };
  SoftmaxPart part = SoftmaxPart::none();
  add_general(row, piece, 0, row.chunks, part);
  part = join_warps(place, part.pair_over_lanes(min(place.lanes, 32)), parts, 1);
  if (place.units == 0) return;
  const StagedResult<T, kKind> result(part, false);
  char* out = job.out.any.data + place.row * job.out.distance + place.first * (kUnit * T::kBytes);
  for (int c = 0; c < row.chunks && row.has(c); ++c) result.write(row, c, *piece(c), out);
}

template <class T, int kPieces>
__device__ inline float largest_of_pieces(const uint4 (&raw)[kPieces]) {
  uint4 top = raw[0];
#pragma unroll
  for (int c = 1; c < kPieces; ++c) {
    top.x = larger<T>(top.x, raw[c].x);
    top.y = larger<T>(top.y, raw[c].y);
    top.z = larger<T>(top.z, raw[c].z);
    top.w = larger<T>(top.w, raw[c].w);
  }
  return largest_of<T>(larger<T>(larger<T>(top.x, top.y), larger<T>(top.z, top.w)));
}

// Sums 2^(x log2 e - base) of all pieces, and keeps them where `kept` has room.
template <class T, int kPieces, int kKept>
__device__ inline float sum_of_pieces(const uint4 (&raw)[kPieces], float base,
                                      float (&kept)[kKept][Piece<T>::kCount]) {
  constexpr int kCount = Piece<T>::kCount;
  float sums[4] = {};
#pragma unroll
  for (int c = 0; c < kPieces; ++c) {
    float v[kCount];
    Piece<T>::values(raw[c], v);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float e = quick_exp2(__fmaf_rn(v[i], kLog2E, -base));
      sums[i % 4] += e;
      if constexpr (kKept == kPieces) kept[c][i] = e;
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// What a warp's exponentials are multiplied by: 2^(base - the row's base) / sum in one number; what
// would leave f32 goes into the exponentials before (`far`), which few warps need.
struct RegisterFactor {
  float by, far;
  __device__ RegisterFactor(const SoftmaxPart& all, float base) {
    const float now = __fmaf_rn(all.largest, kLog2E, -24.0f);
    const float exponent = base - now;
    const float near = fmaxf(exponent, -60.0f);
    by = quick_exp2(near) * (quick_exp2(__fmaf_rn(-all.largest, kLog2E, now)) / all.sum);
    far = exponent < near ? quick_exp2(exponent - near) : 1.0f;
  }
};

// Are the exponentials kept? For f32 they take the elements' place.
template <class T, SoftmaxKind kKind, int kPieces>
inline constexpr bool kKeeps = kKind == SoftmaxKind::kSoftmax && (T::kBytes == 4 || kPieces == 4);

template <class T, SoftmaxKind kKind, int kPieces>
__global__ void __launch_bounds__(kRegisterThreads, kPieces <= 8 ? 2 : 1)
    register_kernel(const __grid_constant__ SoftmaxJob job) {
  constexpr int kCount = Piece<T>::kCount;
  constexpr bool kKept = kKeeps<T, kKind, kPieces>;
  cuda::wait_previous_kernel();
  __shared__ RegisterParts parts;
  const RowPlace place = row_place(job.groups);
  announce_block(place, parts);
  const StagedRow<T> row(job, place);
  const char* x = row.x + row.lane * 16;
  uint4 raw[kPieces];
#pragma unroll
  for (int c = 0; c < kPieces; ++c) {
    raw[c] = row.has(c) ? *reinterpret_cast<const uint4*>(x + c * row.lanes * 16) : all_lowest<T>();
  }
  const int width = min(place.lanes, 32);
  const float largest = max_over_lanes(largest_of_pieces<T>(raw), width);
  const float base = fmaxf(PlainPart::kLowest, __fmaf_rn(largest, kLog2E, -24.0f));
  float kept[kKept ? kPieces : 1][kCount];
  const float sum = sum_over_lanes(sum_of_pieces<T>(raw, base, kept), width);
  SoftmaxPart own = SoftmaxPart::none();
  if (sum != 0)
    own = {largest, sum * quick_exp2(__fmaf_rn(-largest, kLog2E, base)), 0};
  else if (largest > -kInfinity)
    own = odd_part(largest);
  if (place.cluster > 1) cluster_wait();
  const SoftmaxPart all = join_warps(place, own, parts, 0);
  // Lanes of a warp go together, whatever rows they have.
  if (__any_sync(~0u, place.row < job.groups.rows && !is_regular(all))) {
    return general_row<T, kKind>(job, place, parts);
  }
  char* out = job.out.any.data + place.row * job.out.distance + place.first * (kUnit * T::kBytes) +
              row.lane * 16;
  if constexpr (kKept) {
    const RegisterFactor factor(all, base);
    if (factor.far != 1) {
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        for (float& e : kept[c]) e *= factor.far;
      }
    }
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      for (float& e : kept[c]) e *= factor.by;
      if (row.has(c)) store_plain<T>(out + c * row.lanes * 16, kept[c]);
    }
  } else {
    const StagedResult<T, kKind> result(all, true);
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      float v[kCount];
      Piece<T>::values(raw[c], v);
      for (float& t : v) t = result.plain_of(t);
      if (row.has(c)) store_plain<T>(out + c * row.lanes * 16, v);
    }
  }
}

}  // namespace softmax_device

// ---- the host's side ----

// How rows are held; 0 pieces: they are too long.
struct RegisterRows {
  cuda::RowGroups groups;
  int pieces = 0;  // of 16 bytes, of a thread
};

// `most`: pieces of a thread, at most: 4 or 16.
inline RegisterRows register_rows(const Call& call, int64_t rows, int64_t units, int bytes,
                                  int most) {
  constexpr int kThreads = softmax_device::kRegisterThreads;
  constexpr int64_t kAligned = 8;  // units: parts begin at multiples of 128 bytes
  const int64_t of_row = units * cuda::kUnit * bytes / 16;
  RegisterRows in_registers;
  cuda::RowGroups& g = in_registers.groups;
  g.rows = rows;
  g.units = g.block_units = units;
  // Blocks of 256 threads leave a multiprocessor least often without loads under way.
  const bool one_block = of_row <= (most == 4 ? 4 * kThreads : 4 * 256);
  in_registers.pieces = one_block || most == 4 ? 4 : 8;
  if (of_row <= 4 * 32) {
    g.lanes = 1;
    while (g.lanes * 4 < of_row) g.lanes *= 2;
    g.rows_of_block = 64 / g.lanes;
    return in_registers;
  }
  if (!one_block) {
    const int blocks = cluster_blocks(call);
    while (g.cluster < blocks && of_row > int64_t{in_registers.pieces} * 256 * g.cluster)
      g.cluster *= 2;
    if (most == 16 && of_row > int64_t{8} * 256 * g.cluster) in_registers.pieces = 16;
    if (of_row > int64_t{in_registers.pieces} * kThreads * g.cluster) in_registers.pieces = 0;
    if (in_registers.pieces == 0) return in_registers;
    g.block_units = cuda::ceil_div(cuda::ceil_div(units, g.cluster), kAligned) * kAligned;
  }
  const int64_t block_pieces = g.block_units * cuda::kUnit * bytes / 16;
  g.lanes =
      static_cast<int>(cuda::ceil_div(cuda::ceil_div(block_pieces, in_registers.pieces), 32) * 32);
  return in_registers;
}

// Starts the kernel, if it takes the row; false: it does not.
template <class T, SoftmaxKind kKind>
Result<bool> start_registers(const Call& call, const char* name, SoftmaxJob& job) {
  using namespace softmax_device;
  if (job.mask.is_present || job.scale != 1) return false;
  const RegisterRows in_registers =
      register_rows(call, job.groups.rows, job.x.count / cuda::kUnit, T::kBytes, 16);
  if (in_registers.pieces == 0) return false;
  job.groups = in_registers.groups;
  const auto start = [&](auto* kernel) {
    return launch_early(call, name,
                        {job.groups.blocks(), job.groups.threads(), 0, job.groups.cluster}, kernel,
                        job);
  };
  switch (in_registers.pieces) {
    case 4: PESTLE_TRY(start(register_kernel<T, kKind, 4>)); break;
    case 8: PESTLE_TRY(start(register_kernel<T, kKind, 8>)); break;
    default: PESTLE_TRY(start(register_kernel<T, kKind, 16>));
  }
  return true;
}
#endif

}  // namespace pestle::ops
