// One call of a form: from torch's stack of values to an op of the table and back.
#pragma once

#include "python/csrc/forms.h"
#include "python/csrc/torch_abi.h"

namespace pestle::torch {

// Takes the inputs off the stack and leaves the outputs there; the inputs are released also when it
// fails. Allocates outputs and workspace by torch, and nothing else that lasts.
Status run_form(const Form& form, StableIValue* stack, uint64_t inputs, uint64_t outputs);

}  // namespace pestle::torch
