// dequantize_gguf on the CPU: 4-bit blocks by a table of 16 outputs per sub-block, the others by
// arithmetic, straight into the output's dtype.
#include "core/op.h"
#include "formats/gguf.h"
#include "ops/quant/block/dequantize_gguf/dequantize_gguf_spec.h"
#include "ops/shared/cpu_rows.h"
#include "ops/shared/element.h"
#include "ops/shared/streaming.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quant/block/dequantize_gguf/dequantize_gguf_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "backends/cpu/simd/nibbles-inl.h"

#ifndef PESTLE_OPS_DEQUANTIZE_GGUF_JOB
#define PESTLE_OPS_DEQUANTIZE_GGUF_JOB
namespace pestle::ops::dequantize_gguf {
struct Job {
  BlockType type;
  DType dtype;
  const uint8_t* q;
  int64_t q_row;
  int64_t blocks;  // in a row
  char* out;
  int64_t out_row;
  bool stream;
};
}  // namespace pestle::ops::dequantize_gguf
#endif

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::dequantize_gguf::HWY_NAMESPACE {
using namespace pestle::cpu::HWY_NAMESPACE;

alignas(64) constexpr float kIndex[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Two vectors of floats, the values of 2 * kN consecutive elements, made by f(first element).
template <class T, bool kStream, class F>
HWY_INLINE void put_elements(int64_t count, uint8_t* out, F&& f) {
  for (int64_t i = 0; i < count; i += 2 * kN) {
    T::template store2<kStream>(f(i), f(i + kN), out + i * int64_t{T::kBytes});
  }
}

struct Q8_0 {
  static constexpr int64_t kBytes = formats::kQ8_0Bytes;
  static constexpr int64_t kElements = formats::kQ8_0Block;
  template <class T, bool kStream>
  static HWY_INLINE void decode(const uint8_t* block, uint8_t* out) {
    const VF d = hn::Set(DF(), formats::gguf_load_f16(block));
    const hn::Rebind<int8_t, DF> d_i8;
    put_elements<T, kStream>(kElements, out, [&](int64_t i) HWY_ATTR {
      const auto q = hn::LoadU(d_i8, reinterpret_cast<const int8_t*>(block + 2 + i));
      return hn::Mul(hn::ConvertTo(DF(), hn::PromoteTo(DI(), q)), d);
    });
  }
};

struct Q4_0 {
  static constexpr int64_t kBytes = formats::kQ4_0Bytes;
  static constexpr int64_t kElements = formats::kQ4_0Block;
  template <class T, bool kStream>
  static HWY_INLINE void decode(const uint8_t* block, uint8_t* out) {
    const VF d = hn::Set(DF(), formats::gguf_load_f16(block));
    const NibbleTable<T> table(map_sixteen(load_sixteen(kIndex), [&](VF v) HWY_ATTR {
      return hn::Mul(d, hn::Sub(v, hn::Set(DF(), 8.0f)));
    }));
    table.template plane16<false, kStream>(block + 2, out);
    table.template plane16<true, kStream>(block + 2, out + 16 * T::kBytes);
  }
};

struct Q4_K {
  static constexpr int64_t kBytes = formats::kQ4_KBytes;
  static constexpr int64_t kElements = formats::kQ4_KBlock;
  template <class T, bool kStream>
  static HWY_INLINE void decode(const uint8_t* block, uint8_t* out) {
    const float d = formats::gguf_load_f16(block);
    const float dmin = formats::gguf_load_f16(block + 2);
    for (int j = 0; j < 8; j += 2) {
      const uint8_t* q = block + 16 + j * 16;
      sub_block<T, false, kStream>(q, d, dmin, formats::q4_k_scale(block + 4, j), out);
      out += 32 * T::kBytes;
      sub_block<T, true, kStream>(q, d, dmin, formats::q4_k_scale(block + 4, j + 1), out);
      out += 32 * T::kBytes;
    }
  }

 private:
  template <class T, bool kHigh, bool kStream>
  static HWY_INLINE void sub_block(const uint8_t* q, float d, float dmin, formats::Q4KScale s,
                                   uint8_t* out) {
    const VF scale = hn::Set(DF(), d * static_cast<float>(s.scale));
    const VF min = hn::Set(DF(), dmin * static_cast<float>(s.min));
    const NibbleTable<T> table(map_sixteen(
        load_sixteen(kIndex), [&](VF v) HWY_ATTR { return hn::Sub(hn::Mul(scale, v), min); }));
    table.template plane16<kHigh, kStream>(q, out);
    table.template plane16<kHigh, kStream>(q + 16, out + 16 * T::kBytes);
  }
};

struct Q6_K {
  static constexpr int64_t kBytes = formats::kQ6_KBytes;
  static constexpr int64_t kElements = formats::kQ6_KBlock;
  template <class T, bool kStream>
  static HWY_INLINE void decode(const uint8_t* block, uint8_t* out) {
    const float d = formats::gguf_load_f16(block + 208);
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
    HWY_ALIGN int8_t codes[kElements];
    unpack(block, codes);
    const hn::Rebind<int8_t, DF> d_i8;
    for (int run = 0; run < 8; ++run) {
      const VF scale[2] = {hn::Set(DF(), d * static_cast<float>(scales[2 * run])),
                           hn::Set(DF(), d * static_cast<float>(scales[2 * run + 1]))};
      put_elements<T, kStream>(32, out + run * 32 * T::kBytes, [&](int64_t i) HWY_ATTR {
        const auto q = hn::LoadU(d_i8, codes + run * 32 + i);
        return hn::Mul(scale[i / 16], hn::ConvertTo(DF(), hn::PromoteTo(DI(), q)));
      });
    }
  }

 private:
  // Codes -32..31 in order, in bytes: 128 of them share 64 bytes of low and 32 of high bits.
  static HWY_INLINE void unpack(const uint8_t* block, int8_t* codes) {
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 32; i += static_cast<int>(hn::Lanes(D()))) {
        const V high = hn::LoadU(D(), block + 128 + half * 32 + i);
        const V low0 = hn::LoadU(D(), block + half * 64 + i);
        const V low1 = hn::LoadU(D(), block + half * 64 + 32 + i);
        int8_t* to = codes + half * 128 + i;
        join(low0, up<4>(high), to);
        join(low1, up<2>(high), to + 32);
        join(down<4>(low0), high, to + 64);
        join(down<4>(low1), down<2>(high), to + 96);
      }
    }
  }

  using D = hn::CappedTag<uint8_t, 32>;
  using V = hn::Vec<D>;
  // Shifts of whole bytes' contents; what crosses from a neighbour is masked away by join.
#if HWY_TARGET <= HWY_AVX2
  using DShift = hn::Repartition<uint16_t, D>;
#else
  using DShift = D;
#endif
  template <int kBits>
  static HWY_INLINE V up(V v) {
    return hn::BitCast(D(), hn::ShiftLeft<kBits>(hn::BitCast(DShift(), v)));
  }
  template <int kBits>
  static HWY_INLINE V down(V v) {
    return hn::BitCast(D(), hn::ShiftRight<kBits>(hn::BitCast(DShift(), v)));
  }
  static HWY_INLINE void join(V low, V high, int8_t* to) {
    const V code = hn::Or(hn::And(low, hn::Set(D(), 15)), hn::And(high, hn::Set(D(), 0x30)));
    const hn::RebindToSigned<D> d_signed;
    hn::StoreU(hn::BitCast(d_signed, hn::Sub(code, hn::Set(D(), 32))), d_signed, to);
  }
};

