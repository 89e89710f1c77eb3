// activation and gated_activation: what their contracts and implementations share.
#pragma once

#include "core/machine.h"
#include "ops/activation/activation_args.h"
#include "ops/activation/gated_views.h"
#include "ops/quant/output/quantized_output.h"

namespace pestle::ops {

// One call; absent tensors have no data.
struct ActivationRows {
  TensorView x;     // what the function takes
  TensorView gate;  // the other factor
  TensorView out;
  Activation act = Activation::kSilu;
  QuantizedOutput quant;

  int64_t rows() const { return row_count(x); }
  int64_t columns() const { return row_length(x); }
};

Status activation_reference(const Call& call, const ActivationRows& a);
Status activation_cpu(const ActivationRows& a);
std::string refuse_activation_cpu(const ActivationRows& a);

Status activation_cuda(const Call& call, const char* name, const ActivationRows& a);
Status activation_cuda_any(const Call& call, const char* name, const ActivationRows& a);
std::string refuse_activation_cuda(const ActivationRows& a, const Machine& machine);

}  // namespace pestle::ops
