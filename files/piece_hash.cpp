#include "files/piece_hash.h"

#include <bit>
#include <cstring>

namespace pestle::files {
namespace {

constexpr uint64_t kOdd[4] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
                              0xD6E8FEB86659FD93u};

uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= kOdd[0];
  x ^= x >> 29;
  x *= kOdd[1];
  return x ^ (x >> 32);
}

uint64_t word_at(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

}  // namespace

uint64_t piece_hash(int field, uint64_t offset, std::span<const std::byte> data) {
  uint64_t lanes[4] = {mix(offset + 1), mix(static_cast<uint64_t>(field) + 2), mix(data.size() + 3),
                       kOdd[3]};
  size_t at = 0;
  for (; at + 32 <= data.size(); at += 32) {
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = std::rotl(lanes[lane] ^ word_at(data.data() + at + lane * 8), 27) * kOdd[lane];
    }
  }
  std::byte tail[32] = {};
  if (at < data.size()) std::memcpy(tail, data.data() + at, data.size() - at);
  uint64_t hash = 0;
  for (size_t lane = 0; lane < 4; ++lane) {
    hash = mix(hash ^ lanes[lane] ^ mix(word_at(tail + lane * 8) + lane));
  }
  return hash;
}

}  // namespace pestle::files
