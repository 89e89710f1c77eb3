// adaln on the CPU: rows in the L1 by row_math, threads over rows (ops/norm/forward/norm_rows.cpp).
#include "ops/norm/adaln/adaln_spec.h"

namespace pestle::ops::adaln {
namespace {

Status run(const Call& call) { return norm_rows_cpu(norm_rows<spec>(call, true)); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_norm_rows_cpu(norm_rows<spec>(call, true));
}

constexpr Impl kImpls[] = {{.id = "cpu/adaln_rows", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::adaln
