// adaln, reference: ops/norm/forward/norm_rows.cpp, in float64.
#include "ops/norm/adaln/adaln_spec.h"

namespace pestle::ops::adaln {
namespace {

Status run(const Call& call) { return norm_rows_reference(call, norm_rows<spec>(call, true)); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::adaln
