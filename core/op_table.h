// The table of all ops: what ops/ops.def lists, compiled and ready.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/contract.h"
#include "core/op.h"

namespace pestle {

struct Op {
  const OpSpec* spec = nullptr;
  const char* family = "";  // the folder under ops/ that holds the op's own
  Contract contract;
  std::vector<Impl> impls;  // best first, the reference last
  bool has_cuda = false;    // the table lists CUDA implementations, compiled in or not
  const Impl& reference() const { return impls.back(); }
};

// In the order of ops.def. Built on first use, then immutable; safe from any thread.
std::span<const Op> all_ops();
// nullptr when there is none.
const Op* find_op(std::string_view name);

}  // namespace pestle
