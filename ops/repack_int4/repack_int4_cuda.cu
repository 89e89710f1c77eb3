// repack_int4 on CUDA.
// Map      tiles  a thread block turns 64 rows n by 256 columns k, through shared memory as words
// of
//                 8 codes along k (kaio's order), which plain and gptq have too; awq's words along
//                 n are turned by a thread, 8 words at once
//          any    a thread a word of the output, code by code, any strides
// Traffic  q once, out once.
// Measured H200, 32768 x 32768: from awq 366 us (2.9 TB/s, 69 % of copy), to awq 474, to gptq 469
//          (2.3 TB/s, 53 %).
#include "backends/cuda/device/any_tensor.cuh"
#include "backends/cuda/device/elements.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tensor_amax.h"
#include "ops/repack_int4/repack_int4_spec.h"

namespace pestle::ops::repack_int4 {
namespace {

using namespace pestle::cuda;
using formats::Int4Packing;

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");
constexpr int kFrom = arg_index(spec, "from_packing");
constexpr int kTo = arg_index(spec, "to_packing");

constexpr int kThreads = 256;
constexpr int kTileRows = 64;   // n
constexpr int kTileWords = 32;  // of 8 codes along k

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

struct Job {
  uint32_t* words;
  Int4Packing packing;
};
struct Place {
  int64_t n, k;  // of a weight
  int64_t n0, word0;
};

// One tile in shared memory: word `w` of row `n` at n * (kTileWords + 1) + w.
__device__ int tile_at(int n, int w) { return n * (kTileWords + 1) + w; }

// Codes j = 0..7 of word i to code i of word j; `place(j)` is where code j goes in a word.
template <class From, class To>
__device__ void turn(const uint32_t (&in)[8], uint32_t (&out)[8], From&& from, To&& to) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    out[i] = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) out[i] |= (in[j] >> (4 * from(i)) & 0xFu) << (4 * to(j));
  }
}
__device__ constexpr int awq_place(int c) { return c % 2 * 4 + c / 2; }
__device__ constexpr int in_order(int c) { return c; }

// Calls move(word of the tensor, tile index) for every word of the tile that exists, but for awq.
template <class Move>
__device__ void each_word(const Job& job, const Place& p, Move&& move) {
  const int64_t row_words = p.k / 8;
  const bool along_n = job.packing == Int4Packing::kGptq;
#pragma unroll
  for (int i = 0; i < kTileRows * kTileWords / kThreads; ++i) {
    const int index = threadIdx.x + i * kThreads;
    const int n = along_n ? index % kTileRows : index / kTileWords;
    const int w = along_n ? index / kTileRows : index % kTileWords;
    if (p.n0 + n >= p.n || p.word0 + w >= row_words) continue;
    uint32_t* word = job.words + (along_n ? (p.word0 + w) * p.n + p.n0 + n
                                          : (p.n0 + n) * row_words + p.word0 + w);
    move(word, tile_at(n, w));
  }
}
// The same of awq: move(first of 8 words, a row of the tensor apart; tile index of the first of 8
// rows).
template <class Move>
__device__ void each_square(const Job& job, const Place& p, Move&& move) {
  const int group = threadIdx.x % (kTileRows / 8);
  const int w = threadIdx.x / (kTileRows / 8);
  if (p.n0 + group * 8 >= p.n || p.word0 + w >= p.k / 8) return;
  move(job.words + (p.word0 + w) * 8 * (p.n / 8) + p.n0 / 8 + group, tile_at(group * 8, w));
}

__global__ void __launch_bounds__(kThreads)
    tiles_kernel(Job from, Job to, int64_t n, int64_t k, uint32_t flip, int64_t across) {
  __shared__ uint32_t tile[kTileRows * (kTileWords + 1)];
  const Place p{n, k, blockIdx.x / across * kTileRows, blockIdx.x % across * kTileWords};
  if (from.packing == Int4Packing::kAwq) {
    each_square(from, p, [&](const uint32_t* words, int index) {
      uint32_t in[8];
      uint32_t out[8];
      for (int i = 0; i < 8; ++i) in[i] = __ldg(words + i * (n / 8));
      turn(in, out, awq_place, in_order);
      for (int i = 0; i < 8; ++i) tile[index + i * (kTileWords + 1)] = out[i];
    });
  } else {
    each_word(from, p, [&](const uint32_t* word, int index) { tile[index] = __ldg(word); });
  }
  __syncthreads();
  if (to.packing == Int4Packing::kAwq) {
    each_square(to, p, [&](uint32_t* words, int index) {
      uint32_t in[8];
      uint32_t out[8];
      for (int i = 0; i < 8; ++i) in[i] = tile[index + i * (kTileWords + 1)] ^ flip;
      turn(in, out, in_order, awq_place);
      for (int i = 0; i < 8; ++i) words[i * (n / 8)] = out[i];
    });
  } else {
    each_word(to, p, [&](uint32_t* word, int index) { *word = tile[index] ^ flip; });
  }
}

