// repack_int4 on CUDA.
// Map      turned  between words along k and awq's along n: a thread block 512 rows by 256 columns,
//                  a thread 16 bytes of 8 rows, which it turns 8 x 8 codes at a time
//          copied  between words along k and gptq's: a transposition of 4-byte words
//                  (ops/copy/strided_copy.cu)
//          tiles   other pairs and odd sizes: 64 rows n by 256 columns k, through shared memory as
//                  words of 8 codes along k
//          any     a thread a word of the output, code by code, any strides
// Traffic  q once, out once.
// Measured H200, 32768 x 32768, share of the copy: to awq 92 % (274 us), from awq 89 % (284 us; 16
//          tiles down, not 64), to gptq 92 % (274 us); all by `tiles`: 53, 69 and 53 %.
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/shared_memory.h"
#include "backends/cuda/host/tensor_amax.h"
#include "ops/copy/strided_copy_cuda.h"
#include "ops/quant/int4/repack_int4/repack_int4_spec.h"

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

// ---- turned: between words along k and awq's words along n ----

constexpr int kTurnGroups = 64;  // of 8 rows of the input, in a tile: 256 bytes of a row of out
constexpr uint32_t kTurnsDown = 64;

// in: rows of codes, eight neighbours a word; out: the same codes by columns.
struct TurnJob {
  const char* in;
  char* out;
  int64_t in_row_bytes;
  int64_t out_row_bytes;
  uint32_t rows;
  uint32_t columns;
  uint32_t flip;
  uint32_t tiles_down;
  FastDivisor group_tiles;  // of kTurnsDown rows of tiles
};

__device__ constexpr int place_of(bool awq, int c) { return awq ? awq_place(c) : c; }

__device__ uint4 turn_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
  return make_uint4(__byte_perm(ab, cd, 0x5410), __byte_perm(ab, cd, 0x7632),
                    __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632));
}

// Nibble c of word r to nibble r of word c, half an instruction a code.
__device__ void turn_nibbles(uint32_t (&w)[8]) {
  constexpr uint32_t kEven = 0x0F0F0F0Fu;
  uint32_t even[4], odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    even[i] = (w[2 * i] & kEven) | (w[2 * i + 1] << 4 & ~kEven);
    odd[i] = (w[2 * i] >> 4 & kEven) | (w[2 * i + 1] & ~kEven);
  }
  const uint4 low = turn_bytes(even[0], even[1], even[2], even[3]);
  const uint4 high = turn_bytes(odd[0], odd[1], odd[2], odd[3]);
  w[0] = low.x, w[2] = low.y, w[4] = low.z, w[6] = low.w;
  w[1] = high.x, w[3] = high.y, w[5] = high.z, w[7] = high.w;
}

// A tile of 8 * kTurnGroups rows by 256 columns. A thread reads 16 bytes of each of 8 rows and
// turns four squares; by way of shared memory they leave 16 bytes a lane, too. A word of row c of
// out lies at its place ^ 4 * (c / 32), so that neither the writers nor the readers share banks.
template <bool kAwqIn, bool kAwqOut>
__global__ void __launch_bounds__(8 * kTurnGroups) turned_kernel(const TurnJob job) {
  extern __shared__ __align__(16) uint32_t turned[];
  const uint32_t group = job.group_tiles.divide(blockIdx.x);
  const uint32_t in_group = blockIdx.x - group * job.group_tiles.divisor;
  const uint32_t down = min(kTurnsDown, job.tiles_down - group * kTurnsDown);
  const uint32_t first_row = (group * kTurnsDown + in_group % down) * (8 * kTurnGroups);
  const uint32_t first_column = in_group / down * 256;

  const uint32_t chunk = threadIdx.x % 8, rows = threadIdx.x / 8;
  const uint32_t row = first_row + rows * 8;
  if (row < job.rows && first_column + chunk * 32 < job.columns) {
    const char* p = job.in + row * job.in_row_bytes + (first_column / 2 + chunk * 16);
    uint4 in[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) in[place_of(kAwqOut, i)] = load16(p + i * job.in_row_bytes);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t w[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        w[i] = (s == 0 ? in[i].x : s == 1 ? in[i].y : s == 2 ? in[i].z : in[i].w) ^ job.flip;
      }
      turn_nibbles(w);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        turned[(chunk * 32 + s * 8 + c) * kTurnGroups + (rows ^ 4 * chunk)] =
            w[place_of(kAwqIn, c)];
      }
    }
  }
  __syncthreads();
  constexpr uint32_t kUnits = kTurnGroups / 4;  // of 16 bytes, of a row of the tile
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t index = i * (8 * kTurnGroups) + threadIdx.x;
    const uint32_t c = index / kUnits, unit = index % kUnits;
    if (first_column + c >= job.columns || first_row + unit * 32 >= job.rows) continue;
    const uint4 v = reinterpret_cast<const uint4*>(turned)[c * kUnits + (unit ^ c / 32)];
    char* to = job.out + (first_column + c) * job.out_row_bytes + (first_row / 2 + unit * 16);
    *reinterpret_cast<uint4*>(to) = v;
  }
}

