#include "ops/gemm/qkv_project_backward/qkv_project_backward_parts.h"

#include <utility>

#include "ops/shared/inner_call.h"

namespace pestle::ops::qkv_project_backward {
namespace {

// What is left of the workspace; pieces begin at multiples of 256 bytes.
class Workspace {
 public:
  explicit Workspace(const Call& call)
      : at_(static_cast<char*>(call.workspace)), end_(at_ + call.workspace_bytes) {}
  void* take(int64_t bytes) {
    at_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at_) + 255) & ~uintptr_t{255});
    char* piece = at_;
    at_ += bytes;
    return piece;
  }
  TensorView matrix(const TensorView& like, DType dtype, int64_t rows, int64_t columns) {
    const int64_t dims[2] = {rows, columns};
    TensorView t = make_view(nullptr, dtype, 2, dims);
    t.device = like.device;
    t.data = take(size_bytes(t));
    return t;
  }
  void* rest() const { return at_; }
  int64_t bytes() const { return end_ - at_; }

 private:
  char *at_, *end_;
};

TensorView transposed(const TensorView& matrix) {
  TensorView t = matrix;
  std::swap(t.shape[0], t.shape[1]);
  std::swap(t.strides[0], t.strides[1]);
  return t;
}

// out = a @ b + residual
Status multiply(const Call& call, const Workspace& left, const TensorView& a, const TensorView& b,
                const TensorView* residual, const TensorView& out) {
  if (numel(out) == 0) return {};
  InnerCall inner(call, "matmul");
  inner.set("a", a);
  inner.set("b", b);
  if (residual != nullptr) inner.set("residual", *residual);
  inner.set("out", out);
  return inner.run(left.rest(), left.bytes());
}

Status copy(const Call& call, const TensorView& from, const TensorView& to) {
  InnerCall inner(call, "copy");
  inner.set("x", from);
  inner.set("out", to);
  return inner.run(nullptr, 0);
}

Status sum_rows(const Call& call, Workspace left, const TensorView& d, const TensorView& out) {
  if (numel(out) == 0) return {};
  TensorView sums = out;
  if (out.dtype != DType::kF32) {
    sums = left.matrix(out, DType::kF32, 1, row_length(d));
    sums.rank = 1;
    sums.shape[0] = row_length(d);
    sums.strides[0] = 1;
  }
  InnerCall inner(call, "reduce");
  inner.set("x", d);
  inner.set("dims", int64_t{1});
  inner.set("out_type", std::string_view("f32"));
  inner.set("out", sums);
  PESTLE_TRY(inner.run(left.rest(), left.bytes()));
  return out.dtype == DType::kF32 ? Status() : copy(call, sums, out);
}

// The call's x, d_q, d_k, d_v and d_x as matrices.
struct Matrices {
  TensorView x, d[3], d_x;
};

Status gradients_of_parameters(const Call& call, const Matrices& all, const Workspace& left) {
  for (int i = 0; i < 3; ++i) {
    const Part& part = kParts[i];
    if (call.has(part.d_weight)) {
      const TensorView& out = call.tensor(part.d_weight);
      PESTLE_TRY(multiply(call, left, transposed(all.d[i]), all.x, nullptr, out));
    }
    if (call.has(part.d_bias)) PESTLE_TRY(sum_rows(call, left, all.d[i], call.tensor(part.d_bias)));
  }
  return {};
}

// The sums of one product are the residual of the next; the last one rounds to d_x.
Status gradient_of_x(const Call& call, const Matrices& all, Workspace left) {
  const int64_t m = all.x.shape[0], k = all.x.shape[1];
  if (m * k == 0) return {};
  const TensorView sums[2] = {left.matrix(all.x, DType::kF32, m, k),
                              left.matrix(all.x, DType::kF32, m, k)};
  for (int i = 0; i < 3; ++i) {
    Workspace rest = left;
    const QkvPart& part = kParts[i].weight;
    TensorView weight = call.tensor(part.weight);
    if (qkv_format(call) != QkvFormat::kFloat && row_count(weight) > 0) {
      const TensorView codes = weight;
      weight = rest.matrix(codes, all.d[i].dtype, codes.shape[0], k);
      PESTLE_TRY(decode_qkv_weight(call, part, weight, rest.rest(), rest.bytes()));
    } else if (row_count(weight) == 0) {  // no terms: of any dtype
      const int64_t dims[2] = {0, k};
      weight = make_view(weight.data, all.d[i].dtype, 2, dims);
      weight.device = all.x.device;
    }
    const TensorView* before = i == 0 ? nullptr : &sums[i - 1];
    PESTLE_TRY(multiply(call, rest, all.d[i], weight, before, i == 2 ? all.d_x : sums[i]));
  }
  return {};
}

Status run_matrices(const Call& call, const Matrices& all, const Workspace& left) {
  PESTLE_TRY(gradients_of_parameters(call, all, left));
  return gradient_of_x(call, all, left);
}

}  // namespace

std::string refuse_uneven(const Call& call, const Machine&) {
  TensorView matrix;
  for (const int place :
       {kX, kDX, kParts[0].weight.out, kParts[1].weight.out, kParts[2].weight.out})
    if (!as_matrix(call.tensor(place), &matrix))
      return std::string(spec.args[static_cast<size_t>(place)].name) +
             "'s leading dimensions are not evenly spaced";
  return "";
}

Status run(const Call& call) {
  Matrices all;
  as_matrix(call.tensor(kX), &all.x);
  as_matrix(call.tensor(kDX), &all.d_x);
  for (int i = 0; i < 3; ++i) as_matrix(call.tensor(kParts[i].weight.out), &all.d[i]);
  return run_matrices(call, all, Workspace(call));
}

Status run_with_copies(const Call& call) {
  Workspace left(call);
  const auto even = [&](const TensorView& t) {
    TensorView made = t;
    set_contiguous_strides(made);
    made.data = left.take(size_bytes(made));
    return made;
  };
  Matrices all;
  const auto matrix_of_copy = [&](const TensorView& t, TensorView* matrix) {
    const TensorView made = even(t);
    as_matrix(made, matrix);
    return copy(call, t, made);
  };
  PESTLE_TRY(matrix_of_copy(call.tensor(kX), &all.x));
  for (int i = 0; i < 3; ++i)
    PESTLE_TRY(matrix_of_copy(call.tensor(kParts[i].weight.out), &all.d[i]));
  const TensorView d_x = even(call.tensor(kDX));
  as_matrix(d_x, &all.d_x);
  PESTLE_TRY(run_matrices(call, all, left));
  return copy(call, d_x, call.tensor(kDX));
}

}  // namespace pestle::ops::qkv_project_backward
