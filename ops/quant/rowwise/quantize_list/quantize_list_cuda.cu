// quantize_list on CUDA: up to 64 tensors a launch.
// Map      a table of tensors in the kernel's parameters
//          (backends/cuda/device/tensor/tensor_table.cuh). A scale a tensor: a thread block 1024
//          units of 8 elements, four in flight a thread. A scale a row: a warp a row of up to 1024
//          elements, else a thread block a row, of which 8192 elements stay in registers between
//          amax and codes. each: tensor by tensor, by quantize_fp8 and quantize_int8.
// Traffic  x and q once; x twice for computed scales of tensors: an amax pass over all of them,
//          then codes from the end, which the L2 still holds.
// Numerics as ops/quant/rowwise/quantize_rows.cuh: codes bit for bit those of the CPU.
// Measured on an H200, 64 tensors of 1024 x 1024 bf16, share of a copy of the same bytes:
//          scale given 106 %, computed 63 % (its second read not counted), by row 89 to 90 %;
//          rows of 5120 elements 70 %.
#include <algorithm>
#include <type_traits>

#include "backends/cuda/device/tensor/tensor_table.cuh"
#include "ops/quant/rowwise/quantize_list/quantize_list_position.h"
#include "ops/quant/rowwise/quantize_rows.cuh"
#include "ops/shared/element.h"

namespace pestle::ops::quantize_list {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

constexpr int kThreads = 256;
constexpr int kInFlight = 4;
constexpr int kBlockUnits = kThreads * kInFlight;
constexpr int kWarpUnits = 32 * kInFlight;  // a row that a warp holds

struct Entry {
  const char* x;
  uint8_t* q;
  float* scale;    // given, or written
  uint32_t* amax;  // of the whole tensor, where that scale is computed
  uint32_t units;  // of the tensor, or of a row
  uint32_t rest;   // elements after the last unit; or rows
};

struct List {
  cuda::TensorTable<Entry> table;
  bool computes;
  RandomRounding rounding;
};

// ---- a scale a tensor ----

// The elements after the last whole unit, zeros behind them.
template <class T>
__device__ __noinline__ typename T::Raw load_rest(const char* x, int count) {
  uint32_t w[sizeof(typename T::Raw) / 4];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(w)); ++i) {
    if (i % 4 == 0) w[i / 4] = 0;
    const uint32_t byte = i < count * T::kBytes ? static_cast<uint8_t>(x[i]) : 0;
    w[i / 4] |= byte << (8 * (i % 4));
  }
  typename T::Raw raw = T::zero();
  auto* words = reinterpret_cast<uint4*>(&raw);
#pragma unroll
  for (unsigned i = 0; i < sizeof(raw) / 16; ++i) {
    words[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
  }
  return raw;
}

template <class T>
__device__ inline const char* unit_of(const Entry& e, int64_t unit) {
  return e.x + unit * (cuda::kUnit * T::kBytes);
}

template <class T>
__device__ inline typename T::Raw load_unit(const Entry& e, uint32_t unit) {
  if (unit < e.units) return T::load(unit_of<T>(e, unit));
  if (unit == e.units && e.rest > 0) return load_rest<T>(unit_of<T>(e, unit), e.rest);
  return T::zero();
}

template <class T>
__global__ void __launch_bounds__(kThreads) list_amax(const __grid_constant__ List list) {
  const int tensor = list.table.find(blockIdx.x);
  const Entry& e = list.table.entries[tensor];
  const uint32_t first = (blockIdx.x - list.table.first[tensor]) * kBlockUnits + threadIdx.x;
  typename T::Raw raw[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) raw[i] = load_unit<T>(e, first + i * kThreads);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) largest = max(largest, cuda::largest_of_unit<T>(raw[i]));
  largest = block_max(largest);
  if (threadIdx.x == 0 && largest != 0) atomicMax(e.amax, largest);
}

template <class T, class Code>
__global__ void __launch_bounds__(kThreads) list_tensors(const __grid_constant__ List list) {
  const uint32_t block = list.computes ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int tensor = list.table.find(block);
  const Entry& e = list.table.entries[tensor];
  const uint32_t local = block - list.table.first[tensor];
  const uint32_t first = local * kBlockUnits + threadIdx.x;
  typename T::Raw raw[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) raw[i] = load_unit<T>(e, first + i * kThreads);
  const float s = list.computes ? Code::scale(*e.amax) : *e.scale;
  if (list.computes && local == 0 && threadIdx.x == 0) *e.scale = s;
  const cuda::Divider by = cuda::Divider::by(s);
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const uint32_t unit = first + i * kThreads;
    const uint2 codes = encode_unit<T, Code, false>(raw[i], by, list.rounding,
                                                    static_cast<uint64_t>(unit) * cuda::kUnit);
    uint8_t* to = e.q + static_cast<int64_t>(unit) * cuda::kUnit;
    if (unit < e.units) cuda::store8(to, codes);
    if (unit != e.units) continue;
    for (int c = 0; c < static_cast<int>(e.rest); ++c) {
      to[c] = static_cast<uint8_t>((c < 4 ? codes.x : codes.y) >> (8 * (c % 4)));
    }
  }
}

