// Calls written as text: "M=128 K=256 x=bf16 granularity=row" (cases of contracts) or
// "x=bf16[8,4096] scale=none" (`pestle why`). Tensors get shape and dtype but no memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/op_table.h"

namespace pestle {

struct TextCall {
  Call call;  // call.args views `values`
  std::vector<Value> values;
  std::vector<std::vector<TensorView>> lists;  // by argument: what the values' lists view
  Scope scope;                                 // symbols as bound by the call

  TextCall() = default;
  TextCall(TextCall&& other) noexcept { *this = std::move(other); }
  TextCall& operator=(TextCall&& other) noexcept {
    values = std::move(other.values);
    lists = std::move(other.lists);
    call = other.call;
    scope = other.scope;
    call.args = values;
    scope.args = values;
    return *this;
  }
};

// Required tensors that the text does not name are taken at their default dtype, with the shape
// that the symbols give; optional inputs are left out unless named; outputs follow the contract.
// `device` is given to every tensor.
// Of an op with lists, dimensions and tensors may have a value for each position, "M=64,1
// x=bf16,f32", which are repeated to `length=N` positions or to as many as the longest has.
Result<TextCall> call_from_text(const Op& op, std::string_view text, DeviceType device);

// Sets every attribute to the contract's default.
void set_default_attributes(const OpSpec& spec, std::span<Value> values);

}  // namespace pestle
