// A row's elements as a group of threads sees them, eight of a chunk in each thread: Vectors moves
// units of 8 neighbours by 16 aligned bytes; Elements takes any strides, and any addresses, by as
// many such units as a row has, and else one by one.
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
    is_aligned = any.is_aligned;
  }
#ifdef __CUDACC__
  // As any.row_at, in short code: kernels ask for the rows of several tensors.
  __device__ char* row_at(int64_t row) const {
    int64_t offset = 0;
#pragma unroll 1
    for (int d = any.rank - 2; d > 0; --d) {
      const int64_t rest = AnyTensor::quotient(row, any.shape[d]);
      offset += (row - rest * any.shape[d]) * any.strides[d];
      row = rest;
    }
    return any.data + offset + (any.rank < 2 ? 0 : row * any.strides[0]);
  }
#endif
};

// Units of 8 elements that Elements may touch of a row of `out`, which is written.
inline int64_t units_at_most(const RowTensor& out) {
  const int64_t most_skipped = out.step == out.any.bytes ? kUnit - 1 : 0;
  return (out.count + most_skipped + kUnit - 1) / kUnit;
}

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
struct Vectors {
  static constexpr bool kNeighbours = true;
  static constexpr int kBytes = T::kBytes;
  static constexpr int kChunks = kRowChunks;  // that loops take at a time
  using Raw = typename T::Raw;
  char* row;
  int lane, lanes, units;

  template <class... Outs>
  __device__ static void spread(const RowPlace&, const Outs&...) {}
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

// Eight elements of a row, `spacing` apart from `first` on; those from 0 to `end` exist.
struct RowChunk {
  char* row;
  int64_t step;  // bytes between the row's elements
  int64_t first, end;
  int spacing;
  bool is_aligned;

  // Which of them exist, as bits.
  __device__ unsigned present() const {
    const int64_t most = kUnit * int64_t{spacing};
    const int low = static_cast<int>(max(-first, int64_t{0}));
    const int high = static_cast<int>(max(min(end - first, most), int64_t{0}));
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (i * spacing >= low && i * spacing < high) bits |= 1u << i;
    }
    return bits;
  }
  // One by one, 0 for those that don't exist; all are on their way before the first is needed. Out
  // of line, since kernels hold several chunks and most are moved by 16 bytes at a time.
  template <class T>
  __device__ __noinline__ static typename T::Raw load(RowChunk c) {
    const unsigned bits = c.present();
    const char* p = c.row + c.first * c.step;
    const int64_t distance = c.spacing * c.step;
    uint32_t w[kUnit];
    if (c.is_aligned) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i, p += distance) {
        w[i] = 0;
        if ((bits >> i & 1) == 0) continue;
        if constexpr (T::kBytes == 2)
          w[i] = __ldg(reinterpret_cast<const uint16_t*>(p));
        else
          w[i] = __ldg(reinterpret_cast<const uint32_t*>(p));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i, p += distance) {
        w[i] = (bits >> i & 1) == 0 ? 0 : AnyTensor::bits(p, T::kBytes);
      }
    }
    if constexpr (T::kBytes == 2) {
      return {
          make_uint4(w[0] | w[1] << 16, w[2] | w[3] << 16, w[4] | w[5] << 16, w[6] | w[7] << 16)};
    } else {
      return {make_uint4(w[0], w[1], w[2], w[3]), make_uint4(w[4], w[5], w[6], w[7])};
    }
  }
  // The same as f32, of a dtype known at run time.
  __device__ __noinline__ static F32::Raw load_as_f32(RowChunk c, DType dtype) {
    if (dtype == DType::kF32) return load<F32>(c);
    float v[kUnit];
    const Bf16::Raw raw = load<Bf16>(c);
    if (dtype == DType::kBF16)
      Bf16::to_f32(raw, v);
    else
      F16::to_f32(raw, v);
    return F32::pack_numbers(v);
  }
  template <class T>
  __device__ __noinline__ static void store(RowChunk c, typename T::Raw raw) {
    const unsigned bits = c.present();
    char* p = c.row + c.first * c.step;
    const int64_t distance = c.spacing * c.step;
#pragma unroll
    for (int i = 0; i < kUnit; ++i, p += distance) {
      if ((bits >> i & 1) == 0) continue;
      const uint32_t w = word<T>(raw, i);
      if (!c.is_aligned)
        AnyTensor::put(p, w, T::kBytes);
      else if constexpr (T::kBytes == 2)
        *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>(w);
      else
        *reinterpret_cast<uint32_t*>(p) = w;
    }
  }

 private:
  // Element i, in the low bits.
  template <class T>
  __device__ static uint32_t word(const typename T::Raw& raw, int i) {
    if constexpr (T::kBytes == 2) {
      const uint32_t w[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
      return w[i / 2] >> (16 * (i % 2));
    } else {
      const uint32_t w[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                             raw.high.x, raw.high.y, raw.high.z, raw.high.w};
      return w[i];
    }
  }
};

