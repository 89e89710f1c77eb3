// A mask's tiles for attention's gradients on Hopper: two warps bring them into a ring in shared
// memory, 64 queries x 128 keys at a time, elements as 16 bits each, those of a boolean mask all ones or
// zeros. A row is a query's; consumers, whose fragments have keys as rows, read them transposed, by
// ldmatrix.
//
// Rows that begin at 16 bytes come by cp.async, boolean ones at 8 bytes by eight elements, others by
// the element: that takes about as long as a tile of 128 columns does, twice as long as one of 64.
#pragma once

#include "backends/cuda/device/ptx/async_copy.cuh"
#include "backends/cuda/device/ptx/hopper.cuh"
#include "backends/cuda/device/ptx/mma.cuh"
#include "ops/attention/sm90/attention_hopper_mask.cuh"

namespace pestle::ops::attention_backward::backward_hopper {

using cuda::AttentionRows;
using cuda::attention_hopper::LogitRule;
using cuda::attention_hopper::MaskKind;
using cuda::attention_hopper::MaskTile;

constexpr int kMaskThreads = 64, kMaskSlots = 2;
constexpr int kMaskQueries = 64, kMaskKeys = 128;  // of a slot
constexpr int kMaskRowBytes = kMaskKeys * 2;

// Can eight elements of a row, 16 bytes in shared memory, be loaded at once? Of a boolean mask all of
// them must be there.
inline bool lies_in_eights(const AttentionRows& mask, int keys) {
  const int64_t element = dtype_bytes(mask.dtype), bytes = 8 * element;
  if (mask.dtype == DType::kBool && keys % 8 != 0) return false;
  return mask.column == element && mask.batch % bytes == 0 && mask.head % bytes == 0 &&
         mask.row % bytes == 0 &&
         reinterpret_cast<uintptr_t>(mask.data) % static_cast<uintptr_t>(bytes) == 0;
}
template <bool kMasked>
struct MaskSlots {};
template <>
struct alignas(16) MaskSlots<true> {
  char elements[kMaskSlots][kMaskQueries * kMaskRowBytes];
  uint64_t full[kMaskSlots], empty[kMaskSlots];

  // Of the eight keys 8 unit and on: eight rows' 16 bytes of one unit meet in no bank.
  static __host__ __device__ constexpr uint32_t place_of(int row, int unit) {
    return static_cast<uint32_t>(row * kMaskRowBytes + (unit ^ (row % 8)) * 16);
  }
};

#if PESTLE_HOPPER

// By two warps; a thread takes eight keys, and those 64 on, of every eighth query.
template <bool kBool>
struct MaskLoader {
  static constexpr int kUnits = 8, kHalf = 64, kRowsApart = kMaskThreads / kUnits;
  static constexpr int kRows = kMaskQueries / kRowsApart;  // of a thread

  MaskSlots<true>& slots;
  const AttentionRows& mask;
  bool in_eights;
  int queries, keys;  // that there are
  int unit = static_cast<int>(threadIdx.x % kUnits);
  int first = static_cast<int>(threadIdx.x % kMaskThreads) / kUnits;
  int n = 0;  // slots so far

  // What is outside of the mask becomes 0, and nothing is read there.
  __device__ void load(int batch, int head, int query0, int key0) {
    const int slot = n % kMaskSlots;
    cuda::hopper::wait(&slots.empty[slot], (n / kMaskSlots & 1) ^ 1);
    ++n;
    const int key = key0 + unit * 8, query = query0 + first;
    const Part part{
        cuda::hopper::shared_address(slots.elements[slot]) + MaskSlots<true>::place_of(first, unit),
        mask.at(batch, head, query) + key * mask.column, queries - query, keys - key};
    uint64_t* const full = &slots.full[slot];
    if (!in_eights) {
      gather(part);
    } else if constexpr (kBool) {
      widen(part);
    } else {
      copy(part);
      cuda::arrive_behind_copies(cuda::hopper::shared_address(full));
      return;
    }
    cuda::hopper::arrive(full);
  }

 private:
  // Of the thread's first row: where it goes, where it is, and how many rows and keys the mask has
  // from there on.
  struct Part {
    uint32_t to;
    const char* from;
    int rows, left;

    __device__ Part in_half(int64_t column) const {
      return {to + kHalf * 2, from + kHalf * column, rows, left - kHalf};
    }
    __device__ uint32_t place(int i) const { return to + i * kRowsApart * kMaskRowBytes; }
    __device__ bool is_there(int i) const { return i * kRowsApart < rows; }
  };
  __device__ const char* row_of(const Part& part, int i) const {
    return part.from + i * kRowsApart * mask.row;
  }
  __device__ static void store(uint32_t to, const uint32_t (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  }

  __device__ void copy(const Part& part) const {
    const int bytes[2] = {min(max(2 * part.left, 0), 16), min(max(2 * (part.left - kHalf), 0), 16)};
    const char* from = part.from;
#pragma unroll
    for (int i = 0; i < kRows; ++i, from += kRowsApart * mask.row)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool there = part.is_there(i) && bytes[half] > 0;
        cuda::copy_async(part.place(i) + half * kHalf * 2,
                         there ? from + half * kHalf * 2 : mask.data, there ? bytes[half] : 0);
      }
  }
  __device__ void widen(const Part& part) const {
    constexpr int kAtOnce = 4;  // rows
    const char* from = part.from;
#pragma unroll 1
    for (int i0 = 0; i0 < kRows; i0 += kAtOnce) {
      uint2 bytes[kAtOnce][2];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i, from += kRowsApart * mask.row)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          bytes[i][half] = make_uint2(0, 0);
          if (part.is_there(i0 + i) && half * kHalf < part.left)
            bytes[i][half] = __ldg(reinterpret_cast<const uint2*>(from + half * kHalf));
        }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 of = bytes[i][half];
          const uint32_t low = __vcmpne4(of.x, 0), high = __vcmpne4(of.y, 0);
          const uint32_t words[4] = {__byte_perm(low, 0, 0x1100), __byte_perm(low, 0, 0x3322),
                                     __byte_perm(high, 0, 0x1100), __byte_perm(high, 0, 0x3322)};
          store(part.place(i0 + i) + half * kHalf * 2, words);
        }
    }
  }
  __device__ void gather(Part part) const {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
#pragma unroll 1
      for (int i = 0; i < kRows; ++i) {
        const char* const row = row_of(part, i);
        const int left = part.is_there(i) ? part.left : 0;
        uint32_t words[4] = {};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (e < left) words[e / 2] |= element(row + e * mask.column) << (e % 2 * 16);
        store(part.place(i), words);
      }
      part = part.in_half(mask.column);
    }
  }
  __device__ static uint32_t element(const char* at) {
    if constexpr (kBool) return __ldg(reinterpret_cast<const unsigned char*>(at)) != 0 ? 0xFFFF : 0;
    return __ldg(reinterpret_cast<const unsigned short*>(at));
  }
};

#endif  // PESTLE_HOPPER

}  // namespace pestle::ops::attention_backward::backward_hopper
