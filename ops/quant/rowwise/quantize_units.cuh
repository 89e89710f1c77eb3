// 8-bit codes of rows that begin anywhere (row_units.cuh), under one scale a row or one of all: from
// numbers, and back.
// Map      a row in the registers of lanes, a CTA or, where its scale is computed, a cluster
// Traffic  x and q once; x twice for a computed scale of the whole tensor
#pragma once

#include "backends/cuda/device/ptx/cluster.cuh"
#include "backends/cuda/device/row/row_units.cuh"
#include "backends/cuda/host/early_launch.h"
#include "core/machine.h"
#include "ops/quant/output/quantized_output.h"
#include "ops/quant/rowwise/dequantize_rows.cuh"
#include "ops/quant/rowwise/quantize_rows.cuh"

namespace pestle::ops {

// Codes of rows and their scales: given, from the tensor's largest magnitude, or of each row.
struct UnitCodes {
  cuda::RowTensor q, given, scale_out;
  const uint32_t* amax = nullptr;
  ScaleMap map;

  UnitCodes() = default;
  UnitCodes(const TensorView& codes, const TensorView& scale, bool computes, const ScaleMap& grid)
      : q(codes), map(grid) {
    (computes ? scale_out : given) = cuda::RowTensor(scale);
  }
#ifdef __CUDACC__
  __device__ float given_scale(int64_t row) const {
    return __uint_as_float(cuda::AnyTensor::bits(given.row_at(map.row(row)), 4));
  }
#endif
};

#ifdef __CUDACC__
// Of rounded values, 0 where there is none.
template <class T, class Code>
__device__ inline void put_unit_codes(const UnitCodes& o, const cuda::RowPlace& place,
                                      const cuda::RowUnits& at, cuda::RowParts& parts,
                                      const typename T::Raw (&raw)[cuda::kRowChunks], int64_t row) {
  using namespace cuda;
  float scale;
  if (o.given.is_present) {
    scale = o.given_scale(row);
  } else if (o.amax != nullptr) {
    scale = Code::scale(*o.amax);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      AnyTensor::put(o.scale_out.row_at(0), __float_as_uint(scale), 4);
    }
  } else {
    LargestPart own{0};
#pragma unroll
    for (int c = 0; c < kRowChunks; ++c) own.v = max(own.v, T::amax(raw[c]));
    scale = Code::scale(join_units(place, own, parts).v);
    if (place.lane == 0 && place.rank == 0 && place.units > 0) {
      AnyTensor::put(o.scale_out.row_at(row), __float_as_uint(scale), 4);
    }
  }
  const UnitTarget q(o.q, row, at);
  const Divider by = Divider::by(scale);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    q.put_bytes(at, c, encode_unit<T, Code, false>(raw[c], by, {false, 0}, 0));
  }
}

struct QuantizeUnits {
  cuda::RowGroups groups;
  cuda::RowTensor x;
  UnitCodes codes;
};

template <class T, class Code>
__global__ void __launch_bounds__(cuda::kRowThreads)
    quantize_units(const __grid_constant__ QuantizeUnits m) {
  using namespace cuda;
  wait_previous_kernel();
  __shared__ RowParts parts;
  const RowPlace place = row_place(m.groups);
  const RowUnits at(place, m.codes.q);
  const int64_t row = min(place.row, m.groups.rows - 1);
  typename T::Raw raw[kRowChunks];
  load_units<T>(m.x, row, at, raw);
  put_unit_codes<T, Code>(m.codes, place, at, parts, raw, row);
}
// The largest magnitude of all.
template <class T>
__global__ void __launch_bounds__(cuda::kRowThreads)
    amax_units(const __grid_constant__ QuantizeUnits m, uint32_t* amax) {
  using namespace cuda;
  const RowPlace place = row_place(m.groups);
  const RowUnits at(place, m.x);
  typename T::Raw raw[kRowChunks];
  load_units<T>(m.x, min(place.row, m.groups.rows - 1), at, raw);
  uint32_t largest = 0;
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) largest = max(largest, T::amax(raw[c]));
  largest = block_max(largest);
  if (threadIdx.x == 0) atomicMax(amax, largest);
}
// x is the output here.
template <class T, class Codes>
__global__ void __launch_bounds__(cuda::kRowThreads)
    dequantize_units(const __grid_constant__ QuantizeUnits m) {
  using namespace cuda;
  wait_previous_kernel();
  const RowPlace place = row_place(m.groups);
  const RowUnits at(place, m.x);
  if (place.row >= m.groups.rows) return;
  const UnitSource<1> source(m.codes.q, place.row, at);
  UnitSource<1>::Words words[kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) source.fetch(at, c, words[c]);
  const float scale = m.codes.given_scale(place.row);
  const UnitTarget out(m.x, place.row, at);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    source.align(words[c]);
    const uint2 codes = make_uint2(words[c].w[0], words[c].w[1]);
    out.put<T>(at, c, decoded_unit<T, Codes>(codes, scale));
  }
}
#endif

