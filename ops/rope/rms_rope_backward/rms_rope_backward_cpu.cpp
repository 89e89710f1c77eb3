// rms_rope_backward on the CPU: heads as f32 rows.
// Map      positions over a fixed number of pieces, whatever the threads: each adds up its own
//          d_weight in double, in the workspace, and the pieces are added up in order.
// Traffic  d_out, x and d_x once; rotations once for all heads that share them.
// Numerics f32; sums of a head in double.
#include <cmath>
#include <cstring>

#include "backends/cpu/simd/row_math.h"
#include "ops/rope/rms_rope_backward/rms_rope_backward_spec.h"
#include "ops/rope/rope_cpu.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::rms_rope_backward {
namespace {

constexpr int kDOut = arg_index(spec, "d_out");
constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kDOut2 = arg_index(spec, "d_out2");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kWeight2 = arg_index(spec, "weight2");
constexpr int kDX = arg_index(spec, "d_x");
constexpr int kDWeight = arg_index(spec, "d_weight");
constexpr int kDX2 = arg_index(spec, "d_x2");
constexpr int kDWeight2 = arg_index(spec, "d_weight2");
constexpr int kEps = arg_index(spec, "eps");

constexpr int64_t kPieces = 64;  // workspace: one row of doubles each

struct Tensors {
  const TensorView& d_out;
  const TensorView& x;
  const TensorView& weight;
  const TensorView& d_x;
};

// Rows of one head at a time.
struct Scratch {
  float own[kRopeTileFloats];
  float other[kRopeTileFloats];
  float weight[kRopeTileFloats];
  float d_weight[kRopeTileFloats];
  float g[kRopeTileFloats];
  float u[kRopeTileFloats];
  float n[kRopeTileFloats];
};

// u = the gradient rotated back.
void rotate_back(const Rotations& r, Scratch& row, int64_t d) {
  const int64_t half = r.rot / 2;
  if (r.split) {
    for (int64_t i = 0; i < half; ++i) {
      row.u[i] = row.own[i] * row.g[i] + row.other[i] * row.g[i + half];
      row.u[i + half] = row.other[i + half] * row.g[i] + row.own[i + half] * row.g[i + half];
    }
  } else {
    for (int64_t i = 0; i < r.rot; i += 2) {
      row.u[i] = row.own[i] * row.g[i] + row.other[i] * row.g[i + 1];
      row.u[i + 1] = row.other[i + 1] * row.g[i] + row.own[i + 1] * row.g[i + 1];
    }
  }
  std::memcpy(row.u + r.rot, row.g + r.rot, static_cast<size_t>(d - r.rot) * sizeof(float));
}

void one_head(const Tensors& t, const Rotations& r, int64_t b, int64_t h, int64_t s, float eps,
              Scratch& row) {
  const int64_t d = t.x.shape[3];
  cpu::row_load(head_at(t.d_out, b, h, s), t.d_out.dtype, row.g, d);
  cpu::row_load(head_at(t.x, b, h, s), t.x.dtype, row.n, d);
  const float mean = static_cast<float>(cpu::row_sum_squares(row.n, d)) / static_cast<float>(d);
  const float root = 1.0f / std::sqrt(mean + eps);
  rotate_back(r, row, d);
  for (int64_t i = 0; i < d; ++i) {
    row.n[i] *= root;
    row.d_weight[i] += row.u[i] * row.n[i];
    row.u[i] *= row.weight[i];
  }
  const float dot = static_cast<float>(cpu::row_dot(row.u, row.n, d) / static_cast<double>(d));
  for (int64_t i = 0; i < d; ++i) row.g[i] = (row.u[i] - row.n[i] * dot) * root;
  cpu::row_store(row.g, head_at(t.d_x, b, h, s), t.d_x.dtype, d);
}

// Adds to sums, kPieces rows of D.
void differentiate(const Tensors& t, const Rotations& r, float eps, double* sums) {
  const int64_t heads = t.x.shape[1], positions = t.x.shape[2], d = t.x.shape[3];
  if (numel(t.x) == 0) return;
  const int64_t places = t.x.shape[0] * positions;
  cpu::parallel_for(kPieces, 1, [&](int64_t begin, int64_t end) {
    Scratch row;
    cpu::row_load(t.weight.data, t.weight.dtype, row.weight, d);
    for (int64_t piece = begin; piece < end; ++piece) {
      double* sum = sums + piece * d;
      for (int64_t place = piece * places / kPieces; place < (piece + 1) * places / kPieces;
           ++place) {
        const int64_t b = place / positions, s = place % positions;
        std::fill_n(row.d_weight, d, 0.0f);
        for (int64_t h = 0; h < heads; ++h) {
          if (h == 0 || !r.shared_by_heads()) {
            load_rope_factors(r, b, h, s, 1, row.own, row.other);
          }
          one_head(t, r, b, h, s, eps, row);
        }
        for (int64_t i = 0; i < d; ++i) sum[i] += double{row.d_weight[i]};
      }
    }
  });
}

void store_sums(const double* sums, const TensorView& to) {
  const int64_t d = to.shape[0];
  for (int64_t i = 0; i < d; ++i) {
    double sum = 0;
    for (int64_t piece = 0; piece < kPieces; ++piece) sum += sums[piece * d + i];
    store_f32(at(to, i), to.dtype, static_cast<float>(sum));
  }
}

Status run(const Call& call) {
  Rotations rotations = rotations_of<spec>(call);
  rotations.inverse = true;
  const int64_t d = call.tensor(kX).shape[3];
  const float eps = call.number(kEps);
  auto* sums = static_cast<double*>(call.workspace);
  std::fill_n(sums, kPieces * d, 0.0);
  differentiate({call.tensor(kDOut), call.tensor(kX), call.tensor(kWeight), call.tensor(kDX)},
                rotations, eps, sums);
  const bool own = call.has(kWeight2);
  if (own) {
    store_sums(sums, call.tensor(kDWeight));
    std::fill_n(sums, kPieces * d, 0.0);
  }
  if (call.has(kX2)) {
    differentiate({call.tensor(kDOut2), call.tensor(kX2), call.tensor(own ? kWeight2 : kWeight),
                   call.tensor(kDX2)},
                  rotations, eps, sums);
  }
  store_sums(sums, call.tensor(own ? kDWeight2 : kDWeight));
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_long_heads(call.tensor(kX).shape[3]); !why.empty()) return why;
  return refuse_strided_rows(call, {kDOut, kX, kDX, kDOut2, kX2, kDX2, kWeight, kWeight2});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/rms_rope_backward_rows", .refuses = refuses, .run = run, .workspace = "8*64*D"},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::rms_rope_backward
