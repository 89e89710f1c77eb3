// matmul_backward on the CPU: two products by matmul's pieces on transposed views
// (ops/gemm/cpu/cpu_gemm.h); nothing is copied but as f32, a block at a time.
// Map      one matrix of the batch after the other. Where an activation followed, the product is
//          made again and d_pre = d_out * slope kept in the workspace as f32. d_bias: columns over
//          the threads, in double.
// Traffic  d_pre three times (d_bias's too), a and b once or, with an activation, twice.
// Numerics f32 sums in an order that depends on the instruction set and the shape alone.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/parallel.h"
#include "backends/cpu/simd/row_math.h"
#include "core/activation.h"
#include "core/op.h"
#include "ops/gemm/cpu/cpu_gemm.h"
#include "ops/gemm/matmul_backward/matmul_backward_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::matmul_backward {
namespace {

// The caller's memory: sums of d_bias, d_pre of one matrix, then what a product needs.
constexpr const char* kWorkspace =
    "192 + 8*N + if(activation == none, 0, 4*M*N) + (min(max(M,K),128) + 3) * "
    "(round_up(max(N,max(M,K)),128) + round_up(max(N,K),96)) * 4";

struct Backward {
  const Call& call;
  const TensorView& d_out;
  float alpha = 1;
  double* sums = nullptr;  // of d_bias
  float* d_pre = nullptr;  // [M, N], with an activation
  void* memory = nullptr;

  explicit Backward(const Call& c) : call(c), d_out(c.tensor(kDOut)) {
    if (call.has(kAlpha)) alpha = load<float>(call.tensor(kAlpha).data);
    auto* p = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(call.workspace) + 63) &
                                      ~uintptr_t{63});
    sums = reinterpret_cast<double*>(p);
    d_pre = reinterpret_cast<float*>(p + 8 * n());
    memory = d_pre + (activates() ? m() * n() : 0);
  }
  int64_t m() const { return d_out.shape[d_out.rank - 2]; }
  int64_t n() const { return d_out.shape[d_out.rank - 1]; }
  bool activates() const { return call.integer(kActivation) != 0; }
  int64_t batches() const {
    int64_t count = 1;
    for (int d = 0; d + 2 < d_out.rank; ++d) count *= d_out.shape[d];
    return count;
  }
};

// `body(column, count)` over pieces of a row.
template <class Body>
void by_pieces(int64_t columns, const Body& body) {
  for (int64_t c = 0; c < columns; c += cpu::kRowPiece)
    body(c, std::min(cpu::kRowPiece, columns - c));
}

// Subnormal numbers to 0: a product with one takes a hundred cycles, and a gelu's slopes are full
// of them. The bound is of d_out times the product made again, so this is far below it.
void flush(float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    values[i] = std::fabs(values[i]) < std::numeric_limits<float>::min() ? 0.0f : values[i];
}

// d_pre of one row, whose sums of the product made again are there.
void make_row(const Backward& b, int64_t batch, int64_t row, float* sums) {
  constexpr Activation kKinds[] = {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};
  const Activation kind = kKinds[b.call.integer(kActivation) - 1];
  float other[cpu::kRowPiece];
  by_pieces(b.n(), [&](int64_t column, int64_t count) {
    float* y = sums + column;
    if (b.alpha != 1) cpu::row_scale(y, b.alpha, y, count);
    if (b.call.has(kBias)) {
      load_values(b.call.tensor(kBias), 0, column, count, other);
      cpu::row_add(y, other, y, count);
    }
    cpu::row_activation_slope(kind, y, y, count);
    load_values(b.d_out, batch * b.m() + row, column, count, other);
    float* to = b.d_pre + row * b.n() + column;
    cpu::row_multiply(y, other, to, count);
    flush(to, count);
  });
}

void make_d_pre(const Backward& b, int64_t batch) {
  const CpuMatrix left(b.call.tensor(kA), batch), right(b.call.tensor(kB), batch);
  multiply_matrices(left, right, b.memory, [&](const GemmRows& p) {
    cpu::parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) make_row(b, batch, p.first + i, p.sums + i * p.stride);
    });
  });
}

// to = left @ right * alpha
void product(const Backward& b, const CpuMatrix& left, const CpuMatrix& right, const TensorView& to,
             int64_t batch) {
  multiply_matrices(left, right, b.memory, [&](const GemmRows& p) {
    cpu::parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        by_pieces(right.columns, [&](int64_t column, int64_t count) {
          float* y = p.sums + i * p.stride + column;
          if (b.alpha != 1) cpu::row_scale(y, b.alpha, y, count);
          store_values(to, batch * left.rows + p.first + i, column, count, y);
        });
      }
    });
  });
}

void add_bias_sums(const Backward& b, int64_t batch) {
  constexpr int64_t kColumns = 256;
  cpu::parallel_for((b.n() + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    float piece[kColumns];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kColumns, count = std::min(kColumns, b.n() - first);
      for (int64_t row = 0; row < b.m(); ++row) {
        const float* values = piece;
        if (b.activates())
          values = b.d_pre + row * b.n() + first;
        else
          load_values(b.d_out, batch * b.m() + row, first, count, piece);
        for (int64_t i = 0; i < count; ++i) b.sums[first + i] += double{values[i]};
      }
    }
  });
}

void copy_residual(const Backward& b, int64_t batch) {
  const TensorView& to = b.call.tensor(kDResidual);
  cpu::parallel_for(b.m(), 1, [&](int64_t begin, int64_t end) {
    float piece[cpu::kRowPiece];
    for (int64_t row = batch * b.m() + begin; row < batch * b.m() + end; ++row) {
      by_pieces(b.n(), [&](int64_t column, int64_t count) {
        load_values(b.d_out, row, column, count, piece);
        store_values(to, row, column, count, piece);
      });
    }
  });
}

Status run(const Call& call) {
  const Backward b(call);
  std::fill(b.sums, b.sums + b.n(), 0.0);
  for (int64_t batch = 0; batch < b.batches(); ++batch) {
    if (b.activates()) make_d_pre(b, batch);
    CpuMatrix d_pre(b.d_out, batch);
    if (b.activates()) {
      const int64_t dims[2] = {b.m(), b.n()};
      d_pre = CpuMatrix(make_view(b.d_pre, DType::kF32, 2, dims), 0);
    }
    product(b, d_pre, CpuMatrix(call.tensor(kB), batch).transposed(), call.tensor(kDA), batch);
    product(b, CpuMatrix(call.tensor(kA), batch).transposed(), d_pre, call.tensor(kDB), batch);
    if (call.has(kDBias)) add_bias_sums(b, batch);
    if (call.has(kDResidual)) copy_residual(b, batch);
  }
  for (int64_t n = 0; call.has(kDBias) && n < b.n(); ++n) {
    const TensorView& to = call.tensor(kDBias);
    store_f32(at(to, n), to.dtype, static_cast<float>(b.sums[n]));
  }
  return {};
}

constexpr Impl kImpls[] = {
    {.id = "cpu/matmul_backward_simd", .run = run, .workspace = kWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::matmul_backward
