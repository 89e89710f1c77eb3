// Register-resident norms: no sum before the norm, no quantised output.
// Map      A row lies as it came, packed, in the registers of a warp, a block, or a cluster of up
//          to 16 blocks; a thread has 64 bytes, of rows of more than 16 KiB 128, so that four or
//          more blocks share a multiprocessor and what one loses at its beginning and end the
//          others cover. Warps tell those of all the row's blocks their sums in one message each;
//          waiting for them leaves the L1 as it is, where parameters stay from row to row.
// Traffic  x once, out once; weight, bias, scale, shift out of the L1 or L2.
// Numerics norm_rows.h; 16-bit sums and sums of squares by the tensor cores in one pass (exact
//          products, f32 sums); where less than a thirty-second of the squares' sum is left about
//          the mean, squared differences in a second one. f32: always two.
// Measured H200, share of the copy: 32760 x 5120 layer_norm, adaln, rms_norm, rms_adaln 97 to 98 %,
//          rms_norm 4096 x 16384 90 to 92, 65536 x 1024 97, f32 512 x 65536 87, 8192 x 4096 f32 96
//          to 97, layer_norm 16384 x 4096 with f32 parameters 88. norm_rows.md
#include "backends/cuda/device/ptx/cluster_messages.cuh"
#include "backends/cuda/device/tensor/tensor_sums.cuh"
#include "backends/cuda/host/early_launch.h"
#include "core/machine.h"
#include "ops/norm/forward/norm_job.cuh"
#include "ops/norm/forward/norm_registers.h"
#include "ops/quant/rowwise/quantize_staged.cuh"

namespace pestle::ops {
namespace norm_device {
namespace {

using namespace row_quantizer;

constexpr int kRegisterThreads = 256;  // of a block, at most
constexpr int kWarpRows = 4;           // of a block, where a warp has a row

struct RegisterNorm {
  const char* x = nullptr;
  int64_t x_row_bytes = 0;
  char* out = nullptr;
  int64_t out_row_bytes = 0;
  Operand factor, addend;
  float one = 0;  // added to factors
  float eps = 0, share = 1;
  FastDivisor rows_of_group;
  int rows = 0;
  int pieces = 0;        // of 16 bytes, of a row
  int block_pieces = 0;  // of a block
  int lanes = 32;        // threads of a block that share a row, whole warps
  int rows_of_block = 1;
  int cluster = 1;
  bool subtract_mean = false;
};

// What each warp of the row's blocks has, for up to two joins.
struct RegisterReductions {
  float2 parts[2][16 * (kRegisterThreads / 32)];
  uint64_t arrived[2];
};

struct RegisterPlace {
  int row, rank, lane;
  int left;  // pieces from this thread's first on
  uint32_t first;

  __device__ explicit RegisterPlace(const RegisterNorm& p) {
    const int in_block = p.rows_of_block == 1 ? 0 : static_cast<int>(threadIdx.x) / p.lanes;
    lane = static_cast<int>(threadIdx.x) - in_block * p.lanes;
    rank = p.cluster == 1 ? 0 : static_cast<int>(blockIdx.x) % p.cluster;
    row =
        (p.cluster == 1 ? static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x) / p.cluster) *
            p.rows_of_block +
        in_block;
    first = static_cast<uint32_t>(rank * p.block_pieces + lane);
    left = min(p.pieces - rank * p.block_pieces, p.block_pieces) - lane;
    if (row >= p.rows) left = 0;
  }
};

// Both numbers of all warps of the row; v: the first in lane 0, the second in lane 1.
__device__ inline float2 join_row(const RegisterNorm& p, const RegisterPlace& at,
                                  RegisterReductions& joins, int turn, float v) {
  const float2 own = make_float2(__shfl_sync(~0u, v, 0), __shfl_sync(~0u, v, 1));
  if (p.lanes == 32) return own;
  const int warps = p.lanes / 32, warp = at.lane / 32, lane = threadIdx.x % 32;
  if (p.cluster == 1) {
    if (lane == 0) joins.parts[turn][warp] = own;
    __syncthreads();
  } else {
    if (threadIdx.x == 0) expect_bytes(&joins.arrived[turn], p.cluster * warps * 8);
    if (lane < p.cluster) {
      tell_block(&joins.parts[turn][at.rank * warps + warp], &joins.arrived[turn],
                 static_cast<unsigned>(lane), own);
    }
    wait_bytes_here(&joins.arrived[turn], 0);
  }
  const int all = p.cluster * warps;
  float2 sum = make_float2(0, 0);
  for (int i = lane; i < all; i += 32) {
    const float2 part = joins.parts[turn][i];
    sum.x += part.x;
    sum.y += part.y;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, distance);
    sum.y += __shfl_xor_sync(~0u, sum.y, distance);
  }
  return sum;
}

template <class T, int kPieces>
struct RegisterRow {
  static constexpr int kCount = kPieceBytes / T::kBytes;
  uint4 raw[kPieces];

