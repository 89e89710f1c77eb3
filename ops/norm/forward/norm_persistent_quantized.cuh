// What norm_persistent.cu makes of a row that is normalised: numbers, or codes of any format.
// Rules: docs/formats; contract: quantized_output.h.
#pragma once

#include "ops/norm/forward/norm_persistent.cuh"

namespace pestle::ops::norm_device {

#ifdef __CUDACC__

template <class T, class Values>
__device__ inline void put_numbers(const Values& values, char* out) {
  using Map = typename Values::Map;
  auto& row = values.row;
  char* to = out + static_cast<int64_t>(row.at.first) * kPieceBytes;
  asm volatile("" : "+l"(to));
  row.each([&](int s) {
    float v[Map::kN];
    values.values(s, v);
    if (!row.at.has(s)) return;
    store_plain(to + s * 512,
                values.plain ? rounded_piece<T, true>(v) : rounded_piece<T, false>(v));
  });
}

template <class T, class Code, class Values>
__device__ inline void put_bytes_of(const PersistentNorm& p, PersistentSubgroup& subgroup,
                                    PersistentReductions& joins, const Values& values, char* out,
                                    int row_index, const ByteRule& of_all) {
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
    largest = subgroup.largest(joins, largest);
    const float scale = Code::scale(largest);
    if (subgroup.leads()) o.scale_out[row_index] = scale;
    rule = computed_rule<T, Code>(scale, largest);
  } else if (o.one_scale) {
    rule = of_all;
  } else {
    rule = given_rule<T, Code>(__ldg(o.given + row_index));
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
  } else if (!rule.by_reciprocal) {
    each([&](const Raw& raw) { return short_byte_codes<T, Code, false>(raw, rule.by); });
  } else if (bounded) {
    each([&](const Raw& raw) { return bytes_by_reciprocal<T, Code, true>(raw, rule); });
  } else {
    each([&](const Raw& raw) { return bytes_by_reciprocal<T, Code, false>(raw, rule); });
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
        codes[half] = fp8_codes_of_products<T, formats::E4m3, true>(unit, block.inverse);
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
__device__ inline void put_blocks_of(const PersistentNorm& p, const PersistentSubgroup& subgroup,
                                     const Values& values, char* out, int row_index, int rows) {
  const RowQuantizer& o = p.codes;
  auto& row = values.row;
  const BlockPlace place(o, row_index, row.at.first, 5, Mxfp8Output::kRuns);
  row.each([&](int s) { values.round(out, s); });
  put_mxfp8_blocks<T>(o, place, row);
  o.clear_padding(row_index, rows,
                  subgroup.rank * subgroup.warps * 32 + subgroup.warp * 32 + subgroup.lane,
                  subgroup.cluster * subgroup.warps * 32);
}

// ---- nvfp4 ----

// A block of 16 values as pairs of every other one: 0 2, 4 6, 1 3, 5 7, and the same of the second
// eight. Bytes of codes then come together without a shuffle.
struct OddPairs {
  uint32_t w[8];

  __device__ explicit OddPairs(const float (&v)[kRun]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int first = i / 4 * 8 + i % 4 / 2 + i % 2 * 4;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(v[first + 2]), "f"(v[first]));
    }
  }
  // Neighbours side by side again.
  __device__ uint4 unit(int half) const {
    const uint32_t* of = w + half * 4;
    return make_uint4(__byte_perm(of[0], of[2], 0x5410), __byte_perm(of[0], of[2], 0x7632),
                      __byte_perm(of[1], of[3], 0x5410), __byte_perm(of[1], of[3], 0x7632));
  }
  __device__ uint32_t amax() const {
    uint32_t most = larger_magnitudes<Bf16>(w[0], w[1]);
#pragma unroll
    for (int i = 2; i < 8; ++i) most = larger_magnitudes<Bf16>(most, w[i]);
    return largest_of_pair<Bf16>(most);
  }
};
// e2m1_word of four pairs that OddPairs made; the tensor cores unpack them. Signs are those of the
// pairs: zeros have lost theirs.
template <bool kPromotes>
__device__ inline uint32_t e2m1_of_pairs(const uint32_t* w, const TensorUnpack& unpack, float by,
                                         bool high_first, uint32_t promotion) {
  const auto bytes = [&](uint32_t a0, uint32_t a1) {
    float v[4];
    unpack.unpack(a0, a1, v);
    return __byte_perm(promoted<kPromotes>(truncated_pair(v[0] * by, v[1] * by), promotion),
                       promoted<kPromotes>(truncated_pair(v[2] * by, v[3] * by), promotion),
                       0x7531);
  };
  const uint32_t even = bytes(w[0], w[1]), odd = bytes(w[2], w[3]);
  const uint32_t even_signs = __byte_perm(w[0], w[1], 0x7531);
  const uint32_t odd_signs = __byte_perm(w[2], w[3], 0x7531);
  // The even ones' in upper nibbles.
  const uint32_t low = ((odd + 0x01010101u) >> 1 & 0x07070707u) | (odd_signs >> 4 & ~0x07070707u);
  const uint32_t high = ((even * 8 + 0x08080808u) & 0x70707070u) | (even_signs & ~0x70707070u);
  const uint32_t word = (low & 0x0F0F0F0Fu) | (high & 0xF0F0F0F0u);
  return high_first ? word : swap_all_nibbles(word);
}
// A block of a row whose values are all finite.
__device__ inline uint3 finite_nvfp4(const OddPairs& pairs, const TensorUnpack& unpack,
                                     const Nvfp4Scale& global, bool high_first) {
  const uint32_t amax = pairs.amax();
  const uint32_t code = global.quickly(amax);
  const float s = __uint_as_float(code << 20) * 0x1p120f;
  const uint32_t place = E2m1Moves::place(s);
  const int move = global.moves.at(place);
  const uint32_t promotion = global.moves.promotes(place) ? kPromotion : 0;
  const float by = E2m1Moves::moved(short_reciprocal(s * global.g), move) * 0x1p-14f;
  uint3 done;
  if (global.moves.promoted == 0) {
    done.x = e2m1_of_pairs<false>(pairs.w, unpack, by, high_first, 0);
    done.y = e2m1_of_pairs<false>(pairs.w + 4, unpack, by, high_first, 0);
  } else {
    done.x = e2m1_of_pairs<true>(pairs.w, unpack, by, high_first, promotion);
    done.y = e2m1_of_pairs<true>(pairs.w + 4, unpack, by, high_first, promotion);
  }
  done.z = code;
  if (!global.is_plain(amax) || code == 0 || !(__uint_as_float(amax) * by < 6.75f * 0x1p-14f) ||
      move == E2m1Moves::kUndecided) {
    return rare_nvfp4<Bf16>({pairs.unit(0)}, {pairs.unit(1)}, amax, global.g, global.reciprocal,
                            global.plain, high_first);
  }
  return done;
}
// A row's blocks one after another, out of shared memory, in a loop that is not unrolled; as soon
// as a step has been read, the same of the next row is asked for (`next`, if there is one).
template <class T, class Values>
__device__ inline void put_nvfp4_of(const PersistentNorm& p, const PersistentSubgroup& subgroup,
                                    const Values& values, char* out, const char* next,
                                    int row_index, int rows, const Nvfp4Scale& global,
                                    const TensorUnpack& unpack) {
  const RowQuantizer& o = p.codes;
  const auto& at = values.row.at;
  const BlockPlace place(o, row_index, at.first, 5, Nvfp4Output::kRuns);
  char* q = place.q;
  uint8_t* scale = place.scales;
  uint32_t from = at.get, to = at.put;
  const char* coming = next + at.offset;
  int pieces = next == nullptr ? 0 : at.pieces;
#pragma unroll 1
  for (int s = 0; s < at.count; ++s) {
    uint4 x[2] = {load_shared(from), load_shared(from ^ kPieceBytes)};
    __syncwarp();
    if (pieces > 0) copy_piece(to, coming);
    if (pieces > 32) copy_piece(to + 512, coming + 512);
    const bool has = at.has(s);
    if (values.plain) {
      float v[kRun];
      values.values_of(x, s, v);
      const OddPairs pairs(v);
      const uint3 done = finite_nvfp4(pairs, unpack, global, o.high_first);
      if (has) {
        store_plain(q, make_uint2(done.x, done.y));
        store_plain(scale, static_cast<uint8_t>(done.z));
        if (out != nullptr) {
          char* rounded = out + static_cast<int64_t>(at.first + s * 32) * (kRun * 2);
          store_plain(rounded, pairs.unit(0));
          store_plain(rounded + kPieceBytes, pairs.unit(1));
        }
      }
    } else {
      values.round_pieces(out, s, x);
      if (has) {
        const auto low = unit_of<T>(x, 0), high = unit_of<T>(x, 1);
        const uint3 done =
            nvfp4_block<T>(low, high, largest_of<T>(low, high), global, o.high_first);
        store_plain(q, make_uint2(done.x, done.y));
        store_plain(scale, static_cast<uint8_t>(done.z));
      }
    }
    from += Values::Map::kStepBytes;
    to += Values::Map::kStepBytes;
    coming += Values::Map::kStepBytes;
    pieces -= 64;
    q += 32 * kUnit;
    scale += place.scale_step;
  }
  commit_copies();
  o.clear_padding(row_index, rows,
                  subgroup.rank * subgroup.warps * 32 + subgroup.warp * 32 + subgroup.lane,
                  subgroup.cluster * subgroup.warps * 32);
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
__device__ inline void put_rotated_of(const PersistentNorm& p, PersistentSubgroup& subgroup,
                                      PersistentReductions& joins, const Values& values, char* out,
                                      int row_index, float4* exchange) {
  const RowQuantizer& o = p.codes;
  auto& row = values.row;
  if (row.at.count == 0) {
    if (o.given == nullptr) subgroup.largest(joins, 0);
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
    largest = subgroup.largest(joins, largest);
    scale = Int8Code::scale(largest);
    if (subgroup.leads()) o.scale_out[row_index] = scale;
  }
  const auto by_norm = static_cast<float>(o.hadamard) * norm;  // 1 / norm
  const Divider by = Divider::by(scale * by_norm);
  const bool is_short = by.is_short(__uint_as_float(largest) * by_norm);
  const int lane = subgroup.lane;
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
