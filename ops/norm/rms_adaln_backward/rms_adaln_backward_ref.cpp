// rms_adaln_backward, reference: ops/norm/backward/norm_backward.cpp, in float64.
#include "ops/norm/rms_adaln_backward/rms_adaln_backward_spec.h"

namespace pestle::ops::rms_adaln_backward {
namespace {

Status run(const Call& call) {
  return norm_backward_reference(call, norm_backward<spec>(call, false));
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::rms_adaln_backward