// A packed matrix of any strides: PackedView of ops/quant/int4/int4_packings.h on the device.
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

bool along_k(Int4Packing packing) {
  return packing != Int4Packing::kGptq && packing != Int4Packing::kAwq;
}

// The words of 8 codes along k, one row a row of the weight. Not for awq.
TensorView words_of(const TensorView& q, Int4Packing packing, const Size& size) {
  TensorView words = q;
  words.dtype = DType::kI32;
  words.rank = 2;
  words.shape[0] = size.n;
  words.shape[1] = size.k / 8;
  const bool along_n = packing == Int4Packing::kGptq;
  words.strides[0] = along_n ? 1 : words.shape[1];
  words.strides[1] = along_n ? words.shape[0] : 1;
  return words;
}

bool turns(const Call& call, const Size& size) {
  const Int4Packing from = packing_of(call, kFrom), to = packing_of(call, kTo);
  const bool awq =
      (along_k(from) && to == Int4Packing::kAwq) || (from == Int4Packing::kAwq && along_k(to));
  const auto addresses = reinterpret_cast<uintptr_t>(call.tensor(kQ).data) |
                         reinterpret_cast<uintptr_t>(call.tensor(kOut).data);
  return awq && size.n % 32 == 0 && size.k % 32 == 0 && addresses % 16 == 0 &&
         std::max(size.n, size.k) < INT_MAX - 1024;
}

template <bool kAwqIn>
Status run_turned(const Call& call, const Size& size) {
  TurnJob job{};
  job.in = call.tensor(kQ).as<char>();
  job.out = call.tensor(kOut).as<char>();
  job.rows = static_cast<uint32_t>(kAwqIn ? size.k : size.n);
  job.columns = static_cast<uint32_t>(kAwqIn ? size.n : size.k);
  job.in_row_bytes = job.columns / 2;
  job.out_row_bytes = job.rows / 2;
  job.flip = flip_of(call) * 0x11111111u;
  job.tiles_down = static_cast<uint32_t>(ceil_div(job.rows, 8 * kTurnGroups));
  const int64_t across = ceil_div(job.columns, 256);
  job.group_tiles = FastDivisor(static_cast<uint32_t>(kTurnsDown * across));
  const Grid grid{job.tiles_down * across, 8 * kTurnGroups, kTurnGroups * 1024};
  const auto kernel = turned_kernel<kAwqIn, !kAwqIn>;
  PESTLE_TRY(allow_shared(call, kernel, static_cast<int>(grid.shared_bytes)));
  return launch(call, spec.name, grid, kernel, job);
}

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const Int4Packing from = packing_of(call, kFrom), to = packing_of(call, kTo);
  const Size size = weight_size(q, from);
  if (turns(call, size)) {
    return from == Int4Packing::kAwq ? run_turned<true>(call, size) : run_turned<false>(call, size);
  }
  const uint32_t flip = flip_of(call) * 0x11111111u;
  if (from != Int4Packing::kAwq && to != Int4Packing::kAwq) {
    const CopyPlan plan(words_of(q, from, size), words_of(call.tensor(kOut), to, size));
    if (plan.crossing() >= 0 && refuse_fast_copy(plan).empty()) {
      return fast_flipped_copy(call, spec.name, plan, flip);
    }
  }
  const int64_t across = ceil_div(size.k / 8, kTileWords);
  return launch(call, spec.name, {ceil_div(size.n, kTileRows) * across, kThreads}, tiles_kernel,
                Job{q.as<uint32_t>(), from}, Job{call.tensor(kOut).as<uint32_t>(), to}, size.n,
                size.k, flip, across);
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
