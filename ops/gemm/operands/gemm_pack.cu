// Operands of a GEMM, copied so that their rows begin at multiples of 16 bytes.
// Map      Rows with neighbouring elements: a thread makes 4 units of 16 bytes, each out of 5
//          aligned words, shifted; a row's last unit byte by byte. 8-bit operands across k are
//          turned, and whatever has no neighbours is gathered, by the strided copies
//          (ops/copy/strided_copy.cu).
// Traffic  each packed operand once read, once written.
// Numerics bits are copied.
// Measured H200: 47 MB in some 65 us (ops/gemm/matmul/matmul.md).
#include "ops/gemm/operands/gemm_pack.h"

#include "backends/cuda/device/row/tiles.h"
#include "ops/copy/strided_copy_cuda.h"

namespace pestle::ops {
namespace {

using cuda::FastDivisor;

constexpr int kThreads = 256;
constexpr int kEach = 4;  // units of a thread
constexpr int64_t kLeastMultiplications = int64_t{1}
                                          << 20;  // below, copies cost more than they save

struct PackRows {
  const char* from;
  char* to;
  int64_t from_row, from_batch, to_row;  // bytes
  uint32_t units;                        // of all rows
  FastDivisor row_units, rows;           // rows: of a matrix
  int row_bytes;
};

// 16 bytes from any address; all of the aligned words that they touch exist.
__device__ uint4 load_unaligned(const char* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
  const unsigned shift = static_cast<unsigned>(address & 3) * 8;
  uint32_t w[5];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = __ldg(words + i);
  w[4] = shift ? __ldg(words + 4) : 0;
  return make_uint4(__funnelshift_r(w[0], w[1], shift), __funnelshift_r(w[1], w[2], shift),
                    __funnelshift_r(w[2], w[3], shift), __funnelshift_r(w[3], w[4], shift));
}

// The first `count` bytes, zeros behind them.
__device__ uint4 load_bytes(const char* p, int count) {
  uint32_t w[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (i < count) w[i / 4] |= uint32_t{static_cast<uint8_t>(p[i])} << (i % 4 * 8);
  return make_uint4(w[0], w[1], w[2], w[3]);
}

__global__ void __launch_bounds__(kThreads) pack_rows(const __grid_constant__ PackRows job) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t unit = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
    if (unit >= job.units) return;
    const uint32_t row = job.row_units.divide(unit);
    const uint32_t batch = job.rows.divide(row);
    const int at = static_cast<int>(unit - row * job.row_units.divisor) * 16;
    const char* from =
        job.from + batch * job.from_batch + (row - batch * job.rows.divisor) * job.from_row;
    // Aligned words may reach 3 bytes beyond the unit on either side.
    const bool inner = at >= 4 && at + 20 <= job.row_bytes;
    const uint4 v =
        inner ? load_unaligned(from + at) : load_bytes(from + at, min(16, job.row_bytes - at));
    *reinterpret_cast<uint4*>(job.to + row * job.to_row + at) = v;
  }
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Rows of one unit after the other: what is left to decide is which dimension they run along.
struct Layout {
  bool along_k;
  int64_t outer, inner;                // elements
  int64_t outer_stride, inner_stride;  // of the operand as it lies
};
Layout layout_of(const Stack& s, bool k_is_columns) {
  const int64_t k = k_is_columns ? s.columns : s.rows, other = k_is_columns ? s.rows : s.columns;
  const int64_t k_stride = k_is_columns ? s.column_stride : s.row_stride;
  const int64_t other_stride = k_is_columns ? s.row_stride : s.column_stride;
  const bool stays_across = k_stride != 1 && other_stride == 1 && dtype_bytes(s.dtype) == 2;
  if (stays_across) return {false, k, other, k_stride, other_stride};
  return {true, other, k, other_stride, k_stride};
}

Status copy_rows(const Call& call, const char* name, const Stack& s, const Layout& l,
                 int64_t to_row, int64_t batches, char* to) {
  const int bytes = dtype_bytes(s.dtype);
  const int64_t units = batches * l.outer * (to_row / 16);
  if (l.inner_stride == 1 && units < INT_MAX && l.inner * bytes < INT_MAX) {
    PackRows job;
    job.from = static_cast<const char*>(s.data);
    job.to = to;
    job.from_row = l.outer_stride * bytes;
    job.from_batch = s.batch_stride * bytes;
    job.to_row = to_row;
    job.units = static_cast<uint32_t>(units);
    job.row_units = FastDivisor(static_cast<uint32_t>(to_row / 16));
    job.rows = FastDivisor(static_cast<uint32_t>(l.outer));
    job.row_bytes = static_cast<int>(l.inner * bytes);
    return cuda::launch(call, name, {cuda::ceil_div(units, kThreads * kEach), kThreads}, pack_rows,
                        job);
  }
  const int64_t dims[3] = {batches, l.outer, l.inner};
  TensorView from = make_view(const_cast<void*>(s.data), s.dtype, 3, dims);
  from.strides[0] = s.batch_stride;
  from.strides[1] = l.outer_stride;
  from.strides[2] = l.inner_stride;
  TensorView out = make_view(to, s.dtype, 3, dims);
  out.strides[1] = to_row / bytes;
  out.strides[0] = l.outer * out.strides[1];
  const CopyPlan plan(from, out);
  return refuse_fast_copy(plan).empty() ? fast_copy(call, name, plan) : any_copy(call, name, plan);
}

Status pack(const Call& call, const char* name, Stack* s, bool k_is_columns, bool* along_k,
            char** memory) {
  if (lies_in_units(*s, k_is_columns)) return {};
  const Layout l = layout_of(*s, k_is_columns);
  const int bytes = dtype_bytes(s->dtype);
  const int64_t to_row = round_up(l.inner * bytes, 16);
  const int64_t batches = s->batch_stride == 0 ? 1 : s->batches;
  PESTLE_TRY(copy_rows(call, name, *s, l, to_row, batches, *memory));
  s->data = *memory;
  *memory += round_up(batches * l.outer * to_row, 256);
  const int64_t step = to_row / bytes;
  s->row_stride = l.along_k == k_is_columns ? step : 1;
  s->column_stride = l.along_k == k_is_columns ? 1 : step;
  if (s->batch_stride != 0) s->batch_stride = l.outer * step;
  *along_k = l.along_k;
  return {};
}

}  // namespace

bool lies_in_units(const Stack& s, bool k_is_columns) {
  const int bytes = dtype_bytes(s.dtype);
  const int64_t k_stride = k_is_columns ? s.column_stride : s.row_stride;
  const int64_t other = k_is_columns ? s.row_stride : s.column_stride;
  const auto fits = [&](int64_t stride) { return stride >= 0 && stride * bytes % 16 == 0; };
  if (reinterpret_cast<uintptr_t>(s.data) % 16 != 0 || !fits(s.batch_stride)) return false;
  return (k_stride == 1 && fits(other)) || (bytes == 2 && other == 1 && fits(k_stride));
}

std::string refuse_packing(const Operands& o) {
  if (lies_in_units(o.a, true) && lies_in_units(o.b, false)) return "the operands need no packing";
  if (o.out.rows * o.out.columns * o.a.columns < kLeastMultiplications)
    return "is for products of 2^20 terms and more";
  if (o.a.rows > INT_MAX / 2 || o.out.columns > INT_MAX / 2 || o.a.columns > INT_MAX / 4)
    return "M and N must be below 2^30, K below 2^29";
  return "";
}

Status pack_operands(const Call& call, const char* name, Operands* o) {
  auto* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(call.workspace) + 255) &
                                         ~uintptr_t{255});
  PESTLE_TRY(pack(call, name, &o->a, true, &o->a_along_k, &memory));
  return pack(call, name, &o->b, false, &o->b_along_k, &memory);
}

}  // namespace pestle::ops
