// dequantize_mxfp8 on the CPU: one walk over groups of blocks. Notes: dequantize_mxfp8.md
#include "core/op.h"
#include "formats/mx.h"
#include "ops/quant/block/block_rows.h"
#include "ops/quant/block/dequantize_mxfp8/dequantize_mxfp8_spec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/block/dequantize_mxfp8/dequantize_mxfp8_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/block_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_mxfp8::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;

constexpr int64_t kBlock = formats::kMxBlock;

template <class F, class T, bool kStream>
void dequantize_group(const BlockGroup& g) {
#if HWY_TARGET <= HWY_AVX3
  [[maybe_unused]] const simd::Fp8Unpacker<F> unpacker;
#endif
  for (int64_t first = 0; first < g.blocks; first += 16) {
    const int64_t blocks = std::min<int64_t>(16, g.blocks - first);
    const uint8_t* q = g.codes + first * kBlock;
    uint8_t* out = g.values + first * kBlock * static_cast<int64_t>(T::kBytes);
    HWY_ALIGN float factors[16];
    simd::e8m0_values16(g.scales + first, factors);
#if HWY_TARGET <= HWY_AVX3
    if constexpr (T::kDType == DType::kBF16) {
      simd::decode_mxfp8_bf16<F, kStream>(unpacker, q, blocks, g.scales + first, factors, out);
      continue;
    }
#endif
    simd::decode_mxfp8<F, T, kStream>(q, blocks, factors, out);
  }
}

template <class F, class T>
void body(const BlockParams& p, const BlockGroup& group) {
  const bool aligned = reinterpret_cast<uintptr_t>(group.values) % 64 == 0;
  if (p.stream && aligned)
    dequantize_group<F, T, true>(group);
  else
    dequantize_group<F, T, false>(group);
}

GroupBody group_body(DType out, DType q) {
  return simd::with_element(out, [q]<class T>(T) -> GroupBody {
    return q == DType::kE4M3 ? body<formats::E4m3, T> : body<formats::E5m2, T>;
  });
}

}  // namespace pestle::ops::dequantize_mxfp8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_mxfp8 {
namespace {

HWY_EXPORT(group_body);

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");

Status run(const Call& call) {
  const TensorView& out = call.tensor(kOut);
  const BlockMatrix matrix(out, call.tensor(kQ), call.tensor(kScale),
                           call.integer(kScaleLayout) == 0, 8, formats::kMxBlock);
  BlockParams params;
  params.stream = outgrows_caches(size_bytes(out));
  const GroupBody body = HWY_DYNAMIC_DISPATCH(group_body)(out.dtype, call.tensor(kQ).dtype);
  dequantize_groups(matrix, body, params);
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_block_layout(call.tensor(kOut), "out", call.tensor(kQ), call.tensor(kScale),
                             "scale", call.integer(kScaleLayout) == 0);
}

constexpr Impl kImpls[] = {{.id = "cpu/dequantize_mxfp8_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_mxfp8
#endif
