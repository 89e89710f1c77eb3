// A call of attention or its backward as kernels see it: what every thread needs to know of
// tensors and options, which keys a query sees, what its logits are. Lengths and offsets are read
// on the device.
//
// Queries and keys are counted in 32 bits (refuse_attention_sizes), places in memory in 64.
#pragma once

#include <algorithm>
#include <climits>

#include "backends/cuda/device/numeric/exponential.cuh"
#include "backends/cuda/device/tensor/any_tensor.cuh"
#include "ops/attention/attention_args.h"

namespace pestle::cuda {

inline constexpr float kLn2 = 0.6931471805599453f;

// A tensor [B, H, S, columns] or [B, H, S]: strides in bytes; a stride of 0 stands still.
struct AttentionRows {
  char* data = nullptr;
  int64_t batch = 0, head = 0, row = 0, column = 0;
  DType dtype = DType::kNone;

#ifdef __CUDACC__
  __device__ char* at(int b, int h, int i) const { return data + b * batch + h * head + i * row; }
  __device__ bool present() const { return dtype != DType::kNone; }
#endif
};

// sinks, key_lengths, q_offsets, k_offsets.
struct AttentionList {
  const char* data = nullptr;
  int64_t stride = 0;  // bytes
  int count = 0;
  DType dtype = DType::kNone;

#ifdef __CUDACC__
  __device__ bool present() const { return dtype != DType::kNone; }
  // Of i32 and i64, within [0, most].
  __device__ int integer(int i, int most) const {
    const char* p = data + i * stride;
    int64_t value = static_cast<int32_t>(AnyTensor::bits(p, 4));
    if (dtype == DType::kI64)
      value = static_cast<int64_t>(static_cast<uint64_t>(AnyTensor::bits(p + 4, 4)) << 32 |
                                   AnyTensor::bits(p, 4));
    return static_cast<int>(value < 0 ? 0 : value < most ? value : most);
  }
#endif
};

struct SeenKeys {
  int begin = 0, end = 0;  // empty where end <= begin
};

#ifdef __CUDACC__
// An element at any byte.
__device__ inline float load_float(const char* p, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return formats::f32_from_bf16(static_cast<uint16_t>(AnyTensor::bits(p, 2)));
    case DType::kF16: return formats::f32_from_f16(static_cast<uint16_t>(AnyTensor::bits(p, 2)));
    default: return __uint_as_float(AnyTensor::bits(p, 4));
  }
}
__device__ inline void store_float(char* p, DType dtype, float v) {
  switch (dtype) {
    case DType::kBF16: AnyTensor::put(p, formats::bf16_from_f32(v), 2); break;
    case DType::kF16: AnyTensor::put(p, formats::f16_from_f32(v), 2); break;
    default: AnyTensor::put(p, v != v ? formats::kF32Nan : __float_as_uint(v), 4); break;
  }
}
#endif

struct AttentionCall {
  AttentionRows q, k, v, mask;
  AttentionList sinks, key_lengths, q_offsets, k_offsets;
  int batches = 0, heads = 0, key_heads = 0, group = 1;  // group: heads of q that share one of k
  int queries = 0, keys = 0, depth = 0, value_depth = 0;
  float scale = 1, softcap = 0;
  // Keys before and behind its place that a query sees at most; causality is right = 0. INT_MAX / 4
  // and more is no limit, and overflows nowhere.
  int left = 0, right = 0;
  bool bottom_right = false;

  bool is_packed() const { return q_offsets.dtype != DType::kNone; }
  int64_t sequences() const { return is_packed() ? std::max(q_offsets.count - 1, 1) : 1; }

#ifdef __CUDACC__
  // ---- what a query sees ----

  // As AttentionInputs::key_range.
  __device__ SeenKeys key_range(int batch, int query) const {
    int first_query = 0, end_query = queries;
    SeenKeys seen{0, keys};
    if (q_offsets.present()) {
      const int sequence = sequence_of(query);
      if (sequence < 0) return {};
      first_query = q_offsets.integer(sequence, queries);
      end_query = q_offsets.integer(sequence + 1, queries);
      seen.begin = k_offsets.integer(sequence, keys);
      seen.end = max(seen.begin, k_offsets.integer(sequence + 1, keys));
    } else if (key_lengths.present()) {
      seen.end = key_lengths.integer(batch, keys);
    }
    const int place =
        bottom_right ? seen.end - (end_query - query) : seen.begin + query - first_query;
    seen.begin = max(seen.begin, place - left);
    seen.end = min(seen.end, place + right + 1);
    return seen;
  }

