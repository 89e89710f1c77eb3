#include "core/dtype.h"

#include <iterator>

namespace pestle {
namespace {

constexpr DTypeInfo kInfos[] = {
    {DType::kNone, "none", 0, false}, {DType::kF32, "f32", 4, true},
    {DType::kF16, "f16", 2, true},    {DType::kBF16, "bf16", 2, true},
    {DType::kF64, "f64", 8, true},    {DType::kE4M3, "e4m3", 1, true},
    {DType::kE5M2, "e5m2", 1, true},  {DType::kE8M0, "e8m0", 1, true},
    {DType::kU8, "u8", 1, false},     {DType::kI8, "i8", 1, false},
    {DType::kI16, "i16", 2, false},   {DType::kU16, "u16", 2, false},
    {DType::kI32, "i32", 4, false},   {DType::kU32, "u32", 4, false},
    {DType::kI64, "i64", 8, false},   {DType::kU64, "u64", 8, false},
    {DType::kBool, "bool", 1, false},
};

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(kInfos) ? kInfos[index] : kInfos[0];
}

DType dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kInfos) {
    if (info.name == name && info.dtype != DType::kNone) return info.dtype;
  }
  return DType::kNone;
}

}  // namespace pestle
