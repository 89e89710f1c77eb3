// argmax, reference.
#include "ops/reduce/argmax/argmax_spec.h"

namespace pestle::ops::argmax {
namespace {

Status run(const Call& call) { return reference_arg_reduce(call, 1); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::argmax
