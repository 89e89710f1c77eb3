// kernel: softmax/cuda_online
// language = "cuda"
// arguments = ["out", "x", "x.size0", "x.size1", "scale", "stream"]
// dtypes = ["f32"]
// constraints = [
//   "memory contiguous", "rank(x) == 2", "dim == 1 || dim == -1", "has(mask) == 0",
//   "numel(x) > 0",
// ]
// notes = """
// Second rung, online: one pass keeps the largest element so far and the sum in its units,
// which is rescaled when a larger one comes; a block for a row, pairs meet by shuffles and
// shared memory. The row is read twice instead of three times."""
#include <cfloat>
#include <cstdint>

struct Pair {
  float most = -FLT_MAX, sum = 0;  // so that a row of -inf gives 0 / 0
};

__device__ __forceinline__ Pair both(Pair a, Pair b) {
  const float most = fmaxf(a.most, b.most);
  return {most, a.sum * expf(a.most - most) + b.sum * expf(b.most - most)};
}

__global__ void __launch_bounds__(256)
    softmax_one_pass(float* out, const float* x, int64_t columns, float scale) {
  __shared__ Pair pairs[8];
  const float* from = x + int64_t{blockIdx.x} * columns;
  Pair pair;
  for (int64_t i = threadIdx.x; i < columns; i += 256) pair = both(pair, {from[i] * scale, 1.0f});
  for (int step = 16; step > 0; step /= 2) {
    pair = both(pair, {__shfl_xor_sync(0xFFFFFFFFu, pair.most, step),
                       __shfl_xor_sync(0xFFFFFFFFu, pair.sum, step)});
  }
  if (threadIdx.x % 32 == 0) pairs[threadIdx.x / 32] = pair;
  __syncthreads();
  pair = pairs[0];
  for (int warp = 1; warp < 8; ++warp) pair = both(pair, pairs[warp]);
  for (int64_t i = threadIdx.x; i < columns; i += 256) {
    out[int64_t{blockIdx.x} * columns + i] = expf(from[i] * scale - pair.most) / pair.sum;
  }
}

extern "C" int run(float* out, const float* x, int64_t rows, int64_t columns, double scale,
                   cudaStream_t stream) {
  softmax_one_pass<<<static_cast<unsigned>(rows), 256, 0, stream>>>(out, x, columns,
                                                                    static_cast<float>(scale));
  return cudaGetLastError();
}
