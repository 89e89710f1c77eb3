// CUDA errors as statuses, and how many devices there are. No CUDA type leaves this folder.
#pragma once

#include "core/status.h"

namespace pestle::cuda {

// Ok for 0 (cudaSuccess); else a device error that names the call, the code and CUDA's words. What
// the status says is not left behind for whoever asks for CUDA's last error next.
Status from_cuda(int error, const char* call);

// The devices that this process may use; a missing or too old driver is a device error.
Result<int> device_count();

// Of the GPU; remembered, since launches ask.
int multiprocessors(int device);
// That a thread block may be allowed.
int most_shared_bytes(int device);

}  // namespace pestle::cuda

// Returns the status to the caller unless the CUDA call succeeds.
#define PESTLE_CUDA_TRY(call) PESTLE_TRY(::pestle::cuda::from_cuda((call), #call))
