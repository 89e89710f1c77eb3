// kernel: softmax/cuda_naive
// language = "cuda"
// arguments = ["out", "x", "x.size0", "x.size1", "scale", "stream"]
// dtypes = ["f32"]
// constraints = [
//   "memory contiguous", "rank(x) == 2", "dim == 1 || dim == -1", "has(mask) == 0",
//   "numel(x) > 0",
// ]
// notes = """
// First rung: a warp for a row, which is read three times: for the largest element, for the
// sum, for the result."""
#include <cfloat>
#include <cstdint>

__global__ void softmax_three_passes(float* out, const float* x, int64_t rows, int64_t columns,
                                     float scale) {
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  const float* from = x + row * columns;
  float most = -FLT_MAX, sum = 0;  // so that a row of -inf gives 0 / 0
  for (int64_t i = threadIdx.x % 32; i < columns; i += 32) most = fmaxf(most, from[i] * scale);
  for (int step = 16; step > 0; step /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
  }
  for (int64_t i = threadIdx.x % 32; i < columns; i += 32) sum += expf(from[i] * scale - most);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  for (int64_t i = threadIdx.x % 32; i < columns; i += 32) {
    out[row * columns + i] = expf(from[i] * scale - most) / sum;
  }
}

extern "C" int run(float* out, const float* x, int64_t rows, int64_t columns, double scale,
                   cudaStream_t stream) {
  softmax_three_passes<<<static_cast<unsigned>((rows + 3) / 4), 128, 0, stream>>>(
      out, x, rows, columns, static_cast<float>(scale));
  return cudaGetLastError();
}
