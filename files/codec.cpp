#include "files/codec.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "files/op_call.h"
#include "formats/e4m3.h"
#include "formats/e5m2.h"
#include "formats/fp8.h"
#include "formats/int8.h"
#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "formats/w4a8.h"

namespace pestle::files {

using formats::Format;

enum class Share : uint8_t { kPiece, kTensorScale, kConstant };

// How the ops' arguments correspond to a format's fields, in the format's order.
struct CodecField {
  const char* out = "";  // output of the quantising op that makes it
  const char* in = "";   // input of the dequantising op
  Share share = Share::kPiece;
  const char* given = "";  // input of the quantising op that sets it
};

struct Codec::Row {
  Format format;
  const char* quantize;
  const char* dequantize;
  const char* comfy;  // attributes of both ops in ComfyUI's layout
  const char* plain;  // and in the plain one
  const char* quantize_only;
  int64_t row_step;
  int top_magnitude;  // largest code without its sign, as clipping is counted; 0: not counted
  std::array<CodecField, formats::kMaxFormatFields> fields;
};

namespace {

constexpr CodecField kCodes = {"q", "q"};
constexpr CodecField kScale = {"scale_out", "scale", Share::kPiece, "scale"};
constexpr CodecField kBlockScale = {"scale_out", "scale"};
constexpr CodecField kTensorScale = {"scale_out", "scale", Share::kTensorScale, "scale"};

constexpr std::string_view kInt4Op = "dequantize_int4";
constexpr std::string_view kSwizzled = "scale_layout=swizzled";
constexpr std::string_view kPlain = "scale_layout=plain";

uint64_t view_bytes(const TensorView& view) { return static_cast<uint64_t>(size_bytes(view)); }

}  // namespace

const Codec::Row* Codec::find_row(Format format) {
  static constexpr Row kRows[] = {
      {Format::kFp8,
       "quantize_fp8",
       "dequantize_fp8",
       "granularity=tensor",
       "granularity=tensor",
       "",
       1,
       0x7E,
       {{kCodes, kTensorScale}}},
      {Format::kFp8E5m2,
       "quantize_fp8",
       "dequantize_fp8",
       "granularity=tensor",
       "granularity=tensor",
       "",
       1,
       0x7B,
       {{kCodes, kTensorScale}}},
      {Format::kFp8Row,
       "quantize_fp8",
       "dequantize_fp8",
       "granularity=row",
       "granularity=row",
       "",
       1,
       0x7E,
       {{kCodes, kScale}}},
      {Format::kFp8Block,
       "quantize_fp8",
       "dequantize_fp8",
       "granularity=block_128x128",
       "granularity=block_128x128",
       "",
       128,
       0x7E,
       {{kCodes, kScale}}},
      {Format::kNvfp4,
       "quantize_nvfp4",
       "dequantize_nvfp4",
       "nibbles=high_first scale_layout=swizzled",
       "nibbles=low_first scale_layout=plain",
       "pad=1",
       128,
       7,
       {{kCodes,
         kBlockScale,
         {"global_scale_out", "global_scale", Share::kTensorScale, "global_scale"}}}},
      {Format::kMxfp8,
       "quantize_mxfp8",
       "dequantize_mxfp8",
       "scale_layout=swizzled",
       "scale_layout=plain",
       "pad=1",
       128,
       0x7E,
       {{kCodes, kBlockScale}}},
      {Format::kMxfp4,
       "quantize_mxfp4",
       "dequantize_mxfp4",
       "",
       "nibbles=low_first scale_layout=plain",
       "pad=1",
       128,
       7,
       {{kCodes, kBlockScale}}},
      {Format::kInt8,
       "quantize_int8",
       "dequantize_int8",
       "granularity=tensor",
       "granularity=tensor",
       "",
       1,
       127,
       {{kCodes, kTensorScale}}},
      {Format::kInt8Row,
       "quantize_int8",
       "dequantize_int8",
       "granularity=row",
       "granularity=row",
       "",
       1,
       127,
       {{kCodes, kScale}}},
      {Format::kInt8Convrot,
       "quantize_int8",
       "dequantize_int8",
       "granularity=row hadamard=256",
       "granularity=row hadamard=256",
       "",
       1,
       0,
       {{kCodes, kScale}}},
      {Format::kInt4G32,
       "quantize_int4",
       "dequantize_int4",
       "",
       "group_size=32",
       "",
       1,
       7,
       {{kCodes, kBlockScale}}},
      {Format::kInt4G64,
       "quantize_int4",
       "dequantize_int4",
       "",
       "group_size=64",
       "",
       1,
       7,
       {{kCodes, kBlockScale}}},
      {Format::kInt4G128,
       "quantize_int4",
       "dequantize_int4",
       "",
       "group_size=128",
       "",
       1,
       7,
       {{kCodes, kBlockScale}}},
      {Format::kW4a8,
       "quantize_w4a8",
       "dequantize_w4a8",
       "",
       "",
       "",
       1,
       0,
       {{kCodes,
         {"scale_rel", "scale_rel"},
         {"scale_channel", "scale_channel"},
         {"", "codebook", Share::kConstant}}}},
      {Format::kW4a4Convrot,
       "quantize_int4",
       "dequantize_int4",
       "hadamard=256",
       "hadamard=256",
       "",
       1,
       0,
       {{kCodes, kBlockScale}}},
  };
  for (const Row& row : kRows) {
    if (row.format == format) return &row;
  }
  return nullptr;
}

Result<Codec> Codec::make(const LayerLayout& layout, DType source) {
  Codec codec;
  codec.layout_ = layout;
  codec.source_ = source;
  codec.row_ = find_row(layout.format->format);
  if (codec.row_ == nullptr) {
    return unsupported("this build can't encode " + std::string(layout.format->name));
  }
  codec.row_step_ = codec.row_->row_step;
  codec.stored_ = layout.layout == FileLayout::kComfy ? codec.row_->comfy : codec.row_->plain;
  codec.decode_slice_ = codec.stored_;
  const size_t swizzled = codec.stored_.find(kSwizzled);
  codec.swizzles_ = swizzled != std::string::npos;
  if (codec.swizzles_) codec.decode_slice_.replace(swizzled, kSwizzled.size(), kPlain);
  codec.encode_slice_ = codec.decode_slice_;
  codec.slice_step_ = layout.format->block_n > 1 ? codec.row_step_ : 1;
  if (layout.padded_n != layout.n || layout.padded_k != layout.k) {
    codec.encode_slice_ += std::string(" ") + codec.row_->quantize_only;
    codec.slice_step_ = codec.row_step_;
  }
  const Result<FieldViews> views = codec.piece_views(codec.row_step_);
  PESTLE_TRY(views.status());
  const Result<FieldViews> slices = codec.slice_views(codec.slice_step_);
  PESTLE_TRY(slices.status());
  for (size_t i = 0; i < layout.fields.size(); ++i) {
    codec.step_bytes_.push_back(view_bytes(views.value()[i]));
    codec.slice_bytes_.push_back(view_bytes(slices.value()[i]));
  }
  return codec;
}

int Codec::tensor_scale_field() const {
  for (size_t i = 0; i < layout_.fields.size(); ++i) {
    if (row_->fields[i].share == Share::kTensorScale) return static_cast<int>(i);
  }
  return -1;
}

int Codec::searchable_field() const {
  for (size_t i = 0; i < layout_.fields.size(); ++i) {
    if (row_->fields[i].given[0] != '\0') return static_cast<int>(i);
  }
  return -1;
}

bool Codec::is_shared(int field) const {
  return row_->fields[static_cast<size_t>(field)].share != Share::kPiece;
}

float Codec::tensor_scale(uint32_t magnitude_bits) const {
  switch (row_->format) {
    case Format::kFp8: return formats::fp8_scale<formats::E4m3>(magnitude_bits);
    case Format::kFp8E5m2: return formats::fp8_scale<formats::E5m2>(magnitude_bits);
    case Format::kInt8: return formats::int8_scale(magnitude_bits);
    case Format::kNvfp4: return formats::nvfp4_global_scale(magnitude_bits);
    default: return 1;
  }
}

uint64_t Codec::piece_offset(int field, int64_t row) const {
  if (is_shared(field)) return 0;
  return static_cast<uint64_t>(row / row_step_) * step_bytes_[static_cast<size_t>(field)];
}

// The ops' own contracts say what shapes `rows` rows have.
Result<FieldViews> Codec::infer_views(int64_t rows, const std::string& attributes) const {
  OpCall call(row_->quantize, attributes);
  const int64_t shape[] = {rows, layout_.k};
  call.tensor("x", make_view(nullptr, source_, 2, shape));
  for (size_t i = 0; i < layout_.fields.size(); ++i) {
    if (row_->fields[i].share == Share::kConstant) continue;
    // Codes come in several dtypes; the format's own, not the label that a file puts on them.
    TensorView wanted;
    wanted.dtype = layout_.format->fields()[i].dtype;
    call.tensor(row_->fields[i].out, wanted);
  }
  PESTLE_TRY(call.infer());
  FieldViews views;
  for (size_t i = 0; i < layout_.fields.size(); ++i) {
    const auto& shape = layout_.fields[i].shape;
    views[i] = row_->fields[i].share == Share::kConstant
                   ? make_view(nullptr, layout_.fields[i].dtype, static_cast<int>(shape.size()),
                               shape.data())
                   : call.view(row_->fields[i].out);
  }
  return views;
}

Result<FieldViews> Codec::piece_views(int64_t rows) const {
  return infer_views(rows, stored_ + " " + row_->quantize_only);
}

Result<FieldViews> Codec::slice_views(int64_t rows) const {
  return infer_views(rows, encode_slice_);
}

uint64_t Codec::slice_offset(int field, int64_t row) const {
  if (is_shared(field)) return 0;
  return static_cast<uint64_t>(row / slice_step_) * slice_bytes_[static_cast<size_t>(field)];
}

void Codec::arrange(const FieldViews& plain, const FieldViews& stored) const {
  if (!swizzles_) return;
  const auto* from = plain[1].as<uint8_t>();
  auto* to = stored[1].as<uint8_t>();
  std::memset(to, 0, view_bytes(stored[1]));
  const int64_t columns = plain[1].shape[1];
  for (int64_t r = 0; r < plain[1].shape[0]; ++r) {
    for (int64_t c = 0; c < columns; c += formats::kSwizzleCols) {
      const int64_t count = std::min(formats::kSwizzleCols, columns - c);
      uint8_t* at = to + formats::swizzle_offset(r, c, columns);
      if (count == formats::kSwizzleCols) {
        std::memcpy(at, from + r * columns + c, formats::kSwizzleCols);
      } else {
        std::memcpy(at, from + r * columns + c, static_cast<size_t>(count));
      }
    }
  }
}

Status Codec::encode(const TensorView& w, const FieldViews& fields, bool scales_given) const {
  OpCall call(row_->quantize, encode_slice_);
  call.tensor("x", w);
  const int searchable = scales_given ? searchable_field() : -1;
  for (size_t i = 0; i < layout_.fields.size(); ++i) {
    const CodecField& field = row_->fields[i];
    if (field.share == Share::kConstant) {
      formats::w4a8_default_codebook(fields[i].as<float>());
      continue;
    }
    const bool given = field.share == Share::kTensorScale || static_cast<int>(i) == searchable;
    call.tensor(given ? field.given : field.out, fields[i]);
  }
  return call.run();
}

Status Codec::decode(const FieldViews& fields, TensorView& out) const {
  return run_decode(fields, stored_, out);
}

Status Codec::decode_slice(const FieldViews& fields, TensorView& out) const {
  return run_decode(fields, decode_slice_, out);
}

Status Codec::run_decode(const FieldViews& fields, const std::string& attributes,
                         TensorView& out) const {
  OpCall call(row_->dequantize, attributes);
  for (size_t i = 0; i < layout_.fields.size(); ++i) call.tensor(row_->fields[i].in, fields[i]);
  call.tensor("out", out);
  return call.run();
}

bool Codec::counts_clipped() const { return row_->top_magnitude != 0; }

StoredCodes Codec::codes_of(const FieldViews& fields) const {
  if (!counts_clipped()) return {};
  TopCodes top;
  top.nibbles = layout_.format->code_bits == 4;
  top.low_first = layout_.layout == FileLayout::kPlain;
  const int largest = row_->top_magnitude;
  const int sign = top.nibbles ? 8 : 128;
  const bool is_integer =
      layout_.format->fields()[0].dtype == DType::kI8 || row_->dequantize == kInt4Op;
  if (is_integer) {  // two's complement: +largest, -largest and one below
    top.mask = static_cast<uint8_t>(2 * sign - 1);
    top.values[0] = static_cast<uint8_t>(largest);
    top.values[1] = static_cast<uint8_t>(2 * sign - largest);
    top.values[2] = static_cast<uint8_t>(sign);
  } else {
    top.mask = static_cast<uint8_t>(sign - 1);
    for (uint8_t& value : top.values) value = static_cast<uint8_t>(largest);
  }
  return {fields[0].as<uint8_t>(), fields[0].shape[1], top};
}

}  // namespace pestle::files
