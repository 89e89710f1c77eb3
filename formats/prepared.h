// Where the codes of a weight [N,K] lie in the prepared layout.
// docs/formats/prepared.md has the picture.
//
// Bricks of 64 rows by 32 bytes of a row (64 codes of 4 bits, 32 of 8), 2 KiB each, in the order in
// which tensor cores take an operand of 64 rows (m64k16, also mma.sync's m16n8k16): thread t of 128
// has 16 bytes at 16 t. A row of bricks is followed by what its 64 rows have beyond the last whole
// brick, row by row; rows beyond the last 64 come last, as in a file. So every weight has as many
// bytes as before.
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace pestle::formats {

inline constexpr int64_t kBrickRows = 64;
inline constexpr int64_t kBrickRowBytes = 32;
inline constexpr int64_t kBrickBytes = kBrickRows * kBrickRowBytes;

// A weight's size; `row_bytes`: K / 2 where codes have 4 bits, else K.
struct PreparedShape {
  int64_t rows, row_bytes;
  int bits;  // 4 or 8

  PESTLE_HD int64_t brick_rows() const { return rows / kBrickRows; }
  PESTLE_HD int64_t bricks_across() const { return row_bytes / kBrickRowBytes; }
  PESTLE_HD int64_t tail_bytes() const { return row_bytes % kBrickRowBytes; }
};

// Where a code is: its byte, and which half of it where codes have 4 bits. Halves outside of bricks
// are counted as the file counts its own: 0 is the even column's.
struct CodePlace {
  int64_t byte;
  int half;
};
struct CodeIndex {
  int64_t n, k;
};

// Within a brick: of row r < 64 and code c. The four rows and columns (r, c), (r + 8, c), (r, c + 8),
// (r + 8, c + 8) of 16 x 16 are pairs 0 to 3 of codes c and c + 1.
PESTLE_HD inline CodePlace brick_place(int64_t r, int64_t c, int bits) {
  const int64_t thread = r / 16 * 32 + r % 8 * 4 + c % 8 / 2;
  const int64_t pair = r % 16 / 8 + c % 16 / 8 * 2;
  const int64_t step = c / 16, odd = c % 2;
  if (bits == 4) {
    const int64_t nibble = pair + 4 * odd;  // of the step's word
    return {thread * 16 + step * 4 + nibble / 2, static_cast<int>(nibble % 2)};
  }
  return {thread * 16 + step * 8 + pair / 2 * 4 + pair % 2 + 2 * odd, 0};
}
PESTLE_HD inline CodeIndex brick_code(int64_t byte, int half, int bits) {
  const int64_t thread = byte / 16, in_thread = byte % 16;
  int64_t step, pair, odd;
  if (bits == 4) {
    const int64_t nibble = in_thread % 4 * 2 + half;
    step = in_thread / 4, pair = nibble % 4, odd = nibble / 4;
  } else {
    const int64_t place = in_thread % 4;
    step = in_thread / 8, pair = in_thread % 8 / 4 * 2 + place % 2, odd = place / 2;
  }
  return {thread / 32 * 16 + thread % 32 / 4 + pair % 2 * 8,
          step * 16 + pair / 2 * 8 + thread % 4 * 2 + odd};
}

PESTLE_HD inline CodePlace prepared_place(const PreparedShape& shape, int64_t n, int64_t k) {
  const int per_byte = 8 / shape.bits;
  const int64_t byte = k / per_byte;
  const int half = static_cast<int>(k % per_byte);
  const int64_t first = n / kBrickRows * kBrickRows;  // row of its row of bricks
  if (n / kBrickRows >= shape.brick_rows()) return {n * shape.row_bytes + byte, half};
  const int64_t begin = first * shape.row_bytes;
  const int64_t across = shape.bricks_across();
  if (byte / kBrickRowBytes >= across) {
    const int64_t tail = begin + across * kBrickBytes + (n - first) * shape.tail_bytes();
    return {tail + byte - across * kBrickRowBytes, half};
  }
  const int64_t brick = byte / kBrickRowBytes;
  CodePlace place = brick_place(n - first, k - brick * kBrickRowBytes * per_byte, shape.bits);
  place.byte += begin + brick * kBrickBytes;
  return place;
}

// The inverse.
PESTLE_HD inline CodeIndex prepared_code(const PreparedShape& shape, int64_t byte, int half) {
  const int per_byte = 8 / shape.bits;
  const int64_t first = byte / (kBrickRows * shape.row_bytes) * kBrickRows;
  const int64_t inside = byte - first * shape.row_bytes;
  const int64_t bricks = shape.bricks_across() * kBrickBytes;
  if (first / kBrickRows >= shape.brick_rows())
    return {first + inside / shape.row_bytes, inside % shape.row_bytes * per_byte + half};
  if (inside >= bricks) {
    const int64_t tail = inside - bricks;
    const int64_t column = shape.bricks_across() * kBrickRowBytes + tail % shape.tail_bytes();
    return {first + tail / shape.tail_bytes(), column * per_byte + half};
  }
  CodeIndex code = brick_code(inside % kBrickBytes, half, shape.bits);
  code.n += first;
  code.k += inside / kBrickBytes * kBrickRowBytes * per_byte;
  return code;
}

}  // namespace pestle::formats
