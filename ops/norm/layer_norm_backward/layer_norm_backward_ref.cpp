// layer_norm_backward, reference: ops/norm/backward/norm_backward.cpp, in float64.
#include "ops/norm/layer_norm_backward/layer_norm_backward_spec.h"

namespace pestle::ops::layer_norm_backward {
namespace {

Status run(const Call& call) {
  return norm_backward_reference(call, norm_backward<spec>(call, true));
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::layer_norm_backward
