// Runs a check once for every instruction set of this CPU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/machine.h"

namespace pestle::testing {

template <class Body>
void for_each_isa(Body&& body) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    SCOPED_TRACE(std::string(isa_name(isa)));
    ASSERT_TRUE(set_isa(isa_name(isa)).ok());
    body();
  }
  ASSERT_TRUE(set_isa("best").ok());
}

}  // namespace pestle::testing
