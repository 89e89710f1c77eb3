// dequantize_fp8 on the CPU: SIMD over runs that share a scale, threads over rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/rowwise/dequantize_fp8/dequantize_fp8_cpu.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/fp8_decode-inl.h"
#include "core/op.h"
#include "formats/fp8.h"
#include "ops/quant/rowwise/dequantize_fp8/dequantize_fp8_spec.h"
#include "ops/quant/rowwise/fp8_scale_grid.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_fp8::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kBlock;

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");

constexpr int64_t kColumns = 512;  // column scales that are looked up at a time
constexpr int64_t kAhead = 4096;   // bytes of codes to fetch ahead of what is decoded

// T: element type of out. F: format of q.
template <class T, class F>
struct Decoder {
  const Call& call;
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const TensorView& scale = call.tensor(kScale);
  const int64_t m = row_count(q);
  const int64_t k = row_length(q);
  const Fp8ScaleGrid grid{static_cast<Fp8Granularity>(call.integer(kGranularity)), m, k};
  const bool stream = m * k * static_cast<int64_t>(T::kBytes) >= simd::kStreamBytes;

  const char* q_at(int64_t i, int64_t j) const { return row_address(q, i) + j; }
  char* out_at(int64_t i, int64_t j) const {
    return row_address(out, i) + j * static_cast<int64_t>(T::kBytes);
  }
  float scale_of(int64_t i, int64_t j) const {
    return load<float>(fp8_scale_at(scale, grid, grid.index(i, j)));
  }

  // The codes are read once, in order: far enough ahead of them for the memory to follow.
  simd::RunOptions options() const { return {.stream = stream, .ahead = kAhead}; }
  void run_one_scale(const char* from, char* to, int64_t count, float s) const {
    simd::decode_fp8_one_scale<T, F>(from, to, count, s, options());
  }

  void by_tensor() const {
    const float s = load<float>(scale.data);
    parallel_pieces(FlatRows(q, out), [&](int64_t i, int64_t j, int64_t count) {
      run_one_scale(q_at(i, j), out_at(i, j), count, s);
      hwy::FlushStream();
    });
  }

  // One scale per row, or per 128 columns of it.
  void by_row() const {
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < k; j += grid.columns) {
          run_one_scale(q_at(i, j), out_at(i, j), std::min(grid.columns, k - j), scale_of(i, j));
        }
      }
      hwy::FlushStream();
    });
  }

  void by_column() const {
    parallel_rows((k + kColumns - 1) / kColumns, m * kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task * kColumns;
        const int64_t count = std::min(kColumns, k - first);
        HWY_ALIGN float s[kColumns + kBlock] = {};
        for (int64_t j = 0; j < count; ++j) s[j] = scale_of(0, first + j);
        for (int64_t i = 0; i < m; ++i) {
          simd::decode_fp8<T, F>(q_at(i, first), out_at(i, first), count, {.stream = stream},
                                 [&](int64_t at) HWY_ATTR { return simd::F32::load(s + at); });
        }
      }
      hwy::FlushStream();
    });
  }

  Status dequantize() const {
    switch (static_cast<Fp8Granularity>(call.integer(kGranularity))) {
      case Fp8Granularity::kTensor: by_tensor(); break;
      case Fp8Granularity::kColumn: by_column(); break;
      default: by_row(); break;
    }
    return {};
  }
};

}  // namespace

Status run(const Call& call) {
  return simd::with_element(call.tensor(kOut).dtype, [&]<class T>(T) {
    if (call.tensor(kQ).dtype == DType::kE4M3) return Decoder<T, formats::E4m3>{call}.dequantize();
    return Decoder<T, formats::E5m2>{call}.dequantize();
  });
}

}  // namespace pestle::ops::dequantize_fp8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_fp8 {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {arg_index(spec, "q"), arg_index(spec, "out")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/dequantize_fp8_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_fp8
#endif  // HWY_ONCE
