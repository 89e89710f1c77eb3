// gated_activation, reference: float64, element by element; codes by the scalar rules.
#include "ops/activation/gated_activation/gated_activation_call.h"

namespace pestle::ops::gated_activation {
namespace {

Status run(const Call& call) { return activation_reference(call, read(call)); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::gated_activation
