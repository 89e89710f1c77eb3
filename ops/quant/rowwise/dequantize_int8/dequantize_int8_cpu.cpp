// dequantize_int8 on the CPU: SIMD over runs that share a scale, threads over rows. Rotated rows go
// through a buffer of floats on the stack.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/rowwise/dequantize_int8/dequantize_int8_cpu.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd/blocks-inl.h"
#include "backends/cpu/simd/hadamard-inl.h"
#include "core/op.h"
#include "ops/quant/rowwise/dequantize_int8/dequantize_int8_spec.h"
#include "ops/quant/rowwise/int8_scale_grid.h"
#include "ops/shared/cpu_rows.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_int8::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace simd = pestle::cpu::HWY_NAMESPACE;
using simd::kN;
using simd::VF;

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGranularity = arg_index(spec, "granularity");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

constexpr int64_t kPiece = 4 * formats::kHadamardMax;  // floats rotated at a time

// T: element type of the values.
template <class T>
void decode_run(const char* from, void* to, int64_t count, float scale, bool stream) {
  const VF by = hn::Set(simd::DF(), scale);
  simd::run_blocks<1, T::kBytes>(
      from, to, count, {.stream = stream},
      [&](const uint8_t* in, uint8_t* values, int64_t, bool streams) HWY_ATTR {
        const hn::Rebind<int8_t, simd::DF> d8;
        VF v[4];
        for (size_t j = 0; j < 4; ++j) {
          const auto code = hn::LoadU(d8, reinterpret_cast<const int8_t*>(in + j * kN));
          v[j] = hn::Mul(hn::ConvertTo(simd::DF(), hn::PromoteTo(simd::DI(), code)), by);
        }
        simd::put_block<T>(streams, v, values);
      });
}

template <class T>
struct Decoder {
  const Call& call;
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const TensorView& scale = call.tensor(kScale);
  const int64_t hadamard = call.integer(kHadamard);
  const int64_t m = row_count(q);
  const int64_t k = row_length(q);
  const Int8ScaleGrid grid{static_cast<Int8Granularity>(call.integer(kGranularity)), m, k,
                           call.integer(kGroupSize)};
  const bool stream = m * k * static_cast<int64_t>(T::kBytes) >= simd::kStreamBytes;

  const char* q_at(int64_t i, int64_t j) const { return row_address(q, i) + j; }
  char* out_at(int64_t i, int64_t j) const {
    return row_address(out, i) + j * static_cast<int64_t>(T::kBytes);
  }
  float scale_of(int64_t i, int64_t j) const {
    return load<float>(int8_scale_at(scale, grid, grid.index(i, j)));
  }

  void by_tensor() const {
    const float s = load<float>(scale.data);
    parallel_pieces(FlatRows(q, out), [&](int64_t i, int64_t j, int64_t count) {
      decode_run<T>(q_at(i, j), out_at(i, j), count, s, stream);
      hwy::FlushStream();
    });
  }

  void by_row() const {
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < k; j += grid.width) {
          decode_run<T>(q_at(i, j), out_at(i, j), std::min(grid.width, k - j), scale_of(i, j),
                        stream);
        }
      }
      hwy::FlushStream();
    });
  }

  // f32 products, rotated back, rounded once.
  void rotated() const {
    parallel_rows(m, k, [&](int64_t begin, int64_t end) {
      HWY_ALIGN float values[kPiece];
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t first = 0; first < k; first += kPiece) {
          const int64_t last = std::min(k, first + kPiece);
          for (int64_t j = first; j < last;) {
            const int64_t next = std::min(last, (j / grid.width + 1) * grid.width);
            decode_run<simd::F32>(q_at(i, j), values + (j - first), next - j, scale_of(i, j),
                                  false);
            j = next;
          }
          simd::hadamard_run(values, last - first, hadamard);
          simd::store_floats<T>(values, out_at(i, first), last - first, stream);
        }
      }
      hwy::FlushStream();
    });
  }

  Status dequantize() const {
    if (hadamard > 0)
      rotated();
    else if (grid.rows == 1 && grid.columns == 1)
      by_tensor();
    else
      by_row();
    return {};
  }
};

}  // namespace

Status run(const Call& call) {
  return simd::with_element(call.tensor(kOut).dtype,
                            [&]<class T>(T) { return Decoder<T>{call}.dequantize(); });
}

}  // namespace pestle::ops::dequantize_int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_int8 {
namespace {

HWY_EXPORT(run);

Status run_simd(const Call& call) { return HWY_DYNAMIC_DISPATCH(run)(call); }

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {arg_index(spec, "q"), arg_index(spec, "out")});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/dequantize_int8_simd", .refuses = refuses, .run = run_simd},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_int8
#endif  // HWY_ONCE