// ---- host ----

// Of an op's quantised output with one scale a row or one of all.
inline UnitCodes unit_codes(const QuantizedOutput& o, int64_t rows, int64_t columns) {
  const bool computes = o.computes_row_scale();
  const int64_t scales = o.format == OutFormat::kFp8Tensor ? 1 : rows;
  return {o.q, computes ? o.scale_out : o.q_scale, computes, {1, columns, scales, 1}};
}

// How threads share rows, or no blocks for rows too long for that. joins: a row's scale is computed.
inline cuda::RowGroups unit_groups(const Call& call, int64_t rows, int64_t columns, bool joins) {
  if (!joins) return cuda::sliced_units(rows, columns);
  const Device device{DeviceType::kCuda, cuda::device_index(call)};
  const int most_blocks = cuda::largest_cluster(machine_for(device).compute_capability);
  const cuda::RowGroups g = cuda::RowGroups::holding(rows, cuda::units_of_any(columns), most_blocks,
                                                     cuda::kRowThreads, cuda::kRowChunks);
  return g.cluster == 0 ? cuda::RowGroups() : g;
}
// The same; no blocks also for what else is not taken: elements apart from one another, several
// scales a row, and all but rounding to the nearest code.
inline cuda::RowGroups unit_groups(const Call& call, const QuantizeRows& b) {
  const bool joins = b.computes && !whole_tensor(b);
  if (b.columns == 0 || b.map.grid_columns != 1 || b.hadamard > 0) return {};
  if (b.rounding.stochastic || (joins && !one_row_scales(b))) return {};
  if (!cuda::has_neighbours(cuda::RowTensor(b.x)) || !cuda::has_neighbours(cuda::RowTensor(b.q)))
    return {};
  return unit_groups(call, b.rows, b.columns, joins);
}

template <class T, class Code>
Status start_quantize_units(const Call& call, const char* name, const QuantizeRows& b,
                            QuantizeUnits& m) {
  cuda::Grid grid{m.groups.blocks(), m.groups.threads()};
  if (b.computes && !whole_tensor(b)) {
    grid.cluster = m.groups.cluster;
  } else if (b.computes) {
    auto* amax = static_cast<uint32_t*>(call.workspace);
    PESTLE_TRY(cuda::clear(call, amax, 4));
    PESTLE_TRY(cuda::launch(call, name, grid, amax_units<T>, m, amax));
    m.codes.amax = amax;
  }
  return cuda::launch_early(call, name, grid, quantize_units<T, Code>, m);
}

// What quantize_rows.cuh's fast kernels refuse.
template <class Code>
Status quantize_any_rows(const Call& call, const char* name, const QuantizeRows& b) {
  QuantizeUnits m{unit_groups(call, b), cuda::RowTensor(b.x),
                  UnitCodes(b.q, b.scale, b.computes, b.map)};
  if (m.groups.blocks() == 0) return run_quantize_any<Code>(call, name, b);
  switch (b.x.dtype) {
    case DType::kBF16: return start_quantize_units<cuda::Bf16, Code>(call, name, b, m);
    case DType::kF16: return start_quantize_units<cuda::F16, Code>(call, name, b, m);
    default: return start_quantize_units<cuda::F32, Code>(call, name, b, m);
  }
}

// What dequantize_rows.cuh's fast kernel refuses.
template <class Codes>
Status dequantize_any_rows(const Call& call, const char* name, const QuantizeRows& b) {
  const QuantizeUnits m{unit_groups(call, b), cuda::RowTensor(b.x),
                        UnitCodes(b.q, b.scale, false, b.map)};
  if (m.groups.blocks() == 0) return run_dequantize_rows_any<Codes>(call, name, b);
  const cuda::Grid grid{m.groups.blocks(), m.groups.threads()};
  switch (b.x.dtype) {
    case DType::kBF16:
      return cuda::launch_early(call, name, grid, dequantize_units<cuda::Bf16, Codes>, m);
    case DType::kF16:
      return cuda::launch_early(call, name, grid, dequantize_units<cuda::F16, Codes>, m);
    default: return cuda::launch_early(call, name, grid, dequantize_units<cuda::F32, Codes>, m);
  }
}

}  // namespace pestle::ops
