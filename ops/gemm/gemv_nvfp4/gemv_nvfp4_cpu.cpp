// gemv_nvfp4 on the CPU: each batch is a product of one row of codes with a matrix of codes, by the
// kernels that decode in registers (quant_linear.cpp); its rows go over the threads.
#include "ops/gemm/cpu/quant_matrices.h"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_batches.h"
#include "ops/gemm/gemv_nvfp4/gemv_nvfp4_spec.h"

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

// Batches may lie anywhere; within each, rows are dense and evenly spaced.
std::string refuses(const Call& call, const Machine&) {
  const bool swizzled = call.integer(kScaleLayout) == 0;
  for (const int index : {kA, kB, kScaleA, kScaleB}) {
    const TensorView one = batch_of(call.tensor(index), 0);
    const bool is_scale = index == kScaleA || index == kScaleB;
    int64_t stride = 0;
    const bool even = even_rows(one, stride);
    // A swizzled tensor is read as one run of bytes.
    if (even && !(is_scale && swizzled && one.shape[0] > 1 && stride != one.shape[1])) continue;
    return std::string(spec.args[static_cast<size_t>(index)].name) +
           " must have a dense last dimension and evenly spaced rows in each batch, swizzled "
           "scales "
           "no gap between rows; copy it first";
  }
  return "";
}

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const bool high_first = call.integer(kNibbles) == 0;
  const bool swizzled = call.integer(kScaleLayout) == 0;
  float one = 1;
  const int64_t single[] = {1};
  const TensorView no_global = make_view(&one, DType::kF32, 1, single);
  Epilogue epilogue;
  if (call.has(kAlpha)) epilogue.alpha = load<float>(call.tensor(kAlpha).data);
  epilogue.columns = out.shape[1];
  const auto matrix = [&](int codes, int scale, int64_t z) {
    return nvfp4_matrix(batch_of(call.tensor(codes), z), batch_of(call.tensor(scale), z), no_global,
                        high_first, swizzled);
  };
  for (int64_t z = 0; z < out.shape[0]; ++z) {
    QuantLinear batch;
    batch.weight = matrix(kA, kScaleA, z);
    batch.x_is_codes = true;
    batch.x_codes = matrix(kB, kScaleB, z);
    batch.m = 1;
    batch.out = out;
    batch.out.data = out.as<char>() + z * out.strides[0] * dtype_bytes(out.dtype);
    batch.out.shape[0] = 1;
    batch.epilogue = &epilogue;
    batch.workspace = call.workspace;
    PESTLE_TRY(run_quant_linear(batch));
  }
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/gemv_nvfp4_simd",
                            .refuses = refuses,
                            .run = run,
                            .workspace = "4 * round_up(K,128) * 4 + 64"}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::gemv_nvfp4
