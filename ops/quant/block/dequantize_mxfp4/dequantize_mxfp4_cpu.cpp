// dequantize_mxfp4 on the CPU: one walk over groups of blocks. Notes: dequantize_mxfp4.md
#include "core/op.h"
#include "formats/mx.h"
#include "ops/quant/block/block_rows.h"
#include "ops/quant/block/dequantize_mxfp4/dequantize_mxfp4_spec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/block/dequantize_mxfp4/dequantize_mxfp4_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/block_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_mxfp4::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;

constexpr int64_t kBlock = formats::kMxBlock;

template <class T, bool kStream>
void dequantize_group(const BlockParams& p, const BlockGroup& g) {
  const simd::NibbleReader reader(p.high_first);
  for (int64_t first = 0; first < g.blocks; first += 16) {
    const int64_t blocks = std::min<int64_t>(16, g.blocks - first);
    const uint8_t* q = g.codes + first * kBlock / 2;
    uint8_t* out = g.values + first * kBlock * static_cast<int64_t>(T::kBytes);
    HWY_ALIGN float factors[16];
    simd::e8m0_values16(g.scales + first, factors);
    simd::decode_e2m1<T, kBlock, kStream>(reader, q, blocks, factors, out);
  }
}

template <class T>
void body(const BlockParams& p, const BlockGroup& group) {
  const bool aligned = reinterpret_cast<uintptr_t>(group.values) % 64 == 0;
  if (p.stream && aligned)
    dequantize_group<T, true>(p, group);
  else
    dequantize_group<T, false>(p, group);
}

GroupBody group_body(DType out) {
  return simd::with_element(out, []<class T>(T) -> GroupBody { return body<T>; });
}

}  // namespace pestle::ops::dequantize_mxfp4::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_mxfp4 {
namespace {

HWY_EXPORT(group_body);

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const BlockMatrix matrix(out, call.tensor(kQ), call.tensor(kScale),
                           call.integer(kScaleLayout) == 0, 4, formats::kMxBlock);
  BlockParams params;
  params.high_first = call.integer(kNibbles) == 1;
  params.stream = outgrows_caches(size_bytes(out));
  const GroupBody body = HWY_DYNAMIC_DISPATCH(group_body)(out.dtype);
  dequantize_groups(matrix, body, params);
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_block_layout(call.tensor(kOut), "out", call.tensor(kQ), call.tensor(kScale),
                             "scale", call.integer(kScaleLayout) == 0);
}

constexpr Impl kImpls[] = {{.id = "cpu/dequantize_mxfp4_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_mxfp4
#endif
