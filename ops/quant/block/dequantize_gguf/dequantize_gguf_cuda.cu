// dequantize_gguf on CUDA.
// Map      units  2 to 16 neighbouring threads a block, in each of kRows rows; a thread loads 8
//                 bytes of codes (24 of Q6_K) and decodes all the units of 8 elements that they
//                 hold (dequantize_gguf_blocks.cuh). Blocks of 18, 34 and 210 bytes lie at even
//                 addresses only: aligned words, shifted
//          any    a thread 8 neighbouring elements, byte by byte, any strides
// Traffic  q and out once; a block's scales again for each of its threads, from the L1.
// Numerics f32 operation by operation as formats/gguf.h, one rounding.
// Measured to bf16 on an H200: q4_0 100, q4_k 100, q6_k 95, q8_0 93 % of the copy.
#include "backends/cuda/device/row/tiles.h"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"
#include "backends/cuda/host/early_launch.h"
#include "backends/cuda/host/tensor_amax.h"
#include "formats/gguf.h"
#include "ops/quant/block/dequantize_gguf/dequantize_gguf_blocks.cuh"
#include "ops/quant/block/dequantize_gguf/dequantize_gguf_spec.h"

namespace pestle::ops::dequantize_gguf {
namespace {

using namespace pestle::cuda;

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");
constexpr int kType = arg_index(spec, "type");

constexpr int kThreads = 256;

// Bytes of a block, anywhere.
struct StridedBytes {
  const char* p;
  int64_t stride;
  __device__ uint32_t one(int i) const { return static_cast<uint8_t>(p[i * stride]); }
  __device__ uint32_t two(int i) const { return one(i) | one(i + 1) << 8; }
};

__device__ float half_at(const StridedBytes& b, int i) {
  return formats::f32_from_f16(static_cast<uint16_t>(b.two(i)));
}
__device__ void eight_bytes(const StridedBytes& b, int i, uint32_t (&bytes)[kUnit]) {
  for (int j = 0; j < kUnit; j += 2) {
    const uint32_t two = b.two(i + j);
    bytes[j] = two & 0xFFu;
    bytes[j + 1] = two >> 8;
  }
}

// Each type, for any strides: elements 8 * part .. 8 * part + 7 of a block.
struct Q8_0 {
  using Units = Q8_0Units;
  static constexpr int kBlock = formats::kQ8_0Block, kBytes = formats::kQ8_0Bytes;
  __device__ static void values(const StridedBytes& b, int part, float (&v)[kUnit]) {
    const float d = half_at(b, 0);
    uint32_t q[kUnit];
    eight_bytes(b, 2 + 8 * part, q);
    for (int i = 0; i < kUnit; ++i) v[i] = static_cast<float>(static_cast<int8_t>(q[i])) * d;
  }
};
struct Q4_0 {
  using Units = Q4_0Units;
  static constexpr int kBlock = formats::kQ4_0Block, kBytes = formats::kQ4_0Bytes;
  __device__ static void values(const StridedBytes& b, int part, float (&v)[kUnit]) {
    const float d = half_at(b, 0);
    uint32_t q[kUnit];
    eight_bytes(b, 2 + part % 2 * 8, q);
    for (int i = 0; i < kUnit; ++i) {
      v[i] = d * static_cast<float>(static_cast<int>(q[i] >> (part / 2 * 4) & 0xFu) - 8);
    }
  }
};
struct Q4_K {
  using Units = Q4_KUnits;
  static constexpr int kBlock = formats::kQ4_KBlock, kBytes = formats::kQ4_KBytes;
  __device__ static void values(const StridedBytes& b, int part, float (&v)[kUnit]) {
    const int j = part / 4;  // of 8 sub-blocks
    uint32_t scale, min;
    if (j < 4) {
      scale = b.one(4 + j) & 63u;
      min = b.one(8 + j) & 63u;
    } else {
      const uint32_t both = b.one(8 + j);
      scale = (both & 0xFu) | b.one(j) >> 6 << 4;
      min = both >> 4 | b.one(4 + j) >> 6 << 4;
    }
    const float by = half_at(b, 0) * static_cast<float>(scale);
    const float less = half_at(b, 2) * static_cast<float>(min);
    uint32_t q[kUnit];
    eight_bytes(b, 16 + j / 2 * 32 + part % 4 * 8, q);
    for (int i = 0; i < kUnit; ++i) {
      v[i] = by * static_cast<float>(q[i] >> (j % 2 * 4) & 0xFu) - less;
    }
  }
};
struct Q6_K {
  using Units = Q6_KUnits;
  static constexpr int kBlock = formats::kQ6_KBlock, kBytes = formats::kQ6_KBytes;
  __device__ static void values(const StridedBytes& b, int part, float (&v)[kUnit]) {
    const int half = part / 16, in = part % 16 * 8;
    const auto scale = static_cast<int8_t>(b.one(192 + part / 2));
    const float by = half_at(b, 208) * static_cast<float>(scale);
    uint32_t low[kUnit];
    uint32_t high[kUnit];
    eight_bytes(b, half * 64 + in % 64, low);
    eight_bytes(b, 128 + half * 32 + in % 32, high);
    for (int i = 0; i < kUnit; ++i) {
      const uint32_t code = (low[i] >> (in / 64 * 4) & 0xFu) | (high[i] >> (in / 32 * 2) & 3u) << 4;
      v[i] = by * static_cast<float>(static_cast<int>(code) - 32);
    }
  }
};

struct Job {
  const uint8_t* q;
  int64_t q_row_bytes;
  char* out;
  int64_t out_row_bytes;
  int64_t rows;
  int lanes;  // of a row, Units::kLanes a block
  FastDivisor column_blocks;
};

template <class T, class Units>
__global__ void __launch_bounds__(384) units_kernel(Job job) {
  wait_previous_kernel();
  constexpr int kRows = Units::kRows;
  const TilePlace place = tile_place(job.column_blocks, kRows, blockIdx.x);
  if (place.unit >= job.lanes) return;
  const int rows = rows_left(job.rows, place.row, kRows);
  const int block = place.unit / Units::kLanes, lane = place.unit % Units::kLanes;
  const uint8_t* q =
      job.q + place.row * job.q_row_bytes + static_cast<int64_t>(block) * Units::kBytes;
  char* out = job.out + place.row * job.out_row_bytes +
              static_cast<int64_t>(block) * (Units::kBlock * T::kBytes);
  typename Units::Raw raw[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r, q += job.q_row_bytes) {
    if (r < rows) raw[r] = Units::load(q, lane);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r, out += job.out_row_bytes) {
    if (r >= rows) continue;
#pragma unroll
    for (int u = 0; u < Units::kUnits; ++u) {
      float v[kUnit];
      const uint32_t factors = Units::values(raw[r], lane, u, v);
      store_unit<T>(out + Units::element(lane, u) * T::kBytes, v, factors);
    }
  }
}

template <class Type>
__global__ void __launch_bounds__(kThreads) any_kernel(AnyTensor q, AnyTensor out, int64_t units) {
  constexpr int kParts = Type::kBlock / kUnit;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= units) return;
  const int64_t per_row = out.shape[1] / kUnit;
  const int64_t row = index / per_row, unit = index % per_row;
  float v[kUnit];
  Type::values(StridedBytes{q.at(row, unit / kParts * Type::kBytes), q.strides[1]},
               static_cast<int>(unit % kParts), v);
  for (int i = 0; i < kUnit; ++i) out.store(out.at(row, unit * kUnit + i), v[i]);
}

template <class Body>
Status with_type(const Call& call, Body&& body) {
  switch (static_cast<BlockType>(call.integer(kType))) {
    case BlockType::kQ8_0: return body(Q8_0());
    case BlockType::kQ4_0: return body(Q4_0());
    case BlockType::kQ4_K: return body(Q4_K());
    default: return body(Q6_K());
  }
}

template <class Units>
Status run_units(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const int64_t lanes = out.shape[1] / Units::kBlock * Units::kLanes;
  const Tiles tiles = Tiles::over(out.shape[0], lanes);
  const Job job{q.as<uint8_t>(), row_distance(q),         out.as<char>(),     row_distance(out),
                out.shape[0],    static_cast<int>(lanes), tiles.column_blocks};
  const Grid grid{tiles.blocks(Units::kRows), tiles.threads};
  switch (out.dtype) {
    case DType::kBF16: return launch_early(call, spec.name, grid, units_kernel<Bf16, Units>, job);
    case DType::kF16: return launch_early(call, spec.name, grid, units_kernel<F16, Units>, job);
    default: return launch_early(call, spec.name, grid, units_kernel<F32, Units>, job);
  }
}

Status run(const Call& call) {
  return with_type(call, [&]<class Type>(Type) { return run_units<typename Type::Units>(call); });
}

Status run_any(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const int64_t units = numel(out) / kUnit;
  return with_type(call, [&]<class Type>(Type) {
    return launch(call, "dequantize_gguf_any", {ceil_div(units, kThreads), kThreads},
                  any_kernel<Type>, AnyTensor(call.tensor(kQ)), AnyTensor(out), units);
  });
}

std::string refuses(const Call& call, const Machine&) {
  const TensorView& out = call.tensor(kOut);
  if (numel(out) == 0) return "the tensor is empty";
  if (out.shape[1] / kUnit > kMostUnits) return "a row has more than 2^30 elements";
  const TensorView& q = call.tensor(kQ);
  const bool wide = static_cast<BlockType>(call.integer(kType)) == BlockType::kQ4_K;
  if (std::string why = refuse_unaligned("q", q, wide ? 16 : 2); !why.empty()) return why;
  if (reinterpret_cast<uintptr_t>(q.data) % 4 != 0) return "q does not begin at a multiple of 4";
  return refuse_unaligned("out", out);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_gguf",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_gguf_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_gguf