template <class Block, class T, bool kStream>
void decode_rows(const Job& job, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    const uint8_t* q = job.q + n * job.q_row;
    auto* out = reinterpret_cast<uint8_t*>(job.out + n * job.out_row);
    for (int64_t b = 0; b < job.blocks; ++b) {
      Block::template decode<T, kStream>(q, out);
      q += Block::kBytes;
      out += Block::kElements * int64_t{T::kBytes};
    }
  }
  if constexpr (kStream) hwy::FlushStream();
}

template <class Block>
void block_rows(const Job& job, int64_t begin, int64_t end) {
  with_element(job.dtype, [&]<class T>(T) HWY_ATTR {
    if (job.stream)
      decode_rows<Block, T, true>(job, begin, end);
    else
      decode_rows<Block, T, false>(job, begin, end);
  });
}

void rows(const Job& job, int64_t begin, int64_t end) {
  switch (job.type) {
    case BlockType::kQ8_0: return block_rows<Q8_0>(job, begin, end);
    case BlockType::kQ4_0: return block_rows<Q4_0>(job, begin, end);
    case BlockType::kQ4_K: return block_rows<Q4_K>(job, begin, end);
    case BlockType::kQ6_K: return block_rows<Q6_K>(job, begin, end);
  }
}

}  // namespace pestle::ops::dequantize_gguf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::dequantize_gguf {
namespace {

HWY_EXPORT(rows);

constexpr int kQ = arg_index(spec, "q");
constexpr int kOut = arg_index(spec, "out");
constexpr int kType = arg_index(spec, "type");

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kQ, kOut});
}

Status run(const Call& call) {
  const TensorView& q = call.tensor(kQ);
  const TensorView& out = call.tensor(kOut);
  const auto type = static_cast<BlockType>(call.integer(kType));
  const bool small = type == BlockType::kQ8_0 || type == BlockType::kQ4_0;
  const int64_t columns = out.shape[1];
  const Job job{.type = type,
                .dtype = out.dtype,
                .q = q.as<uint8_t>(),
                .q_row = q.strides[0],
                .blocks = columns / (small ? 32 : 256),
                .out = out.as<char>(),
                .out_row = out.strides[0] * dtype_bytes(out.dtype),
                .stream = streams(out)};
  parallel_rows(q.shape[0], columns, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rows)(job, begin, end);
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/dequantize_gguf_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::dequantize_gguf
#endif