// ---- a scale a row ----

// kRowThreads threads, of which this is number `lane`, and a row of e.units units.
template <class T, class Code, int kRowThreads>
__device__ void quantize_list_row(const List& list, const Entry& e, uint32_t row, uint32_t lane) {
  constexpr uint32_t kInRegisters = kRowThreads * kInFlight;
  const Entry own{unit_of<T>(e, static_cast<int64_t>(row) * e.units),
                  e.q + static_cast<int64_t>(row) * e.units * cuda::kUnit,
                  nullptr,
                  nullptr,
                  e.units,
                  0};
  typename T::Raw in_registers[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) in_registers[i] = load_unit<T>(own, lane + i * kRowThreads);
  float s;
  if (list.computes) {
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) amax = max(amax, cuda::largest_of_unit<T>(in_registers[i]));
    for (uint32_t first = lane + kInRegisters; first < e.units; first += kInRegisters) {
      typename T::Raw raw[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) raw[i] = load_unit<T>(own, first + i * kRowThreads);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) amax = max(amax, cuda::largest_of_unit<T>(raw[i]));
    }
    s = Code::scale(kRowThreads == 32 ? __reduce_max_sync(0xFFFFFFFFu, amax) : block_max(amax));
    if (lane == 0) e.scale[row] = s;
  } else {
    s = e.scale[row];
  }
  const cuda::Divider by = cuda::Divider::by(s);
  const auto encode = [&](const typename T::Raw(&units)[kInFlight], uint32_t first) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const uint32_t unit = first + i * kRowThreads;
      if (unit >= e.units) continue;
      const uint64_t element = (static_cast<uint64_t>(row) * e.units + unit) * cuda::kUnit;
      cuda::store8(own.q + static_cast<int64_t>(unit) * cuda::kUnit,
                   encode_unit<T, Code, false>(units[i], by, list.rounding, element));
    }
  };
  encode(in_registers, lane);
  for (uint32_t first = lane + kInRegisters; first < e.units; first += kInRegisters) {
    typename T::Raw raw[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) raw[i] = load_unit<T>(own, first + i * kRowThreads);
    encode(raw, first);
  }
}

// More blocks hide that a row waits for its own amax, as far as registers go: FP8 spills at four.
template <class T, class Code>
__global__ void __launch_bounds__(kThreads,
                                  T::kBytes == 2 && std::is_same_v<Code, Int8Code> ? 4 : 3)
    list_rows(const __grid_constant__ List list) {
  const int tensor = list.table.find(blockIdx.x);
  const Entry& e = list.table.entries[tensor];
  const uint32_t local = blockIdx.x - list.table.first[tensor];
  if (e.units > kWarpUnits) {
    return quantize_list_row<T, Code, kThreads>(list, e, local, threadIdx.x);
  }
  const uint32_t row = local * (kThreads / 32) + threadIdx.x / 32;
  if (row < e.rest) quantize_list_row<T, Code, 32>(list, e, row, threadIdx.x % 32);
}

// ---- host ----

bool by_rows(const Call& call) { return call.integer(kGranularity) == 1; }
bool computes(const Call& call) { return !call.has(kScale); }
const TensorView& scale_of(const Call& call, size_t i) {
  return call.args[computes(call) ? kScaleOut : kScale].list[i];
}

Entry entry_of(const Call& call, size_t i, int64_t& blocks) {
  const TensorView& x = call.args[kX].list[i];
  auto* amax = static_cast<uint32_t*>(call.workspace);
  Entry e{x.as<const char>(),
          call.args[kQ].list[i].as<uint8_t>(),
          scale_of(call, i).as<float>(),
          amax == nullptr ? nullptr : amax + i,
          0,
          0};
  if (by_rows(call)) {
    e.units = static_cast<uint32_t>(row_length(x) / cuda::kUnit);
    e.rest = static_cast<uint32_t>(row_count(x));
    blocks = e.units > kWarpUnits ? e.rest : cuda::ceil_div(e.rest, kThreads / 32);
  } else {
    e.units = static_cast<uint32_t>(numel(x) / cuda::kUnit);
    e.rest = static_cast<uint32_t>(numel(x) % cuda::kUnit);
    // An empty tensor has a scale.
    blocks = std::max<int64_t>(cuda::ceil_div(numel(x), kBlockUnits * cuda::kUnit), computes(call));
  }
  return e;
}

