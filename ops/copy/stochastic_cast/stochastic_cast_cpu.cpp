// stochastic_cast on the CPU.
// Map      pieces of rows over the threads; one call of the generator for 8 neighbours
// Traffic  x and out once
// Numerics exact
// Needs    rows whose elements are neighbours
#include "core/op.h"
#include "ops/copy/stochastic_cast/stochastic_cast_rule.h"
#include "ops/copy/stochastic_cast/stochastic_cast_spec.h"
#include "ops/shared/cpu_rows.h"

namespace pestle::ops::stochastic_cast {
namespace {

constexpr int kX = arg_index(spec, "x");
constexpr int kOut = arg_index(spec, "out");

Status run(const Call& call) {
  const TensorView& x = call.tensor(kX);
  const TensorView& out = call.tensor(kOut);
  const auto seed = static_cast<uint64_t>(call.integer(arg_index(spec, "seed")));
  const FlatRows flat(x, out);
  parallel_pieces(flat, [&](int64_t row, int64_t begin, int64_t count) {
    const char* from = row_address(x, row) + begin * 4;
    char* to = row_address(out, row) + begin * 2;
    auto element = static_cast<uint64_t>(row * flat.length + begin);
    for (int64_t i = 0; i < count;) {
      const formats::PhiloxWords words =
          formats::philox_block(seed, element / formats::kPhiloxElements);
      do {
        const auto lane = static_cast<int>(element % formats::kPhiloxElements);
        store(to + i * 2, bf16_stochastic(load<float>(from + i * 4), philox_lane(words, lane)));
        ++i;
        ++element;
      } while (i < count && element % formats::kPhiloxElements != 0);
    }
  });
  return {};
}

std::string refuses(const Call& call, const Machine&) {
  return refuse_strided_rows(call, {kX, kOut});
}

constexpr Impl kImpls[] = {
    {.id = "cpu/stochastic_cast_rows", .refuses = refuses, .run = run},
};

}  // namespace

std::span<const Impl> cpu() { return kImpls; }

}  // namespace pestle::ops::stochastic_cast
