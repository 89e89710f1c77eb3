// kernel: softmax_backward/cuda_block
// language = "cuda"
// arguments = ["d_x", "d_out", "out", "out.size0", "out.size1", "scale", "stream"]
// dtypes = ["f32"]
// constraints = [
//   "memory contiguous", "rank(out) == 2", "dim == 1 || dim == -1", "numel(out) > 0",
// ]
// notes = """
// The gradient: a block for a row; the sum of d_out * out by shuffles, then a second reading of
// both."""
#include <cstdint>

__global__ void __launch_bounds__(256)
    softmax_gradient(float* d_x, const float* d_out, const float* out, int64_t columns,
                     float scale) {
  __shared__ float sums[8];
  const int64_t row = int64_t{blockIdx.x} * columns;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < columns; i += 256) sum += d_out[row + i] * out[row + i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < 8; ++warp) sum += sums[warp];
  for (int64_t i = threadIdx.x; i < columns; i += 256) {
    d_x[row + i] = scale * out[row + i] * (d_out[row + i] - sum);
  }
}

extern "C" int run(float* d_x, const float* d_out, const float* out, int64_t rows, int64_t columns,
                   double scale, cudaStream_t stream) {
  softmax_gradient<<<static_cast<unsigned>(rows), 256, 0, stream>>>(d_x, d_out, out, columns,
                                                                    static_cast<float>(scale));
  return cudaGetLastError();
}
