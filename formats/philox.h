// Philox4x32-10, and which of its bits belong to which element. docs/formats/stochastic.md
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace pestle::formats {

inline constexpr int kPhiloxElements = 8;  // elements served by one call, 16 bits each

struct PhiloxWords {
  uint32_t w[4];
};

PESTLE_HD inline PhiloxWords philox4x32_10(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  PhiloxWords c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c.w[0];
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c.w[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.w[1] ^ key0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.w[3] ^ key1, static_cast<uint32_t>(p0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The bits of elements 8 * block .. 8 * block + 7 (row-major index in the logical tensor).
PESTLE_HD inline PhiloxWords philox_block(uint64_t seed, uint64_t block) {
  return philox4x32_10({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}},
                       static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// The 16 bits of element 8 * block + lane: word lane / 2, its low half for an even lane.
PESTLE_HD inline uint16_t philox_lane(const PhiloxWords& words, int lane) {
  return static_cast<uint16_t>(words.w[lane >> 1] >> (16 * (lane & 1)));
}

PESTLE_HD inline uint16_t philox_u16(uint64_t seed, uint64_t element) {
  return philox_lane(philox_block(seed, element / kPhiloxElements),
                     static_cast<int>(element % kPhiloxElements));
}

}  // namespace pestle::formats
