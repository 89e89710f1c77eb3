// quantize_nvfp4 on the CPU: one walk over groups of blocks, after one for the tensor's amax.
// Notes: quantize_nvfp4.md
#include <atomic>

#include "backends/cpu/parallel.h"
#include "core/op.h"
#include "ops/quant/block/block_rows.h"
#include "ops/quant/block/quantize_nvfp4/quantize_nvfp4_block.h"
#include "ops/quant/block/quantize_nvfp4/quantize_nvfp4_spec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/block/quantize_nvfp4/quantize_nvfp4_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/block_scales-inl.h"
#include "backends/cpu/simd/reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::quantize_nvfp4::HWY_NAMESPACE {
namespace simd = pestle::cpu::HWY_NAMESPACE;

// Blocks with NaN or infinite factors, and stochastic rounding.
template <class T>
void scalar_blocks(const BlockParams& p, const uint8_t* x, int64_t blocks, uint64_t element,
                   uint8_t* scales, uint8_t* q) {
  for (int64_t b = 0; b < blocks; ++b, element += kBlock) {
    float values[kBlock];
    uint8_t codes[kBlock];
    for (size_t i = 0; i < kBlock; i += simd::kN) {
      const auto* at = x + (static_cast<size_t>(b) * kBlock + i) * T::kBytes;
      simd::F32::store(T::load(at), values + i);
    }
    scales[b] = quantize_block(values, p.global_scale, p.stochastic, p.seed, element, codes);
    for (int64_t i = 0; i < kBlock; i += 2) {
      q[(b * kBlock + i) / 2] = formats::pack_nibbles(codes[i], codes[i + 1], p.high_first);
    }
  }
}

template <class T, bool kStream>
void quantize_group(const BlockParams& p, const BlockGroup& g) {
  for (int64_t first = 0; first < g.blocks; first += 16) {
    const int64_t blocks = std::min<int64_t>(16, g.blocks - first);
    const uint8_t* x = g.values + first * kBlock * static_cast<int64_t>(T::kBytes);
    uint8_t* q = g.codes + first * kBlock / 2;
    HWY_ALIGN uint32_t amax[16];
    simd::BlockFactors factors;
    simd::prefetch(x, 16 * kBlock * T::kBytes);
    simd::block_amax16<T, kBlock>(x, blocks, amax);
    const bool finite = simd::nvfp4_scales16(amax, p.global_scale, g.scales + first, factors);
    if (finite && !p.stochastic) {
      simd::encode_e2m1<T, kBlock, true, kStream>(x, blocks, factors, p.high_first, q);
    } else {
      scalar_blocks<T>(p, x, blocks, g.element + static_cast<uint64_t>(first * kBlock),
                       g.scales + first, q);
    }
  }
}

template <class T>
void body(const BlockParams& p, const BlockGroup& group) {
  const bool aligned = reinterpret_cast<uintptr_t>(group.codes) % 64 == 0;
  if (p.stream && aligned)
    quantize_group<T, true>(p, group);
  else
    quantize_group<T, false>(p, group);
}

GroupBody group_body(DType x) {
  return simd::with_element(x, []<class T>(T) -> GroupBody { return body<T>; });
}

uint32_t amax_of(DType dtype, const void* x, int64_t count) {
  return simd::with_element(dtype, [&]<class T>(T) { return simd::amax_bits<T>(x, count); });
}

}  // namespace pestle::ops::quantize_nvfp4::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::quantize_nvfp4 {
namespace {

HWY_EXPORT(group_body);
HWY_EXPORT(amax_of);

constexpr int kX = arg_index(spec, "x");
constexpr int kGlobalScale = arg_index(spec, "global_scale");
constexpr int kQ = arg_index(spec, "q");
constexpr int kScaleOut = arg_index(spec, "scale_out");
constexpr int kGlobalScaleOut = arg_index(spec, "global_scale_out");
constexpr int kNibbles = arg_index(spec, "nibbles");
constexpr int kScaleLayout = arg_index(spec, "scale_layout");
constexpr int kRounding = arg_index(spec, "rounding");
constexpr int kSeed = arg_index(spec, "seed");

uint32_t tensor_amax(const TensorView& x) {
  constexpr int64_t kChunk = 1 << 16;
  const bool flat = is_contiguous(x);
  const int64_t count = flat ? numel(x) : x.shape[0];
  std::atomic<uint32_t> amax{0};
  cpu::parallel_for(count, flat ? kChunk : 1, [&](int64_t begin, int64_t end) {
    const auto amax_at = HWY_DYNAMIC_DISPATCH(amax_of);
    uint32_t largest = 0;
    if (flat) {
      largest = amax_at(x.dtype, x.as<uint8_t>() + begin * dtype_bytes(x.dtype), end - begin);
    }
    for (int64_t i = begin; i < end && !flat; ++i) {
      largest = std::max(largest, amax_at(x.dtype, at(x, i), x.shape[1]));
    }
    uint32_t seen = amax.load();
    while (largest > seen && !amax.compare_exchange_weak(seen, largest)) {
    }
  });
  return amax;
}

float global_scale(const Call& call) {
  if (call.has(kGlobalScale)) return load<float>(call.tensor(kGlobalScale).data);
  const float g = formats::nvfp4_global_scale(tensor_amax(call.tensor(kX)));
  store(call.tensor(kGlobalScaleOut).data, g);
  return g;
}

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const BlockMatrix matrix(call.tensor(kX), q, call.tensor(kScaleOut),
                           call.integer(kScaleLayout) == 0, 4, kBlock);
  BlockParams params;
  params.global_scale = global_scale(call);
  params.high_first = call.integer(kNibbles) == 0;
  params.stochastic = call.integer(kRounding) == 1;
  params.seed = static_cast<uint64_t>(call.integer(kSeed));
  params.stream = outgrows_caches(size_bytes(q));
  const GroupBody body = HWY_DYNAMIC_DISPATCH(group_body)(call.tensor(kX).dtype);
  quantize_groups(matrix, body, params);
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_block_layout(call.tensor(kX), "x", call.tensor(kQ), call.tensor(kScaleOut),
                             "scale_out", call.integer(kScaleLayout) == 0);
}

constexpr Impl kImpls[] = {{.id = "cpu/quantize_nvfp4_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::quantize_nvfp4
#endif
