// Element types. The numbers are part of the C ABI and of result files: append only.
#pragma once

#include <cstdint>
#include <string_view>

namespace pestle {

enum class DType : int32_t {
  kNone = 0,
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kF64 = 4,
  kE4M3 = 5,  // OCP FP8 E4M3 (finite, one NaN per sign), torch.float8_e4m3fn
  kE5M2 = 6,  // OCP FP8 E5M2 (IEEE-like), torch.float8_e5m2
  kE8M0 = 7,  // OCP MX scale: 2^(code-127), 255 is NaN
  kU8 = 8,    // bytes; also two packed 4-bit codes
  kI8 = 9,
  kI16 = 10,
  kU16 = 11,
  kI32 = 12,
  kU32 = 13,
  kI64 = 14,
  kU64 = 15,
  kBool = 16,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // the spelling used everywhere: contracts, command line, reports
  int bytes;
  bool is_float;  // has a fraction: f64, f32, f16, bf16 and the 8-bit floats
};

// Information of `dtype`; kNone yields {kNone, "none", 0, false}.
const DTypeInfo& dtype_info(DType dtype);
// kNone when `name` is no dtype.
DType dtype_from_name(std::string_view name);

inline int dtype_bytes(DType dtype) { return dtype_info(dtype).bytes; }
inline std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }

}  // namespace pestle
