#include "backends/cuda/measure/launched.h"

#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstdlib>
#include <string_view>

#include "backends/cuda/host/current_device.h"
#include "backends/cuda/host/device.h"

namespace pestle::cuda {
namespace {

// "void ns::kernel<...>(...)" to "kernel".
std::string short_name(const char* mangled) {
  int status = 0;
  char* readable = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : mangled;
  std::free(readable);
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (size_t at = 0; (at = name.find(kUnnamed)) != std::string::npos;)
    name.erase(at, kUnnamed.size());
  name = name.substr(0, name.find_first_of("<("));
  const size_t begin = name.find_last_of(": ");
  return begin == std::string::npos ? name : name.substr(begin + 1);
}

std::string name_of(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  if (cudaGraphNodeGetType(node, &type) != cudaSuccess) return "unknown";
  if (type == cudaGraphNodeTypeMemset) return "memset";
  if (type == cudaGraphNodeTypeMemcpy) return "memcpy";
  if (type != cudaGraphNodeTypeKernel) return "unknown";
  cudaKernelNodeParams kernel{};
  const char* name = nullptr;
  if (cudaGraphKernelNodeGetParams(node, &kernel) == cudaSuccess &&
      cudaFuncGetName(&name, kernel.func) == cudaSuccess)
    return short_name(name);
  (void)cudaGetLastError();  // another library's kernel
  return "kernel";
}

// A captured stream is a chain, but the graph lists its nodes in any order.
Result<std::vector<std::string>> names_along(cudaGraph_t graph) {
  std::vector<std::string> names;
  cudaGraphNode_t node = nullptr;
  size_t count = 1;
  size_t roots = 0;
  PESTLE_CUDA_TRY(cudaGraphGetRootNodes(graph, nullptr, &roots));
  if (roots == 0) return names;
  PESTLE_CUDA_TRY(cudaGraphGetRootNodes(graph, &node, &count));
  while (count == 1) {
    names.push_back(name_of(node));
    size_t next = 0;
    PESTLE_CUDA_TRY(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &next));
    if (next == 0) break;
    cudaGraphNode_t after = nullptr;
    cudaGraphEdgeData how{};  // an edge from a kernel that starts its successor early holds some
    count = 1;
    PESTLE_CUDA_TRY(cudaGraphNodeGetDependentNodes(node, &after, &how, &count));
    node = after;
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> launched(int device, void* stream,
                                          const std::function<Status()>& work) {
  PESTLE_ON_DEVICE(device);
  const auto on = static_cast<cudaStream_t>(stream);
  PESTLE_CUDA_TRY(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  const Status queued = work();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(on, &graph);
  const auto read = [&]() -> Result<std::vector<std::string>> {
    PESTLE_TRY(queued);
    PESTLE_TRY(from_cuda(ended, "cudaStreamEndCapture"));
    return names_along(graph);
  };
  auto names = read();
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!names.ok()) (void)cudaGetLastError();  // said by the status
  return names;
}

}  // namespace pestle::cuda