  __device__ void load(const RegisterNorm& p, const RegisterPlace& at) {
    const char* x = p.x + at.row * p.x_row_bytes + int64_t{at.first} * kPieceBytes;
    const uint32_t step = static_cast<uint32_t>(p.lanes) * kPieceBytes;
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      raw[c] = c * p.lanes < at.left ? *reinterpret_cast<const uint4*>(x + c * step)
                                     : make_uint4(0, 0, 0, 0);
    }
  }
  // Both numbers' sums of the warp, as join_row wants them.
  __device__ float sums_16() const {
    TensorSum<T> sum;
    TensorSquares<T> squares;
#pragma unroll
    for (const uint4& piece : raw) {
      sum.add(piece);
      squares.add(piece);
    }
    float all = squares.share();  // one lane of four has any
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    if (threadIdx.x % 4 == 0) all = sum.d[0] + sum.d[2];  // every lane of four has it
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      all += __shfl_xor_sync(~0u, all, distance);
    }
    return all;
  }
  template <class F>
  __device__ float sum_of(const RegisterNorm& p, const RegisterPlace& at, F f) const {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      if (c * p.lanes >= at.left) continue;
      float v[kCount];
      unpack_piece<T>(raw[c], v);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[j % 4] = f(v[j], sums[j % 4]);
    }
    float all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      all += __shfl_xor_sync(~0u, all, distance);
    }
    return all;
  }
  __device__ float squares_about(const RegisterNorm& p, const RegisterPlace& at, float mean) const {
    return sum_of(p, at, [&](float v, float sum) { return __fmaf_rn(v - mean, v - mean, sum); });
  }
};

struct RegisterStatistics {
  float mean = 0, rstd = 0;
};
template <class T, int kPieces>
__device__ inline RegisterStatistics statistics(const RegisterNorm& p, const RegisterPlace& at,
                                                RegisterReductions& joins,
                                                const RegisterRow<T, kPieces>& row) {
  RegisterStatistics s;
  float squares;
  if constexpr (T::kBytes == 2) {
    const float own = row.sums_16();
    if (p.cluster > 1) cluster_wait();
    const float2 sums = join_row(p, at, joins, 0, own);
    squares = sums.y;
    if (p.subtract_mean) {
      s.mean = sums.x * p.share;
      squares = __fmaf_rn(-sums.x, s.mean, sums.y);
      // Rows of a block are a warp's each: no barrier waits for those that do not come here.
      if (!(squares > sums.y * 0x1p-5f)) {
        squares = join_row(p, at, joins, 1, row.squares_about(p, at, s.mean)).x;
      }
    }
  } else {
    if (p.subtract_mean) {
      const float own = row.sum_of(p, at, [](float v, float sum) { return sum + v; });
      if (p.cluster > 1) cluster_wait();
      s.mean = join_row(p, at, joins, 1, own).x * p.share;
    }
    const float own = row.squares_about(p, at, s.mean);
    if (p.cluster > 1 && !p.subtract_mean) cluster_wait();
    squares = join_row(p, at, joins, 0, own).x;
  }
  s.rstd = rsqrtf(__fmaf_rn(squares, p.share, p.eps));
  return s;
}

