// repack_int4, reference: code by code, by the table of places in formats/packing.h.
#include "core/op.h"
#include "ops/quant/int4/repack_int4/repack_int4_spec.h"

namespace pestle::ops::repack_int4 {
namespace {

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");
constexpr int kFrom = arg_index(spec, "from_packing");
constexpr int kTo = arg_index(spec, "to_packing");

// N and K of the weight, out of the packed shape.
struct Size {
  int64_t n;
  int64_t k;
};
Size weight_size(const TensorView& q, formats::Int4Packing packing) {
  switch (packing) {
    case formats::Int4Packing::kKaio: return {q.shape[0], q.shape[1] * 8};
    case formats::Int4Packing::kGptq: return {q.shape[1], q.shape[0] * 8};
    case formats::Int4Packing::kAwq: return {q.shape[1] * 8, q.shape[0]};
    default: return {q.shape[0], q.shape[1] * 2};
  }
}

Status run(const Call& call) {
  const auto from = static_cast<formats::Int4Packing>(call.integer(kFrom));
  const auto to = static_cast<formats::Int4Packing>(call.integer(kTo));
  const Size size = weight_size(call.tensor(kQ), from);
  const PackedView in(call.tensor(kQ), from, size.n, size.k);
  const PackedView out(call.tensor(kOut), to, size.n, size.k);
  const uint8_t flip = formats::packing_is_signed(from) != formats::packing_is_signed(to) ? 8 : 0;
  for (int64_t n = 0; n < size.n; ++n) {
    for (int64_t k = 0; k < size.k; ++k) out.store(n, k, in.load(n, k) ^ flip);
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::repack_int4
