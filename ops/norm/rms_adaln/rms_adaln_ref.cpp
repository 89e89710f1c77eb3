// rms_adaln, reference: ops/norm/forward/norm_rows.cpp, in float64.
#include "ops/norm/rms_adaln/rms_adaln_spec.h"

namespace pestle::ops::rms_adaln {
namespace {

Status run(const Call& call) { return norm_rows_reference(call, norm_rows<spec>(call, false)); }

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::rms_adaln
