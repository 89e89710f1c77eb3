// One call of an op, and the implementations that may serve it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/machine.h"
#include "core/op_spec.h"
#include "core/status.h"
#include "core/tensor.h"

namespace pestle {

inline constexpr int kMaxArgs = 32;

// The value of one argument; which member counts follows from the contract's Kind.
struct Value {
  bool present = false;
  TensorView tensor;                 // kTensor
  std::span<const TensorView> list;  // kTensorList
  int64_t i = 0;                     // kInt, kBool, kChoice (index of the label)
  double f = 0;                      // kFloat
};

// Arguments in the contract's order. An implementation may rely on the contract having been
// checked: dtypes, shapes, devices, presence, overlaps.
struct Call {
  const OpSpec* spec = nullptr;
  std::span<Value> args;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  void* stream = nullptr;
  // Reference only: add up |terms| instead of terms, in float64, for the error bound.
  bool sum_magnitudes = false;

  const TensorView& tensor(int index) const { return args[index].tensor; }
  bool has(int index) const { return args[index].present; }
  int64_t integer(int index) const { return args[index].i; }
  float number(int index) const { return static_cast<float>(args[index].f); }
};

struct Impl {
  const char* id;  // "cpu/quantize_fp8_simd": what logs, benches and forced calls name
  DeviceType device = DeviceType::kCpu;
  int min_compute_capability = 0;
  // Why this implementation refuses the call; empty: it takes it. May look at shapes, strides,
  // dtypes, attributes and alignment (of the CPU's memory up to 64 bytes, of a device's up to
  // 256), never at the data.
  std::string (*refuses)(const Call&, const Machine&) = nullptr;
  Status (*run)(const Call&) = nullptr;
  const char* workspace = "0";  // bytes, an expression of the contract's symbols
};

struct OpReference {
  const OpSpec* spec;
  Impl impl;
};

}  // namespace pestle
