// prepare_weight on CUDA.
// Map      bricks: 128 threads a brick; 16 bytes a thread between memory and shared memory on the
//          side of the file, 16 bytes a thread of the brick on the other. _any: a thread a byte of
//          out, any strides and sizes.
// Traffic  the weight once, out once.
// Numerics none: codes move
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "core/op.h"
#include "formats/prepared.h"
#include "ops/gemm/prepare_weight/prepare_weight_spec.h"

namespace pestle::ops::prepare_weight {
namespace {

using namespace pestle::cuda;
using formats::kBrickBytes;
using formats::kBrickRowBytes;
using formats::kBrickRows;

constexpr int kBrickThreads = 128;
constexpr int kStagedRow = 48;  // bytes between rows in shared memory

struct Job {
  const char* in;
  char* out;
  int64_t row_bytes;
  int64_t across;  // bricks of a row
  bool high_first;
};

__device__ uint32_t swapped(uint32_t byte) { return (byte >> 4 | byte << 4) & 0xFFu; }

// The bytes of a brick's rows that a thread's codes come from, four a step of 4-bit codes and
// eight a step of bytes: `move(place in shared memory, place in the thread's 16 bytes)`.
template <class Move>
__device__ void each_byte(int thread, Move&& move) {
  const int row = thread / 32 * 16 + thread % 32 / 4, j = thread % 4;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      move((row + i % 2 * 8) * kStagedRow + word * 8 + j * 2 + i / 2, word * 4 + i);
  }
}

__device__ void gather_bytes(const uint8_t* rows, uint8_t (&bytes)[16]) {
  each_byte(threadIdx.x, [&](int from, int to) { bytes[to] = rows[from]; });
}
__device__ void scatter_bytes(uint8_t* rows, const uint8_t (&bytes)[16]) {
  each_byte(threadIdx.x, [&](int to, int from) { rows[to] = bytes[from]; });
}

// A step's word of 4-bit codes: bytes of row r and r + 8, at j and at j + 4 of the step's eight.
__device__ int step_byte(int step, int i) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, j = threadIdx.x % 4;
  return (row + i / 2 * 8) * kStagedRow + step * 8 + i % 2 * 4 + j;
}
__device__ void gather_nibbles(const uint8_t* rows, bool high_first, uint8_t (&bytes)[16]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t b[4];  // (r, 0), (r, 4), (r + 8, 0), (r + 8, 4)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      b[i] = rows[step_byte(step, i)];
      if (high_first) b[i] = swapped(b[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bytes[step * 4 + i] = static_cast<uint8_t>((b[i] & 15u) | (b[i + 2] & 15u) << 4);
      bytes[step * 4 + 2 + i] = static_cast<uint8_t>(b[i] >> 4 | (b[i + 2] & 0xF0u));
    }
  }
}
__device__ void scatter_nibbles(uint8_t* rows, bool high_first, const uint8_t (&bytes)[16]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t even = bytes[step * 4 + i % 2], odd = bytes[step * 4 + 2 + i % 2];
      const int shift = i / 2 * 4;
      const uint32_t byte = (even >> shift & 15u) | (odd >> shift & 15u) << 4;
      rows[step_byte(step, i)] = static_cast<uint8_t>(high_first ? swapped(byte) : byte);
    }
  }
}

template <bool kNibble, bool kRestore>
__global__ void __launch_bounds__(kBrickThreads) bricks_kernel(const Job job) {
  __shared__ __align__(16) uint8_t rows[kBrickRows * kStagedRow];
  union {
    uint4 vector;
    uint8_t bytes[16];
  } mine;
  const int64_t brick_row = blockIdx.x / job.across, brick = blockIdx.x % job.across;
  const int row = threadIdx.x / 2, half = threadIdx.x % 2 * 16;
  const int64_t in_file =
      (brick_row * kBrickRows + row) * job.row_bytes + brick * kBrickRowBytes + half;
  const int64_t in_brick =
      static_cast<int64_t>(blockIdx.x) * kBrickBytes + static_cast<int64_t>(threadIdx.x) * 16;
  auto* staged = reinterpret_cast<uint4*>(rows + row * kStagedRow + half);
  if constexpr (!kRestore) {
    *staged = load16(job.in + in_file);
    __syncthreads();
    if constexpr (kNibble)
      gather_nibbles(rows, job.high_first, mine.bytes);
    else
      gather_bytes(rows, mine.bytes);
    *reinterpret_cast<uint4*>(job.out + in_brick) = mine.vector;
  } else {
    mine.vector = load16(job.in + in_brick);
    if constexpr (kNibble)
      scatter_nibbles(rows, job.high_first, mine.bytes);
    else
      scatter_bytes(rows, mine.bytes);
    __syncthreads();
    *reinterpret_cast<uint4*>(job.out + in_file) = *staged;
  }
}

