// swap_nibbles on the CPU. Notes: swap_nibbles.md
#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "formats/nvfp4.h"
#include "ops/quant/block/swap_nibbles/swap_nibbles_spec.h"
#include "ops/shared/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/block/swap_nibbles/swap_nibbles_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::swap_nibbles::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `to` may be `from`.
void swap_bytes(const uint8_t* from, int64_t count, uint8_t* to) {
  const hn::ScalableTag<uint8_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, from + i);
    hn::StoreU(hn::Or(hn::ShiftLeft<4>(v), hn::ShiftRight<4>(v)), d, to + i);
  }
  for (; i < count; ++i) to[i] = formats::swap_nibbles(from[i]);
}

}  // namespace pestle::ops::swap_nibbles::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::swap_nibbles {
namespace {

HWY_EXPORT(swap_bytes);

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const auto swap = HWY_DYNAMIC_DISPATCH(swap_bytes);
  if (is_contiguous(q) && is_contiguous(out)) {
    cpu::parallel_for(numel(q), 1 << 16, [&](int64_t begin, int64_t end) {
      swap(q.as<uint8_t>() + begin, end - begin, out.as<uint8_t>() + begin);
    });
    return {};
  }
  cpu::parallel_for(row_count(q), 1 + (1 << 16) / (1 + row_length(q)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        swap(reinterpret_cast<const uint8_t*>(row_address(q, i)), row_length(q),
                             reinterpret_cast<uint8_t*>(row_address(out, i)));
                      }
                    });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  for (int i : {kQ, kOut}) {
    const TensorView& t = call.tensor(i);
    if (row_length(t) > 1 && t.strides[t.rank - 1] != 1) {
      return std::string(spec.args[static_cast<size_t>(i)].name) +
             " has gaps within its rows (last stride is not 1)";
    }
  }
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/swap_nibbles_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::swap_nibbles
#endif
