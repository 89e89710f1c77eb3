// gemv_nvfp4, reference: float64 sums over decoded values.
#include <cmath>
#include <vector>

#include "core/op.h"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_batches.h"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_spec.h"
#include "ops/gemm/reference/quant_rows.h"

namespace pestle::ops::gemv_nvfp4 {
namespace {

constexpr int kA = arg_index(spec, "a");
constexpr int kB = arg_index(spec, "b");
constexpr int kScaleA = arg_index(spec, "scale_a");
constexpr int kScaleB = arg_index(spec, "scale_b");
constexpr int kAlpha = arg_index(spec, "alpha");
constexpr int kOut = arg_index(spec, "out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const auto columns = static_cast<size_t>(row_length(call.tensor(kA)) * 2);
  const bool high_first = call.integer(kNibbles) == 0;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  const double alpha = call.has(kAlpha) ? load<float>(call.tensor(kAlpha).data) : 1.0;
  std::vector<double> row(columns);
  std::vector<double> vector(columns);
  for (int64_t z = 0; z < out.shape[0]; ++z) {
    const TensorView a = batch_of(call.tensor(kA), z), scale_a = batch_of(call.tensor(kScaleA), z);
    const TensorView b = batch_of(call.tensor(kB), z), scale_b = batch_of(call.tensor(kScaleB), z);
    const Nvfp4Rows matrix{a, scale_a, 1, high_first, swizzled};
    Nvfp4Rows{b, scale_b, 1, high_first, swizzled}(0, vector.data());
    for (int64_t m = 0; m < out.shape[1]; ++m) {
      matrix(m, row.data());
      SumOfTerms sum;
      for (size_t k = 0; k < columns; ++k) sum.add(row[k] * vector[k]);
      const double value = call.sum_magnitudes ? sum.size * std::fabs(alpha) : sum.value * alpha;
      store_f64(at(out, z, m), out.dtype, value);
    }
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::gemv_nvfp4
