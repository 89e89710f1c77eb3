// kernel: copy_transpose/cuda_naive
// language = "cuda"
// arguments = ["out", "x", "x.size0", "x.size1", "tile_size", "stream"]
// dtypes = ["f32"]
// constraints = ["memory contiguous", "rank(x) == 2", "numel(x) > 0"]
// notes = """
// First rung: a thread for an element. Reads are along rows; a warp's writes lie a column
// apart."""
#include <cstdint>

__global__ void transpose_naive(float* out, const float* x, int64_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  const int64_t row = int64_t{blockIdx.y} * 8 + threadIdx.y;
  if (row < rows && column < columns) out[column * rows + row] = x[row * columns + column];
}

extern "C" int run(float* out, const float* x, int64_t rows, int64_t columns, int64_t,
                   cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((columns + 31) / 32),
                  static_cast<unsigned>((rows + 7) / 8));
  transpose_naive<<<grid, dim3(32, 8), 0, stream>>>(out, x, rows, columns);
  return cudaGetLastError();
}
