// Rotary position embedding: the arguments that its ops share, read from a call, and the rotation
// of one pair. y0 = f00*x0 + f01*x1, y1 = f10*x0 + f11*x1; with cos and sin instead of freqs
// f = [[cos, -sin], [sin, cos]]; `inverse` takes the transpose, which rotates back and is the
// gradient.
#pragma once

#include <cmath>

#include "core/op.h"
#include "ops/shared/element.h"

namespace pestle::ops {

// Pieces of the contracts.
inline constexpr const char* kRopeFreqsShape = "FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2, 2, 2";
inline constexpr const char* kRopeCosShape = "FB, FH, FS, if(rot_dim == 0, D, rot_dim) / 2";
inline constexpr const char* kRopeFreqsDoc =
    "rotations [[cos, -sin], [sin, cos]]; each of the first dimensions is x's or 1";
inline constexpr const char* kRopeCosDoc =
    "cosines, one a pair, in place of freqs; dimensions as those of freqs";
inline constexpr const char* kRopeSinDoc = "sines, one a pair, with cos";
inline constexpr const char* kRopePairsDoc = "rotate (2i, 2i+1), or (i, i + rot_dim/2)";
inline constexpr const char* kRotDimDoc =
    "elements of a head that are rotated, the first ones; 0: all of them";
inline constexpr Constraint kRotDimConstraint = {
    "D % 2 == 0 && rot_dim % 2 == 0 && rot_dim >= 0 && rot_dim <= D",
    "D, the head size, and rot_dim must be even, rot_dim from 0 to D: elements are rotated in "
    "pairs"};
inline constexpr Constraint kRopeSharing = {
    "(FB == 1 || FB == B) && (FH == 1 || FH == H) && (FS == 1 || FS >= S)",
    "freqs' leading dimensions must each be 1 or x's (the third may be longer: it is trimmed)"};

struct Rotations {
  TensorView freqs;  // [FB, FH, FS, pairs, 2, 2]; or cosines, and
  TensorView sin;
  bool has_sin = false;
  bool split = false;  // pairs (i, i + rot/2), else (2i, 2i + 1)
  bool inverse = false;
  int64_t rot = 0;  // elements of a head that are rotated

  int64_t first(int64_t pair) const { return split ? pair : 2 * pair; }
  int64_t second(int64_t pair) const { return split ? pair + rot / 2 : 2 * pair + 1; }
  bool shared_by_heads() const { return freqs.shape[1] == 1; }
};

// Position of an argument that not every op of the family has; -1: it does not.
consteval int rope_arg(const OpSpec& spec, std::string_view name) {
  for (size_t i = 0; i < spec.args.size(); ++i) {
    if (name == spec.args[i].name) return static_cast<int>(i);
  }
  return -1;
}

template <const OpSpec& kSpec>
Rotations rotations_of(const Call& call) {
  constexpr int kInverse = rope_arg(kSpec, "inverse");
  constexpr int kCos = arg_index(kSpec, "cos");
  constexpr int kRotDim = arg_index(kSpec, "rot_dim");
  Rotations r;
  r.has_sin = call.has(kCos);
  r.freqs = call.tensor(r.has_sin ? kCos : arg_index(kSpec, "freqs"));
  if (r.has_sin) r.sin = call.tensor(arg_index(kSpec, "sin"));
  r.split = call.integer(arg_index(kSpec, "pairs")) == 1;
  if constexpr (kInverse >= 0) r.inverse = call.integer(kInverse) != 0;
  const int64_t d = call.tensor(0).shape[3];
  r.rot = call.integer(kRotDim) == 0 ? d : call.integer(kRotDim);
  return r;
}

// Element offset of a position's rotations; dimensions of size 1 are shared.
inline int64_t rotation_offset(const TensorView& t, int64_t b, int64_t h, int64_t s) {
  const int64_t index[3] = {b, h, s};
  int64_t offset = 0;
  for (int d = 0; d < 3; ++d) offset += (t.shape[d] == 1 ? 0 : index[d]) * t.strides[d];
  return offset;
}

// The 2x2 of pairs of one position.
class RotationRow {
 public:
  RotationRow(const Rotations& r, int64_t b, int64_t h, int64_t s)
      : r_(r),
        freqs_(r.freqs.as<char>() + rotation_offset(r.freqs, b, h, s) * bytes()),
        sin_(r.has_sin ? r.sin.as<char>() + rotation_offset(r.sin, b, h, s) * bytes() : nullptr) {}

  template <class Real>
  void load(int64_t pair, Real (&f)[4]) const {
    if (r_.has_sin) {
      f[0] = at(freqs_, pair * r_.freqs.strides[3]);
      f[2] = at(sin_, pair * r_.sin.strides[3]);
      f[1] = -f[2];
      f[3] = f[0];
    } else {
      for (int i = 0; i < 4; ++i) {
        f[i] = at(freqs_, pair * r_.freqs.strides[3] + i / 2 * r_.freqs.strides[4] +
                              i % 2 * r_.freqs.strides[5]);
      }
    }
    if (r_.inverse) {
      const Real upper = f[1];
      f[1] = f[2];
      f[2] = upper;
    }
  }

 private:
  int64_t bytes() const { return dtype_bytes(r_.freqs.dtype); }
  float at(const char* row, int64_t element) const {
    return load_f32(row + element * bytes(), r_.freqs.dtype);
  }

  const Rotations& r_;
  const char* freqs_;
  const char* sin_;
};

// 1 / sqrt(mean of squares + eps) of a head, float64; the sum of squares is an f32, which may
// overflow: then the head is normalised to zeros.
inline double rope_root(const char* head, int64_t step, DType dtype, int64_t d, double eps) {
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) {
    const double v = load_f64(head + i * step, dtype);
    sum += v * v;
  }
  return 1 / std::sqrt(double{static_cast<float>(sum)} / static_cast<double>(d) + eps);
}

// A head of a [B, H, S, D] tensor.
inline char* head_at(const TensorView& t, int64_t b, int64_t h, int64_t s) {
  return t.as<char>() +
         (b * t.strides[0] + h * t.strides[1] + s * t.strides[2]) * dtype_bytes(t.dtype);
}

}  // namespace pestle::ops
