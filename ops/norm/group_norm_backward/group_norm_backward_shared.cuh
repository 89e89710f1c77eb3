// group_norm_backward's kernel for groups in the shared memory of a CTA or a cluster, x and d_out;
// a warp takes several pieces.
#pragma once

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "ops/norm/group_norm_backward/group_norm_backward_job.cuh"

namespace pestle::ops::group_norm_backward {

using namespace pestle::cuda;

struct Parts {
  float4 statistics[kMostWarps * kMostBlocks];  // mean, squares around it, elements
  float4 sums[kMostWarps * kMostBlocks];
};

// A warp's piece: neighbours of one channel. A unit of f32 is 16 bytes of its first half and 16 of
// the second one, so that lanes side by side ask for whole sectors.
struct Piece {
  int channel;  // of the group
  int first;    // unit of the plane
  int units;
};

template <class T>
struct SharedGroup {
  static constexpr int kBytes = kUnit * T::kBytes;
  static constexpr int kWords = kBytes / 16;

  const PieceJob& p;
  Parts& parts;
  uint32_t shared;
  int64_t sample;
  int group, rank, lane, warp, warps;

  __device__ SharedGroup(const PieceJob& job, Parts& own, uint4* memory) : p(job), parts(own) {
    const int which = blockIdx.x / p.cluster;
    rank = blockIdx.x - which * p.cluster;
    sample = which / p.groups;
    group = which - static_cast<int>(sample) * p.groups;
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32;
    warps = blockDim.x / 32;
    shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  }
  __device__ Piece piece(int number) const {
    Piece piece;
    piece.channel = number / p.channel_pieces;
    piece.first = (number - piece.channel * p.channel_pieces) * p.piece_units;
    piece.units = min(p.piece_units, p.channel_units - piece.first);
    return piece;
  }
  // body(number within the block, piece) for this warp's pieces.
  template <class Body>
  __device__ void each_piece(Body body) const {
    const int begin = rank * p.block_pieces;
    const int count = min(p.block_pieces, p.pieces - begin);
    for (int i = warp; i < count; i += warps) body(i, piece(begin + i));
  }
  __device__ int64_t offset(const int64_t (&stride)[2], const Piece& piece) const {
    const int64_t channel = int64_t{group} * p.group_channels + piece.channel;
    return sample * stride[0] + channel * stride[1] + int64_t{piece.first} * kBytes;
  }
  __device__ uint32_t at(int number, int operand, int unit) const {
    return shared + (((number * 2 + operand) * kWords) * p.piece_units + unit) * 16;
  }
  __device__ void copy(const char* tensor, const int64_t (&stride)[2], int operand) const {
    each_piece([&](int number, const Piece& piece) {
      const char* from = tensor + offset(stride, piece);
      for (int unit = lane; unit < piece.units; unit += 32) {
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          copy_ahead(at(number, operand, unit) + k * p.piece_units * 16,
                     from + (k * piece.units + unit) * 16);
        }
      }
    });
    commit_copies();
  }
  __device__ void read(int number, int operand, int unit, float (&v)[kUnit]) const {
    uint4 raw[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw[k].x), "=r"(raw[k].y), "=r"(raw[k].z), "=r"(raw[k].w)
                   : "r"(at(number, operand, unit) + k * p.piece_units * 16)
                   : "memory");
    }
    if constexpr (kWords == 2)
      T::to_f32({raw[0], raw[1]}, v);
    else
      T::to_f32({raw[0]}, v);
  }

  // ---- sums over the group ----

  __device__ static float over_lanes(float v, int width) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      v += __shfl_xor_sync(~0u, v, distance);
    }
    return v;
  }
  // A warp's part to all blocks of the cluster.
  __device__ void post(float4* array, const float4& v) const {
    float4* slot = array + rank * warps + warp;
    if (p.cluster == 1) {
      if (lane == 0) *slot = v;
      __syncthreads();
      return;
    }
    if (lane < p.cluster) store_to_block(slot, static_cast<unsigned>(lane), v);
    cluster_arrive();
    cluster_wait();
  }
  // Mean and 1 / deviation.
  __device__ float2 statistics() const {
    float count = 0, mean = 0, squares = 0;
    each_piece([&](int number, const Piece& piece) {
      for (int unit = lane; unit < piece.units; unit += 32) {
        float v[kUnit];
        read(number, 0, unit, v);
        const float m =
            (((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]))) * (1.0f / kUnit);
        float own = 0;
        for (int j = 0; j < kUnit; ++j) {
          const float d = v[j] - m;
          own = __fmaf_rn(d, d, own);
        }
        // Two sets' means and squares as one's.
        const float d = m - mean;
        const float part = __fdividef(kUnit, count + kUnit);
        mean = __fmaf_rn(d, part, mean);
        squares += __fmaf_rn(d * d * count, part, own);
        count += kUnit;
      }
    });
    const float all = over_lanes(count, 32);
    const float of_warp = all > 0 ? over_lanes(mean * count, 32) / all : 0;
    const float d = mean - of_warp;
    squares = over_lanes(count > 0 ? __fmaf_rn(d * count, d, squares) : 0, 32);
    post(parts.statistics, make_float4(of_warp, squares, all, 0));
    const int slots = warps * p.cluster;
    const int first = threadIdx.x & (p.join - 1);
    float sum = 0, around = 0;
    for (int i = first; i < slots; i += p.join) {
      sum = __fmaf_rn(parts.statistics[i].x, parts.statistics[i].z, sum);
    }
    const float middle = over_lanes(sum, p.join) / p.count;
    for (int i = first; i < slots; i += p.join) {
      const float4 v = parts.statistics[i];
      const float away = v.x - middle;
      around += __fmaf_rn(away * v.z, away, v.y);
    }
    around = over_lanes(around, p.join);
    return make_float2(middle, __frsqrt_rn(around / p.count + p.eps));
  }

  // ---- gradients ----

  __device__ float2 parameters(const Piece& piece) const {
    return p.affine.quick_load(static_cast<uint32_t>(sample),
                               group * p.group_channels + piece.channel);
  }
  // Of units of this warp's piece: body(unit, d, y), d the gradient behind weight and bias.
  template <class Body>
  __device__ void each_unit(int number, const Piece& piece, const float2& of, const float2& wb,
                            Body body) const {
    for (int unit = lane; unit < piece.units; unit += 32) {
      float y[kUnit], d[kUnit];
      read(number, 0, unit, y);
      read(number, 1, unit, d);
      for (int j = 0; j < kUnit; ++j) y[j] = (y[j] - of.x) * of.y;
      if (p.silu) {
        for (int j = 0; j < kUnit; ++j) {
          const float z = __fmaf_rn(y[j], wb.x, wb.y);
          const float s = quick_reciprocal(1.0f + quick_exp(-z));
          d[j] *= s * __fmaf_rn(z, 1.0f - s, 1.0f);
        }
      }
      body(unit, d, y);
    }
  }
  // Means over the group of d * weight and of d * weight * y; leaves the pieces' sums.
  __device__ float2 means(const float2& of) const {
    float m1 = 0, m2 = 0;
    each_piece([&](int number, const Piece& piece) {
      const float2 wb = parameters(piece);
      float sum = 0, products = 0;
      each_unit(number, piece, of, wb, [&](int, const float(&d)[kUnit], const float(&y)[kUnit]) {
        for (int j = 0; j < kUnit; ++j) {
          sum += d[j];
          products = __fmaf_rn(d[j], y[j], products);
        }
      });
      sum = over_lanes(sum, 32);
      products = over_lanes(products, 32);
      m1 = __fmaf_rn(sum, wb.x, m1);
      m2 = __fmaf_rn(products, wb.x, m2);
      if (lane == 0) {
        const int64_t group_number = sample * p.groups + group;
        p.sums[group_number * p.pieces + rank * p.block_pieces + number] =
            make_float2(sum, products);
      }
    });
    post(parts.sums, make_float4(m1, m2, 0, 0));
    m1 = m2 = 0;
    for (int i = threadIdx.x & (p.join - 1); i < warps * p.cluster; i += p.join) {
      m1 += parts.sums[i].x;
      m2 += parts.sums[i].y;
    }
    return make_float2(over_lanes(m1, p.join) / p.count, over_lanes(m2, p.join) / p.count);
  }
  __device__ void finish(const float2& of, const float2& means) const {
    each_piece([&](int number, const Piece& piece) {
      const float2 wb = parameters(piece);
      char* to = p.d_x + offset(p.d_x_stride, piece);
      each_unit(number, piece, of, wb, [&](int unit, float(&d)[kUnit], const float(&y)[kUnit]) {
        for (int j = 0; j < kUnit; ++j) {
          d[j] = of.y * (__fmaf_rn(-y[j], means.y, d[j] * wb.x) - means.x);
        }
        if constexpr (kWords == 2) {
          const auto raw = T::pack(d);
          store16(to + unit * 16, raw.low);
          store16(to + (piece.units + unit) * 16, raw.high);
        } else {
          T::store(to + unit * 16, d);
        }
      });
    });
  }
};

template <class T>
__global__ void __launch_bounds__(kMostWarps * 32, 2)
    shared_kernel(const __grid_constant__ PieceJob p) {
  extern __shared__ uint4 memory[];
  __shared__ Parts parts;
  const SharedGroup<T> own(p, parts, memory);
  own.copy(p.x, p.x_stride, 0);
  own.copy(p.d_out, p.d_out_stride, 1);
  if (p.cluster > 1) {  // others' shared memory is theirs only once they have begun
    cluster_arrive();
    cluster_wait();
  }
  wait_for_copies<1>();
  const float2 of = own.statistics();
  wait_for_copies<0>();
  own.finish(of, own.means(of));
}

}  // namespace pestle::ops::group_norm_backward
