// repack_int4 on the CPU: through words of eight codes along K (KAIO's), which are GPTQ's
// transposed and AWQ's after an 8 x 8 transposition of nibbles. Tiles keep both sides in whole
// cache lines.
#include <cstring>

#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "ops/quant/int4/repack_int4/repack_int4_spec.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::repack_int4 {
namespace {

using formats::Int4Packing;

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");
constexpr int kFrom = arg_index(spec, "from_packing");
constexpr int kTo = arg_index(spec, "to_packing");

constexpr int64_t kTileRows = 128;  // of N: 16 words of AWQ, a cache line
constexpr int64_t kTileWords = 16;  // of K: 128 columns

// Codes of a tile as words along K: word[n][k / 8], nibble k % 8.
struct Tile {
  uint32_t word[kTileRows][kTileWords];
};

struct Packed {
  Int4Packing packing;
  char* data;
  int64_t row;  // bytes between rows of the packed array

  char* at(int64_t i, int64_t j, int64_t bytes) const { return data + i * row + j * bytes; }
};

struct Span {
  int64_t n;
  int64_t rows;     // of N
  int64_t k;        // first column
  int64_t columns;  // a last word along K may be partly filled
  int64_t words() const { return (columns + 7) / 8; }
};

// The nibbles of an 8 x 8 block, transposed: word i nibble j <-> word j nibble i.
void transpose_nibbles(uint32_t w[8]) {
  const auto exchange = [&](int distance, uint32_t mask) {
    for (int i = 0; i < 8; ++i) {
      if (i & distance) continue;
      const int shift = 4 * distance;
      const uint32_t differ = ((w[i] >> shift) ^ w[i + distance]) & mask;
      w[i + distance] ^= differ;
      w[i] ^= differ << shift;
    }
  };
  exchange(4, 0x0000FFFFu);
  exchange(2, 0x00FF00FFu);
  exchange(1, 0x0F0F0F0Fu);
}

// Nibbles in the order of columns to AWQ's places 0 2 4 6 1 3 5 7, and back.
uint32_t to_awq(uint32_t w) {
  uint32_t out = 0;
  for (int c = 0; c < 8; ++c) {
    out |= (w >> (4 * c) & 15u) << (4 * formats::awq_nibble(c));
  }
  return out;
}
uint32_t from_awq(uint32_t w) {
  uint32_t out = 0;
  for (int c = 0; c < 8; ++c) {
    out |= (w >> (4 * formats::awq_nibble(c)) & 15u) << (4 * c);
  }
  return out;
}

void load_awq(const Packed& q, const Span& span, Tile& tile) {
  for (int64_t b = 0; b < span.rows / 8; ++b) {
    for (int64_t j = 0; j < span.words(); ++j) {
      uint32_t w[8] = {};
      for (int64_t i = 0; i < 8 && j * 8 + i < span.columns; ++i) {
        w[i] = from_awq(load<uint32_t>(q.at(span.k + j * 8 + i, span.n / 8 + b, 4)));
      }
      transpose_nibbles(w);
      for (int64_t i = 0; i < 8; ++i) tile.word[b * 8 + i][j] = w[i];
    }
  }
}

void store_awq(const Packed& q, const Span& span, uint32_t flip, const Tile& tile) {
  for (int64_t b = 0; b < span.rows / 8; ++b) {
    for (int64_t j = 0; j < span.words(); ++j) {
      uint32_t w[8];
      for (int64_t i = 0; i < 8; ++i) w[i] = tile.word[b * 8 + i][j] ^ flip;
      transpose_nibbles(w);
      for (int64_t i = 0; i < 8 && j * 8 + i < span.columns; ++i) {
        store(q.at(span.k + j * 8 + i, span.n / 8 + b, 4), to_awq(w[i]));
      }
    }
  }
}

void load_tile(const Packed& q, const Span& span, Tile& tile) {
  if (q.packing == Int4Packing::kAwq) return load_awq(q, span, tile);
  if (q.packing == Int4Packing::kGptq) {
    for (int64_t j = 0; j < span.words(); ++j) {
      for (int64_t i = 0; i < span.rows; ++i) {
        tile.word[i][j] = load<uint32_t>(q.at(span.k / 8 + j, span.n + i, 4));
      }
    }
    return;
  }
  for (int64_t i = 0; i < span.rows; ++i) {
    std::memcpy(tile.word[i], q.at(span.n + i, span.k / 2, 1),
                static_cast<size_t>(span.columns) / 2);
  }
}

void store_tile(const Packed& q, const Span& span, uint32_t flip, const Tile& tile) {
  if (q.packing == Int4Packing::kAwq) return store_awq(q, span, flip, tile);
  if (q.packing == Int4Packing::kGptq) {
    for (int64_t j = 0; j < span.words(); ++j) {
      for (int64_t i = 0; i < span.rows; ++i) {
        store(q.at(span.k / 8 + j, span.n + i, 4), tile.word[i][j] ^ flip);
      }
    }
    return;
  }
  for (int64_t i = 0; i < span.rows; ++i) {
    uint32_t line[kTileWords];
    for (int64_t j = 0; j < span.words(); ++j) line[j] = tile.word[i][j] ^ flip;
    std::memcpy(q.at(span.n + i, span.k / 2, 1), line, static_cast<size_t>(span.columns) / 2);
  }
}

struct Size {
  int64_t n;
  int64_t k;
};
Size weight_size(const TensorView& q, Int4Packing packing) {
  switch (packing) {
    case Int4Packing::kKaio: return {q.shape[0], q.shape[1] * 8};
    case Int4Packing::kGptq: return {q.shape[1], q.shape[0] * 8};
    case Int4Packing::kAwq: return {q.shape[1] * 8, q.shape[0]};
    default: return {q.shape[0], q.shape[1] * 2};
  }
}

Packed packed(const TensorView& t, int64_t packing) {
  return {static_cast<Int4Packing>(packing), t.as<char>(), t.strides[0] * dtype_bytes(t.dtype)};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kQ, kOut});
}

Status run(const Call& call) {
  const Packed from = packed(call.tensor(kQ), call.integer(kFrom));
  const Packed to = packed(call.tensor(kOut), call.integer(kTo));
  const Size size = weight_size(call.tensor(kQ), from.packing);
  const bool moves =
      formats::packing_is_signed(from.packing) != formats::packing_is_signed(to.packing);
  const uint32_t flip = moves ? 0x88888888u : 0;
  const int64_t tiles_n = (size.n + kTileRows - 1) / kTileRows;
  const int64_t tiles_k = (size.k + kTileWords * 8 - 1) / (kTileWords * 8);
  cpu::parallel_for(tiles_n * tiles_k, 8, [&](int64_t begin, int64_t end) {
    Tile tile = {};
    for (int64_t t = begin; t < end; ++t) {
      const int64_t n = t / tiles_k * kTileRows;
      const int64_t k = t % tiles_k * kTileWords * 8;
      const Span span{n, std::min(kTileRows, size.n - n), k, std::min(kTileWords * 8, size.k - k)};
      load_tile(from, span, tile);
      store_tile(to, span, flip, tile);
    }
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/repack_int4_tiles", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::repack_int4