template <class T, class E, bool kAdds, int kPieces>
__device__ inline void put_row(const RegisterNorm& p, const RegisterPlace& at,
                               const RegisterRow<T, kPieces>& row, const RegisterStatistics& s,
                               const char* w, const char* b) {
  constexpr int kCount = RegisterRow<T, kPieces>::kCount;
  char* out = p.out + at.row * p.out_row_bytes + int64_t{at.first} * kPieceBytes;
  const uint32_t step = static_cast<uint32_t>(p.lanes) * kPieceBytes;
  const uint32_t parameter_step = static_cast<uint32_t>(p.lanes) * kCount * E::kBytes;
  w += at.first * (kCount * E::kBytes);
  if (kAdds) b += at.first * (kCount * E::kBytes);
  const float negative = -s.mean * s.rstd, one = p.one;
#pragma unroll
  for (int c = 0; c < kPieces; ++c) {
    if (c * p.lanes >= at.left) break;
    OperandChunk<E, kCount> factor, addend;
    factor.load(w + c * parameter_step);
    if constexpr (kAdds) addend.load(b + c * parameter_step);
    float v[kCount], f[kCount], a[kCount];
    unpack_piece<T>(row.raw[c], v);
    factor.values(f);
    if constexpr (kAdds) addend.values(a);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      v[j] = T::kBytes == 2 ? __fmaf_rn(v[j], s.rstd, negative) : (v[j] - s.mean) * s.rstd;
      v[j] = kAdds ? __fmaf_rn(v[j], one + f[j], a[j]) : v[j] * (one + f[j]);
    }
    store_plain(out + c * step, rounded_piece<T, false>(v));
  }
}

// Four pieces: five blocks of 256 threads, or six where no sums by the tensor cores are needed.
template <class T, int kPieces>
constexpr int kRowRegisters = kPieces == 8 ? 64 : (T::kBytes == 4 ? 40 : 48);
template <class T, int kPieces>
__global__ void __launch_bounds__(kRegisterThreads) __maxnreg__((kRowRegisters<T, kPieces>))
    register_kernel(const __grid_constant__ RegisterNorm p) {
  wait_previous_kernel();
  __shared__ RegisterReductions joins;
  const RegisterPlace at(p);
  if (p.cluster > 1) {
    if (threadIdx.x < 2) begin_barrier(&joins.arrived[threadIdx.x]);
    __syncwarp();
    cluster_begin();
  }
  RegisterRow<T, kPieces> row;
  row.load(p, at);
  const RegisterStatistics s = statistics<T, kPieces>(p, at, joins, row);
  if (at.left <= 0) return;
  const int group = static_cast<int>(p.rows_of_group.divide(static_cast<uint32_t>(at.row)));
  const char* w = row_at(p.factor.data, p.factor.row_bytes, group);
  const char* b =
      p.addend.data == nullptr ? nullptr : row_at(p.addend.data, p.addend.row_bytes, group);
  if (p.factor.dtype == DType::kF32) {
    if (b == nullptr)
      put_row<T, F32, false, kPieces>(p, at, row, s, w, b);
    else
      put_row<T, F32, true, kPieces>(p, at, row, s, w, b);
  } else if constexpr (T::kBytes == 2) {
    if (b == nullptr)
      put_row<T, T, false, kPieces>(p, at, row, s, w, b);
    else
      put_row<T, T, true, kPieces>(p, at, row, s, w, b);
  }
}

// ---- host ----

