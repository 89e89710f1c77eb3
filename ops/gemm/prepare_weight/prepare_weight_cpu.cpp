// prepare_weight on the CPU: bricks by masks and 4 x 4 transpositions of bytes in 32-bit words.
// Map      rows of bricks over the threads, and what follows them
// Traffic  the weight once, out once; a brick is 32 bytes of each of 64 rows
// Numerics none: codes move
// Needs    both tensors without gaps
#include <cstring>

#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "formats/prepared.h"
#include "ops/gemm/prepare_weight/prepare_weight_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::prepare_weight {
namespace {

using formats::kBrickBytes;
using formats::kBrickRowBytes;
using formats::kBrickRows;

constexpr uint32_t kLow = 0x0F0F0F0Fu;

// Byte j of word i <-> byte i of word j.
void transpose_bytes(uint32_t w[4]) {
  const auto exchange = [&](int i, int j, int shift, uint32_t mask) {
    const uint32_t differ = ((w[i] >> shift) ^ w[j]) & mask;
    w[j] ^= differ;
    w[i] ^= differ << shift;
  };
  exchange(0, 2, 16, 0x0000FFFFu);
  exchange(1, 3, 16, 0x0000FFFFu);
  exchange(0, 1, 8, 0x00FF00FFu);
  exchange(2, 3, 8, 0x00FF00FFu);
}

uint32_t swap_nibbles(uint32_t w) { return (w >> 4 & kLow) | (w & kLow) << 4; }

// Rows r and r + 8 of a brick and 8 bytes of each are 4 threads' words of one step. `of_rows`: the
// bytes of row r (0 and 4), of row r + 8 (0 and 4); `words`: of the threads.
void words_of_rows(const uint32_t of_rows[4], uint32_t words[4]) {
  const uint32_t a0 = of_rows[0], a1 = of_rows[1], b0 = of_rows[2], b1 = of_rows[3];
  words[0] = (a0 & kLow) | (b0 & kLow) << 4;
  words[1] = (a1 & kLow) | (b1 & kLow) << 4;
  words[2] = (a0 >> 4 & kLow) | (b0 & ~kLow);
  words[3] = (a1 >> 4 & kLow) | (b1 & ~kLow);
  transpose_bytes(words);
}
void rows_of_words(uint32_t words[4], uint32_t of_rows[4]) {
  transpose_bytes(words);
  of_rows[0] = (words[0] & kLow) | (words[2] & kLow) << 4;
  of_rows[1] = (words[1] & kLow) | (words[3] & kLow) << 4;
  of_rows[2] = (words[0] >> 4 & kLow) | (words[2] & ~kLow);
  of_rows[3] = (words[1] >> 4 & kLow) | (words[3] & ~kLow);
}

struct Job {
  char* file;
  char* prepared;
  int64_t rows, row_bytes;
  bool restore, high_first;
};

// `file`: the brick's first byte; `at`: the brick.
void nibble_brick(const Job& job, char* file, char* at) {
  for (int64_t pair = 0; pair < kBrickRows / 2; ++pair) {
    const int64_t r = pair / 8 * 16 + pair % 8;
    char* of_thread = at + pair * 64;  // threads 4 * pair and the next three
    for (int64_t step = 0; step < 4; ++step) {
      uint32_t rows[4], words[4];
      char* places[4];
      for (int i = 0; i < 4; ++i)
        places[i] = file + (r + i / 2 * 8) * job.row_bytes + step * 8 + i % 2 * 4;
      if (job.restore) {
        for (int t = 0; t < 4; ++t) words[t] = load<uint32_t>(of_thread + t * 16 + step * 4);
        rows_of_words(words, rows);
        for (int i = 0; i < 4; ++i)
          store(places[i], job.high_first ? swap_nibbles(rows[i]) : rows[i]);
      } else {
        for (int i = 0; i < 4; ++i) {
          rows[i] = load<uint32_t>(places[i]);
          if (job.high_first) rows[i] = swap_nibbles(rows[i]);
        }
        words_of_rows(rows, words);
        for (int t = 0; t < 4; ++t) store(of_thread + t * 16 + step * 4, words[t]);
      }
    }
  }
}

// The same of bytes: a thread's word has two of row r and two of row r + 8, in turns.
void byte_brick(const Job& job, char* file, char* at) {
  for (int64_t pair = 0; pair < kBrickRows / 2; ++pair) {
    char* first = file + (pair / 8 * 16 + pair % 8) * job.row_bytes;
    char* second = first + 8 * job.row_bytes;
    for (int64_t word = 0; word < 16; ++word) {  // of 4 threads: steps, halves of 8 columns
      const int64_t thread = word % 4, column = word / 4 * 8 + thread * 2;
      char* w = at + (pair * 4 + thread) * 16 + word / 4 * 4;
      if (job.restore) {
        first[column] = w[0], second[column] = w[1];
        first[column + 1] = w[2], second[column + 1] = w[3];
      } else {
        w[0] = first[column], w[1] = second[column];
        w[2] = first[column + 1], w[3] = second[column + 1];
      }
    }
  }
}

void copy(const Job& job, char* file, char* prepared, int64_t bytes) {
  std::memcpy(job.restore ? file : prepared, job.restore ? prepared : file,
              static_cast<size_t>(bytes));
}

template <class Brick>
void run_bricks(const Job& job, const Brick& brick) {
  const int64_t whole = job.rows / kBrickRows, across = job.row_bytes / kBrickRowBytes;
  const int64_t tail = job.row_bytes % kBrickRowBytes;
  cpu::parallel_for(whole, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* file = job.file + row * kBrickRows * job.row_bytes;
      char* prepared = job.prepared + row * kBrickRows * job.row_bytes;
      for (int64_t b = 0; b < across; ++b)
        brick(job, file + b * kBrickRowBytes, prepared + b * kBrickBytes);
      for (int64_t r = 0; tail > 0 && r < kBrickRows; ++r)
        copy(job, file + r * job.row_bytes + across * kBrickRowBytes,
             prepared + across * kBrickBytes + r * tail, tail);
    }
  });
  const int64_t done = whole * kBrickRows * job.row_bytes;
  if (const int64_t rest = job.rows * job.row_bytes - done; rest > 0)
    copy(job, job.file + done, job.prepared + done, rest);
}

std::string refuses(const Call& call, const Machine&) {
  for (const int place : {kWeight, kOut})
    if (!is_contiguous(call.tensor(place)))
      return std::string(spec.args[static_cast<size_t>(place)].name) + " has gaps; copy it first";
  return "";
}

Status run(const Call& call) {
  const TensorView &weight = call.tensor(kWeight), &out = call.tensor(kOut);
  const bool restore = call.integer(kDirection) != 0;
  const Job job{(restore ? out : weight).as<char>(),
                (restore ? weight : out).as<char>(),
                weight.shape[0],
                weight.shape[1],
                restore,
                call.integer(kNibbles) != 0};
  if (weight.dtype == DType::kU8)
    run_bricks(job, nibble_brick);
  else
    run_bricks(job, byte_brick);
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/prepare_weight_bricks", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::prepare_weight
