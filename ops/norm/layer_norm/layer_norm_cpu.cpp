// layer_norm on the CPU: rows in the L1 by row_math, threads over rows
// (ops/norm/forward/norm_rows.cpp).
#include "ops/norm/layer_norm/layer_norm_spec.h"

namespace pestle::ops::layer_norm {
namespace {

Status run(const Call& call) { return norm_rows_cpu(norm_rows<spec>(call, true)); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_rows_cpu(norm_rows<spec>(call, true));
}

constexpr Impl kImpls[] = {{.id = "cpu/layer_norm_rows", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::layer_norm
