// attention_backward_simd: logits again, tile by tile
// Map      d_q: 96 queries at once, over tiles of 64 keys; d_k and d_v: 96 keys at once, over tiles
//          of 64 queries of all heads that share them; d_mask: 64 of its rows at once. Tiles over
//          the threads
// Traffic  all inputs once for each such tile; nothing grows with Sq * Sk but d_mask
// Numerics f32; every sum has one owner and one order
// Needs    D and Dv up to 256; any strides
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/attention_backward/attention_backward_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ops/attention/attention_backward/attention_backward_call.h"

#include "backends/cpu/parallel.h"
#include "ops/attention/attention_backward/attention_backward_keys-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::attention_backward::HWY_NAMESPACE {
namespace {

// sums[column, lane] += the rows of a tile by a factor for each row and lane.
void add_rows(const float* rows, int64_t count, int64_t columns, const float* factors,
              int64_t lanes, float* sums) {
  const int64_t width = round_up(columns, kRows);
  const Product p{.a = rows,
                  .a_row = 1,
                  .a_step = width,
                  .b = factors,
                  .sums = sums,
                  .m = width,
                  .k = count,
                  .n = lanes};
  if (all_finite(rows, count * width))
    product<Sums::kAdd>(p);
  else
    product<Sums::kAddSkippingZeros>(p);
}

void scale_lanes(float* sums, int64_t columns, int64_t lanes, float by) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t n = 0; n < lanes; n += kLanes) {
      float* at = sums + c * kQueries + n;
      hn::Store(hn::Mul(hn::Load(DF(), at), set(by)), DF(), at);
    }
  }
}

// d_q of a tile of queries, one lane a query.
class QueryTile {
 public:
  QueryTile(const BackwardCall& call, int64_t batch, int64_t key_head, int64_t row)
      : call_(call), in_(call.in), queries_(in_, batch, key_head, row) {}

  void run() {
    start();
    for (int64_t first = queries_.any.begin; first < queries_.any.end; first += kKeys)
      add_keys(first, std::min(kKeys, queries_.any.end - first));
    scale_lanes(d_q_, in_.depth(), queries_.lanes, static_cast<float>(in_.scale));
    queries_.store_transposed(d_q_, call_.d_q);
  }

 private:
  void start() {
    queries_.load_transposed(in_.q, q_);
    queries_.load_transposed(call_.d_out, d_out_);
    queries_.load_transposed(call_.out, d_q_);
    for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
      VF sum = set(0);
      for (int64_t c = 0; c < in_.value_depth(); ++c) {
        const int64_t at = c * kQueries + n;
        sum = hn::MulAdd(hn::Load(DF(), d_out_ + at), hn::Load(DF(), d_q_ + at), sum);
      }
      hn::Store(sum, DF(), delta_ + n);
    }
    for (int64_t i = 0; i < queries_.lanes; ++i) {
      lse_[i] = kInf;
      if (i < queries_.count)
        lse_[i] = call_.lse_in_log2(queries_.batch, queries_.head(i), queries_.query(i));
    }
    std::fill(d_q_, d_q_ + round_up(in_.depth(), kRows) * kQueries, 0.0f);
  }

  void add_keys(int64_t first, int64_t count) {
    load_tile(in_.k, queries_.batch, queries_.key_head, first, count, keys_);
    load_tile(in_.v, queries_.batch, queries_.key_head, first, count, values_);
    const int64_t rows = round_up(count, kRows);
    product<Sums::kNew>({.a = keys_,
                         .a_row = round_up(in_.depth(), kRows),
                         .a_step = 1,
                         .b = q_,
                         .sums = logits_,
                         .m = rows,
                         .k = in_.depth(),
                         .n = queries_.lanes,
                         .factor = Logits::factor(in_)});
    product<Sums::kNew>({.a = values_,
                         .a_row = round_up(in_.value_depth(), kRows),
                         .a_step = 1,
                         .b = d_out_,
                         .sums = gradients_,
                         .m = rows,
                         .k = in_.value_depth(),
                         .n = queries_.lanes});
    Logits(queries_, first, count, logits_, slopes_).make();
    for (int64_t j = 0; j < count; ++j) finish_key(j * kQueries);
    add_rows(keys_, count, in_.depth(), gradients_, queries_.lanes, d_q_);
  }

  void finish_key(int64_t row) {
    for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
      float* gradient = gradients_ + row + n;
      const VF p = weights_of(hn::Load(DF(), logits_ + row + n), hn::Load(DF(), lse_ + n));
      VF d = logit_gradients(p, hn::Load(DF(), gradient), hn::Load(DF(), delta_ + n));
      if (in_.softcap != 0) d = times_slope(p, d, hn::Load(DF(), slopes_ + row + n));
      hn::Store(d, DF(), gradient);
    }
  }

  const BackwardCall& call_;
  const AttentionInputs& in_;
  Queries queries_;
  alignas(64) float q_[kDepth * kQueries];  // transposed, as the next two
  alignas(64) float d_out_[kDepth * kQueries];
  alignas(64) float d_q_[kDepth * kQueries];
  alignas(64) float logits_[kKeys * kQueries], gradients_[kKeys * kQueries];
  alignas(64) float slopes_[kKeys * kQueries];
  alignas(64) float keys_[kKeys * kDepth], values_[kKeys * kDepth];
  alignas(64) float lse_[kQueries], delta_[kQueries];
};

