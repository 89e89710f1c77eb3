// Fresh seeded data from the named distributions of cases (Dist), for every dtype. A pure function
// of seed, distribution and place: the same for any thread count, on any machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/op_spec.h"
#include "core/tensor.h"

namespace pestle::harness {

// What the values of an input mean, told from its name and dtype, so that scales are positive and
// of a size that goes with the values, codebooks ascend, codes use their format's whole range,
// class indices and lengths are small numbers or the usual mark of an ignored row, and offsets
// ascend from 0. kMask: values that are added to logits.
enum class Meaning { kValues, kScales, kZeroPoints, kCodebook, kCodes, kIndices, kOffsets, kMask };
Meaning meaning_of(const Arg& arg, DType dtype);
constexpr bool are_values(Meaning m) { return m == Meaning::kValues || m == Meaning::kMask; }

std::string_view dist_name(Dist dist);
// False when there is no distribution of this name.
bool dist_from_name(std::string_view name, Dist& dist);

// Writes `count` elements in row-major order.
void fill(void* contiguous, DType dtype, int64_t count, Meaning meaning, Dist dist, uint64_t seed);

// What users' tensors hold, for sweeps: normal values; weights, normal with sigma 0.02; activations
// with heavy tails (a normal value times 2 to the power of another normal one); small integers.
enum class Values { kNormal, kWeights, kHeavy, kIntegers };
inline constexpr int kValuesKinds = 4;
std::string_view values_name(Values values);
// As fill() of Meaning::kValues; returns the largest magnitude.
float fill_values(void* contiguous, DType dtype, int64_t count, Values values, uint64_t seed);
// Tensors repeat their first kPeriod elements, a prime number of them, so that no two rows or tiles
// begin alike: making each element anew would take longer than most checks.
inline constexpr int64_t kPeriod = 4194301;

// Dist::kSpecial mixes specials in by this flavour, so that one NaN does not hide everything else.
// The checks run each; `flavour` is taken from the seed: seed % kSpecialFlavours.
//   0: NaN, Inf and finite specials    1: Inf and finite specials    2: finite specials only
//   3: normal values with NaN in a stretch of an eighth of the tensor; finite scales and codes.
//      Nothing else makes a NaN that would hide these, and some rows of every length have none.
inline constexpr int kSpecialFlavours = 4;
inline constexpr int kNanFlavour = 3;

}  // namespace pestle::harness