// A factor of f32 or of x's dtype, and at most an addend of the same.
bool has_parameters(const NormRows& n) {
  const bool weighs = n.weight.data != nullptr || n.bias.data != nullptr;
  const bool modulates = n.scale.data != nullptr || n.shift.data != nullptr;
  const TensorView& factor = weighs ? n.weight : n.scale;
  const TensorView& addend = weighs ? n.bias : n.shift;
  if (weighs == modulates || factor.data == nullptr) return false;
  if (addend.data != nullptr && addend.dtype != factor.dtype) return false;
  return factor.dtype == DType::kF32 || factor.dtype == n.x.dtype;
}
// Many rows of up to 32 KiB. Of longer ones, f32 with a weight: more parameters than elements would
// come out of the L2, since blocks of a cluster that starts anew find other parts of them in the
// L1.
bool suits_registers(const NormRows& n) {
  constexpr int64_t kLeastTensor = 64 << 20, kLeastRow = 2048, kLongestOfBlock = 32 << 10;
  const int64_t bytes = n.columns() * dtype_bytes(n.x.dtype);
  if (n.quant.format != OutFormat::kNone || n.residual.data != nullptr || n.gate.data != nullptr) {
    return false;
  }
  if (!has_parameters(n) || bytes % kPieceBytes != 0 || bytes < kLeastRow) return false;
  if (n.rows() * bytes < kLeastTensor || n.rows() > INT_MAX / 64) return false;
  const bool adds = n.bias.data != nullptr || n.shift.data != nullptr;
  return bytes <= kLongestOfBlock || (n.x.dtype == DType::kF32 && !adds && !n.subtract_mean);
}

// Rows of up to 16 KiB: four pieces a thread. Longer ones, and what a cluster shares, eight.
int pieces_of_thread(const RegisterNorm& job) { return job.pieces <= 4 * kRegisterThreads ? 4 : 8; }

// False: no cluster holds the row.
bool plan(const Call& call, RegisterNorm& job) {
  const Machine machine = machine_for({DeviceType::kCuda, device_index(call)});
  const int each = pieces_of_thread(job);
  job.block_pieces = job.pieces;
  if (job.pieces <= 32 * each) {
    job.rows_of_block = kWarpRows;
    return true;
  }
  while (job.pieces > each * kRegisterThreads * job.cluster) job.cluster *= 2;
  if (job.cluster > largest_cluster(machine.compute_capability)) return false;
  if (job.cluster > 1) {
    job.block_pieces = static_cast<int>(ceil_div(ceil_div(job.pieces, job.cluster), 8) * 8);
  }
  job.lanes = static_cast<int>(ceil_div(ceil_div(job.block_pieces, each), 32) * 32);
  return true;
}

template <class T>
Status start(const Call& call, const char* name, const RegisterNorm& job) {
  const Grid grid{ceil_div(job.rows, job.rows_of_block) * job.cluster,
                  job.lanes * job.rows_of_block, 0, job.cluster};
  return pieces_of_thread(job) == 4 ? launch_early(call, name, grid, register_kernel<T, 4>, job)
                                    : launch_early(call, name, grid, register_kernel<T, 8>, job);
}

}  // namespace

Status start_register_norm(const Call& call, const char* name, const NormRows& n, bool& taken) {
  taken = false;
  if (!suits_registers(n)) return {};
  const bool modulates = n.scale.data != nullptr;
  RegisterNorm job;
  job.x = n.x.as<const char>();
  job.x_row_bytes = row_distance(n.x);
  job.out = n.out.as<char>();
  job.out_row_bytes = row_distance(n.out);
  job.factor = Operand(modulates ? n.scale : n.weight);
  job.addend = Operand(modulates ? n.shift : n.bias);
  job.one = modulates ? 1.0f : 0.0f;
  job.rows = static_cast<int>(n.rows());
  const int64_t groups = modulates ? row_count(n.scale) : 1;
  job.rows_of_group = FastDivisor(static_cast<uint32_t>(n.rows() / groups));
  job.pieces = static_cast<int>(n.columns() * dtype_bytes(n.x.dtype) / kPieceBytes);
  job.eps = n.eps;
  job.share = 1.0f / static_cast<float>(n.columns());
  job.subtract_mean = n.subtract_mean;
  taken = plan(call, job);
  if (!taken) return {};
  switch (n.x.dtype) {
    case DType::kBF16: return start<Bf16>(call, name, job);
    case DType::kF16: return start<F16>(call, name, job);
    default: return start<F32>(call, name, job);
  }
}

}  // namespace norm_device
}  // namespace pestle::ops
