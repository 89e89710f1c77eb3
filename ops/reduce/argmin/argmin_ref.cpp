// argmin, reference.
#include "ops/reduce/argmin/argmin_spec.h"

namespace pestle::ops::argmin {
namespace {

Status run(const Call& call) { return reference_arg_reduce(call, -1); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::argmin
