// A row's elements as a group of threads sees them, eight of a chunk in each thread: Vectors moves
// units of 8 neighbours by 16 aligned bytes; Elements takes any strides, and any addresses, one by
// one, so that neighbouring threads have neighbouring elements.
#pragma once

#include <type_traits>

#include "backends/cuda/device/row/row_groups.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "backends/cuda/device/tensor/elements.cuh"

namespace pestle::cuda {

// A tensor with the row's dimension last.
struct RowTensor {
  AnyTensor any;
  int64_t distance = 0;    // bytes between rows, where the fast kernels take the tensor
  int64_t step = 0;        // bytes between a row's elements
  int64_t count = 0;       // of a row
  bool is_aligned = true;  // to its elements
  bool is_present = false;

  RowTensor() = default;
  explicit RowTensor(const TensorView& t, int64_t row_bytes = 0)
      : any(t), distance(row_bytes), is_present(true) {
    count = t.rank == 0 ? 1 : t.shape[t.rank - 1];
    step = t.rank == 0 ? 0 : any.strides[t.rank - 1];
    is_aligned = reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(any.bytes) == 0;
  }
};

#ifdef __CUDACC__
// An element of a dtype known at compile time, at its own alignment.
template <class T>
__device__ float load_element(const char* p);
template <>
__device__ inline float load_element<F32>(const char* p) {
  return __ldg(reinterpret_cast<const float*>(p));
}
template <>
__device__ inline float load_element<Bf16>(const char* p) {
  return formats::f32_from_bf16(__ldg(reinterpret_cast<const uint16_t*>(p)));
}
template <>
__device__ inline float load_element<F16>(const char* p) {
  return __half2float(__ldg(reinterpret_cast<const __half*>(p)));
}
__device__ inline float load_element(const char* p, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return load_element<Bf16>(p);
    case DType::kF16: return load_element<F16>(p);
    default: return load_element<F32>(p);
  }
}
template <class T>
__device__ void store_element(char* p, float v) {
  if constexpr (T::kBytes == 4)
    *reinterpret_cast<uint32_t*>(p) = v != v ? formats::kF32Nan : __float_as_uint(v);
  else if constexpr (std::is_same_v<T, Bf16>)
    *reinterpret_cast<uint16_t*>(p) = formats::bf16_from_f32(v);
  else
    *reinterpret_cast<uint16_t*>(p) = formats::f16_from_f32(v);
}

// Byte by byte, whatever the dtype; out of line, since it is rare and long.
__device__ __noinline__ inline float load_bytes(const char* p, DType dtype) {
  AnyTensor any;
  any.dtype = dtype;
  any.is_aligned = false;
  return any.load(p);
}
__device__ __noinline__ inline void store_bytes(char* p, DType dtype, float v) {
  AnyTensor any;
  any.dtype = dtype;
  any.is_aligned = false;
  any.store(p, v);
}

template <class T>
struct Vectors {
  static constexpr bool kNeighbours = true;
  static constexpr int kBytes = T::kBytes;
  static constexpr int kChunks = kRowChunks;  // that loops take at a time
  using Raw = typename T::Raw;
  char* row;
  int lane, lanes, units;

  __device__ Vectors(const RowTensor& t, const RowPlace& p)
      : row(t.any.data + (p.units > 0 ? p.row * t.distance : 0) + p.first * (kUnit * T::kBytes)),
        lane(p.lane),
        lanes(p.lanes),
        units(p.units) {}
  __device__ int unit(int chunk) const { return chunk * lanes + lane; }
  // Does the row have the i-th of this thread's elements of the chunk? Here all or none of them.
  __device__ bool has(int chunk, int = 0) const { return unit(chunk) < units; }
  __device__ Raw load(int chunk) const {
    return has(chunk) ? T::load(row + static_cast<int64_t>(unit(chunk)) * (kUnit * T::kBytes))
                      : T::zero();
  }
  // 0 past the row's end.
  __device__ static void values(const Raw& raw, float (&v)[kUnit]) { T::to_f32(raw, v); }
  __device__ void store(int chunk, const float (&v)[kUnit]) const {
    if (has(chunk)) T::store(row + static_cast<int64_t>(unit(chunk)) * (kUnit * T::kBytes), v);
  }
  // Which of the elements of the block's part values() puts at [i].
  __device__ int64_t element(int chunk, int i) const {
    return static_cast<int64_t>(unit(chunk)) * kUnit + i;
  }
};

template <class T>
struct Elements {
  static constexpr bool kNeighbours = false;
  static constexpr int kBytes = T::kBytes;
  static constexpr int kChunks = 1;
  struct Raw {
    float v[kUnit];
  };
  char* row;
  int64_t step;
  int64_t count;  // of the block's part
  int lane, lanes;
  bool is_aligned;
  DType dtype;

  __device__ Elements(const RowTensor& t, const RowPlace& p)
      : row(nullptr),
        step(t.step),
        count(0),
        lane(p.lane),
        lanes(p.lanes),
        is_aligned(t.is_aligned),
        dtype(t.any.dtype) {
    if (p.units == 0) return;
    row = t.any.row_at(p.row) + p.first * kUnit * step;
    count = min(static_cast<int64_t>(p.units) * kUnit, t.count - p.first * kUnit);
  }
  __device__ int64_t element(int chunk, int i) const {
    return (static_cast<int64_t>(chunk) * kUnit + i) * lanes + lane;
  }
  __device__ bool has(int chunk, int i) const { return element(chunk, i) < count; }
  __device__ Raw load(int chunk) const {
    Raw raw;
    for (int i = 0; i < kUnit; ++i) {
      const int64_t e = element(chunk, i);
      raw.v[i] = e < count ? load_one(row + e * step) : 0;
    }
    return raw;
  }
  __device__ static void values(const Raw& raw, float (&v)[kUnit]) {
    for (int i = 0; i < kUnit; ++i) v[i] = raw.v[i];
  }
  __device__ void store(int chunk, const float (&v)[kUnit]) const {
    for (int i = 0; i < kUnit; ++i) {
      const int64_t e = element(chunk, i);
      if (e >= count) continue;
      if (is_aligned)
        store_element<T>(row + e * step, v[i]);
      else
        store_bytes(row + e * step, dtype, v[i]);
    }
  }

 private:
  __device__ float load_one(const char* p) const {
    return is_aligned ? load_element<T>(p) : load_bytes(p, dtype);
  }
};

#endif

}  // namespace pestle::cuda
