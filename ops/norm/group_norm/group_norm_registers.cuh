// group_norm's register-resident kernel: short groups, and longer ones where shared memory is
// too small for group_norm_staged.cuh.
// Map      a group of up to 262,144 elements in the registers of lanes, a block or a cluster
//          (thread_group.cuh), 32 elements a thread; thread groups walk over groups, the next ones
//          on their way through shared memory (row_ring.cuh).
// Traffic  x, residual, out and residual_out once.
// Numerics mean, then squared differences from it.
#pragma once

#include "ops/norm/group_norm/group_norm_job.cuh"

namespace pestle::ops::group_norm {

constexpr int kRegisterThreads = 512;
constexpr int kRegisterBlocks = 2;
constexpr int64_t kLongestInRegisters = int64_t{kRegisterThreads} * kRowElements * kMostGroupBlocks;

template <class T>
using RegisterMap = RowMap<T, kPieceBytes / T::kBytes>;

#ifdef __CUDACC__

// v: residual + gate * x, of elements that exist.
template <class Map>
__device__ inline void add_residual(const Job& p, const Place& place, const char* residual,
                                    const RowElements<Map>& at, RowValues& v) {
  using T = typename Map::Type;
#pragma unroll
  for (int c = 0; c < Map::kChunks; ++c) {
    if (!at.has(c)) continue;
    const int element = at.near(c);
    const uint32_t channel = place.channel + p.plane.divide(element / kUnit);
    const float gate = p.gate.quick_load(place.sample, channel, 1.0f);
    float r[Map::kChunk] = {};
    if (p.residual != nullptr) {
      unpack_piece<T>(load16(at_element<T::kBytes>(residual, element)), r);
    }
    for (int j = 0; j < Map::kChunk; ++j) {
      v[c * Map::kChunk + j] = __fmaf_rn(v[c * Map::kChunk + j], gate, r[j]);
    }
  }
}

template <class Map>
__device__ inline void put_row_codes(const Job& p, uint8_t* row, const RowElements<Map>& at,
                                     const RowValues& v) {
  using T = typename Map::Type;
#pragma unroll
  for (int i = 0; i < kRowElements; i += Map::kPieceElements) {
    if (!at.stores(i / Map::kChunk)) continue;
    const int element = at.places[i / Map::kElements] + i % Map::kElements;
    put_codes<T>(row + element, round_piece<T>(v + i), p.q_scale);
  }
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kRegisterThreads, kRegisterBlocks)
    register_kernel(const __grid_constant__ Job p) {
  using Map = RegisterMap<T>;
  extern __shared__ uint4 shared[];
  __shared__ ReductionSlots<4> parts;  // of groups in turn: one is read while the next is written
  ThreadGroup thread_group(p.shape);
  const int64_t row_bytes = p.units * (kUnit * T::kBytes);
  const int columns = static_cast<int>(p.units) * kUnit;
  RowElements<Map> at(thread_group, columns);
  const RowRing<Map> ring(thread_group, columns, shared, p.stages);
  const auto fetch = [&](int k, int stage) {
    if (thread_group.walks_on(k))
      ring.fetch(row_at(p.x, row_bytes, thread_group.row_after(k)), stage);
    commit_copies();
  };
  for (int k = 0; k < p.stages; ++k) fetch(k, k * ring.kStride);
  thread_group.begin(parts);
  int stage = 0, slot = 0;
  for (; thread_group.walks_on(0); thread_group.go_on(), slot ^= 2) {
    at.begin_row(thread_group);
    if (p.stages == 2)
      wait_for_copies<1>();
    else
      wait_for_copies<0>();
    RowValues v;
    read_row(ring, stage, v);
    fetch(p.stages, stage);
    stage = p.stages == 2 ? ring.kStride - stage : 0;
    const Place place(p, static_cast<uint32_t>(thread_group.row));
    if constexpr (kSum) {
      add_residual<Map>(p, place, row_at(p.residual, row_bytes, thread_group.row), at, v);
      if (p.residual_out != nullptr) {
        store_row<Map>(row_at(p.residual_out, row_bytes, thread_group.row), at, v);
      }
    }
    const float sum = sum_of(v, [](float a, float s) { return s + a; });
    const float mean = thread_group.sum(parts, slot, sum) * p.share;
    float squares = 0;
#pragma unroll
    for (int c = 0; c < Map::kChunks; ++c) {
      float own = 0;
      for (int j = 0; j < Map::kChunk; ++j) {
        const float d = v[c * Map::kChunk + j] - mean;
        own = __fmaf_rn(d, d, own);
      }
      if (at.has(c)) squares += own;
    }
    squares = thread_group.sum(parts, slot + 1, squares);
    const float rstd = rsqrtf(__fmaf_rn(squares, p.share, p.eps));
#pragma unroll
    for (int c = 0; c < Map::kChunks; ++c) {
      finish<Map::kChunk>(p, place, at.near(c) / kUnit, mean, rstd, v + c * Map::kChunk);
    }
    if (p.out != nullptr) store_row<Map>(row_at(p.out, row_bytes, thread_group.row), at, v);
    if (p.q != nullptr) {
      put_row_codes<Map>(p, p.q + static_cast<uint64_t>(thread_group.row) * (p.units * kUnit), at,
                         v);
    }
  }
}

#endif

}  // namespace pestle::ops::group_norm
