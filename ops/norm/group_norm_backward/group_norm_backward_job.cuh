// What the kernels of dense groups are told: groups are cut into pieces of one channel, a warp
// each.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "ops/norm/group/channel_affine.cuh"

namespace pestle::ops::group_norm_backward {

using namespace pestle::cuda;

constexpr int kPieceUnits = 128;  // at most: four units of 8 elements a lane
constexpr int kMostWarps = 16;    // of a block
constexpr int kMostBlocks = 16;   // of a cluster

struct PieceJob {
  const char* x;
  const char* d_out;
  char* d_x;
  int64_t x_stride[2], d_out_stride[2], d_x_stride[2];  // of samples and channels, bytes
  ChannelAffine affine;
  float2* sums;  // of pieces: of d, and of d * y
  int groups, group_channels;
  FastDivisor by_groups;
  int channel_units, channel_pieces;  // of a plane
  int piece_units;                    // of all pieces but a channel's last
  int pieces, block_pieces;           // of a group, of a block of it
  int cluster;
  int join;                 // lanes that join the warps' parts: a power of two
  float eps, count, share;  // elements of a group, and 1 / them
  bool silu;
  uint32_t x_stages = 2;  // persistent: groups of x in shared memory
  uint32_t delay = 0;     // persistent: clocks from one cluster's beginning to the next one's
};

// 16 bytes to shared memory, past the L1 and without a register.
__device__ inline void copy_ahead(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

}  // namespace pestle::ops::group_norm_backward
