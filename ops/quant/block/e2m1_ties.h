// How products with a reciprocal come to the codes that E2M1's rule gives for quotients, for all
// blocks of one global scale g. A block's factor is s * g, and only the significand S of s, 8 to 15,
// matters: everything else is a power of two.
//
// x / factor and x * (1 / factor) may fall to different sides of a tie, m * 2^k with m = 1, 3, 5 or
// 7, only where a 16-bit number x lies within some ulps of m * factor: at most one significand of x
// for each m. There the quotient is computed, once for all blocks. If all such x want the same side
// the reciprocal is moved towards it by more than its error, and less than what any other x is
// away: that is so for g = amax / 2688, where 7 * 12 g and 3 * 14 g are 16-bit numbers.
//
// With g a power of two all four ties are met, and m = 1 and 5 go down while 3 and 7 go up. Then
// the reciprocal is moved down, and magnitudes whose code would be odd are promoted by an ulp of
// an f16: right where the next x below 3 and 7 * factor are farther away than that.
#pragma once

#include <cstdint>

#include "formats/float_bits.h"

namespace pestle::ops {

struct E2m1Tie {
  bool near, up;  // of no use unless near: does the x near it go up?
  bool promotes;  // would promotion give the right code?
};

inline constexpr uint32_t kTieUlps = 32;  // as near as this counts

// kLost: bits of an f32 that x lacks, 16 of a bf16 number.
template <int kLost>
PESTLE_HD inline E2m1Tie e2m1_tie(float factor, int m) {
  constexpr uint32_t kGrid = 1u << kLost;
  // An ulp of the f16 that is promoted is up to 1.34 * 2^-10 of it, an ulp of v at least 2^-24.
  constexpr uint32_t kPromoted = 3u << 13;
  const float v = factor * static_cast<float>(m);
  const uint32_t bits = formats::bits_from_f32(v) + kTieUlps;
  const uint32_t above = bits & (kGrid - 1);
  const bool goes_up = (m & 2) != 0;  // at the tie itself
  E2m1Tie tie{above < 2 * kTieUlps, false, true};
  if (tie.near) {
    const float quotient = formats::f32_from_bits(bits - above) / factor;
    const auto at = static_cast<float>(m);
    tie.up = goes_up ? quotient >= at : quotient > at;
    tie.promotes = tie.up == goes_up && (!goes_up || kGrid >= kPromoted + kTieUlps);
  } else if (goes_up) {
    tie.promotes = above >= kPromoted + kTieUlps;
  }
  return tie;
}

// For each S a nibble, S - 8 the number: ulps that the reciprocal is moved by, or kUndecided.
struct E2m1Moves {
  static constexpr int kUndecided = 7;
  static constexpr uint32_t kFirst = 0x11111111u;  // a bit for each S
  uint32_t nibbles;
  uint32_t promoted;  // S that are decided by promotion, if that is offered

  // Of 32 ties, tie (m - 1) / 2 of S at bit 4 * (S - 8) + it.
  PESTLE_HD static E2m1Moves of(uint32_t near, uint32_t up, uint32_t promotes, bool offered) {
    const uint32_t all_far = all_of(~near);
    const uint32_t all_up = all_of(~near | up) & ~all_far;
    const uint32_t all_down = all_of(~near | ~up) & ~all_far;
    const uint32_t rest = kFirst & ~(all_far | all_up | all_down);
    const uint32_t promoted = offered ? rest & all_of(promotes) : 0;
    const uint32_t down = all_down | promoted;
    const uint32_t undecided = rest & ~promoted;
    return {all_up * 6 | down * 10 | undecided * 7, promoted};
  }
  // `s` as an f32: its significand's upper bits say which S.
  PESTLE_HD static uint32_t place(float s) { return formats::bits_from_f32(s) >> 18 & 28; }
  PESTLE_HD int at(uint32_t place) const { return static_cast<int>(nibbles << (28 - place)) >> 28; }
  PESTLE_HD static float moved(float reciprocal, int ulps) {
    return formats::f32_from_bits(formats::bits_from_f32(reciprocal) + static_cast<uint32_t>(ulps));
  }
  PESTLE_HD bool promotes(uint32_t place) const { return (promoted >> place & 1) != 0; }

 private:
  PESTLE_HD static uint32_t all_of(uint32_t of_four) {
    of_four &= of_four >> 1;
    return of_four & of_four >> 2 & kFirst;
  }
};

}  // namespace pestle::ops
