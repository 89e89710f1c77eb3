// Which op each position of a list is a call of.
#pragma once

#include "ops/quant/rowwise/quantize_list/quantize_list_spec.h"
#include "ops/shared/by_position.h"

namespace pestle::ops::quantize_list {

inline PositionCall position_call(const Call& call, size_t position) {
  const DType dtype = call.args[arg_index(spec, "q")].list[position].dtype;
  return {call, position, dtype == DType::kI8 ? "quantize_int8" : "quantize_fp8"};
}

inline size_t positions(const Call& call) { return call.args[arg_index(spec, "x")].list.size(); }

}  // namespace pestle::ops::quantize_list