// d_k and d_v of a tile of keys, one lane a key.
class KeyTile {
 public:
  KeyTile(const BackwardCall& call, int64_t batch, int64_t key_head, int64_t first)
      : call_(call), batch_(batch), key_head_(key_head), keys_(call, batch, key_head, first) {}

  void run() {
    const AttentionInputs& in = call_.in;
    std::fill(d_k_, d_k_ + round_up(in.depth(), kRows) * kLaneKeys, 0.0f);
    std::fill(d_v_, d_v_ + round_up(in.value_depth(), kRows) * kLaneKeys, 0.0f);
    const int64_t rows = in.group() * in.queries();
    for (int64_t row = 0; row < rows; row += kRowQueries)
      add_queries(row, std::min(kRowQueries, rows - row));
    scale_lanes(d_k_, in.depth(), keys_.lanes(), static_cast<float>(in.scale));
    const auto row_of = [&](const TensorView& t) {
      return [&](int64_t j) { return keys_.row(t, j); };
    };
    store_lanes(d_k_, call_.d_k, keys_.count(), row_of(call_.d_k));
    store_lanes(d_v_, call_.d_v, keys_.count(), row_of(call_.d_v));
  }

 private:
  void add_queries(int64_t first, int64_t count) {
    const AttentionInputs& in = call_.in;
    RowQueries& queries = keys_.queries();
    queries.count = 0;
    for (int64_t row = first; row < first + count; ++row)
      queries.add(key_head_ * in.group() + row / in.queries(), row % in.queries());
    if (!queries.find_ranges(call_, batch_, keys_.keys())) return;
    queries.load(call_, batch_);
    keys_.meet(true);
    add_rows(queries.d_out, count, in.value_depth(), keys_.weights(), keys_.lanes(), d_v_);
    add_rows(queries.q, count, in.depth(), keys_.gradients(), keys_.lanes(), d_k_);
  }

  const BackwardCall& call_;
  int64_t batch_, key_head_;
  LaneKeys keys_;
  alignas(64) float d_k_[kDepth * kLaneKeys];  // transposed
  alignas(64) float d_v_[kDepth * kLaneKeys];  // transposed
};

// Up to kRowQueries rows of d_mask, of one batch and head of it.
class MaskTile {
 public:
  MaskTile(const BackwardCall& call, int64_t batch, int64_t head, int64_t first)
      : call_(call), in_(call.in), batch_(batch), head_(head), first_(first) {
    rows_ = std::min(kRowQueries, call.d_mask.shape[2] - first);
  }

  void run() {
    const bool shared_keys = call_.d_mask.shape[3] == 1;
    clear();
    for (int64_t key = 0; key < in_.keys(); key += kLaneKeys) {
      add_tile(key);
      if (shared_keys) continue;
      store(key, std::min(kLaneKeys, in_.keys() - key));
      clear();
    }
    if (!shared_keys) return;
    for (int64_t i = 0; i < rows_; ++i) {
      float sum = 0;
      for (int64_t n = 0; n < kLaneKeys; ++n) sum += sums_[i * kLaneKeys + n];
      sums_[i * kLaneKeys] = sum;
    }
    store(0, 1);
  }

 private:
  void clear() { std::fill(sums_, sums_ + kRowQueries * kLaneKeys, 0.0f); }

  // Every batch, head and query that share these rows.
  void add_tile(int64_t key) {
    const TensorView& mask = call_.d_mask;
    const bool all_batches = mask.shape[0] == 1, all_heads = mask.shape[1] == 1;
    for (int64_t b = all_batches ? 0 : batch_; b < (all_batches ? in_.batches() : batch_ + 1);
         ++b) {
      for (int64_t h = all_heads ? 0 : head_; h < (all_heads ? in_.heads() : head_ + 1); ++h) {
        LaneKeys keys(call_, b, h / in_.group(), key);
        if (mask.shape[2] != 1) {
          add_queries(keys, b, h, first_, rows_);
          continue;
        }
        for (int64_t i = 0; i < in_.queries(); i += kRowQueries)
          add_queries(keys, b, h, i, std::min(kRowQueries, in_.queries() - i));
      }
    }
  }

  void add_queries(LaneKeys& keys, int64_t b, int64_t h, int64_t first, int64_t count) {
    RowQueries& queries = keys.queries();
    queries.count = 0;
    for (int64_t i = first; i < first + count; ++i) queries.add(h, i);
    if (!queries.find_ranges(call_, b, keys.keys())) return;
    queries.load(call_, b);
    keys.meet(false);
    for (int64_t i = 0; i < count; ++i) {
      float* to = sums_ + (call_.d_mask.shape[2] == 1 ? 0 : i) * kLaneKeys;
      const float* from = keys.gradients() + i * kLaneKeys;
      for (int64_t n = 0; n < keys.count(); ++n) to[n] += from[n];
    }
  }

