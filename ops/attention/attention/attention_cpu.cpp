// attention_simd: online softmax over tiles of 64 keys
// Map      96 queries of the heads that share one of k at once, such tiles over the threads
// Traffic  q and out once, k and v once for each such tile; a tile's sums stay in the second-level
//          cache, and nothing grows with Sq * Sk
// Numerics f32, exponentials of base 2 within 2 ulp; sums over keys in order. Logits are times
//          log2(e), but not under a mask of floats: f32's lowest number would become -infinity
// Needs    D and Dv up to 256; any strides
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/attention/attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ops/attention/attention/attention_spec.h"

#include "backends/cpu/parallel.h"
#include "ops/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pestle::ops::attention::HWY_NAMESPACE {
namespace {
using namespace attention_tile::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace)

// One tile of queries, from its products to its rows of out.
class Tile {
 public:
  Tile(const AttentionInputs& in, int64_t batch, int64_t key_head, int64_t row)
      : in_(in),
        queries_(in, batch, key_head, row),
        natural_(in.has_mask() && in.mask.dtype != DType::kBool),
        unit_(natural_ ? 1 : kLog2e) {}

  void run(const TensorView& out, const TensorView* lse) {
    start();
    for (int64_t first = queries_.any.begin; first < queries_.any.end; first += kKeys)
      add_keys(first, std::min(kKeys, queries_.any.end - first));
    finish(out, lse);
  }

 private:
  void start() {
    queries_.load_transposed(in_.q, q_);
    std::fill(out_, out_ + round_up(in_.value_depth(), kRows) * kQueries, 0.0f);
    for (int64_t i = 0; i < queries_.lanes; ++i) {
      largest_[i] = -kInf;
      if (in_.has_sinks() && i < queries_.count)
        largest_[i] = static_cast<float>(in_.sink(queries_.head(i)) * double{unit_});
      sum_[i] = largest_[i] == -kInf ? 0 : 1 + (largest_[i] - largest_[i]);  // or NaN
    }
  }

  void add_keys(int64_t first, int64_t count) {
    const int64_t depth = in_.depth(), width = round_up(in_.value_depth(), kRows);
    const TileRows k = tile_rows(in_.k, queries_.batch, queries_.key_head, first, count, keys_);
    product<Sums::kNew>({.a = k.data,
                         .a_row = k.stride,
                         .a_step = 1,
                         .b = q_,
                         .sums = logits_,
                         .m = round_up(count, kRows),
                         .k = depth,
                         .n = queries_.lanes,
                         .factor = Logits::factor(in_, unit_)});
    Logits(queries_, first, count, logits_, nullptr, unit_).make();
    if (natural_)
      exponentials<true>(count);
    else
      exponentials<false>(count);
    const TileRows v = tile_rows(in_.v, queries_.batch, queries_.key_head, first, count, keys_);
    const Product values{.a = v.data,
                         .a_row = 1,
                         .a_step = v.stride,
                         .b = logits_,
                         .sums = out_,
                         .m = width,
                         .k = count,
                         .n = queries_.lanes};
    if (all_finite(v, count, width))
      product<Sums::kAdd>(values);
    else
      product<Sums::kAddSkippingZeros>(values);
  }

