// qkv_project of up to 64 rows of x in one launch on CUDA: kernels of one weight, whose tiles are those
// of all three. Results have the bits of each weight's own call by the same kernel (floats of more than
// 16 rows have none of their own): a tile's sums do not depend on the tiles beside it. Weights without
// rows are left out.
#include <concepts>

#include "ops/gemm/gemv/gemv_mma.cuh"
#include "ops/gemm/qkv_project/qkv_project_one_launch.h"
#include "ops/gemm/qkv_project/qkv_project_parts.h"
#include "ops/gemm/weight_only/int4_weight.h"
#include "ops/gemm/weight_only/many_rows_launch.cuh"

namespace pestle::ops::qkv_project {
namespace {

using many_rows::ByteCode;

constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

using Int4OfSteps = gemv::GemvInt4<gemv::SumsOf::kSteps>;
using Int4OfOctets = gemv::GemvInt4<gemv::SumsOf::kOctets>;
using Int8 = gemv::GemvRowBytes<ByteCode::kInt8>;
using gemv::GemvNvfp4;

bool is_empty(const Call& call, const QkvPart& part) {
  return call.tensor(part.weight).shape[0] == 0;
}
int code_bits(const Call& call) {
  const QkvFormat format = qkv_format(call);
  return format == QkvFormat::kInt4 || format == QkvFormat::kNvfp4 ? 4 : 8;
}
int64_t columns_of(const Call& call) { return row_length(call.tensor(kX)); }

// ---- weights of codes ----

bool one_scale_a_step(const Call& call) {
  const int64_t group = int4_group(call.integer(kGroupSize), columns_of(call));
  return group >= columns_of(call) || group % gemv::kStepOf<4> == 0;
}

int scale_row_bytes(const Call& call) {
  const int64_t k = columns_of(call);
  switch (qkv_format(call)) {
    case QkvFormat::kInt4:
      return one_scale_a_step(call) ? Int4OfSteps{}.row_bytes(k) : Int4OfOctets{}.row_bytes(k);
    case QkvFormat::kNvfp4: return GemvNvfp4{}.row_bytes(k);
    default: return Int8{}.row_bytes(k);
  }
}

std::string refuse_codes_of(const Call& call, const QkvPart& part) {
  const auto name = [&](int place) { return spec.args[static_cast<size_t>(place)].name; };
  const TensorView& weight = call.tensor(part.weight);
  if (weight.shape[0] > INT_MAX / 4) return "N must be below 2^29";
  std::string why = cuda::refuse_unaligned(name(part.weight), weight);
  if (why.empty()) why = refuse_far_rows(name(part.weight), weight);
  if (why.empty() && qkv_format(call) == QkvFormat::kNvfp4)
    why = cuda::refuse_scale_strides(name(part.scale), call.tensor(part.scale),
                                     call.integer(kScaleLayout) == 0);
  Stack out;
  if (why.empty()) why = read_even(call, part.out, &out);
  return why.empty() ? refuse_misaligned(call, {part.out, part.bias, part.scale}) : why;
}

std::string refuse_codes_of_any_rows(const Call& call) {
  const TensorView& x = call.tensor(kX);
  if (qkv_format(call) == QkvFormat::kFloat) return "the weights are floats";
  if (x.dtype == DType::kF32) return "x: is for bf16 and f16";
  if (numel(x) == 0) return "is for products that are not empty";
  if (call.integer(kHadamard) != 0) return "hadamard: x is rotated in the workspace first";
  if (columns_of(call) % 32 != 0) return "K must be a multiple of 32";
  if (columns_of(call) > INT_MAX / 4) return "K must be below 2^29";
  if (qkv_format(call) == QkvFormat::kInt4 && call.integer(kGroupSize) % 32 != 0)
    return "group_size must be a multiple of 32";
  return "";
}

// ---- up to 16 rows of x ----

std::string refuse_x_of_gemv(const Call& call, const Machine& machine) {
  const TensorView& x = call.tensor(kX);
  if (row_count(x) > kWeightOnlyMost) return "is for at most 16 rows of x";
  Stack even;
  std::string why = read_even(call, kX, &even);
  if (why.empty()) why = gemv::refuse_x(x, even);
  return why.empty() ? gemv::refuse_plan(machine, static_cast<int>(row_count(x)),
                                         static_cast<int>(columns_of(call)), code_bits(call),
                                         scale_row_bytes(call))
                     : why;
}

gemv::Job job_of(const Call& call, const QkvPart& part) {
  const TensorView& weight = call.tensor(part.weight);
  const TensorView& x = call.tensor(kX);
  Stack rows, out;
  read_even(call, kX, &rows);
  read_even(call, part.out, &out);
  gemv::Job job{};
  job.weight = weight.as<char>();
  job.weight_row = weight.strides[0];
  job.x = x.as<char>();
  job.x_row = rows.row_stride * 2;
  job.n = weight.shape[0];
  job.k = static_cast<int>(columns_of(call));
  job.rows_of_x = static_cast<int>(row_count(x));
  job.out = gemv::float_rows(out);
  if (call.has(part.bias)) {
    const TensorView& bias = call.tensor(part.bias);
    job.bias.data = bias.as<char>();
    job.bias.dtype = bias.dtype;
    job.bias_step = bias.strides[0];
  }
  return job;
}

void fill(const Call& call, const QkvPart& part, many_rows::RowBytes<ByteCode::kInt8>* format) {
  format->scale = row_bytes<ByteCode::kInt8>(call.tensor(part.scale)).scale;
}
template <std::derived_from<many_rows::Int4> Int4>
void fill(const Call& call, const QkvPart& part, Int4* format) {
  const TensorView* zero = call.has(part.zero) ? &call.tensor(part.zero) : nullptr;
  *format =
      int4_weight<Int4>(call.tensor(part.scale), zero, call.integer(kGroupSize), columns_of(call));
}
void fill(const Call& call, const QkvPart& part, many_rows::Nvfp4* format) {
  format->scale = many_rows::scale_bytes(call.tensor(part.scale), call.integer(kScaleLayout) == 0,
                                         columns_of(call) / formats::kNvfp4Block, 4);
  format->high_first = call.integer(kNibbles) == 0;
  format->bf16 = call.tensor(kX).dtype == DType::kBF16;
  format->global_scale = call.tensor(part.global_scale).as<char>();
}

template <class Format>
Status start_gemv(const Call& call) {
  gemv::WeightParts<Format> weights{};
  int64_t widths[kGemvParts];
  int count = 0;
  for (const QkvPart& part : kParts) {
    if (is_empty(call, part)) continue;
    weights.jobs[count] = job_of(call, part);
    fill(call, part, &weights.formats[count]);
    widths[count++] = call.tensor(part.weight).shape[0];
  }
  weights.parts =
      lay_out_parts(std::span(widths).first(static_cast<size_t>(count)), gemv::kTileRows);
  return call.tensor(kX).dtype == DType::kBF16
             ? gemv::start_weight_parts<true>(call, "qkv_project_gemv", count, weights)
             : gemv::start_weight_parts<false>(call, "qkv_project_gemv", count, weights);
}

// ---- 17 to 64 rows of x ----

constexpr int64_t kMostRowsOfTiles = 64;

many_rows::Job many_rows_job(const Call& call, const QkvPart& part) {
  const TensorView& weight = call.tensor(part.weight);
  const TensorView& x = call.tensor(kX);
  Operands o;
  read_even(call, part.out, &o.out);
  many_rows::Job job;
  fill_output_values(o, &job.epilogue);
  if (call.has(part.bias)) job.epilogue.bias = bias_row(call.tensor(part.bias));
  if (code_bits(call) == 8) job.epilogue.columns = row_factors(call.tensor(part.scale));
  job.x = x.as<char>();
  job.weight = weight.as<char>();
  job.m = static_cast<int>(row_count(x));
  job.n = static_cast<int>(weight.shape[0]);
  job.k = static_cast<int>(columns_of(call));
  job.x_row = static_cast<uint32_t>(cuda::row_distance(x) / 16);
  job.weight_row = static_cast<uint32_t>(cuda::row_distance(weight) / 16);
  return job;
}

template <class Format>
Status start_many_rows(const Call& call) {
  many_rows::Parts<Format> weights{};
  int count = 0;
  for (const QkvPart& part : kParts) {
    if (is_empty(call, part)) continue;
    weights.jobs[count] = many_rows_job(call, part);
    fill(call, part, &weights.formats[count++]);
  }
  return call.tensor(kX).dtype == DType::kBF16
             ? start_many_rows_parts<true>(call, "qkv_project_many_rows", count, weights)
             : start_many_rows_parts<false>(call, "qkv_project_many_rows", count, weights);
}

// ---- weights of floats ----

// False where x's or out's rows are not evenly spaced.
bool read_operands(const Call& call, const QkvPart& part, Operands* o) {
  TensorView x, out;
  if (!as_matrix(call.tensor(kX), &x) || !as_matrix(call.tensor(part.out), &out)) return false;
  const TensorView& w = call.tensor(part.weight);
  make_stack(x, &o->a);
  make_stack(out, &o->out);
  o->b = {w.data, w.dtype, w.shape[1], w.shape[0], 1, w.strides[1], w.strides[0], 0};
  o->a_along_k = lies_along_k(o->a, true);
  o->b_along_k = lies_along_k(o->b, false);
  return true;
}

std::string refuse_float_weight(const Call& call, const QkvPart& part) {
  Operands o;
  if (!read_operands(call, part, &o)) return "the rows of x or of an output are not evenly spaced";
  std::string why = refuse_operands(o);
  if (why.empty()) why = refuse_gemv(o, kGemvMoreRows);
  return why.empty() ? refuse_misaligned(call, {part.out, part.bias}) : why;
}

template <std::string (*kRefuse)(const Call&, const QkvPart&)>
std::string refuse_parts(const Call& call) {
  bool any = false;
  for (const QkvPart& part : kParts) {
    if (is_empty(call, part)) continue;
    any = true;
    if (std::string why = kRefuse(call, part); !why.empty()) return why;
  }
  return any ? "" : "is for products that are not empty";
}

}  // namespace

std::string refuse_gemv_of_codes(const Call& call, const Machine& machine) {
  std::string why = refuse_codes_of_any_rows(call);
  if (why.empty()) why = refuse_x_of_gemv(call, machine);
  return why.empty() ? refuse_parts<refuse_codes_of>(call) : why;
}

Status run_gemv_of_codes(const Call& call) {
  switch (qkv_format(call)) {
    case QkvFormat::kInt4:
      return one_scale_a_step(call) ? start_gemv<Int4OfSteps>(call)
                                    : start_gemv<Int4OfOctets>(call);
    case QkvFormat::kNvfp4: return start_gemv<GemvNvfp4>(call);
    default: return start_gemv<Int8>(call);
  }
}

std::string refuse_many_rows_of_codes(const Call& call, const Machine&) {
  std::string why = refuse_codes_of_any_rows(call);
  if (!why.empty()) return why;
  const TensorView& x = call.tensor(kX);
  if (row_count(x) > kMostRowsOfTiles) return "is for at most 64 rows of x";
  why = cuda::refuse_unaligned("x", x);
  if (why.empty()) why = refuse_far_rows("x", x);
  return why.empty() ? refuse_parts<refuse_codes_of>(call) : why;
}

Status run_many_rows_of_codes(const Call& call) {
  switch (qkv_format(call)) {
    case QkvFormat::kInt4: return start_many_rows<many_rows::Int4>(call);
    case QkvFormat::kNvfp4: return start_many_rows<many_rows::Nvfp4>(call);
    default: return start_many_rows<many_rows::RowBytes<ByteCode::kInt8>>(call);
  }
}

std::string refuse_gemv_of_floats(const Call& call, const Machine& machine) {
  if (qkv_format(call) != QkvFormat::kFloat) return "the weights are codes";
  if (std::string why = refuse_machine(machine); !why.empty()) return why;
  if (call.tensor(kX).dtype == DType::kF32) return "x: is for bf16 and f16";
  return refuse_parts<refuse_float_weight>(call);
}

Status run_gemv_of_floats(const Call& call) {
  Operands o[kGemvParts];
  hopper::EpilogueArguments e[kGemvParts];
  size_t count = 0;
  for (const QkvPart& part : kParts) {
    if (is_empty(call, part)) continue;
    read_operands(call, part, &o[count]);
    if (call.has(part.bias)) e[count].bias = bias_row(call.tensor(part.bias));
    fill_output_values(o[count], &e[count]);
    ++count;
  }
  const auto all = std::span<const Operands>(o).first(count);
  const auto epilogues = std::span<const hopper::EpilogueArguments>(e).first(count);
  return call.tensor(kX).dtype == DType::kBF16
             ? start_gemv_parts<GemvKind::kBf16>(call, "qkv_project_few_rows", all, epilogues)
             : start_gemv_parts<GemvKind::kF16>(call, "qkv_project_few_rows", all, epilogues);
}

}  // namespace pestle::ops::qkv_project
