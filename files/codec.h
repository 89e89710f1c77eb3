// Encoding and decoding rows of one layer through the ops. A chunk of rows fills one contiguous
// piece of each of the layer's fields, so chunks can be made in any order by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "files/error_sums.h"
#include "files/layer_layout.h"

namespace pestle::files {

// Views of one chunk's piece of each field, in the format's order.
using FieldViews = std::array<TensorView, formats::kMaxFormatFields>;

class Codec {
 public:
  // kUnsupported when this build has no op for the format.
  static Result<Codec> make(const LayerLayout& layout, DType source);

  const LayerLayout& layout() const { return layout_; }
  // Chunks begin at multiples of this many rows.
  int64_t row_step() const { return row_step_; }
  // The field with one value for the whole tensor, which must be known before encode(); -1: none.
  int tensor_scale_field() const;
  // That value, for the tensor's largest magnitude (bits as largest_magnitude_bits gives them).
  float tensor_scale(uint32_t magnitude_bits) const;
  // A field that is the same for every chunk: written once.
  bool is_shared(int field) const;
  // Scales that encode() may be given instead of computing them, for a search; -1: none.
  int searchable_field() const;

  // Shapes of the pieces for `rows` rows of the weight, without memory.
  Result<FieldViews> piece_views(int64_t rows) const;
  // Where the piece of the chunk at `row` begins, in bytes of the field.
  uint64_t piece_offset(int field, int64_t row) const;

  // `fields`: a piece's, as stored. `out`: f32 [rows padded, padded_k].
  Status decode(const FieldViews& fields, TensorView& out) const;

  // Encoding works on slices, of a multiple of slice_step() rows or up to the last one, whose block
  // scales lie in plain order; arrange() makes a piece's fields of its slices'.
  int64_t slice_step() const { return slice_step_; }
  Result<FieldViews> slice_views(int64_t rows) const;
  // Where row `row` of a slice's fields lies, in bytes.
  uint64_t slice_offset(int field, int64_t row) const;
  bool is_rearranged(int field) const { return swizzles_ && field == 1; }
  void arrange(const FieldViews& plain, const FieldViews& stored) const;

  // `w`: [rows, k] contiguous. Fields whose views have memory are written; the tensor's scale is
  // read, and so are the searchable scales if `scales_given`.
  Status encode(const TensorView& w, const FieldViews& fields, bool scales_given = false) const;
  Status decode_slice(const FieldViews& fields, TensorView& out) const;

  // False when the format does not tell which weights were clipped (rotated codes).
  bool counts_clipped() const;
  // The codes for error_sums() to find the clipped ones among; empty if the format does not tell.
  StoredCodes codes_of(const FieldViews& fields) const;

 private:
  struct Row;
  static const Row* find_row(formats::Format format);
  Result<FieldViews> infer_views(int64_t rows, const std::string& attributes) const;
  Status run_decode(const FieldViews& fields, const std::string& attributes, TensorView& out) const;

  LayerLayout layout_;
  const Row* row_ = nullptr;
  DType source_ = DType::kNone;
  int64_t row_step_ = 1;
  std::vector<uint64_t> step_bytes_;  // of each field, for row_step_ rows
  int64_t slice_step_ = 1;
  std::vector<uint64_t> slice_bytes_;  // of each field of a slice, for slice_step_ rows
  bool swizzles_ = false;
  // Attributes of the ops, for pieces and for slices.
  std::string stored_;
  std::string encode_slice_;
  std::string decode_slice_;
};

}  // namespace pestle::files