template <class T, class Code>
Status start(const Call& call, const List& list) {
  const cuda::Grid grid{list.table.blocks(), kThreads};
  if (by_rows(call)) return cuda::launch(call, "quantize_list", grid, list_rows<T, Code>, list);
  if (list.computes) {
    PESTLE_TRY(cuda::launch(call, "quantize_list_amax", grid, list_amax<T>, list));
  }
  return cuda::launch(call, "quantize_list", grid, list_tensors<T, Code>, list);
}

// The tensors of one pair of dtypes, 64 at a time.
template <class T, class Code>
Status run_of(const Call& call, DType x_dtype, DType q_dtype) {
  const List none{{},
                  computes(call),
                  {call.integer(kRounding) == 1, static_cast<uint64_t>(call.integer(kSeed))}};
  List list = none;
  for (size_t i = 0; i < positions(call); ++i) {
    if (call.args[kX].list[i].dtype != x_dtype || call.args[kQ].list[i].dtype != q_dtype) continue;
    int64_t blocks = 0;
    const Entry entry = entry_of(call, i, blocks);
    if (list.table.add(entry, blocks)) continue;
    PESTLE_TRY((start<T, Code>(call, list)));
    list = none;
    list.table.add(entry, blocks);
  }
  return list.table.count == 0 ? Status() : start<T, Code>(call, list);
}

template <class T>
Status run_from(const Call& call, DType x_dtype) {
  PESTLE_TRY((run_of<T, Fp8Code<formats::E4m3>>(call, x_dtype, DType::kE4M3)));
  PESTLE_TRY((run_of<T, Fp8Code<formats::E5m2>>(call, x_dtype, DType::kE5M2)));
  return run_of<T, Int8Code>(call, x_dtype, DType::kI8);
}

Status run_list(const Call& call) {
  if (computes(call) && !by_rows(call)) {
    PESTLE_TRY(cuda::clear(call, call.workspace, static_cast<int64_t>(positions(call)) * 4));
  }
  PESTLE_TRY(run_from<cuda::Bf16>(call, DType::kBF16));
  PESTLE_TRY(run_from<cuda::F16>(call, DType::kF16));
  return run_from<cuda::F32>(call, DType::kF32);
}

std::string refuse_position(const Call& call, size_t i) {
  const TensorView& x = call.args[kX].list[i];
  const TensorView& q = call.args[kQ].list[i];
  if (!is_contiguous(x)) return "x is not contiguous";
  if (!is_contiguous(q)) return "q is not contiguous";
  if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0) return "x is not aligned to 16 bytes";
  if (reinterpret_cast<uintptr_t>(q.data) % 8 != 0) return "q is not aligned to 8 bytes";
  const TensorView& scale = scale_of(call, i);
  if (!is_contiguous(scale) || reinterpret_cast<uintptr_t>(scale.data) % 4 != 0) {
    return "the scales have gaps between them or are not aligned to 4 bytes";
  }
  if (numel(x) / cuda::kUnit > INT32_MAX) return "a tensor of more than 2^34 elements";
  return by_rows(call) && row_length(x) % cuda::kUnit != 0 ? "K is no multiple of 8" : "";
}

std::string refuses(const Call& call, const Machine&) {
  for (size_t i = 0; i < positions(call); ++i) {
    const std::string why = refuse_position(call, i);
    if (!why.empty()) return why + " (position " + std::to_string(i) + " of the lists)";
  }
  return "";
}

// What quantize_fp8 and quantize_int8 need at most: a page for a scale of the whole tensor, or 4
// bytes for each of its rows.
int64_t each_bytes(const TensorView& scale) { return std::max<int64_t>(4096, 4 * numel(scale)); }

Status run_each(const Call& call) {
  auto* workspace = static_cast<char*>(call.workspace);
  for (size_t i = 0; i < positions(call); ++i) {
    PositionCall one = position_call(call, i);
    one.call.workspace = workspace;
    if (computes(call)) {
      one.call.workspace_bytes = each_bytes(scale_of(call, i));
      workspace += one.call.workspace_bytes;
    }
    PESTLE_TRY(run(one.op, one.call));
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cuda/quantize_list",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run_list,
     .workspace = "if(has(scale) || granularity == row, 0, 4)"},
    {.id = "cuda/quantize_list_each",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_each,
     .workspace = "if(has(scale), 0, max(4096, 4*numel(scale_out)))"},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::quantize_list
