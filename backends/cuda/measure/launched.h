// What a call queues on a stream, for the harness.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/status.h"

namespace pestle::cuda {

// What `work` queues on the stream, without running it: names of kernels, less namespaces and
// template arguments, "memset", "memcpy"; in the stream's order.
Result<std::vector<std::string>> launched(int device, void* stream,
                                          const std::function<Status()>& work);

}  // namespace pestle::cuda