  template <bool kNatural>
  static VF exponential(VF logit, VF base) {
    const VF below = hn::Sub(logit, base);
    return exp2_of(kNatural ? hn::Mul(below, set(kLog2e)) : below);
  }
  // Logits to exponentials; what was summed up before goes by the new largest logit.
  template <bool kNatural>
  void exponentials(int64_t count) {
    for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
      const VF before = hn::Load(DF(), largest_ + n);
      VF largest = before;
      for (int64_t j = 0; j < count; ++j)
        largest = hn::Max(largest, hn::Load(DF(), logits_ + j * kQueries + n));
      const VF base = hn::IfThenElse(hn::Eq(largest, set(-kInf)), set(0), largest);
      VF sum = set(0);
      for (int64_t j = 0; j < count; ++j) {
        float* at = logits_ + j * kQueries + n;
        const VF e = exponential<kNatural>(hn::Load(DF(), at), base);
        sum = hn::Add(sum, e);
        hn::Store(e, DF(), at);
      }
      const VF kept = exponential<kNatural>(before, base);
      hn::Store(largest, DF(), largest_ + n);
      hn::Store(hn::MulAdd(hn::Load(DF(), sum_ + n), kept, sum), DF(), sum_ + n);
      if (!hn::AllTrue(DF(), hn::Eq(kept, set(1)))) scale_out(n, kept);
    }
  }

  // Infinities that were counted under a lower largest logit are forgotten with it.
  void scale_out(int64_t n, VF by) {
    const auto gone = hn::Eq(by, set(0));
    for (int64_t c = 0; c < in_.value_depth(); ++c) {
      float* at = out_ + c * kQueries + n;
      hn::Store(hn::IfThenZeroElse(gone, hn::Mul(hn::Load(DF(), at), by)), DF(), at);
    }
  }

  void finish(const TensorView& out, const TensorView* lse) {
    for (int64_t n = 0; n < queries_.lanes; n += kLanes) {
      const VF sum = hn::Load(DF(), sum_ + n);
      scale_out(n, hn::IfThenZeroElse(hn::Eq(sum, set(0)), hn::Div(set(1), sum)));
    }
    queries_.store_transposed(out_, out);
    for (int64_t i = 0; lse != nullptr && i < queries_.count; ++i) {
      const double log_sum =
          double{largest_[i]} * (natural_ ? 1 : kLn2) + std::log(double{sum_[i]});
      store(AttentionInputs::row(*lse, queries_.batch, queries_.head(i), queries_.query(i)),
            sum_[i] == 0 ? -kInf : static_cast<float>(log_sum));
    }
  }

  const AttentionInputs& in_;
  Queries queries_;
  bool natural_;                                // logits are as they are, not times log2(e)
  float unit_;                                  // what they are times
  alignas(64) float q_[kDepth * kQueries];      // transposed
  alignas(64) float out_[kDepth * kQueries];    // transposed
  alignas(64) float logits_[kKeys * kQueries];  // [key, query], then their exponentials
  alignas(64) float keys_[kKeys * kDepth];      // of k, then of v
  alignas(64) float largest_[kQueries], sum_[kQueries];
};

void run_tile(const AttentionInputs& in, int64_t batch, int64_t key_head, int64_t tile,
              const TensorView& out, const TensorView* lse) {
  Tile(in, batch, key_head, tile * kQueries).run(out, lse);
}

}  // namespace
}  // namespace pestle::ops::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pestle::ops::attention {
namespace {

HWY_EXPORT(run_tile);

constexpr int kQ = arg_index(spec, "q");
constexpr int kV = arg_index(spec, "v");
constexpr int kOut = arg_index(spec, "out");
constexpr int kLse = arg_index(spec, "lse");
constexpr int64_t kTileQueries = 96;
constexpr int64_t kMostColumns = 256;

std::string refuses(const Call& call, const Machine&) {
  const int64_t depth = call.tensor(kQ).shape[3], value_depth = call.tensor(kV).shape[3];
  if (std::max(depth, value_depth) <= kMostColumns) return "";
  return "heads have " + std::to_string(std::max(depth, value_depth)) + " columns, at most 256 fit";
}

Status run(const Call& call) {
  const AttentionInputs in = attention_inputs<spec>(call);
  const TensorView& out = call.tensor(kOut);
  const TensorView* lse = call.has(kLse) ? &call.tensor(kLse) : nullptr;
  const int64_t tiles = (in.group() * in.queries() + kTileQueries - 1) / kTileQueries;
  const int64_t key_heads = in.k.shape[1];
  cpu::parallel_for(in.batches() * key_heads * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / tiles;
      // The last ones, which see most where it is causal, come first.
      HWY_DYNAMIC_DISPATCH(run_tile)
      (in, head / key_heads, head % key_heads, tiles - 1 - i % tiles, out, lse);
    }
  });
  return {};
}

constexpr Impl kImpls[] = {{.id = "cpu/attention_simd", .refuses = refuses, .run = run}};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::attention
#endif  // HWY_ONCE
