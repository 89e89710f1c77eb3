// Another build of the library, in the same process and on the same tensors: what an A/B of two
// versions compares.
#pragma once

#include <string>

#include "core/op_table.h"
#include "harness/memory.h"

namespace pestle::harness {

// Is this the name of a file rather than of an implementation?
bool names_library(const std::string& name);

// An implementation of `op` that calls the shared library at `path` through its C ABI. It lives as
// long as the process; one at a time.
Result<const Impl*> impl_of_library(const Op& op, const std::string& path, Memory& memory);

}  // namespace pestle::harness
