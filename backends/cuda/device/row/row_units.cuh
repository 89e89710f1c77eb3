// Rows of several tensors in units of 8 neighbouring elements, wherever they begin. Units lie where
// one of the tensors, the lead, has them at multiples of their size. Other rows are read by the
// aligned 16 bytes that hold a unit, whose words are then shifted into place, and written element by
// element, as are the ends of all rows. Aligned 16 bytes that hold some of a row can be read: memory
// comes in larger pieces.
#pragma once

#include "backends/cuda/device/row/row_access.cuh"

namespace pestle::cuda {

// Units that a row of `count` elements touches at most.
inline int64_t units_of_any(int64_t count) {
  return count == 0 ? 0 : (count + 2 * (kUnit - 1)) / kUnit;
}
// Rows whose threads need nothing of one another: short ones by a CTA's lanes, long ones in slices.
inline RowGroups sliced_units(int64_t rows, int64_t count) {
  const int64_t units = units_of_any(count);
  if (units <= int64_t{kRowThreads} * kRowChunks)
    return RowGroups::holding(rows, units, 1, kRowThreads, kRowChunks);
  return RowGroups::sliced(rows, units, kRowThreads / 2);
}
// Can units of it be moved as such, or is it absent?
inline bool has_neighbours(const RowTensor& t) {
  return !t.is_present || (t.is_aligned && (t.step == t.any.bytes || t.count == 1));
}

#ifdef __CUDACC__
// The elements that a thread has of a row: kRowChunks units, a group's lanes apart. Numbers of
// elements count from the first unit of the block's part.
struct RowUnits {
  int lane, lanes;
  int64_t first = 0;       // the row's element that is number 0; below 0 where the unit lacks some
  int begin = 0, end = 0;  // numbers of the elements that exist

  __device__ RowUnits(const RowPlace& p, const RowTensor& lead) : lane(p.lane), lanes(p.lanes) {
    if (p.units == 0) return;
    const auto address = reinterpret_cast<uintptr_t>(lead.row_at(p.row));
    const auto skip = static_cast<int>(address / static_cast<unsigned>(lead.any.bytes) % kUnit);
    first = p.first * kUnit - skip;
    begin = p.first == 0 ? skip : 0;
    end = static_cast<int>(max(min(lead.count - first, int64_t{p.units} * kUnit), int64_t{0}));
  }
  __device__ int number(int chunk) const { return (chunk * lanes + lane) * kUnit; }
  __device__ bool is_whole(int chunk) const {
    return number(chunk) >= begin && number(chunk) + kUnit <= end;
  }
  __device__ bool has(int chunk, int i) const {
    return number(chunk) + i >= begin && number(chunk) + i < end;
  }
  // 0 for what does not exist.
  __device__ void clear_missing(int chunk, float (&v)[kUnit]) const {
    if (is_whole(chunk)) return;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) v[i] = has(chunk, i) ? v[i] : 0.0f;
  }
};

// A row that is read, of elements of kBytes.
template <int kBytes>
struct UnitSource {
  static constexpr int kPiece = kBytes == 1 ? 8 : 16;      // bytes
  static constexpr int kPieces = kUnit * kBytes / kPiece;  // of a unit; one more if shifted
  static constexpr int kWords = kUnit * kBytes / 4;        // of a unit
  static constexpr int kFetched = kWords + kPiece / 4;
  const char* base;  // a multiple of kPiece
  unsigned shift;    // bytes of it before element 0
  int low, high;     // pieces that hold some of the row
  struct Words {
    uint32_t w[kFetched];
  };

  __device__ UnitSource(const RowTensor& t, int64_t row, const RowUnits& at) {
    const char* p = t.row_at(row) + at.first * kBytes;
    shift = reinterpret_cast<uintptr_t>(p) % kPiece;
    base = p - shift;
    low = (static_cast<int>(shift) + at.begin * kBytes) / kPiece;
    high = at.end > at.begin ? (static_cast<int>(shift) + at.end * kBytes - 1) / kPiece : -1;
  }
  __device__ void fetch(const RowUnits& at, int chunk, Words& words) const {
    const int piece = (chunk * at.lanes + at.lane) * kPieces;
#pragma unroll
    for (int i = 0; i <= kPieces; ++i) {
      const bool has = piece + i >= low && piece + i <= high && (i < kPieces || shift != 0);
      const char* p = base + (piece + i) * kPiece;
      if constexpr (kPiece == 8) {
        const uint2 v = has ? __ldg(reinterpret_cast<const uint2*>(p)) : make_uint2(0, 0);
        words.w[2 * i] = v.x, words.w[2 * i + 1] = v.y;
      } else {
        const uint4 v = has ? load16(p) : make_uint4(0, 0, 0, 0);
        words.w[4 * i] = v.x, words.w[4 * i + 1] = v.y;
        words.w[4 * i + 2] = v.z, words.w[4 * i + 3] = v.w;
      }
    }
  }
  // The unit's words come first. What does not exist is anything.
  __device__ void align(Words& words) const {
    if (shift == 0) return;
    if constexpr (kPiece == 16) move<2>((shift & 8) != 0, words.w);
    move<1>((shift & 4) != 0, words.w);
    if constexpr (kBytes < 4) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words.w[i] = __funnelshift_r(words.w[i], words.w[i + 1], shift % 4 * 8);
      }
    }
  }
  template <class T>
  __device__ typename T::Raw raw(Words& words) const {
    align(words);
    const auto& w = words.w;
    if constexpr (T::kBytes == 2)
      return {make_uint4(w[0], w[1], w[2], w[3])};
    else
      return {make_uint4(w[0], w[1], w[2], w[3]), make_uint4(w[4], w[5], w[6], w[7])};
  }

 private:
  template <int kBy>
  __device__ static void move(bool moves, uint32_t (&w)[kFetched]) {
#pragma unroll
    for (int i = 0; i + kBy < kFetched; ++i) w[i] = moves ? w[i + kBy] : w[i];
  }
};