// Rows of any step, at any address. spread() says how threads share them: in units of 8 neighbours
// that lie where 16 bytes can be stored, so that all but the first and the last unit of a row go as
// in Vectors; where there are none, by single elements that neighbouring threads have side by side.
template <class T>
struct Elements {
  static constexpr bool kNeighbours = false;
  static constexpr int kBytes = T::kBytes;
  static constexpr int kChunks = 2;
  using Raw = typename T::Raw;
  int lane, lanes, spacing;
  int whole_begin = 0, whole_end = 0;  // units of the block's part that 16 bytes at a time move
  char* units;                         // the first of the block's part
  char* row;
  int64_t step;
  int64_t start = 0;  // this thread's first element; below 0 in a first unit that lacks some
  int64_t end = 0;    // of the block's part
  bool is_aligned;

  // Once a thread, before there are Elements of the row: all its written tensors.
  template <class... Others>
  __device__ static void spread(RowPlace& p, const RowTensor& out, const Others&... others) {
    p.skip = 0;
    p.spacing = p.lanes;
    if (p.units == 0) return;
    const int skip = skip_of(out, out.row_at(p.row));
    if (skip < 0 || ((skip_of(others, others.row_at(p.row)) != skip) || ...)) return;
    p.skip = skip;
    p.spacing = 1;
  }

  __device__ Elements(const RowTensor& t, const RowPlace& p)
      : lane(p.lane),
        lanes(p.lanes),
        spacing(p.spacing),
        units(t.any.data),
        row(t.any.data),
        step(t.step),
        is_aligned(t.is_aligned) {
    if (p.units == 0) return;
    row = t.row_at(p.row);
    const int64_t first = p.first * kUnit - p.skip;
    const bool by_units = spacing == 1;
    start = first + (by_units ? lane * kUnit : lane);
    end = min(first + int64_t{p.units} * kUnit, t.count);
    if (!by_units || skip_of(t, row) != p.skip) return;
    units = row + first * kBytes;
    whole_begin = first < 0 ? 1 : 0;
    whole_end = static_cast<int>(max(end - first, int64_t{0}) / kUnit);
  }
  // Of the row.
  __device__ int64_t element(int chunk, int i) const {
    return start + static_cast<int64_t>(chunk) * (kUnit * lanes) + i * spacing;
  }
  __device__ bool has(int chunk, int i) const {
    return static_cast<uint64_t>(element(chunk, i)) < static_cast<uint64_t>(end);
  }
  __device__ bool is_whole(int chunk) const {
    const int unit = chunk * lanes + lane;
    return unit >= whole_begin && unit < whole_end;
  }
  __device__ Raw load(int chunk) const {
    if (is_whole(chunk)) return T::load(unit_at(chunk));
    return RowChunk::load<T>(chunk_of(row, step, is_aligned, chunk));
  }
  // 0 past the row's end.
  __device__ static void values(const Raw& raw, float (&v)[kUnit]) { T::to_f32(raw, v); }
  __device__ void store(int chunk, const float (&v)[kUnit]) const {
    const Raw raw = T::pack(v);
    if (is_whole(chunk)) {
      T::put(unit_at(chunk), raw);
    } else {
      RowChunk::store<T>(chunk_of(row, step, is_aligned, chunk), raw);
    }
  }
  // Which of a chunk's elements exist, as bits.
  __device__ unsigned present(int chunk) const {
    return chunk_of(row, step, is_aligned, chunk).present();
  }
  // The same elements of another row.
  __device__ RowChunk chunk_of(const char* its_row, int64_t its_step, bool aligned,
                               int chunk) const {
    return {const_cast<char*>(its_row), its_step, element(chunk, 0), end, spacing, aligned};
  }

 private:
  __device__ char* unit_at(int chunk) const {
    return units + static_cast<int64_t>(chunk * lanes + lane) * (kUnit * kBytes);
  }
  // Elements of the 16 bytes that a row of neighbours begins in, before it; else -1.
  __device__ static int skip_of(const RowTensor& t, const char* row) {
    if (t.step != kBytes || !t.is_aligned) return -1;
    return static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16) / kBytes;
  }
};

#endif

}  // namespace pestle::cuda
