// Codes of rows that lie in shared memory (staged_rows.cuh), granule by granule. Whole warps call
// these; `has`: this lane has a granule. Rules: docs/formats; contract: quantized_output.h.
#pragma once

#include <algorithm>

#include "backends/cuda/device/row/staged_rows.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "core/machine.h"
#include "ops/quant/output/quantized_output.cuh"

namespace pestle::ops {

#ifdef __CUDACC__
namespace row_quantizer {

// Neighbours of a thread: a block of nvfp4 is one thread's, of mxfp8 two lanes'.
template <class T, class Kind>
inline constexpr int kGranule = !Kind::kQuantizes ? kPieceBytes / T::kBytes
                                : Kind::kBytes    ? kUnit
                                                  : kRun;

// Bytes of shared memory of a granule beside the row itself: rotated values, in f32.
template <class Kind>
inline constexpr int kKeptBytes = std::is_same_v<Kind, RotatedOutput> ? kRun * 4 : 0;

// To global memory, without a hint: faster than evict-first stores. Of hidden addresses the
// compiler does not know which memory they are of.
__device__ inline void store_plain(void* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ inline void store_plain(void* p, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ inline void store_plain(void* p, uint8_t v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(static_cast<uint32_t>(v)) : "memory");
}

// Rounded to T's 16 bytes; kQuantizes: NaN may have any code.
template <class T, bool kQuantizes>
__device__ inline uint4 rounded_piece(const float* v) {
  if constexpr (T::kBytes == 4) {
    uint32_t w[4];
    for (int j = 0; j < 4; ++j) {
      w[j] = !kQuantizes && v[j] != v[j] ? formats::kF32Nan : __float_as_uint(v[j]);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
  } else {
    float y[kUnit];
    for (int j = 0; j < kUnit; ++j) y[j] = v[j];
    return (kQuantizes ? round_loosely<T>(y) : round_unit<T>(y)).v;
  }
}
template <class T, bool kQuantizes, int kN, int kPieces>
__device__ inline void round_granule(const float (&v)[kN], uint4 (&w)[kPieces]) {
#pragma unroll
  for (int q = 0; q < kPieces; ++q) w[q] = rounded_piece<T, kQuantizes>(v + q * (kN / kPieces));
}
template <class T, int kN>
__device__ inline void store_granule(char* row, int granule, const float (&v)[kN]) {
  constexpr int kPieces = kN * T::kBytes / kPieceBytes;
  char* to = row + static_cast<int64_t>(granule) * (kN * T::kBytes);
#pragma unroll
  for (int q = 0; q < kPieces; ++q) {
    store_plain(to + q * kPieceBytes, rounded_piece<T, false>(v + q * (kN / kPieces)));
  }
}

template <class T, int kPieces>
__device__ inline typename T::Raw unit_of(const uint4 (&w)[kPieces], int unit) {
  if constexpr (T::kBytes == 4)
    return {w[2 * unit], w[2 * unit + 1]};
  else
    return {w[unit]};
}

// The codes of a run.
__device__ inline void store_run(const RowQuantizer& o, char* to, uint2 low, uint2 high) {
  if (o.wide) {
    store_plain(to, make_uint4(low.x, low.y, high.x, high.y));
  } else {
    store_plain(to, low);
    store_plain(to + kUnit, high);
  }
}

// Where the thread's blocks go: its granules lie 2^shift from one another, a multiple of 32.
struct BlockPlace {
  char* q;  // of the first, in runs of 16
  uint8_t* scales;
  uint32_t run_step;    // in granules
  uint32_t scale_step;  // in bytes

  // runs: granules of a block.
  __device__ BlockPlace(const RowQuantizer& o, int row, int first, int shift, int runs)
      : q(row_at(o.q, o.q_row_bytes, row) + static_cast<int64_t>(first) * (kRun / 2 * runs)),
        scales(o.scale_row(row) + o.scale_place(first / runs)),
        run_step(1u << shift),
        scale_step((1u << shift) / runs * (o.swizzled ? 128 : 1)) {
    asm volatile("" : "+l"(q));
    asm volatile("" : "+l"(scales));
    asm volatile("" : "+r"(run_step));
    asm volatile("" : "+r"(scale_step));
  }
};
// A run, which is a block of nvfp4; of mxfp8 two neighbouring lanes hold one, and both or neither
// have it.
template <class T, class Kind, int kPieces>
__device__ inline void put_block_run(const RowQuantizer& o, const BlockPlace& place, uint32_t step,
                                     bool has, const Nvfp4Scale& global,
                                     const uint4 (&w)[kPieces]) {
  const auto low = unit_of<T>(w, 0), high = unit_of<T>(w, 1);
  uint32_t amax = largest_of<T>(low, high);
  uint8_t* scale = place.scales + step * place.scale_step;
  if constexpr (std::is_same_v<Kind, Nvfp4Output>) {
    if (!has) return;
    const uint3 done = nvfp4_block<T>(low, high, amax, global, o.high_first);
    store_plain(place.q + step * place.run_step * kUnit, make_uint2(done.x, done.y));
    store_plain(scale, static_cast<uint8_t>(done.z));
  } else {
    amax = max(amax, __shfl_xor_sync(~0u, amax, 1));
    if (!has) return;
    const Mxfp8Scale block = Mxfp8Scale::of(amax);
    store_run(o, place.q + step * place.run_step * kRun, block.codes<T>(low), block.codes<T>(high));
    if (threadIdx.x % 2 == 0) store_plain(scale, block.code);
  }
}

// The largest magnitude of pieces, kept as pairs where they are.
template <class T>
struct MagnitudeOf {
  uint32_t most = 0;

  __device__ void add(const uint4& v) {
    if constexpr (T::kBytes == 2)
      most = larger_magnitudes<T>(most, larger_of_piece<T>(v));
    else
      for (uint32_t bits : {v.x, v.y, v.z, v.w}) most = max(most, bits & 0x7FFFFFFFu);
  }
  __device__ uint32_t bits() const {
    if constexpr (T::kBytes == 2) return largest_of_pair<T>(most);
    return most;
  }
};

// Bytes of a row: rounded values go to where x lay, and are codes once the row's scale is known.
template <class T, class Code>
struct StagedBytes {
  ByteRule rule{};
  MagnitudeOf<T> most;

  __device__ StagedBytes(const RowQuantizer& o, const ThreadGroup& thread_group) {
    if (o.given == nullptr) return;
    rule = given_rule<T, Code>(__ldg(o.given + (o.one_scale ? 0 : thread_group.row)));
  }
  template <class Row, int kPieces>
  __device__ void put(const Row& row, int step, const uint4 (&w)[kPieces]) {
#pragma unroll
    for (int q = 0; q < kPieces; ++q) {
      most.add(w[q]);
      row.store(step, q, w[q]);
    }
  }
  template <class Row, int kSlots>
  __device__ void finish(const RowQuantizer& o, const ThreadGroup& thread_group,
                         ReductionSlots<kSlots>& parts, const Row& row) {
    const bool bounded = o.given == nullptr;
    uint32_t largest = most.bits();
    if (bounded) {
      largest = thread_group.largest(parts, 2, largest);
      const float scale = Code::scale(largest);
      if (thread_group.leads()) o.scale_out[thread_group.row] = scale;
      rule = computed_rule<T, Code>(scale, largest);
    }
    const bool is_short = rule.by.is_short(__uint_as_float(largest));
    char* q = row_at(o.q, o.q_row_bytes, thread_group.row);
    asm volatile("" : "+l"(q));
    const auto each = [&](auto codes) {
      row.each([&](int step) {
        if (!row.has(step)) return;
        uint4 w[Row::kPieces];
#pragma unroll
        for (int i = 0; i < Row::kPieces; ++i) w[i] = row.load(step, i);
        store_plain(q + static_cast<uint32_t>(row.granule(step) * kUnit), codes(unit_of<T>(w, 0)));
      });
    };
    using Raw = typename T::Raw;
    if (!is_short) {
      each([&](const Raw& raw) { return any_byte_codes<T, Code>(raw, rule.by.scale); });
    } else if (!rule.by_reciprocal) {
      each([&](const Raw& raw) { return short_byte_codes<T, Code, false>(raw, rule.by); });
    } else if (bounded) {
      each([&](const Raw& raw) { return bytes_by_reciprocal<T, Code, true>(raw, rule); });
    } else {
      each([&](const Raw& raw) { return bytes_by_reciprocal<T, Code, false>(raw, rule); });
    }
  }
};

// The one of larger magnitude, of any sign; NaN above all.
__device__ inline float larger_magnitude(float a, float b) {
#if __CUDA_ARCH__ >= 860
  float r;
  asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return __uint_as_float(max(formats::abs_bits(a), formats::abs_bits(b)));
#endif
}
// A lane's run of a rotation, without its norm; zeros may have another sign than the rule's.
template <int kN>
__device__ inline void rotate_loosely(float (&v)[1][kRun], float* shared) {
  warp_rotate<kN, true>(v, shared);
  if constexpr (kN >= 64) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    put_strided<kN>(shared, lane, v[0]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(shared + lane_quad(lane, i));
      v[0][4 * i] = four.x;
      v[0][4 * i + 1] = four.y;
      v[0][4 * i + 2] = four.z;
      v[0][4 * i + 3] = four.w;
    }
  }
}
__device__ __noinline__ inline uint2 rare_rotated_codes(F32::Raw raw, float norm, float scale) {
  float v[kUnit];
  F32::to_f32(raw, v);
  for (int i = 0; i < kUnit; ++i) v[i] = __fdiv_rn(v[i] * norm, scale);
  return Int8Code::codes(v);
}

// Rotated values, kept in f32 as each thread's own behind the row.
struct StagedRotation {
  uint32_t kept;      // the thread's first
  float* shared;      // the warp's, for the exchange
  float largest = 0;  // of any sign

  __device__ StagedRotation(const StagedShape& s, char* memory) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    kept = shared_place(memory) + warp * (s.steps * kStepBytes) + lane * 16;
    shared = reinterpret_cast<float*>(memory + s.granules_bytes(kRun * 4)) + warp * kRotateFloats;
    asm volatile("" : "+r"(kept));
  }
  // Rounded values of a granule.
  template <class T, int kPieces>
  __device__ void put(int n, int step, bool has, const uint4 (&w)[kPieces]) {
    float one[1][kRun];
#pragma unroll
    for (int q = 0; q < kPieces; ++q) unpack_piece<T>(w[q], one[0] + q * (kRun / kPieces));
    switch (n) {
      case 4: rotate_loosely<4>(one, shared); break;
      case 16: rotate_loosely<16>(one, shared); break;
      case 64: rotate_loosely<64>(one, shared); break;
      default: rotate_loosely<256>(one, shared);
    }
    if (!has) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* f = one[0] + 4 * i;
      largest = larger_magnitude(larger_magnitude(largest, larger_magnitude(f[0], f[1])),
                                 larger_magnitude(f[2], f[3]));
      store_shared(kept + step * kStepBytes + i * 512,
                   make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]),
                              __float_as_uint(f[3])));
    }
  }
  template <class Row, int kSlots>
  __device__ void finish(const RowQuantizer& o, const ThreadGroup& thread_group,
                         ReductionSlots<kSlots>& parts, const Row& row) {
    // The norm, a power of two, is part of the divisor.
    const float norm = formats::hadamard_norm(o.hadamard);
    uint32_t most = formats::abs_bits(largest * norm);
    float scale;
    if (o.given != nullptr) {
      scale = __ldg(o.given + (o.one_scale ? 0 : thread_group.row));
    } else {
      most = thread_group.largest(parts, 2, most);
      scale = Int8Code::scale(most);
      if (thread_group.leads()) o.scale_out[thread_group.row] = scale;
    }
    const Divider by = Divider::by(scale / norm);
    const bool is_short = by.is_short(__uint_as_float(most) / norm);
    char* q = row_at(o.q, o.q_row_bytes, thread_group.row);
    row.each([&](int step) {
      if (!row.has(step)) return;
      uint2 codes[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t at = kept + step * kStepBytes + half * 1024;
        const F32::Raw raw{load_shared(at), load_shared(at + 512)};
        codes[half] = is_short ? short_byte_codes<F32, Int8Code, false>(raw, by)
                               : rare_rotated_codes(raw, norm, scale);
      }
      store_run(o, q + static_cast<uint32_t>(row.granule(step)) * kRun, codes[0], codes[1]);
    });
  }

 private:
  static constexpr int kStepBytes = 32 * kRun * 4;
};

// ---- host ----

inline int blocks_of_cluster(const Call& call) {
  const Device device{DeviceType::kCuda, device_index(call)};
  return largest_cluster(machine_for(device).compute_capability);
}

// Starts a kernel of rows in shared memory, `granule_bytes` of it a granule.
template <class Kind, class Job>
Status launch_staged(const Call& call, const char* name, void (*kernel)(Job),
                     const StagedShape& shape, int granule_bytes, const Job& job) {
  const ThreadGroupShape& s = shape.thread_group;
  const int bytes = shape.granules_bytes(granule_bytes) +
                    (std::is_same_v<Kind, RotatedOutput> ? rotation_bytes(s.threads) : 0);
  // Static memory counts, too, and 48 KiB are allowed without asking.
  PESTLE_TRY(allow_shared(call, kernel, bytes > 40 << 10 ? std::max(bytes, 49 << 10) : bytes));
  return launch(call, name, {s.blocks(), s.threads, static_cast<size_t>(bytes), s.cluster}, kernel,
                job);
}

}  // namespace row_quantizer
#endif

}  // namespace pestle::ops
