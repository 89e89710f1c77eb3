#include "files/piece_hash.h"

#include <bit>
#include <cstring>

namespace pestle::files {
namespace {

constexpr size_t kLanes = 4;
constexpr uint64_t kOdd[kLanes] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u,
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

// Folds 16 bytes in. The rotated state is kept beside the product, which zeros could wipe out.
uint64_t absorb(uint64_t state, const std::byte* data, uint64_t odd) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(word_at(data) ^ odd) * (word_at(data + 8) ^ state);
  return std::rotl(state, 23) ^ static_cast<uint64_t>(product) ^
         static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t piece_hash(int field, uint64_t offset, std::span<const std::byte> data) {
  constexpr size_t kStep = 16 * kLanes;
  uint64_t lanes[kLanes] = {mix(offset + 1), mix(static_cast<uint64_t>(field) + 2),
                            mix(data.size() + 3), kOdd[3]};
  size_t at = 0;
  for (; at + kStep <= data.size(); at += kStep) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = absorb(lanes[lane], data.data() + at + lane * 16, kOdd[lane]);
    }
  }
  std::byte tail[kStep] = {};
  if (at < data.size()) std::memcpy(tail, data.data() + at, data.size() - at);
  uint64_t hash = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    hash = mix(hash ^ absorb(lanes[lane], tail + lane * 16, kOdd[lane]));
  }
  return hash;
}

}  // namespace pestle::files
