// A quantised matrix as the matmul code reads it: one description that fits every format, so that
// there is one set of kernels and no copy of them per op.
//
//   value(row, k) = (decode(code) - zero) * (scale(row, k / group) * factor) [* column_scale[k]]
//   round_to_int8:  rne(clamp(decode(code) * scale, -127, 127)) * row_scale[row]
#pragma once

#include <cstdint>
#include <cstring>

namespace pestle::cpu {

enum class CodeKind : uint8_t { kE4M3, kE5M2, kI8, kNibble };
enum class ScaleKind : uint8_t { kF32, kE4M3, kE8M0 };

struct QuantMatrix {
  CodeKind code = CodeKind::kI8;
  const uint8_t* codes = nullptr;
  int64_t row_bytes = 0;  // from one row to the next
  int64_t rows = 0;
  int64_t columns = 0;

  // kNibble: the value of each code, and whether the even column sits in the high nibble.
  float table[16] = {};
  bool high_first = false;

  // Scale of (row, k): element k / group of scale row row / rows_per_scale (row 0 if that is 0).
  ScaleKind scale_kind = ScaleKind::kF32;
  const void* scales = nullptr;  // null: every scale is 1
  int64_t scale_row_stride = 0;  // in elements
  int64_t rows_per_scale = 1;
  int64_t group = 1;      // columns that share a scale, >= 1
  bool swizzled = false;  // 128x4 tiles of one-byte scales; scale_row_stride does not count
  float factor = 1;       // on every scale: NVFP4's global scale

  const uint8_t* zeros = nullptr;  // zero points, laid out like the scales with this row stride
  int64_t zero_row_stride = 0;

  const void* column_scale = nullptr;  // f32 at any address
  const void* row_scale = nullptr;     // f32, with round_to_int8
  bool round_to_int8 = false;
};

// One row of x as a kernel for a given matrix takes it.
struct GemvX {
  const float* x = nullptr;        // null: every row needs exact decoding
  const uint16_t* bf16 = nullptr;  // if parts > 0: so many bf16 arrays whose sum is x / unit
  int parts = 0;
  float unit = 1;
};

inline float float_at(const void* floats, int64_t index) {
  float value;
  std::memcpy(&value, static_cast<const char*>(floats) + index * 4, 4);
  return value;
}

// The kernels take groups that do not cut a vector of columns: any multiple of 16 for one-byte
// codes, 16, 32, 64 or a multiple of 128 for nibbles, or one group for the whole row.
inline bool group_is_regular(const QuantMatrix& q) {
  if (q.group >= q.columns) return true;
  if (q.code != CodeKind::kNibble) return q.group % 16 == 0;
  return q.group == 16 || q.group == 32 || q.group == 64 || q.group % 128 == 0;
}

inline constexpr int64_t kQuantBlock = 128;  // x rows are padded with zeros to a multiple of this
inline constexpr int64_t kScaleSlack = 16;   // floats that a scale buffer has beyond its scales

}  // namespace pestle::cpu
