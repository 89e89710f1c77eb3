// apply_rope, reference: float64, pair by pair.
#include <cmath>

#include "core/op.h"
#include "ops/apply_rope/apply_rope_spec.h"
#include "ops/common/element.h"

namespace pestle::ops::apply_rope {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kFreqs = arg_index(spec, "freqs");
constexpr int kX2 = arg_index(spec, "x2");
constexpr int kOut = arg_index(spec, "out");
constexpr int kOut2 = arg_index(spec, "out2");
constexpr int kPairs = arg_index(spec, "pairs");

char* head_at(const TensorView& t, int64_t b, int64_t h, int64_t s) {
  return t.as<char>() +
         (b * t.strides[0] + h * t.strides[1] + s * t.strides[2]) * dtype_bytes(t.dtype);
}

// The 2x2 of one position and pair; dimensions of size 1 are shared.
void load_rotation(const TensorView& freqs, int64_t b, int64_t h, int64_t s, int64_t pair,
                   double f[4]) {
  const int64_t index[3] = {b, h, s};
  int64_t offset = pair * freqs.strides[3];
  for (int d = 0; d < 3; ++d) offset += (freqs.shape[d] == 1 ? 0 : index[d]) * freqs.strides[d];
  for (int i = 0; i < 4; ++i) {
    const int64_t element = offset + i / 2 * freqs.strides[4] + i % 2 * freqs.strides[5];
    f[i] = load_f64(freqs.as<char>() + element * dtype_bytes(freqs.dtype), freqs.dtype);
  }
}

void rotate(const Call& call, const TensorView& x, const TensorView& out) {
  const TensorView& freqs = call.tensor(kFreqs);
  const int64_t half = x.shape[3] / 2;
  const bool split = call.integer(kPairs) == 1;
  for (int64_t row = 0; row < row_count(x); ++row) {
    const int64_t s = row % x.shape[2];
    const int64_t h = row / x.shape[2] % x.shape[1];
    const int64_t b = row / x.shape[2] / x.shape[1];
    const char* in = head_at(x, b, h, s);
    char* to = head_at(out, b, h, s);
    for (int64_t pair = 0; pair < half; ++pair) {
      const int64_t first = split ? pair : 2 * pair;
      const int64_t second = split ? pair + half : 2 * pair + 1;
      const double x0 = load_f64(in + first * last_stride_bytes(x), x.dtype);
      const double x1 = load_f64(in + second * last_stride_bytes(x), x.dtype);
      double f[4];
      load_rotation(freqs, b, h, s, pair, f);
      double terms[4] = {f[0] * x0, f[1] * x1, f[2] * x0, f[3] * x1};
      if (call.sum_magnitudes) {
        for (double& term : terms) term = std::fabs(term);
      }
      store_f64(to + first * last_stride_bytes(out), out.dtype, terms[0] + terms[1]);
      store_f64(to + second * last_stride_bytes(out), out.dtype, terms[2] + terms[3]);
    }
  }
}

Status run(const Call& call) {
  rotate(call, call.tensor(kX), call.tensor(kOut));
  if (call.has(kX2)) rotate(call, call.tensor(kX2), call.tensor(kOut2));
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::apply_rope
