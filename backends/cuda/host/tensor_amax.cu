// tensor_amax: one read of x. Every block takes a maximum of its share and adds it atomically; an
// integer maximum does not depend on the order. whole_amax: the blocks leave their maxima side by
// side, which needs no clear, or there is no kernel at all.
#include "backends/cuda/host/tensor_amax.h"

#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/launch.h"
#include "backends/cuda/host/whole_amax.h"

namespace pestle::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // loads of a thread
constexpr int kRounds = 4;

// apart: amax has a place for each block.
__device__ void add_block_max(uint32_t value, uint32_t* amax, bool apart = false) {
  value = __reduce_max_sync(0xFFFFFFFFu, value);
  __shared__ uint32_t warps[kThreads / 32];
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  value = __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < kThreads / 32 ? warps[threadIdx.x] : 0u);
  if (threadIdx.x != 0) return;
  if (apart)
    amax[blockIdx.x] = value;
  else if (value != 0)
    atomicMax(amax, value);
}

// Contiguous x of `units` units of eight. What is read last here stays in the L2 for a quantiser
// that goes over x backwards.
template <class T>
__global__ void __launch_bounds__(kThreads)
    flat_kernel(const char* x, int64_t units, uint32_t* amax, int rounds, bool apart) {
  const int64_t first = int64_t{blockIdx.x} * (rounds * kInFlight * kThreads) + threadIdx.x;
  uint32_t largest = 0;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    typename T::Raw raw[kInFlight];
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t unit = first + (round * kInFlight + i) * kThreads;
      raw[i] = unit < units ? T::load(x + unit * kUnit * T::kBytes) : T::zero();
    }
    for (int i = 0; i < kInFlight; ++i) largest = max(largest, T::amax(raw[i]));
  }
  add_block_max(largest, amax, apart);
}

__global__ void __launch_bounds__(kThreads)
    any_kernel(AnyTensor x, int64_t elements, int64_t columns, int64_t first, uint32_t* amax) {
  uint32_t largest = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = first + blockIdx.x * kThreads + threadIdx.x; i < elements; i += step) {
    largest = max(largest, formats::abs_bits(x.load(x.at(i / columns, i % columns))));
  }
  add_block_max(largest, amax);
}

template <class T>
Status run_flat(const Call& call, const TensorView& x, int64_t units, uint32_t* amax, int rounds,
                bool apart) {
  return launch(call, "amax_flat", {ceil_div(units, kThreads * kInFlight * rounds), kThreads},
                flat_kernel<T>, x.as<char>(), units, amax, rounds, apart);
}

Status start_flat(const Call& call, const TensorView& x, uint32_t* amax, int rounds, bool apart) {
  const int64_t units = numel(x) / kUnit;
  switch (x.dtype) {
    case DType::kBF16: return run_flat<Bf16>(call, x, units, amax, rounds, apart);
    case DType::kF16: return run_flat<F16>(call, x, units, amax, rounds, apart);
    default: return run_flat<F32>(call, x, units, amax, rounds, apart);
  }
}

// More than that, and each block of the next kernel reads too much.
constexpr int64_t kUnitsForEveryBlock = 4096;

}  // namespace

Status tensor_amax(const Call& call, const TensorView& x, uint32_t* amax) {
  PESTLE_TRY(clear(call, amax, 4));
  const int64_t elements = numel(x);
  int64_t done = 0;
  if (is_contiguous(x) && refuse_unaligned("x", x).empty()) {
    done = elements / kUnit * kUnit;
    PESTLE_TRY(start_flat(call, x, amax, kRounds, false));
  }
  const int64_t columns = x.rank == 0 ? 1 : x.shape[x.rank - 1];
  const int64_t blocks = std::min<int64_t>(ceil_div(elements - done, kThreads), 2048);
  return launch(call, "amax_any", {blocks, kThreads}, any_kernel, AnyTensor(x), elements, columns,
                done, amax);
}

Status whole_amax(const Call& call, const TensorView& x, void* workspace, WholeAmax& amax) {
  auto* parts = static_cast<uint32_t*>(workspace);
  const int64_t elements = numel(x), units = elements / kUnit;
  const bool flat = elements % kUnit == 0 && is_contiguous(x) && refuse_unaligned("x", x).empty();
  if (flat && units <= kUnitsForEveryBlock) {
    amax = {.x = x.as<char>(), .units = static_cast<int>(units)};
    return {};
  }
  const int64_t step = kThreads * kInFlight;
  if (!flat || units > kAmaxParts * step * kRounds) {
    amax = {.parts = parts, .count = 1};
    return tensor_amax(call, x, parts);
  }
  // Blocks for every multiprocessor, if need be with less to do.
  const int64_t enough = 2 * multiprocessors(device_index(call));
  const auto rounds = static_cast<int>(std::clamp<int64_t>(units / (step * enough), 1, kRounds));
  amax = {.parts = parts, .count = static_cast<int>(ceil_div(units, step * rounds))};
  return start_flat(call, x, parts, rounds, true);
}

int64_t row_distance(const TensorView& t) {
  const int64_t bytes = dtype_bytes(t.dtype);
  if (t.rank == 0) return bytes;
  if (t.shape[t.rank - 1] > 1 && t.strides[t.rank - 1] != 1) return -1;
  int64_t distance = t.shape[t.rank - 1];  // any would do for a single row
  bool found = false;
  int64_t rows = 1;  // that share the distance so far
  for (int d = t.rank - 2; d >= 0; --d) {
    if (t.shape[d] == 1) continue;
    if (!found) distance = t.strides[d];
    if (found && t.strides[d] != distance * rows) return -1;
    found = true;
    rows *= t.shape[d];
  }
  return distance * bytes;
}

std::string refuse_unaligned(const char* name, const TensorView& t, int64_t alignment) {
  if (numel(t) == 0) return {};
  if (const auto over = static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data) % alignment)) {
    return std::string(name) + " starts " + std::to_string(over) + " bytes after a multiple of " +
           std::to_string(alignment);
  }
  const int64_t distance = row_distance(t);
  if (distance < 0) return std::string(name) + " has strides between its elements or uneven rows";
  const int64_t rows = numel(t) / std::max<int64_t>(1, t.rank == 0 ? 1 : t.shape[t.rank - 1]);
  if (rows > 1 && distance % alignment != 0) {
    return std::string(name) + "'s rows are " + std::to_string(distance) +
           " bytes apart, no multiple of " + std::to_string(alignment);
  }
  return {};
}

std::string refuse_scale_strides(const char* name, const TensorView& t, bool swizzled) {
  if (numel(t) == 0 || (swizzled ? is_contiguous(t) : row_distance(t) >= 0)) return {};
  return std::string(name) + (swizzled ? " is swizzled but not contiguous"
                                       : " has strides between its elements or uneven rows");
}

}  // namespace pestle::cuda
