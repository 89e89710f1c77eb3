// rms_norm on the CPU: rows in the L1 by row_math, threads over rows
// (ops/norm/forward/norm_rows.cpp).
#include "ops/norm/rms_norm/rms_norm_spec.h"

namespace pestle::ops::rms_norm {
namespace {

Status run(const Call& call) { return norm_rows_cpu(norm_rows<spec>(call, false)); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_rows_cpu(norm_rows<spec>(call, false));
}

constexpr Impl kImpls[] = {{.id = "cpu/rms_norm_rows", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::rms_norm
