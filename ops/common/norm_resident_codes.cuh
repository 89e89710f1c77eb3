// What norm_resident.cu makes of a row that is normalised: numbers, or codes of any format. Rules:
// docs/formats; contract: quantized_output.h.
#pragma once

#include "ops/common/norm_resident.cuh"

namespace pestle::ops::norm_device {

#ifdef __CUDACC__

template <class T, class Values>
__device__ inline void put_numbers(const Values& values, char* out, bool plain) {
  using Map = typename Values::Map;
  auto& row = values.row;
  char* to = out + static_cast<int64_t>(row.at.first) * kPieceBytes;
  asm volatile("" : "+l"(to));
  row.each([&](int s) {
    float v[Map::kN];
    values.values(s, v);
    if (!row.at.has(s)) return;
    store_plain(to + s * 512, plain ? rounded_piece<T, true>(v) : rounded_piece<T, false>(v));
  });
}

template <class T, class Code, class Values>
__device__ inline void put_bytes_of(const ResidentNorm& p, ResidentTeam& team, ResidentJoins& joins,
                                    const Values& values, char* out, int row_index) {
  const RowQuantizer& o = p.codes;
  auto& row = values.row;
  MagnitudeOf<T> most;
  row.each([&](int s) {
    values.round(out, s);
#pragma unroll
    for (const uint4& piece : row.x[s]) most.add(piece);
  });
  uint32_t largest = most.bits();
  ByteRule rule;
  const bool bounded = o.given == nullptr;
  if (bounded) {
    largest = team.largest(joins, largest);
    const float scale = Code::scale(largest);
    if (team.leads()) o.scale_out[row_index] = scale;
    rule = computed_rule<T, Code>(scale, largest);
  } else {
    rule = given_rule<T, Code>(__ldg(o.given + (o.one_scale ? 0 : row_index)));
  }
  const bool is_short = rule.by.is_short(__uint_as_float(largest));
  char* q = row_at(o.q, o.q_row_bytes, row_index) + static_cast<int64_t>(row.at.first) * kRun;
  asm volatile("" : "+l"(q));
  const auto each = [&](auto codes) {
    row.each([&](int s) {
      const uint2 low = codes(unit_of<T>(row.x[s], 0)), high = codes(unit_of<T>(row.x[s], 1));
      if (row.at.has(s)) row_quantizer::store_run(o, q + s * 512, low, high);
    });
  };
  using Raw = typename T::Raw;
  if (!is_short) {
    each([&](const Raw& raw) { return any_byte_codes<T, Code>(raw, rule.by.scale); });
  } else if (!rule.is_product) {
    each([&](const Raw& raw) { return short_byte_codes<T, Code, false>(raw, rule.by); });
  } else if (bounded) {
    each([&](const Raw& raw) { return product_bytes<T, Code, true>(raw, rule); });
  } else {
    each([&](const Raw& raw) { return product_bytes<T, Code, false>(raw, rule); });
  }
}

// Blocks' scales are found side by side; one that needs care makes all of the lane's codes go by
// the scalar rules.
template <class T, class Row>
__device__ inline void put_mxfp8_blocks(const RowQuantizer& o, const BlockPlace& place, Row& row) {
  uint32_t amax[Row::Map::kSteps];
  bool is_quick = true;
  row.each([&](int s) {
    amax[s] = largest_of<T>(unit_of<T>(row.x[s], 0), unit_of<T>(row.x[s], 1));
    amax[s] = max(amax[s], __shfl_xor_sync(~0u, amax[s], 1));
    is_quick = is_quick & (amax[s] - 1 < formats::kF32Inf - 1);
  });
  row.each([&](int s) {
    const Mxfp8Scale block = Mxfp8Scale::of(amax[s]);
    uint2 codes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const typename T::Raw unit = unit_of<T>(row.x[s], half);
      if (is_quick) {
        float v[kUnit];
        T::to_f32(unit, v);
        for (float& one : v) one *= block.inverse;
        codes[half] = fp8_codes<formats::E4m3>(v);
      } else {
        codes[half] = block.codes<T>(unit);
      }
    }
    if (!row.at.has(s)) return;
    row_quantizer::store_run(o, place.q + s * 512, codes[0], codes[1]);
    if (threadIdx.x % 2 == 0) store_plain(place.scales + s * place.scale_step, block.code);
  });
}
template <class T, class Values>
__device__ inline void put_blocks_of(const ResidentNorm& p, const ResidentTeam& team,
                                     const Values& values, char* out, int row_index, int rows) {
  const RowQuantizer& o = p.codes;
  auto& row = values.row;
  const BlockPlace place(o, row_index, row.at.first, 5, Mxfp8Codes::kRuns);
  row.each([&](int s) { values.round(out, s); });
  put_mxfp8_blocks<T>(o, place, row);
  o.clear_padding(row_index, rows, team.rank * team.warps * 32 + team.warp * 32 + team.lane,
                  team.cluster * team.warps * 32);
}

