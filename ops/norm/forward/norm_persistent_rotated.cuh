// int8 codes of rows that are rotated by groups of 256, for norm_persistent.cu: 16 neighbours a
// lane twice, of which the stages of distances 1 and 4 are made; then two columns of a group's 16
// runs a lane, for those of 16 and 64. Five warps hold 5120 elements, at 96 registers.
#pragma once

#include "ops/norm/forward/norm_persistent_quantized.cuh"

namespace pestle::ops::norm_device {

#ifdef __CUDACC__

// A warp's four groups in shared memory, between the stages: run r of a group is 64 bytes, whose
// quads lie so that neither writing runs nor reading columns meets a bank twice. Codes behind it.
struct RunExchange {
  static constexpr int kGroupBytes = 1024 + 64, kCodeGroupBytes = 256 + 16;
  uint32_t put;    // of this lane's run of step 0; quad i by exclusive or
  uint32_t get;    // of this lane's columns of run 0
  uint32_t turn;   // which quad that is
  uint32_t codes;  // of its columns of run 0
  uint32_t own;    // of run `part`: 16 codes

  __device__ explicit RunExchange(uint32_t memory) {
    const uint32_t lane = threadIdx.x % 32, group = lane / 8, part = lane % 8;
    put = memory + lane / 16 * kGroupBytes + lane % 16 * 64 + ((lane >> 1) & 3) * 16;
    get = memory + group * kGroupBytes + (part & 1) * 8;
    turn = part / 2;
    const uint32_t behind = memory + 4 * kGroupBytes + group * kCodeGroupBytes;
    codes = behind + part * 2;
    own = behind + part * 16;
  }
  __device__ void put_run(int step, const float (&v)[kRun]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_shared((put ^ i * 16) + step * (2 * kGroupBytes),
                   make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]),
                              __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3])));
    }
  }
  __device__ uint32_t column(int run) const {
    return get + ((turn ^ (run >> 1 & 3)) * 16) + run * 64;
  }
};

__device__ inline void store_pair(uint32_t to, uint32_t two) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(static_cast<uint16_t>(two)) : "memory");
}
__device__ inline void store_shared_byte(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

// Normalised, rounded and rotated, without the rotation's norm: u[c][k] is column c of run k.
template <class T, class Values>
__device__ inline void rotated_columns(const Values& values, char* out, const TensorUnpack& unpack,
                                       const RunExchange& exchange, float (&u)[2][kRun]) {
  const auto& at = values.row.at;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    float v[kRun] = {};
    if (s < at.count) {
      values.values(s, v);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* eight = v + half * kUnit;
        const uint4 piece = rounded_piece<T, true>(eight);
        if (out != nullptr && at.has(s)) {
          store_canonical<T>(
              out + static_cast<int64_t>(at.first + s * 32) * (kRun * 2) + half * kPieceBytes,
              piece);
        }
        if (std::is_same_v<T, Bf16> && values.plain) {
          float four[2][4];
          unpack.unpack(piece.x, piece.y, four[0]);
          unpack.unpack(piece.z, piece.w, four[1]);
#pragma unroll
          for (int i = 0; i < kUnit; ++i) eight[i] = four[i / 4][i % 4];
        } else {
          unpack_piece<T>(piece, eight);
        }
      }
      butterflies<true, true>(v);
    }
    exchange.put_run(s, v);
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    const uint2 two = load_pair(exchange.column(k));
    u[0][k] = __uint_as_float(two.x);
    u[1][k] = __uint_as_float(two.y);
  }
  butterflies<true, true>(u[0]);
  butterflies<true, true>(u[1]);
}

// Codes that do not go by both neighbours of the scale's reciprocal, from where the lane's columns
// lie, to where its codes do.
__device__ __noinline__ inline void slow_column_codes(RunExchange exchange, float norm, float scale,
                                                      bool is_short) {
  const Divider by = Divider::by(scale / norm);
#pragma unroll 1
  for (int part = 0; part < 4; ++part) {
    const int column = part % 2, first = part / 2 * kUnit;
    float v[kUnit];
    for (int i = 0; i < kUnit; ++i) {
      v[i] = __uint_as_float(load_word(exchange.column(first + i) + column * 4));
    }
    const F32::Raw raw = F32::pack_numbers(v);
    const uint2 eight = is_short ? short_byte_codes<F32, Int8Code, false>(raw, by)
                                 : rare_rotated_codes(raw, norm, scale);
    for (int i = 0; i < kUnit; ++i) {
      const uint32_t word = i < 4 ? eight.x : eight.y;
      store_shared_byte(exchange.codes + (first + i) * 16 + column, word >> (i % 4 * 8) & 0xFF);
    }
  }
}

template <class T, class Values>
__device__ inline void put_rotated_runs_of(const PersistentNorm& p, PersistentSubgroup& subgroup,
                                           PersistentReductions& joins, const Values& values,
                                           char* out, int row_index, const TensorUnpack& unpack,
                                           uint32_t memory) {
  const RowQuantizer& o = p.codes;
  const auto& at = values.row.at;
  if (at.count == 0) {
    if (o.given == nullptr) subgroup.largest(joins, 0);
    return;
  }
  const RunExchange exchange(memory);
  float u[2][kRun];
  rotated_columns<T>(values, out, unpack, exchange, u);
  float most[2] = {0, 0};
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    most[0] = larger_magnitude(most[0], u[0][k]);
    most[1] = larger_magnitude(most[1], u[1][k]);
  }
  // The norm, a power of two, is part of the divisor.
  constexpr float kNorm = kHadamardNorm<256>;
  uint32_t largest = formats::abs_bits(larger_magnitude(most[0], most[1]) * kNorm);
  float scale;
  if (o.given != nullptr) {
    scale = __ldg(o.given + (o.one_scale ? 0 : row_index));
  } else {
    largest = subgroup.largest(joins, largest);
    scale = Int8Code::scale(largest);
    if (subgroup.leads()) o.scale_out[row_index] = scale;
  }
  const Divider by = Divider::by(scale * (1 / kNorm));
  const bool is_short = by.is_short(__uint_as_float(largest) * (1 / kNorm));
  uint32_t differs = is_short && o.given == nullptr ? 0u : 1u;
  const BothSides sides = BothSides::of(by);
#pragma unroll
  for (int k = 0; k < kRun; ++k) {
    const uint32_t low = sides.rounded(u[0][k], differs);
    store_pair(exchange.codes + k * 16, __byte_perm(low, sides.rounded(u[1][k], differs), 0x0040));
  }
  if (differs != 0) {
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      const uint32_t to = exchange.column(k);
      store_word(to, __float_as_uint(u[0][k]));
      store_word(to + 4, __float_as_uint(u[1][k]));
    }
    slow_column_codes(exchange, kNorm, scale, is_short);
  }
  __syncwarp();
  const int lane = subgroup.lane, first = at.first - lane;  // the warp's first run
  if (lane / 8 >= (at.left + lane) / kRun) return;          // groups of the warp's
  char* q = row_at(o.q, o.q_row_bytes, row_index) + static_cast<int64_t>(first) * kRun +
            lane / 8 * 256 + lane % 8 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 codes = load_shared(exchange.own + half * 128);
    if (o.wide) {
      store_plain(q + half * 128, codes);
    } else {
      store_plain(q + half * 128, make_uint2(codes.x, codes.y));
      store_plain(q + half * 128 + kUnit, make_uint2(codes.z, codes.w));
    }
  }
}

#endif

}  // namespace pestle::ops::norm_device
