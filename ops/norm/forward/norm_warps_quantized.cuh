// nvfp4 codes of a row of norm_warps.cu whose statistics are known. Rule: docs/formats/nvfp4.md;
// contract: quantized_output.h.
#pragma once

#include "ops/norm/forward/norm_warps.cuh"

namespace pestle::ops::norm_device {

#ifdef __CUDACC__

__device__ inline void store_byte(void* to, uint32_t v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
// Where a lane's blocks of a row's next step go. Addresses are hidden from the compiler, which
// would make them anew each step.
struct QuantizedBlocks {
  char* q;
  uint8_t* scales;
  char* out;  // if it is asked for
  uint32_t scale_step;
  uint32_t turned;  // ones if this lane's second piece comes first

  __device__ QuantizedBlocks(const WarpRows& p, int row, int lane)
      : q(row_at(p.codes.q, p.codes.q_row_bytes, row) + lane * kUnit),
        scales(p.codes.scale_row(row) + p.codes.scale_place(lane)),
        out(nullptr),
        scale_step(kStepRuns * (p.codes.swizzled ? 128 : 1)),
        turned((lane & 4) != 0 ? ~0u : 0u) {
    if (p.out != nullptr) out = row_at(p.out, p.out_row_bytes, row) + lane * (2 * kPieceBytes);
    asm volatile("" : "+l"(q));
    asm volatile("" : "+l"(scales));
    asm volatile("" : "+r"(scale_step));
    asm volatile("" : "+r"(turned));
  }
  __device__ void put(uint2 words, uint32_t code) const {
    const uint32_t change = (words.x ^ words.y) & turned;
    store_plain(q, make_uint2(words.x ^ change, words.y ^ change));
    store_byte(scales, code);
  }
  __device__ void put_out(int step, uint4 first, uint4 second) const {
    char* to = out + step * (kStepRuns * 2 * kPieceBytes);
    store_plain(to + (turned & kPieceBytes), first);
    store_plain(to + (~turned & kPieceBytes), second);
  }
  __device__ void advance() {
    q += kStepRuns * kUnit;
    scales += scale_step;
    asm volatile("" : "+l"(q));
    asm volatile("" : "+l"(scales));
  }
};

// Do a lane's elements of a step exist?
__device__ inline bool has_run(const WarpRows& p, int step, int lane) {
  return step * kStepRuns + lane < p.units / 2;
}
// Codes of a row that is not finite, or whose parameters are not.
template <bool kMean, bool kAdds>
__device__ inline void put_any_nvfp4(const WarpRows& p, const RowValues<kMean, kAdds>& row,
                                     QuantizedBlocks& to, float g) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int s = 0; s < p.steps && has_run(p, s, lane); ++s) {
    uint4 x[2];
    row.at.load(s, x);
    float v[kRun];
    row.any_normalise(x, v);
    row.finish(s, v);
    round_granule<Bf16, false>(v, x);
    // Neighbours side by side again.
    const uint4 first = to.turned ? x[1] : x[0], second = to.turned ? x[0] : x[1];
    const uint3 done = careful_nvfp4(first, second, g);
    store_plain(to.q, make_uint2(done.x, done.y));
    store_byte(to.scales, done.z);
    if (to.out != nullptr) to.put_out(s, x[0], x[1]);
    to.advance();
  }
  __syncwarp();
}
template <bool kMean, bool kAdds>
__device__ inline void put_nvfp4(const WarpRows& p, const RowValues<kMean, kAdds>& row,
                                 NextRow& next, int index, const QuickNvfp4& global, float g) {
  const int lane = threadIdx.x % 32;
  QuantizedBlocks to(p, index, lane);
  if (!row.plain) {
    put_any_nvfp4(p, row, to, g);
    for (int s = 0; s < p.steps; s += kTurnSteps) next.bring_turn();
  } else {
#pragma unroll 1
    for (int s = 0; s < p.steps; s += kTurnSteps) {
      float v[kTurnSteps][kRun];
      {
        uint4 x[kTurnSteps][2];
#pragma unroll
        for (int u = 0; u < kTurnSteps; ++u) row.at.load(s + u, x[u]);
#pragma unroll
        for (int u = 0; u < kTurnSteps; ++u) row.normalise(x[u], v[u]);
      }
      next.bring_turn();
      // Both steps' codes before anything that few need: their chains overlap.
#pragma unroll
      for (int u = 0; u < kTurnSteps; ++u) row.finish(s + u, v[u]);
      static_assert(kTurnSteps == 2);
      const EveryOther pairs[kTurnSteps] = {EveryOther(v[0]), EveryOther(v[1])};
      QuickBlock b[kTurnSteps];
      bool has[kTurnSteps], all_quick = true;
#pragma unroll
      for (int u = 0; u < kTurnSteps; ++u) {
        b[u] = quick_block(pairs[u], global);
        has[u] = has_run(p, s + u, lane);
        all_quick = all_quick & (b[u].is_quick | !has[u]);
      }
      if (!all_quick) {
#pragma unroll
        for (int u = 0; u < kTurnSteps; ++u) {
          if (b[u].is_quick) continue;
          const uint3 done = careful_nvfp4(pairs[u].unit(0), pairs[u].unit(1), g);
          b[u].words = make_uint2(done.x, done.y);
          b[u].code = done.z;
        }
      }
#pragma unroll
      for (int u = 0; u < kTurnSteps; ++u) {
        if (has[u]) to.put(b[u].words, b[u].code);
        to.advance();
      }
      if (to.out != nullptr) {
#pragma unroll
        for (int u = 0; u < kTurnSteps; ++u) {
          if (has[u]) to.put_out(s + u, pairs[u].unit(0), pairs[u].unit(1));
        }
      }
    }
  }
  p.codes.clear_padding(index, p.groups * p.rows_of_group, lane, 32);
}

#endif

}  // namespace pestle::ops::norm_device