// A packed matrix of any strides: PackedView of ops/common/int4_packings.h on the device.
struct AnyPacked {
  AnyTensor t;
  Int4Packing packing;
  int64_t n, k;
  __device__ uint32_t load(int64_t row, int64_t column) const {
    const int64_t index = formats::packing_nibble(packing, row, column, n, k);
    const int64_t per_word = t.bytes * 2;
    const int64_t word = index / per_word, nibble = index % per_word;
    const char* p = t.at(word / t.shape[1], word % t.shape[1]) + nibble / 2;
    return static_cast<uint8_t>(*p) >> (4 * (nibble % 2)) & 0xFu;
  }
};

// A thread a word of the output: finds which codes it holds by trying the 8 along n or along k.
__global__ void __launch_bounds__(kThreads)
    any_kernel(AnyPacked q, AnyPacked out, uint32_t flip, int64_t words) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= words) return;
  const int64_t row = index / out.t.shape[1], column = index % out.t.shape[1];
  const int count = out.t.bytes * 2;
  uint32_t word = 0;
  for (int i = 0; i < count; ++i) {
    int64_t n = row, k = column * count + i;
    int place = i;
    if (out.packing == Int4Packing::kGptq) {
      n = column;
      k = row * 8 + i;
    } else if (out.packing == Int4Packing::kAwq) {
      n = column * 8 + i;
      k = row;
      place = awq_place(i);
    }
    word |= (q.load(n, k) ^ flip) << (4 * place);
  }
  AnyTensor::put(out.t.at(row, column), word, out.t.bytes);
}

Int4Packing packing_of(const Call& call, int index) {
  return static_cast<Int4Packing>(call.integer(index));
}
uint32_t flip_of(const Call& call) {
  const bool flips = formats::packing_is_signed(packing_of(call, kFrom)) !=
                     formats::packing_is_signed(packing_of(call, kTo));
  return flips ? 8 : 0;
}

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const Size size = weight_size(q, packing_of(call, kFrom));
  const int64_t across = ceil_div(size.k / 8, kTileWords);
  return launch(call, spec.name, {ceil_div(size.n, kTileRows) * across, kThreads}, tiles_kernel,
                Job{q.as<uint32_t>(), packing_of(call, kFrom)},
                Job{call.tensor(kOut).as<uint32_t>(), packing_of(call, kTo)}, size.n, size.k,
                flip_of(call) * 0x11111111u, across);
}

Status run_any(const Call& call) {
  const Size size = weight_size(call.tensor(kQ), packing_of(call, kFrom));
  const TensorView& out = call.tensor(kOut);
  return launch(call, "repack_int4_any", {ceil_div(numel(out), kThreads), kThreads}, any_kernel,
                AnyPacked{AnyTensor(call.tensor(kQ)), packing_of(call, kFrom), size.n, size.k},
                AnyPacked{AnyTensor(out), packing_of(call, kTo), size.n, size.k}, flip_of(call),
                numel(out));
}

std::string refuses(const Call& call, const Machine&) {
  const Size size = weight_size(call.tensor(kQ), packing_of(call, kFrom));
  if (size.n == 0 || size.k == 0) return "the weight is empty";
  if (size.k % 8 != 0) return "K is no multiple of 8";
  for (int index : {kQ, kOut}) {
    const TensorView& t = call.tensor(index);
    if (!is_contiguous(t) || reinterpret_cast<uintptr_t>(t.data) % 4 != 0) {
      return std::string(call.spec->args[static_cast<size_t>(index)].name) +
             " has gaps or is not aligned to 4 bytes";
    }
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cuda/repack_int4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/repack_int4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::repack_int4
