// Packings of INT4 codes as choices of contracts, and the byte behind one code of a packed view.
#pragma once

#include "formats/packing.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// In the order of formats::Int4Packing.
inline constexpr const char* kInt4Packings = "plain|plain_unsigned|kaio|gptq|awq";
inline constexpr const char* kInt4PackingDTypes =
    "plain|plain_unsigned: u8; kaio: u32; gptq|awq: i32";
inline constexpr const char* kInt4PackingShapes =
    "plain|plain_unsigned: N, K/2; kaio: N, K/8; gptq: K/8, N; awq: K, N/8";

struct NibblePlace {
  uint8_t* word;   // first byte of the word
  int64_t nibble;  // in the word
};

// A packed matrix with any strides: places are those of formats::packing_nibble, counted in words.
class PackedView {
 public:
  PackedView(const TensorView& t, formats::Int4Packing packing, int64_t rows_n, int64_t cols_k)
      : t_(t), packing_(packing), n_(rows_n), k_(cols_k), word_(dtype_bytes(t.dtype) * 2) {}
  NibblePlace operator()(int64_t n, int64_t k) const {
    const int64_t index = formats::packing_nibble(packing_, n, k, n_, k_);
    const int64_t word = index / word_;
    return {reinterpret_cast<uint8_t*>(at(t_, word / t_.shape[1], word % t_.shape[1])),
            index % word_};
  }
  uint8_t load(int64_t n, int64_t k) const {
    const NibblePlace place = (*this)(n, k);
    return formats::load_nibble(place.word, place.nibble);
  }
  void store(int64_t n, int64_t k, uint8_t code) const {
    const NibblePlace place = (*this)(n, k);
    formats::store_nibble(place.word, place.nibble, code);
  }

 private:
  const TensorView& t_;
  formats::Int4Packing packing_;
  int64_t n_;
  int64_t k_;
  int64_t word_;  // nibbles in a word
};

}  // namespace pestle::ops
