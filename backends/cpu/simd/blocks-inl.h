// Runs of elements in blocks of kBlock, with streaming stores and any alignment and length.
#if defined(PESTLE_SIMD_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PESTLE_SIMD_BLOCKS_INL_H_
#undef PESTLE_SIMD_BLOCKS_INL_H_
#else
#define PESTLE_SIMD_BLOCKS_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::cpu::HWY_NAMESPACE {

// Outputs of at least this many bytes are streamed past the caches: they would push out more than
// a reader could find there.
inline constexpr int64_t kStreamBytes = int64_t{8} << 20;

inline constexpr size_t kVectorBytes = 4 * kN;

struct RunOptions {
  bool stream = false;
  // Bytes from an element to the one to fetch meanwhile (the next row); 0: none. Never faults.
  int64_t ahead = 0;
};

// Calls block(in, out, index, stream) for consecutive blocks: `in` and `out` point to kBlock
// elements of kIn and kOut bytes, `index` counts elements from the start of the run. The first and
// last block may be shorter than kBlock: they go through buffers on the stack, filled up with
// zeros, and whatever the block looks up by index must exist for kBlock elements even there.
template <size_t kIn, size_t kOut, class Block>
HWY_INLINE void run_blocks(const void* in, void* out, int64_t count, RunOptions options,
                           Block&& block) {
  const auto* from = static_cast<const uint8_t*>(in);
  auto* to = static_cast<uint8_t*>(out);
  const auto partial = [&](int64_t index, int64_t length) HWY_ATTR {
    HWY_ALIGN uint8_t part_in[kBlock * kIn] = {};
    HWY_ALIGN uint8_t part_out[kBlock * kOut];
    std::memcpy(part_in, from + index * kIn, static_cast<size_t>(length) * kIn);
    block(part_in, part_out, index, false);
    std::memcpy(to + index * kOut, part_out, static_cast<size_t>(length) * kOut);
  };
  constexpr int64_t kStep = kBlock;
  int64_t i = 0;
  bool stream = options.stream && kCanStream;
  if (stream) {
    const size_t past = reinterpret_cast<uintptr_t>(to) % kVectorBytes;
    stream = past % kOut == 0;
    if (stream && past != 0) {
      i = std::min(count, static_cast<int64_t>((kVectorBytes - past) / kOut));
      partial(0, i);
    }
  }
  for (; i + kStep <= count; i += kStep) {
    if (options.ahead != 0) {
      for (size_t line = 0; line < kBlock * kIn; line += 64) {
        hwy::Prefetch(from + i * kIn + options.ahead + line);
      }
    }
    block(from + i * kIn, to + i * kOut, i, stream);
  }
  if (i < count) partial(i, count - i);
}

// kBlock elements of T, streamed or not.
template <class T>
HWY_INLINE void put_block(bool stream, const VF (&v)[4], void* out) {
  if (stream) {
    store4<true, T>(v[0], v[1], v[2], v[3], out);
  } else {
    store4<false, T>(v[0], v[1], v[2], v[3], out);
  }
}

// Elements to f32 and back: one rounding each.
template <class T>
void load_floats(const void* in, float* out, int64_t count) {
  run_blocks<T::kBytes, 4>(in, out, count, {},
                           [](const uint8_t* from, uint8_t* to, int64_t, bool) HWY_ATTR {
                             for (size_t j = 0; j < 4; ++j) {
                               F32::store(T::load(from + j * kN * T::kBytes), to + j * kN * 4);
                             }
                           });
}
template <class T>
void store_floats(const float* in, void* out, int64_t count, bool stream) {
  run_blocks<4, T::kBytes>(in, out, count, {.stream = stream},
                           [](const uint8_t* from, uint8_t* to, int64_t, bool streams) HWY_ATTR {
                             VF v[4];
                             for (size_t j = 0; j < 4; ++j) v[j] = F32::load(from + j * kN * 4);
                             put_block<T>(streams, v, to);
                           });
}

}  // namespace pestle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PESTLE_SIMD_BLOCKS_INL_H_
