// linear_w4a8 on CUDA.
// Map      x, after input_act and rotation, goes to the workspace as f32. many_rows: codes and x
//          through shared memory (ops/gemm/weight_only/many_rows.cuh); a stage of x is split there
//          into three parts of bf16 once a CTA, the weight's integers are read from a table of all
//          16 levels times all scales. late: unfused epilogue of pairs. _any: a thread a result
//          (ops/gemm/fallback/gemm_fallback_decoded.cuh).
// Traffic  x once read, and 4 bytes an element written and read; codes and scales once from memory
//          where 16 tiles along m fit the L2; out and residual once.
// Numerics x is the exact sum of its parts, the integers are exact in bf16: products are those of
//          f32. Sums of 32 of k by the tensor cores, added in f32, then times the row's scale. Tiles
//          with x that is tiny or no number, or such scales, are made again from f32 values.
// Measured H100: 83 us for 64 x 3072 x 3072, 6,192 for 4608 x 12288 x 3072.
#include "ops/gemm/linear_w4a8/linear_w4a8_spec.h"
#include "ops/gemm/weight_only/decoded_launch.cuh"
#include "ops/gemm/weight_only/w4a8_format.cuh"
#include "ops/shared/inner_call.h"

namespace pestle::ops::linear_w4a8 {
namespace {

constexpr WeightOnlyArgs kArgs{arg_index(spec, "x"), arg_index(spec, "weight"),
                               arg_index(spec, "out"), arg_index(spec, "alpha")};
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kHadamard = arg_index(spec, "hadamard");

// x as f32, and before that x after input_act.
#define PESTLE_W4A8_X_BYTES "512 + 4*M*K + if(input_act == none, 0, 256 + bytes(x)*M*K)"
constexpr const char* kWorkspace = PESTLE_W4A8_X_BYTES;
constexpr const char* kUnfusedWorkspace = PESTLE_UNFUSED_BYTES " + " PESTLE_W4A8_X_BYTES;
#undef PESTLE_W4A8_X_BYTES

uintptr_t round_up(uintptr_t n) { return (n + 255) / 256 * 256; }

TensorView rotated_x(const Call& call) {
  const uintptr_t at = round_up(reinterpret_cast<uintptr_t>(call.workspace));
  return rows_like_x(call, reinterpret_cast<void*>(at), DType::kF32, input_columns(call));
}

// Fills rotated_x(call).
Status place_rotated_x(const Call& call, const TensorView& rotated) {
  if (numel(rotated) == 0) return {};
  TensorView x = call.tensor(kArgs.x);
  if (has_input_act(call)) {
    const uintptr_t behind = round_up(reinterpret_cast<uintptr_t>(rotated.data) +
                                      static_cast<uintptr_t>(size_bytes(rotated)));
    x = rows_like_x(call, reinterpret_cast<void*>(behind), x.dtype, input_columns(call));
    PESTLE_TRY(run_input(call, x));
  }
  const int64_t hadamard = call.integer(kHadamard);
  InnerCall inner(call, hadamard > 0 ? "hadamard" : "copy");
  inner.set("x", x);
  inner.set("out", rotated);
  if (hadamard > 0) inner.set("hadamard", hadamard);
  return inner.run(nullptr, 0);
}

std::string refuses_many(const Call& call, const Machine&) {
  std::string why = refuse_many_rows_of_any_dtype(call, kArgs, many_rows::W4a8::kBits);
  if (why.empty()) why = refuse_far_rows("x", rotated_x(call));
  if (why.empty()) why = cuda::refuse_scale_strides("scale_rel", call.tensor(kScaleRel), false);
  if (!why.empty()) return why;
  return reinterpret_cast<uintptr_t>(call.tensor(kScaleChannel).data) % 4 != 0
             ? "scale_channel must begin at a multiple of 4 bytes"
             : "";
}

Status run_many(const Call& call) {
  const TensorView x = rotated_x(call);
  PESTLE_TRY(place_rotated_x(call, x));
  const TensorView& channel = call.tensor(kScaleChannel);
  many_rows::W4a8 format{};
  format.scale =
      many_rows::scale_bytes(call.tensor(kScaleRel), false, row_length(x) / formats::kW4a8Group, 4);
  format.channel = channel.as<float>();
  format.channel_step = channel.strides[0];
  if (call.has(kCodebook)) {
    format.codebook = call.tensor(kCodebook).as<char>();
    format.codebook_step = call.tensor(kCodebook).strides[0] * 4;
  }
  many_rows::Job job = many_rows_job(call, kArgs, x, many_rows::W4a8::kBits);
  job.epilogue.columns = {format.channel, format.channel_step};
  using Tile = many_rows::Config<true, 32, 4, many_rows::W4a8, many_rows::SplitRows>;
  return start_many_rows_tile<Tile>(call, "linear_w4a8_many_rows", job, format, {});
}

Status run_fallback(const Call& call) {
  if (numel(call.tensor(kArgs.out)) == 0) return {};
  const TensorView x = rotated_x(call);
  PESTLE_TRY(place_rotated_x(call, x));
  AnyW4a8Rows weight{};
  weight.blocks = any_blocks(call.tensor(kArgs.weight), call.tensor(kScaleRel),
                             row_length(x) / formats::kW4a8Group, false);
  weight.channel = AnyTensor(call.tensor(kScaleChannel));
  if (call.has(kCodebook)) weight.codebook = AnyTensor(call.tensor(kCodebook));
  formats::w4a8_default_codebook(weight.fixed);
  return run_fallback_decoded(call, "linear_w4a8_any", kArgs.out, kArgs.alpha, row_length(x),
                              AnyFloatRows{AnyTensor(x)}, weight);
}

constexpr Impl kImpls[] = {
    {.id = "cuda/linear_w4a8_many_rows",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_many,
     .run = run_many,
     .workspace = kWorkspace},
    {.id = "cuda/linear_w4a8_late",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuse_without_extended,
     .run = run_unfused_on_cuda,
     .workspace = kUnfusedWorkspace},
    {.id = "cuda/linear_w4a8_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses_decoded_fallback,
     .run = run_fallback,
     .workspace = kWorkspace},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::linear_w4a8