// f(chunk, values) for a row's units as f32. T: Bf16 for f16 too.
template <class T, class F>
__device__ inline void each_unit_of(const RowTensor& t, int64_t row, const RowUnits& at, F& f) {
  constexpr int kBatch = 2;
  const UnitSource<T::kBytes> source(t, row, at);
#pragma unroll
  for (int c = 0; c < kRowChunks; c += kBatch) {
    typename UnitSource<T::kBytes>::Words words[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) source.fetch(at, c + i, words[i]);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const typename T::Raw raw = source.template raw<T>(words[i]);
      float v[kUnit];
      if constexpr (T::kBytes == 4) {
        F32::to_f32(raw, v);
      } else if (t.any.dtype == DType::kF16) {
        F16::to_f32(raw, v);
      } else {
        Bf16::to_f32(raw, v);
      }
      f(c + i, v);
    }
  }
}
// A row's units as they are, 0 for what does not exist.
template <class T>
__device__ inline void load_units(const RowTensor& t, int64_t row, const RowUnits& at,
                                  typename T::Raw (&raw)[kRowChunks]) {
  const UnitSource<T::kBytes> source(t, row, at);
  typename UnitSource<T::kBytes>::Words words[kRowChunks];
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) source.fetch(at, c, words[c]);
#pragma unroll
  for (int c = 0; c < kRowChunks; ++c) {
    raw[c] = source.template raw<T>(words[c]);
    if (at.is_whole(c)) continue;
    float v[kUnit];
    T::to_f32(raw[c], v);
    at.clear_missing(c, v);
    raw[c] = T::pack(v);
  }
}
// Of a tensor that may be absent.
template <class F>
__device__ inline void each_unit(const RowTensor& t, int64_t row, const RowUnits& at, F f) {
  if (!t.is_present) return;
  if (t.any.bytes == 4)
    each_unit_of<F32>(t, row, at, f);
  else
    each_unit_of<Bf16>(t, row, at, f);
}

// A row that is written.
struct UnitTarget {
  char* base;  // where element 0 is or would be

  __device__ UnitTarget(const RowTensor& t, int64_t row, const RowUnits& at)
      : base(t.row_at(row) + at.first * t.any.bytes) {}
  template <class T>
  __device__ void put(const RowUnits& at, int chunk, const typename T::Raw& raw) const {
    char* p = base + at.number(chunk) * T::kBytes;
    if (reinterpret_cast<uintptr_t>(p) % 16 == 0 && at.is_whole(chunk)) {
      T::put(p, raw);
      return;
    }
    if constexpr (T::kBytes == 2) {
      const uint32_t w[4] = {raw.v.x, raw.v.y, raw.v.z, raw.v.w};
      put_each(at, chunk, p,
               [&](int i) { return static_cast<uint16_t>(w[i / 2] >> 16 * (i % 2)); });
    } else {
      const uint32_t w[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                             raw.high.x, raw.high.y, raw.high.z, raw.high.w};
      put_each(at, chunk, p, [&](int i) { return w[i]; });
    }
  }
  // Codes of a byte each.
  __device__ void put_bytes(const RowUnits& at, int chunk, uint2 codes) const {
    char* p = base + at.number(chunk);
    if (reinterpret_cast<uintptr_t>(p) % 8 == 0 && at.is_whole(chunk)) {
      store8(p, codes);
      return;
    }
    put_each(at, chunk, p, [&](int i) {
      return static_cast<uint8_t>((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)));
    });
  }

 private:
  template <class F>
  __device__ static void put_each(const RowUnits& at, int chunk, char* p, F element) {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      using Element = decltype(element(0));
      if (at.has(chunk, i)) reinterpret_cast<Element*>(p)[i] = element(i);
    }
  }
};

// Sums, and largest magnitudes, of a row's threads.
struct SumPart {
  float v;
  __device__ static SumPart none() { return {0}; }
  __device__ static SumPart from(const float4& p) { return {p.x}; }
  __device__ float4 packed() const { return make_float4(v, 0, 0, 0); }
  __device__ SumPart over_lanes(int width) const { return {sum_over_lanes(v, width)}; }
};
struct LargestPart {
  uint32_t v;
  __device__ static LargestPart none() { return {0}; }
  __device__ static LargestPart from(const float4& p) { return {__float_as_uint(p.x)}; }
  __device__ float4 packed() const { return make_float4(__uint_as_float(v), 0, 0, 0); }
  __device__ LargestPart over_lanes(int width) const {
    LargestPart all = *this;
    for (int step = width / 2; step > 0; step /= 2) {
      all.v = max(all.v, __shfl_xor_sync(~0u, all.v, step));
    }
    return all;
  }
};
// Of all threads that share the row; each time with other memory.
template <class Part>
__device__ inline Part join_units(const RowPlace& place, Part part, RowParts& shared) {
  begin_row(place);
  return join_row(place, part.over_lanes(min(place.lanes, 32)), shared);
}
#endif

}  // namespace pestle::cuda
