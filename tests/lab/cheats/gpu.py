"""Cheats that need a GPU: (file's text, statuses that catch it). They pretend to double x."""

_STREAM = """\
# kernel: double/works_on_another_stream
# language = "python"
# capturable = {capturable}
import torch

other = torch.cuda.Stream()


def run(out, x):
    with torch.cuda.stream(other):
        torch.cuda._sleep(20_000_000)
        torch.mul(x, 2, out=out)
"""
_HEAD = """\
// kernel: double/{name}
// language = "cuda"
// arguments = ["out", "x", "M", "N", "stream"]
// dtypes = ["f32"]
// constraints = ["memory contiguous"]
#include <cuda_runtime.h>

#include <cstdint>

__global__ void twice(float* out, const float* x, int64_t n) {{
  const int64_t i = int64_t{{blockIdx.x}} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}}

extern "C" int run(float* out, const float* x, int64_t m, int64_t n, cudaStream_t stream) {{
{body}
}}
"""
_LAUNCH_FAILS = """\
  // More shared memory than there is, and nobody asks whether it was launched.
  twice<<<static_cast<unsigned>((m * n + 255) / 256), 256, 1 << 20, stream>>>(out, x, m * n);
  return 0;"""
_TWICE = """\
  twice<<<static_cast<unsigned>((m * n + 255) / 256), 256, 0, stream>>>(out, x, m * n);
  return cudaGetLastError();"""
_PERSISTING = """\
  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, size_t{1} << 24);
  cudaStreamAttrValue value{};
  value.accessPolicyWindow.base_ptr = const_cast<float*>(x);
  value.accessPolicyWindow.num_bytes = static_cast<size_t>(m * n) * 4;
  value.accessPolicyWindow.hitRatio = 1;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value);
"""


def _cuda(name: str, body: str) -> str:
    return _HEAD.format(name=name, body=body)


# By check: a graph can't hold work that no event joins; nothing was written.
CHECKED = {
    "works_on_another_stream": (
        "other.py", _STREAM.format(capturable="true"), {"runtime_error", "crash", "poisoned"}
    ),
    "launch_fails": (
        "fails.cu", _cuda("launch_fails", _LAUNCH_FAILS), {"poisoned", "runtime_error"}
    ),
}  # fmt: skip
# Right, if a little late.
LATE = _STREAM.format(capturable="false")
HONEST = _cuda("honest", _TWICE)
KEEPS_ITS_DATA_IN_L2 = _cuda("keeps_its_data_in_l2", _PERSISTING + _TWICE)
NAMES = {*CHECKED, "keeps_its_data_in_l2"}