struct AnyJob {
  AnyTensor in, out;
  formats::PreparedShape shape;
  bool restore, high_first;
};

// The half of a byte of the tensor `prepared` or of the file that a place means.
__device__ int half_of(const AnyJob& job, const formats::CodeIndex& code, int half, bool prepared) {
  const bool in_brick = code.n / kBrickRows < job.shape.brick_rows() &&
                        code.k / 2 / kBrickRowBytes < job.shape.bricks_across();
  return job.high_first && !(prepared && in_brick) ? 1 - half : half;
}

__global__ void __launch_bounds__(256)
    any_kernel(const __grid_constant__ AnyJob job, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (index >= count) return;
  const int per_byte = 8 / job.shape.bits;
  uint32_t byte = 0;
  for (int place = 0; place < per_byte; ++place) {
    // The code at this place of the byte, and where the other tensor has it.
    formats::CodeIndex code{index / job.shape.row_bytes,
                            index % job.shape.row_bytes * per_byte + place};
    if (!job.restore) code = formats::prepared_code(job.shape, index, place);
    const formats::CodePlace prepared = formats::prepared_place(job.shape, code.n, code.k);
    const formats::CodePlace file{code.n * job.shape.row_bytes + code.k / per_byte,
                                  static_cast<int>(code.k % per_byte)};
    const formats::CodePlace& from = job.restore ? prepared : file;
    const uint32_t value = static_cast<uint8_t>(*job.in.element_at(from.byte));
    if (per_byte == 1) {
      byte = value;
    } else {
      const int from_half = half_of(job, code, from.half, job.restore);
      const int to_half = half_of(job, code, place, !job.restore);
      byte |= (value >> (4 * from_half) & 15u) << (4 * to_half);
    }
  }
  *job.out.element_at(index) = static_cast<char>(byte);
}

bool of_nibbles(const Call& call) { return call.tensor(kWeight).dtype == DType::kU8; }
bool restores(const Call& call) { return call.integer(kDirection) != 0; }

std::string refuses(const Call& call, const Machine&) {
  const TensorView& weight = call.tensor(kWeight);
  if (weight.shape[0] % kBrickRows != 0 || weight.shape[1] % kBrickRowBytes != 0)
    return "the weight is no whole number of bricks of 64 rows by 32 bytes";
  for (const int place : {kWeight, kOut}) {
    const TensorView& t = call.tensor(place);
    if (!is_contiguous(t) || reinterpret_cast<uintptr_t>(t.data) % 16 != 0)
      return std::string(spec.args[static_cast<size_t>(place)].name) +
             " has gaps or is not aligned to 16 bytes";
  }
  return "";
}

Status run(const Call& call) {
  const TensorView& weight = call.tensor(kWeight);
  const int64_t across = weight.shape[1] / kBrickRowBytes;
  const Job job{weight.as<char>(), call.tensor(kOut).as<char>(), weight.shape[1], across,
                call.integer(kNibbles) != 0};
  const Grid grid{weight.shape[0] / kBrickRows * across, kBrickThreads};
  const auto start = [&](auto kernel) { return launch(call, spec.name, grid, kernel, job); };
  if (of_nibbles(call))
    return restores(call) ? start(bricks_kernel<true, true>) : start(bricks_kernel<true, false>);
  return restores(call) ? start(bricks_kernel<false, true>) : start(bricks_kernel<false, false>);
}

Status run_any(const Call& call) {
  const TensorView &weight = call.tensor(kWeight), &out = call.tensor(kOut);
  const AnyJob job{AnyTensor(weight),
                   AnyTensor(out),
                   {weight.shape[0], weight.shape[1], of_nibbles(call) ? 4 : 8},
                   restores(call),
                   call.integer(kNibbles) != 0};
  const int64_t count = numel(out);
  return launch(call, "prepare_weight_any", {ceil_div(count, 256), 256}, any_kernel, job, count);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/prepare_weight_bricks",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/prepare_weight_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::prepare_weight
