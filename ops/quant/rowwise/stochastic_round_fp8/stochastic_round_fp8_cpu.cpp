// stochastic_round_fp8 on the CPU: SIMD over rows, threads over pieces of them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/rowwise/stochastic_round_fp8/stochastic_round_fp8_cpu.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/fp8-inl.h"
#include "core/op.h"
#include "ops/quant/rowwise/stochastic_round_fp8/stochastic_round_fp8_spec.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::stochastic_round_fp8::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kBlock;
using simd::kN;
using simd::VF;
using simd::VU;

constexpr int kX = arg_index(spec, "x");
constexpr int kRng = arg_index(spec, "rng");
constexpr int kQ = arg_index(spec, "q");

constexpr int64_t kChunk = 1024;

template <class T, class F>
void round_chunk(const char* from, const char* random, char* to, int64_t count, bool stream) {
  // A copy, because q may be rng's memory, and so that the last block may read past the end.
  HWY_ALIGN uint8_t bytes[kChunk + kBlock];
  std::memcpy(bytes, random, static_cast<size_t>(count));
  std::memset(bytes + count, 0, kBlock);
  simd::run_blocks<T::kBytes, 1>(
      from, to, count, {.stream = stream},
      [&](const uint8_t* in, uint8_t* out, int64_t at, bool streams) HWY_ATTR {
        VU code[4];
        for (size_t j = 0; j < 4; ++j) {
          VF v = T::load(in + j * kN * T::kBytes);
          if constexpr (T::kDType != DType::kF16) v = simd::F16::from_bits(simd::F16::bits(v));
          const auto byte = hn::LoadU(simd::D8(), bytes + at + j * kN);
          const VU u = hn::ShiftLeft<8>(hn::PromoteTo(simd::DU(), byte));
          code[j] = simd::fp8_codes_stochastic<F>(v, u);
        }
        if (streams) {
          simd::put_u8<true>(code[0], code[1], code[2], code[3], out);
        } else {
          simd::put_u8<false>(code[0], code[1], code[2], code[3], out);
        }
      });
}

template <class T, class F>
Status round(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& rng = call.tensor(kRng);
  const TensorView& q = call.tensor(kQ);
  FlatRows flat(x, q);
  if (!is_contiguous(rng)) flat = {row_count(x), row_length(x)};
  const bool stream = flat.rows * flat.length >= simd::kStreamBytes;
  parallel_pieces(flat, [&](int64_t i, int64_t begin, int64_t count) {
    for (int64_t j = begin; j < begin + count; j += kChunk) {
      round_chunk<T, F>(row_address(x, i) + j * static_cast<int64_t>(T::kBytes),
                        row_address(rng, i) + j, row_address(q, i) + j,
                        std::min(kChunk, begin + count - j), stream);
    }
    hwy::FlushStream();
  });
  return {};
}

}  // namespace

Status run(const Call& call) {
  return simd::with_element(call.tensor(kX).dtype, [&]<class T>(T) {
    if (call.tensor(kQ).dtype == DType::kE4M3) return round<T, formats::E4m3>(call);
    return round<T, formats::E5m2>(call);
  });
}

}  // namespace pestle::ops::stochastic_round_fp8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::stochastic_round_fp8 {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call,
                             {arg_index(spec, "x"), arg_index(spec, "rng"), arg_index(spec, "q")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/stochastic_round_fp8_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::stochastic_round_fp8
#endif  // HWY_ONCE