  void store(int64_t key, int64_t count) const {
    const TensorView& mask = call_.d_mask;
    for (int64_t i = 0; i < rows_; ++i) {
      char* to = AttentionInputs::row(mask, batch_, head_, first_ + i) +
                 key * mask.strides[3] * dtype_bytes(mask.dtype);
      store_run(sums_ + i * kLaneKeys, mask.dtype, mask.strides[3], count, to);
    }
  }

  const BackwardCall& call_;
  const AttentionInputs& in_;
  int64_t batch_, head_, first_, rows_;
  alignas(64) float sums_[kRowQueries * kLaneKeys];
};

double sink_gradient(const BackwardCall& call, int64_t head) {
  const int64_t columns = call.in.value_depth();
  const double sink = call.in.sink(head);
  alignas(64) float d_out[kDepth], out[kDepth];
  double sum = 0;
  for (int64_t b = 0; b < call.in.batches(); ++b) {
    for (int64_t i = 0; i < call.in.queries(); ++i) {
      const double lse = double{call.lse_of(b, head, i)};
      double p = std::exp(sink - lse);
      if (p > 0x1p127) p = 0x1p127;
      if (std::isinf(lse) || p < 0x1p-126) continue;
      const auto row = [&](const TensorView& t, float* to) {
        load_run(AttentionInputs::row(t, b, head, i), t.dtype, t.strides[3], columns, to);
      };
      row(call.d_out, d_out);
      row(call.out, out);
      sum -= p * double{dot_of(d_out, out, columns)};
    }
  }
  return sum;
}

void run_query_tile(const BackwardCall& call, int64_t batch, int64_t key_head, int64_t tile) {
  QueryTile(call, batch, key_head, tile * kQueries).run();
}
void run_key_tile(const BackwardCall& call, int64_t batch, int64_t key_head, int64_t tile) {
  KeyTile(call, batch, key_head, tile * kLaneKeys).run();
}
void run_mask_tile(const BackwardCall& call, int64_t batch, int64_t head, int64_t tile) {
  MaskTile(call, batch, head, tile * kRowQueries).run();
}

}  // namespace
}  // namespace pestle::ops::attention_backward::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::attention_backward {
namespace {

HWY_EXPORT(run_query_tile);
HWY_EXPORT(run_key_tile);
HWY_EXPORT(run_mask_tile);
HWY_EXPORT(sink_gradient);

constexpr int64_t kLongTile = 96;   // of queries or keys, one a lane
constexpr int64_t kShortTile = 64;  // of rows of d_mask
constexpr int64_t kMostColumns = 256;

std::string refuses(const Call& call, const Machine&) {
  const AttentionInputs in = attention_inputs<spec>(call);
  const int64_t columns = std::max(in.depth(), in.value_depth());
  if (columns <= kMostColumns) return "";
  return "heads have " + std::to_string(columns) + " columns, at most 256 fit";
}

// body(batch, head, tile) for tiles of `length`, over the threads.
template <class Body>
void for_tiles(int64_t batches, int64_t heads, int64_t count, int64_t length, Body&& body) {
  const int64_t tiles = (count + length - 1) / length;
  cpu::parallel_for(batches * heads * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / tiles / heads, i / tiles % heads, i % tiles);
  });
}

Status run(const Call& args) {
  const BackwardCall call(args);
  const AttentionInputs& in = call.in;
  const int64_t batches = in.batches(), key_heads = in.k.shape[1];
  for_tiles(batches, key_heads, in.group() * in.queries(), kLongTile,
            [&](int64_t batch, int64_t head, int64_t tile) {
              HWY_DYNAMIC_DISPATCH(run_query_tile)(call, batch, head, tile);
            });
  for_tiles(batches, key_heads, in.keys(), kLongTile,
            [&](int64_t batch, int64_t head, int64_t tile) {
              HWY_DYNAMIC_DISPATCH(run_key_tile)(call, batch, head, tile);
            });
  if (call.d_mask.dtype != DType::kNone) {
    const TensorView& mask = call.d_mask;
    for_tiles(mask.shape[0], mask.shape[1], mask.shape[2], kShortTile,
              [&](int64_t batch, int64_t head, int64_t tile) {
                HWY_DYNAMIC_DISPATCH(run_mask_tile)(call, batch, head, tile);
              });
  }
  if (call.d_sinks.dtype == DType::kNone) return {};
  cpu::parallel_for(in.heads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      char* to = call.d_sinks.as<char>() + head * last_stride_bytes(call.d_sinks);
      store_f64(to, call.d_sinks.dtype, HWY_DYNAMIC_DISPATCH(sink_gradient)(call, head));
    }
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/attention_backward_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::attention_backward
#endif  // HWY_ONCE