  // Queries outside of which none sees a key of [begin, end): begin and end of a run; within it
  // key_range decides. Ascending offsets are relied upon, as the contract says.
  __device__ SeenKeys query_range(int batch, int begin, int end) const {
    if (q_offsets.present()) {
      const int first = max(0, count_below(k_offsets, begin + 1, keys) - 1);
      const int last = count_below(k_offsets, end, keys);
      if (last == 0 || first + 1 >= q_offsets.count) return {};
      return {q_offsets.integer(first, queries),
              q_offsets.integer(min(last, q_offsets.count - 1), queries)};
    }
    const int length = key_lengths.present() ? key_lengths.integer(batch, keys) : keys;
    if (begin >= length) return {};
    const int place0 = bottom_right ? length - queries : 0;  // of the first query
    return {max(0, begin - right - place0), min(queries, end + left - place0)};
  }

  // Of ascending offsets, how many are below `limit`.
  __device__ static int count_below(const AttentionList& offsets, int limit, int most) {
    int low = 0, high = offsets.count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (offsets.integer(middle, most) < limit)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  // ---- logits ----

  __device__ const char* mask_row(int batch, int head, int query) const {
    return mask.at(batch, head, query);
  }
  // The logit of a scaled product, without the mask.
  __device__ float bend(float scaled) const {
    return softcap == 0 ? scaled : softcap * tanhf(scaled / softcap);
  }
  // d bend / d scaled, by what bend gave.
  __device__ float slope(float bent) const {
    if (softcap == 0) return 1;
    const float t = bent / softcap;
    return 1 - t * t;
  }
  // The logit of q.k; `row` is mask_row. -infinity: the key is not there.
  __device__ float logit(float product, const char* row, int key) const {
    float t = bend(product * scale);
    if (!mask.present()) return t;
    const char* at = row + key * mask.column;
    if (mask.dtype == DType::kBool) return *at ? t : -INFINITY;
    return t + load_float(at, mask.dtype);
  }

 private:
  // The last sequence that begins at the query or before it, or -1.
  __device__ int sequence_of(int query) const {
    const int begun = count_below(q_offsets, query + 1, queries);
    return begun == 0 || begun == q_offsets.count ? -1 : begun - 1;
  }
#endif
};

// ---- on the host --------------------------------------------------------------------------------

inline AttentionRows attention_rows(const TensorView& t) {
  if (t.dtype == DType::kNone) return {};
  const int64_t bytes = dtype_bytes(t.dtype);
  const auto stride = [&](int d) {
    return d >= t.rank || t.shape[d] == 1 ? 0 : t.strides[d] * bytes;
  };
  return {t.as<char>(), stride(0), stride(1), stride(2), stride(3), t.dtype};
}
inline AttentionList attention_list(const TensorView& t) {
  if (t.dtype == DType::kNone) return {};
  return {t.as<char>(), t.strides[0] * dtype_bytes(t.dtype), static_cast<int>(t.shape[0]), t.dtype};
}

// Why kernels can't count a call's queries and keys.
inline std::string refuse_attention_sizes(const ops::AttentionInputs& in) {
  const int64_t most = INT_MAX / 8;
  for (const int64_t n : {in.batches(), in.heads(), in.queries() * in.group(), in.keys(),
                          in.depth(), in.value_depth()})
    if (n > most) return "a dimension, or the queries of a group, is beyond 2^28";
  if (in.q_offsets.dtype != DType::kNone && in.q_offsets.shape[0] > most)
    return "more than 2^28 packed sequences";
  return "";
}

inline AttentionCall attention_call(const ops::AttentionInputs& in) {
  AttentionCall c;
  c.q = attention_rows(in.q);
  c.k = attention_rows(in.k);
  c.v = attention_rows(in.v);
  c.mask = attention_rows(in.mask);
  c.sinks = attention_list(in.sinks);
  c.key_lengths = attention_list(in.key_lengths);
  c.q_offsets = attention_list(in.q_offsets);
  c.k_offsets = attention_list(in.k_offsets);
  c.batches = static_cast<int>(in.batches());
  c.heads = static_cast<int>(in.heads());
  c.key_heads = static_cast<int>(in.k.shape[1]);
  c.group = static_cast<int>(in.group());
  c.queries = static_cast<int>(in.queries());
  c.keys = static_cast<int>(in.keys());
  c.depth = static_cast<int>(in.depth());
  c.value_depth = static_cast<int>(in.value_depth());
  c.scale = static_cast<float>(in.scale);
  c.softcap = static_cast<float>(in.softcap);
  const int64_t most = INT_MAX / 4;
  c.left = static_cast<int>(in.left < 0 ? most : std::min(in.left, most));
  c.right = static_cast<int>(in.right < 0 ? most : std::min(in.right, most));
  if (in.causal) c.right = 0;
  c.bottom_right = in.bottom_right;
  return c;
}

}  // namespace pestle::cuda
