// dequantize_int4 on CUDA: ops/quant/int4/dequantize_nibbles.cuh with these scales and zero points.
// Measured 32768 x 16384 to bf16 on an H200: 95-100 % of the copy; rotated back by 256 93 %.
#include "formats/int4.h"
#include "ops/quant/int4/dequantize_int4/dequantize_int4_spec.h"
#include "ops/quant/int4/dequantize_nibbles.cuh"

namespace pestle::ops::dequantize_int4 {
namespace {

using namespace pestle::cuda;

constexpr int kQ = arg_index(spec, "q");
constexpr int kScale = arg_index(spec, "scale");
constexpr int kZero = arg_index(spec, "zero");
constexpr int kOut = arg_index(spec, "out");
constexpr int kGroupSize = arg_index(spec, "group_size");
constexpr int kHadamard = arg_index(spec, "hadamard");

struct Int4Format {
  AnyTensor scale;
  AnyTensor zero;
  bool asymmetric;
  int64_t group;
  FastDivisor groups;  // by the group's size, where it is below 2^31

  struct Context {
    float scale;
    float minus;  // from a code, after its sign bit was flipped
  };
  struct Ahead {
    float scale;
    uint8_t zero;
  };
  static constexpr int kContextUnits = 1;
  static constexpr int kLaneAheads = 1;
  struct State {};
  __device__ State start() const { return {}; }
  __device__ void start_any() const {}
  __device__ bool looks_ahead() const { return groups.divisor % 64 == 0; }
  __device__ static float factor(const Context& c) { return c.scale; }
  __device__ static Context scaled(const Context& c, float by) { return {c.scale * by, c.minus}; }
  __device__ Ahead ahead(int64_t row, int column) const {
    const auto g = static_cast<int>(groups.divide(static_cast<uint32_t>(column)));
    const float s = __ldg(reinterpret_cast<const float*>(scale.data + row * scale.strides[0]) + g);
    if (!asymmetric) return {s, 8};
    const char* z = zero.data + row * zero.strides[0] + g;
    return {s, __ldg(reinterpret_cast<const uint8_t*>(z))};
  }
  __device__ Context context(const Ahead& a) const {
    return {a.scale, asymmetric ? static_cast<float>(a.zero) : 8.0f};
  }
  __device__ void values(uint32_t word, const Context& c, State, float (&v)[kUnit]) const {
    nibble_numbers(asymmetric ? word : word ^ 0x88888888u, c.minus, v);
    for (int i = 0; i < kUnit; ++i) v[i] *= c.scale;
  }
  // By products: dequantize_mma.cuh.
  struct BlockAhead {};
  bool one_scale = false;  // a row
  bool by_mma() const { return one_scale && !asymmetric; }
  __device__ float row_factor(int64_t row) const {
    return __ldg(reinterpret_cast<const float*>(scale.data + row * scale.strides[0]));
  }
  __device__ BlockAhead block_ahead(int64_t, int) const { return {}; }
  __device__ void pairs(const uint32_t (&words)[2], const BlockAhead (&)[2], State,
                        uint32_t (&b)[2][2]) const {
    const __half2 base = __half2half2(__ushort_as_half(0x6408));  // 1032
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Bytes to 16 bits each; then 1024 + 8 + code as f16.
      const uint32_t two = __byte_perm(words[half], 0, 0x4140);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t bits = ((two >> (4 * i)) & 0x000F000Fu) ^ 0x64086408u;
        const __half2 n = __hsub2(*reinterpret_cast<const __half2*>(&bits), base);
        b[half][i] = *reinterpret_cast<const uint32_t*>(&n);
      }
    }
  }
  __device__ float value(uint32_t code, int64_t row, int64_t column) const {
    const float s = scale.load(scale.at(row, column / group));
    const auto q = static_cast<uint8_t>(code);
    if (!asymmetric) return formats::int4_dequantize(formats::int4_from_nibble(q), s);
    const auto z = static_cast<uint8_t>(*zero.at(row, column / group));
    return formats::int4_asym_dequantize(q, {s, z});
  }
};

NibbleCall nibbles_of(const Call& call) {
  return {call.tensor(kQ), call.tensor(kOut), static_cast<int>(call.integer(kHadamard))};
}
Int4Format format_of(const Call& call) {
  Int4Format f{};
  f.scale = AnyTensor(call.tensor(kScale));
  f.asymmetric = call.has(kZero);
  if (f.asymmetric) f.zero = AnyTensor(call.tensor(kZero));
  f.group = std::max<int64_t>(1, int4_group(call.integer(kGroupSize), call.tensor(kOut).shape[1]));
  f.one_scale = f.group >= call.tensor(kOut).shape[1];
  f.groups = FastDivisor(static_cast<uint32_t>(std::min<int64_t>(f.group, INT_MAX)));
  return f;
}

Status run(const Call& call) {
  return run_nibbles(call, "dequantize_int4", nibbles_of(call), format_of(call));
}
Status run_any(const Call& call) {
  return run_nibbles_any(call, "dequantize_int4_any", nibbles_of(call), format_of(call));
}

std::string refuses(const Call& call, const Machine&) {
  if (std::string why = refuse_nibbles(nibbles_of(call)); !why.empty()) return why;
  const int64_t group = int4_group(call.integer(kGroupSize), call.tensor(kOut).shape[1]);
  if (group % kUnit != 0) return "group_size is no multiple of 8";
  if (std::string why = refuse_scale_rows("scale", call.tensor(kScale), 4); !why.empty())
    return why;
  return call.has(kZero) ? refuse_scale_rows("zero", call.tensor(kZero), 1) : "";
}

constexpr Impl kImpls[] = {
    {.id = "cuda/dequantize_int4",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .refuses = refuses,
     .run = run},
    {.id = "cuda/dequantize_int4_any",
     .device = DeviceType::kCuda,
     .min_compute_capability = 80,
     .run = run_any},
};

}  // namespace

std::span<const Impl> cuda() { return kImpls; }

}  // namespace pestle::ops::dequantize_int4
