// kernel: reduce/cuda_naive
// language = "cuda"
// arguments = ["out", "x", "x.size0", "x.size1", "stream"]
// dtypes = ["f32"]
// constraints = ["memory contiguous", "rank(x) == 2", "dims == 2", "op == sum", "numel(x) > 0"]
// notes = """
// First rung: a thread adds up a row. Neighbouring threads read addresses a row apart."""
#include <cstdint>

__global__ void row_sums_naive(float* out, const float* x, int64_t rows, int64_t columns) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (int64_t i = 0; i < columns; ++i) sum += x[row * columns + i];
  out[row] = sum;
}

extern "C" int run(float* out, const float* x, int64_t rows, int64_t columns, cudaStream_t stream) {
  row_sums_naive<<<static_cast<unsigned>((rows + 127) / 128), 128, 0, stream>>>(out, x, rows,
                                                                                columns);
  return cudaGetLastError();
}