// Codes of four units from where the lane put them, where they do not go by both neighbours of the
// scale's reciprocal. q: of the first; `left`: elements from there on.
__device__ __noinline__ inline void slow_rotated_codes(uint32_t units, char* q, int left,
                                                       float norm, float scale, bool is_short) {
  const Divider by = Divider::by(scale / norm);
#pragma unroll 1
  for (int u = 0; u < 4; ++u) {
    const F32::Raw raw{load_shared(units + u * 1024), load_shared(units + u * 1024 + 512)};
    const uint2 codes = is_short ? short_byte_codes<F32, Int8Code, false>(raw, by)
                                 : rare_rotated_codes(raw, norm, scale);
    if (long_run_step(u) < left) store_plain(q + long_run_step(u), codes);
  }
}

// Normalised, rounded and rotated values of the lane's 64 neighbours, without the rotation's norm,
// as long_run_offset says; the rounded ones stored where the output is asked for.
template <class T, class Values>
__device__ inline void rotated_values(const Values& values, int n, char* out, float4* exchange,
                                      float (&v)[kLongRun]) {
  const auto& at = values.row.at;
  values.values(0, v);
#pragma unroll
  for (int q = 0; q < kLongRun / kUnit; ++q) {
    const uint4 piece = rounded_piece<T, true>(v + q * kUnit);
    if (out != nullptr && at.has(0)) {
      store_canonical<T>(out + static_cast<int64_t>(at.first) * (kLongRun * 2) + q * kPieceBytes,
                         piece);
    }
    unpack_piece<T>(piece, v + q * kUnit);
  }
  switch (n) {
    case 4: rotate_long_runs<4, true>(v, exchange); break;
    case 16: rotate_long_runs<16, true>(v, exchange); break;
    case 64: rotate_long_runs<64, true>(v, exchange); break;
    default: rotate_long_runs<256, true>(v, exchange);
  }
}
__device__ inline float largest_rotated(const float (&v)[kLongRun]) {
  float most[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kLongRun; i += 2) {
    most[0] = larger_magnitude(most[0], v[i]);
    most[1] = larger_magnitude(most[1], v[i + 1]);
  }
  return larger_magnitude(most[0], most[1]);
}
// Codes by both neighbours of the scale's reciprocal; are all of them certain? q: of the lane's
// first unit; `left`: elements from there on.
__device__ inline bool put_certain_codes(const float (&v)[kLongRun], const Divider& by, char* q,
                                         int left) {
  const BothSides sides = BothSides::of(by);
  uint32_t differs = 0;
#pragma unroll
  for (int u = 0; u < kLongRun / kUnit; ++u) {
    uint32_t r[kUnit];
#pragma unroll
    for (int i = 0; i < kUnit; ++i) r[i] = sides.rounded(v[8 * u + i], differs);
    if (long_run_step(u) < left) store_plain(q + long_run_step(u), Int8Code::low_bytes(r));
  }
  return differs == 0;
}
// A lane holds 64 neighbours.
template <class T, class Values>
__device__ inline void put_rotated_of(const ResidentNorm& p, ResidentTeam& team,
                                      ResidentJoins& joins, const Values& values, char* out,
                                      int row_index, float4* exchange) {
  const RowQuantizer& o = p.codes;
  auto& row = values.row;
  if (row.at.count == 0) {
    if (o.given == nullptr) team.largest(joins, 0);
    return;
  }
  float v[kLongRun];
  rotated_values<T>(values, o.hadamard, out, exchange, v);
  const float most = largest_rotated(v);
  __syncwarp();  // what was exchanged has been read
  // The norm, a power of two, is part of the divisor.
  const float norm = formats::hadamard_norm(o.hadamard);
  uint32_t largest = formats::abs_bits(most * norm);
  float scale;
  if (o.given != nullptr) {
    scale = __ldg(o.given + (o.one_scale ? 0 : row_index));
  } else {
    largest = team.largest(joins, largest);
    scale = Int8Code::scale(largest);
    if (team.leads()) o.scale_out[row_index] = scale;
  }
  const auto by_norm = static_cast<float>(o.hadamard) * norm;  // 1 / norm
  const Divider by = Divider::by(scale * by_norm);
  const bool is_short = by.is_short(__uint_as_float(largest) * by_norm);
  const int lane = team.lane;
  char* q =
      row_at(o.q, o.q_row_bytes, row_index) + static_cast<int64_t>(row.at.first - lane) * kLongRun;
  asm volatile("" : "+l"(q));
  q += long_run_offset(lane, 0);
  const int left = (row.at.left + lane) * kLongRun - long_run_offset(lane, 0);
  if (is_short && o.given == nullptr && put_certain_codes(v, by, q, left)) return;
  const uint32_t units = shared_place(exchange) + lane * kPieceBytes;  // this lane's alone
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* four = v + half * 32 + i * 4;
      store_shared(units + i * 512, make_uint4(__float_as_uint(four[0]), __float_as_uint(four[1]),
                                               __float_as_uint(four[2]), __float_as_uint(four[3])));
    }
    slow_rotated_codes(units, q + half * 128, left - half * 128, norm, scale, is_short);
  }
}

#endif

}  // namespace pestle::ops::norm_device
