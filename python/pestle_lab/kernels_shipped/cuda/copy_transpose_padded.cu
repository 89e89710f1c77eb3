// kernel: copy_transpose/cuda_padded
// language = "cuda"
// arguments = ["out", "x", "x.size0", "x.size1", "tile_size", "stream"]
// dtypes = ["f32"]
// constraints = ["memory contiguous", "rank(x) == 2", "numel(x) > 0"]
// notes = """
// Third rung: one element of padding a row of the tile, so that a column lies in 32 banks."""
#include <cstdint>

template <int kTile>
__global__ void transpose_padded(float* out, const float* x, int64_t rows, int64_t columns) {
  __shared__ float held[kTile][kTile + 1];
  const int64_t from_row = int64_t{blockIdx.y} * kTile, from_column = int64_t{blockIdx.x} * kTile;
#pragma unroll
  for (int i = threadIdx.y; i < kTile; i += kTile / 4) {
    const int64_t row = from_row + i, column = from_column + threadIdx.x;
    if (row < rows && column < columns) held[i][threadIdx.x] = x[row * columns + column];
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.y; i < kTile; i += kTile / 4) {
    const int64_t row = from_column + i, column = from_row + threadIdx.x;
    if (row < columns && column < rows) out[row * rows + column] = held[threadIdx.x][i];
  }
}

template <int kTile>
void launch(float* out, const float* x, int64_t rows, int64_t columns, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((columns + kTile - 1) / kTile),
                  static_cast<unsigned>((rows + kTile - 1) / kTile));
  transpose_padded<kTile><<<grid, dim3(kTile, kTile / 4), 0, stream>>>(out, x, rows, columns);
}

extern "C" int run(float* out, const float* x, int64_t rows, int64_t columns, int64_t tile_size,
                   cudaStream_t stream) {
  if (tile_size == 16) {
    launch<16>(out, x, rows, columns, stream);
  } else {
    launch<32>(out, x, rows, columns, stream);
  }
  return cudaGetLastError();
}
