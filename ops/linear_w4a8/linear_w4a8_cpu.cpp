// linear_w4a8 on the CPU: decode the weight in registers or by tiles (quant_linear.cpp).
#include <algorithm>
#include <cmath>

#include "formats/w4a8.h"
#include "ops/common/quant_matrices.h"
#include "ops/linear_w4a8/linear_w4a8_spec.h"

namespace pestle::ops::linear_w4a8 {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kWeight = arg_index(spec, "weight");
constexpr int kScaleRel = arg_index(spec, "scale_rel");
constexpr int kScaleChannel = arg_index(spec, "scale_channel");
constexpr int kCodebook = arg_index(spec, "codebook");
constexpr int kOut = arg_index(spec, "out");
constexpr int kEpilogue = arg_index(spec, "alpha");
constexpr int kHadamard = arg_index(spec, "hadamard");

// The largest scale under which no level needs the clamp, or 0 if for some level and scale code the
// integer nearest to the product depends on the product being rounded to f32 first.
float clamp_from(const float (&levels)[formats::kW4a8Levels]) {
  float largest = 0;
  for (const float level : levels) {
    if (!(std::fabs(level) <= 1024.0f)) return 0;
    largest = std::max(largest, std::fabs(level));
    for (int code = 0; code < 0x7F; ++code) {
      const float s = formats::f32_from_e4m3(static_cast<uint8_t>(code));
      constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
      const double exact = (double{level} * double{s} + kMagic) - kMagic;
      const double clamped = std::min(std::max(exact, -127.0), 127.0);
      if (clamped != formats::w4a8_decode_int8(level, s)) return 0;
    }
  }
  return largest > 0 ? 127.0f / largest : 448.0f;
}

cpu::QuantMatrix weight(const Call& call) {
  cpu::QuantMatrix q = matrix_of(call.tensor(kWeight), cpu::CodeKind::kNibble);
  set_scales(q, call.tensor(kScaleRel), formats::kW4a8Group);
  q.row_scale = call.tensor(kScaleChannel).data;
  q.round_to_int8 = true;
  formats::w4a8_default_codebook(q.table);
  for (int i = 0; call.has(kCodebook) && i < formats::kW4a8Levels; ++i) {
    q.table[i] = load<float>(at(call.tensor(kCodebook), i));
  }
  static const float clamp_from_default = [] {
    float levels[formats::kW4a8Levels];
    formats::w4a8_default_codebook(levels);
    return clamp_from(levels);
  }();
  q.clamp_from = call.has(kCodebook) ? clamp_from(q.table) : clamp_from_default;
  return q;
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_uneven_rows(call, {kX, kWeight, kScaleRel, kScaleChannel});
}

Status run(const Call& call) {
  return run_linear(call, {kX, kOut, kEpilogue}, weight(call), call.integer(kHadamard));
}

constexpr Impl kImpls[] = {
    {.id = "cpu/linear_w4a8_simd",
     .refuses = refuses,
     .run = run,
     .workspace = kQuantLinearWorkspace},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::linear_w4a8
