// quantize_list, reference: each tensor by the reference of the op that does one.
#include "ops/quant/rowwise/quantize_list/quantize_list_position.h"

namespace pestle::ops::quantize_list {
namespace {

Status run(const Call& call) {
  for (size_t i = 0; i < positions(call); ++i) {
    const PositionCall one = position_call(call, i);
    PESTLE_TRY(one.op.reference().run(one.call));
  }
  return {};
}

}  // namespace

OpReference reference() { return {&spec, {.id = "reference", .run = run}}; }

}  // namespace pestle::ops::quantize_list
