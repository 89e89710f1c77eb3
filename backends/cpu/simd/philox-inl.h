// Random bits of consecutive elements (formats/philox.h), many blocks at once.
#if defined(PESTLE_SIMD_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_PHILOX_INL_H_
#undef PESTLE_SIMD_PHILOX_INL_H_
#else
#define PESTLE_SIMD_PHILOX_INL_H_
#endif

#include "backends/cpu/simd/convert-inl.h"
#include "formats/philox.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX2
// Both halves of the 64-bit products of all lanes with a constant.
HWY_INLINE void multiply_wide(VU a, uint32_t factor, VU& high, VU& low) {
  const hn::Repartition<uint64_t, DU> d64;
  const VU f = hn::Set(DU(), factor);
  const auto even = hn::MulEven(a, f);
  const auto odd = hn::MulEven(hn::BitCast(DU(), hn::ShiftRight<32>(hn::BitCast(d64, a))), f);
  low = hn::OddEven(hn::BitCast(DU(), hn::ShiftLeft<32>(odd)), hn::BitCast(DU(), even));
  high = hn::OddEven(hn::BitCast(DU(), odd), hn::BitCast(DU(), hn::ShiftRight<32>(even)));
}

// kN blocks whose counters share their upper word: 8 * kN values of 16 bits.
HWY_INLINE void philox_blocks(uint64_t seed, uint64_t block, uint16_t* bits) {
  VU c0 = hn::Iota(DU(), static_cast<uint32_t>(block));
  VU c1 = hn::Set(DU(), static_cast<uint32_t>(block >> 32));
  VU c2 = hn::Zero(DU());
  VU c3 = hn::Zero(DU());
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    VU high0, low0, high1, low1;
    multiply_wide(c0, 0xD2511F53u, high0, low0);
    multiply_wide(c2, 0xCD9E8D57u, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(DU(), key0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(DU(), key1));
    c1 = low1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  // Little-endian words are the elements' halves in order.
  hn::StoreInterleaved4(c0, c1, c2, c3, DU(), reinterpret_cast<uint32_t*>(bits));
}
#endif

// Elements that fill_random serves at a time, and the room it needs for them and a block more.
inline constexpr int64_t kRandomChunk = 512;
struct RandomBits {
  HWY_ALIGN uint16_t bits[kRandomChunk + 2 * formats::kPhiloxElements * kN + kBlock];
};

// The 16 bits of elements first .. first + count - 1, count <= kRandomChunk. What lies beyond is
// defined but meaningless.
inline const uint16_t* fill_random(uint64_t seed, uint64_t first, int64_t count,
                                   RandomBits& random) {
  constexpr uint64_t kPer = formats::kPhiloxElements;
  const uint64_t skip = first % kPer;
  uint64_t block = first / kPer;
  const uint64_t end = (first + static_cast<uint64_t>(count) + kPer - 1) / kPer;
  uint16_t* out = random.bits;
  while (block < end) {
#if HWY_TARGET <= HWY_AVX2
    if (static_cast<uint32_t>(block) <= ~uint32_t{0} - kN) {
      philox_blocks(seed, block, out);
      block += kN;
      out += kPer * kN;
      continue;
    }
#endif
    const formats::PhiloxWords words = formats::philox_block(seed, block);
    for (int lane = 0; lane < formats::kPhiloxElements; ++lane) {
      *out++ = formats::philox_lane(words, lane);
    }
    ++block;
  }
  std::memset(out, 0, kBlock * sizeof(uint16_t));
  return random.bits + skip;
}

HWY_INLINE VU load_random(const uint16_t* bits) {
  return hn::PromoteTo(DU(), hn::LoadU(D16(), bits));
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_PHILOX_INL_H_
