// A checksum of written pieces that does not depend on their order: lets a resumed run trust what
// an interrupted one left, also after a power cut. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pestle::files {

// Hash of one piece at its place; sums of these, modulo 2^64, are hashes of sets of pieces.
uint64_t piece_hash(int field, uint64_t offset, std::span<const std::byte> data);

}  // namespace pestle::files
