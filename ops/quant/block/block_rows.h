// What the fast quantisers and dequantisers of block formats share: walking a matrix by groups of
// blocks over all cores, padding, and gathering or scattering block scales. Format and instruction
// set come in as the body of a group.
#pragma once

#include "core/op.h"

namespace pestle::ops {

// A matrix of numbers beside its codes and block scales. Rows may lie apart; elements may not.
struct BlockMatrix {
  uint8_t* values = nullptr;
  int64_t value_rows = 0;     // may be fewer than code_rows, and value_columns fewer than columns:
  int64_t value_columns = 0;  // the rest of the codes is padding
  int64_t value_row_bytes = 0;
  int64_t value_bytes = 0;
  uint8_t* codes = nullptr;
  int64_t code_rows = 0;
  int64_t code_row_bytes = 0;
  int64_t code_bits = 0;
  uint8_t* scales = nullptr;
  int64_t scale_rows = 0;
  int64_t scale_row_bytes = 0;  // plain layout only; swizzled scales are contiguous
  bool swizzled = false;
  int64_t columns = 0;  // elements in a row of codes
  int64_t block = 0;

  // From the tensors of a call that `refuse_block_layout` lets pass.
  BlockMatrix(const TensorView& matrix, const TensorView& q, const TensorView& scale,
              bool is_swizzled, int bits, int64_t block_size);
};

// Whether results are too large for the caches, so that writing past them is faster.
inline bool outgrows_caches(int64_t bytes) { return bytes >= (int64_t{8} << 20); }

// Why a fast implementation does not take these tensors; empty: it does.
std::string refuse_block_layout(const TensorView& matrix, const char* matrix_name,
                                const TensorView& q, const TensorView& scale,
                                const char* scale_name, bool swizzled);

inline constexpr int64_t kGroupBlocks = 64;

// Up to kGroupBlocks neighbouring blocks of one row.
struct BlockGroup {
  uint8_t* values;
  uint8_t* codes;
  uint8_t* scales;  // one code a block
  int64_t blocks;
  uint64_t element;  // index of the first in the padded matrix, row by row
};

// What a body may need beside the group; each format uses some of it.
struct BlockParams {
  float global_scale = 1;
  bool high_first = false;
  bool stochastic = false;
  uint64_t seed = 0;
  bool stream = false;  // write past the caches where the alignment allows it
};
using GroupBody = void (*)(const BlockParams& params, const BlockGroup& group);

// Body reads values, writes codes and scales; for every block, padding included.
void quantize_groups(const BlockMatrix& matrix, GroupBody body, const BlockParams& params);
// Body reads codes and scales, writes values.
void dequantize_groups(const BlockMatrix& matrix, GroupBody body, const BlockParams& params);

}  // namespace pestle::ops
