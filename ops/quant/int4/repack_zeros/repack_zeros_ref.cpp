// repack_zeros, reference: zero point by zero point.
#include "core/op.h"
#include "formats/packing.h"
#include "ops/quant/int4/repack_zeros/repack_zeros_spec.h"
#include "ops/shared/element.h"

namespace pestle::ops::repack_zeros {
namespace {

constexpr int kZero = arg_index(spec, "zero");
constexpr int kZeroOut = arg_index(spec, "zero_out");
constexpr int kFrom = arg_index(spec, "from_packing");
constexpr int kTo = arg_index(spec, "to_packing");

class ZeroView {
 public:
  ZeroView(const TensorView& t, ZeroPacking packing) : t_(t), packing_(packing) {}

  int64_t rows_n() const { return packing_ == ZeroPacking::kPlain ? t_.shape[0] : t_.shape[1] * 8; }
  int64_t groups() const { return t_.shape[packing_ == ZeroPacking::kPlain ? 1 : 0]; }

  uint8_t load(int64_t n, int64_t group) const {
    if (packing_ == ZeroPacking::kPlain) return ops::load<uint8_t>(at(t_, n, group)) & 0xFu;
    return (formats::load_nibble(word(n, group), nibble(n)) + stored_less()) & 0xFu;
  }
  void store(int64_t n, int64_t group, uint8_t zero) const {
    if (packing_ == ZeroPacking::kPlain) return ops::store(at(t_, n, group), zero);
    formats::store_nibble(word(n, group), nibble(n), static_cast<uint8_t>(zero - stored_less()));
  }

 private:
  uint8_t stored_less() const { return packing_ == ZeroPacking::kGptq ? 1 : 0; }
  uint8_t* word(int64_t n, int64_t group) const {
    return reinterpret_cast<uint8_t*>(at(t_, group, n / 8));
  }
  int64_t nibble(int64_t n) const {
    return packing_ == ZeroPacking::kAwq ? formats::awq_nibble(n % 8) : n % 8;
  }

  const TensorView& t_;
  ZeroPacking packing_;
};

Status run(const Call& call) {
  const ZeroView in(call.tensor(kZero), static_cast<ZeroPacking>(call.integer(kFrom)));
  const ZeroView out(call.tensor(kZeroOut), static_cast<ZeroPacking>(call.integer(kTo)));
  for (int64_t n = 0; n < in.rows_n(); ++n) {
    for (int64_t g = 0; g < in.groups(); ++g) out.store(n, g, in.load(n, g));
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::repack_zeros
