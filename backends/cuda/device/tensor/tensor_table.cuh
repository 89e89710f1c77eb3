// Several tensors in one launch: a table in the kernel's parameters says which thread blocks are
// whose, and every block looks itself up by bisection.
#pragma once

#include <cstdint>

namespace pestle::cuda {

inline constexpr int kTableTensors = 64;

// Entry: what a block needs of its tensor, at most 48 bytes: parameters have 4 KiB.
template <class Entry>
struct TensorTable {
  static_assert(sizeof(Entry) <= 48);
  int count = 0;
  uint32_t first[kTableTensors + 1] = {};  // thread block of each tensor, and the number of all
  Entry entries[kTableTensors] = {};

  bool is_full() const { return count == kTableTensors; }
  uint32_t blocks() const { return first[count]; }
  // False where the grid would get too large: launch what is there first.
  bool add(const Entry& entry, int64_t blocks) {
    if (is_full() || blocks + first[count] > INT32_MAX) return false;
    entries[count] = entry;
    first[count + 1] = first[count] + static_cast<uint32_t>(blocks);
    ++count;
    return true;
  }
#ifdef __CUDACC__
  // The tensor of a thread block; those without blocks are nobody's.
  __device__ int find(uint32_t block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= block)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
#endif
};

}  // namespace pestle::cuda
