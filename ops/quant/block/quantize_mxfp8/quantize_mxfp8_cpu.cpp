// quantize_mxfp8 on the CPU: one walk over groups of blocks. Notes: quantize_mxfp8.md
#include "core/op.h"
#include "ops/quant/block/block_rows.h"
#include "ops/quant/block/quantize_mxfp8/quantize_mxfp8_block.h"
#include "ops/quant/block/quantize_mxfp8/quantize_mxfp8_spec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/block/quantize_mxfp8/quantize_mxfp8_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/block_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::quantize_mxfp8::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;

// Stochastic rounding.
template <class F, class T>
void scalar_blocks(const BlockParams& p, const uint8_t* x, int64_t blocks, uint64_t element,
                   uint8_t* scales, uint8_t* q) {
  for (int64_t b = 0; b < blocks; ++b, element += kBlock) {
    float values[kBlock];
    uint8_t codes[kBlock];
    for (size_t i = 0; i < kBlock; i += simd::kN) {
      const auto* at = x + (static_cast<size_t>(b) * kBlock + i) * T::kBytes;
      simd::F32::store(T::load(at), values + i);
    }
    scales[b] = quantize_block<F>(values, p.stochastic, p.seed, element, codes);
    std::memcpy(q + b * kBlock, codes, kBlock);
  }
}

template <class F, class T, bool kStream>
void quantize_group(const BlockParams& p, const BlockGroup& g) {
  for (int64_t first = 0; first < g.blocks; first += 16) {
    const int64_t blocks = std::min<int64_t>(16, g.blocks - first);
    const uint8_t* x = g.values + first * kBlock * static_cast<int64_t>(T::kBytes);
    uint8_t* q = g.codes + first * kBlock;
    HWY_ALIGN uint32_t amax[16];
    simd::BlockFactors factors;
    simd::prefetch(x, 16 * kBlock * T::kBytes);
    simd::block_amax16<T, kBlock>(x, blocks, amax);
    simd::mx_scales16<F>(amax, g.scales + first, factors);
    if (p.stochastic) {
      scalar_blocks<F, T>(p, x, blocks, g.element + static_cast<uint64_t>(first * kBlock),
                          g.scales + first, q);
    } else {
      simd::encode_mxfp8<F, T, kStream>(x, blocks, factors, q);
    }
  }
}

template <class F, class T>
void body(const BlockParams& p, const BlockGroup& group) {
  const bool aligned = reinterpret_cast<uintptr_t>(group.codes) % 64 == 0;
  if (p.stream && aligned)
    quantize_group<F, T, true>(p, group);
  else
    quantize_group<F, T, false>(p, group);
}

GroupBody group_body(DType x, DType q) {
  return simd::with_element(x, [q]<class T>(T) -> GroupBody {
    return q == DType::kE4M3 ? body<formats::E4m3, T> : body<formats::E5m2, T>;
  });
}

}  // namespace pestle::ops::quantize_mxfp8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::quantize_mxfp8 {
namespace {

HWY_EXPORT(group_body);

constexpr int kX = arg_index(spec, "x");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const BlockMatrix matrix(call.tensor(kX), q, call.tensor(kScaleOut),
                           call.integer(kScaleLayout) == 0, 8, kBlock);
  BlockParams params;
  params.stochastic = call.integer(kRounding) == 1;
  params.seed = static_cast<uint64_t>(call.integer(kSeed));
  params.stream = outgrows_caches(size_bytes(q));
  const GroupBody body = HWY_DYNAMIC_DISPATCH(group_body)(call.tensor(kX).dtype, q.dtype);
  quantize_groups(matrix, body, params);
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_block_layout(call.tensor(kX), "x", call.tensor(kQ), call.tensor(kScaleOut),
                             "scale_out", call.integer(kScaleLayout) == 0);
}

constexpr Impl kImpls[] = {{.id = "cpu/quantize_mxfp8_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_mxfp8
#endif
