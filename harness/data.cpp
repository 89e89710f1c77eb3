#include "harness/data.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "backends/cpu/parallel.h"
#include "formats/float_bits.h"

namespace pestle::harness {
namespace {

using formats::bf16_from_f32;
using formats::f16_from_f32;
using formats::f32_from_bits;

constexpr std::string_view kDistNames[] = {"normal",  "outliers", "zeros",  "subnormal",
                                           "special", "bytes",    "offset", "constant"};

// One call gives 64 random bits for each place, by splitmix64's finaliser over a counter.
struct Random {
  uint64_t seed;
  uint64_t operator()(uint64_t place) const {
    uint64_t z = seed + (place + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
};

// Quantiles of the normal distribution, interpolated: a fast inverse of its distribution function.
struct NormalTable {
  static constexpr int kSteps = 4096;
  std::array<float, kSteps + 1> quantiles;
  NormalTable() {
    // Bisection on erfc, once; the two ends are cut at 1/65536.
    for (int i = 0; i <= kSteps; ++i) {
      const double p = std::clamp(i / double{kSteps}, 1.0 / 65536, 1 - 1.0 / 65536);
      double low = -5;
      double high = 5;
      for (int step = 0; step < 40; ++step) {
        const double middle = (low + high) / 2;
        (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
      }
      quantiles[static_cast<size_t>(i)] = static_cast<float>(low);
    }
  }
  float operator()(uint32_t bits) const {
    const uint32_t index = bits >> 20;
    const float fraction = static_cast<float>(bits & 0xFFFFFu) * (1.0f / 1048576.0f);
    return quantiles[index] + (quantiles[index + 1] - quantiles[index]) * fraction;
  }
};
const NormalTable& normal_table() {
  static const NormalTable table;
  return table;
}

// Widths of an IEEE-like float dtype.
struct FloatShape {
  int bits;
  int mantissa;
};
FloatShape float_shape(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {32, 23};
    case DType::kF16: return {16, 10};
    case DType::kBF16: return {16, 7};
    case DType::kE5M2: return {8, 2};
    case DType::kE4M3: return {8, 3};
    default: return {64, 52};
  }
}

uint64_t encode(DType dtype, float value) {
  switch (dtype) {
    case DType::kF32: return formats::bits_from_f32(value);
    case DType::kF16: return f16_from_f32(value);
    case DType::kBF16: return bf16_from_f32(value);
    default: return __builtin_bit_cast(uint64_t, double{value});
  }
}

// Element codes of 8-bit floats: every finite code, equally often.
uint64_t finite_code(DType dtype, uint64_t random) {
  const uint64_t sign = random & 0x80;
  const uint64_t codes = dtype == DType::kE4M3 ? 0x7F : 0x7C;
  return sign | (random >> 8) % codes;
}

uint64_t subnormal_bits(DType dtype, uint64_t random) {
  const FloatShape shape = float_shape(dtype);
  const uint64_t sign = random >> 63 << (shape.bits - 1);
  // One bit more than the subnormals have: the smallest normals are among them.
  return sign | (random & ((uint64_t{2} << shape.mantissa) - 1));
}

uint64_t special_bits(DType dtype, uint64_t random, bool nan, bool inf) {
  const FloatShape shape = float_shape(dtype);
  const uint64_t sign = random >> 63 << (shape.bits - 1);
  const uint64_t one = uint64_t{1} << shape.mantissa;
  const uint64_t infinity = ((uint64_t{1} << (shape.bits - 1)) - 1) & ~(one - 1);
  const uint64_t choice = random % 16;
  if (choice < 8 && nan) return sign | infinity | one >> 1 | ((random >> 8) & (one / 2 - 1));
  if (choice < 8 && inf) return sign | infinity;
  switch (random >> 8 & 7) {
    case 0: return sign;  // both zeros
    case 1: return subnormal_bits(dtype, random);
    case 2: return sign | (infinity - 1);  // largest
    case 3: return sign | one;             // smallest normal
    case 4: return sign | 1;               // smallest subnormal
    default: break;
  }
  // Ties and ends of the small formats' ranges.
  constexpr float kMarks[] = {448,   464,   480,  6, 7,     127,   127.5f, 128,
                              0.25f, 0.75f, 2.5f, 1, 57344, 61440, 0.5f,   1.5f};
  return sign | encode(dtype, kMarks[(random >> 16) % 16]);
}

// Of Dist::kConstant: none has few bits.
constexpr float kConstants[] = {0.3f, 0.1f, 7.7f};

class Filler {
 public:
  Filler(DType dtype, int64_t count, Meaning meaning, Dist dist, uint64_t seed)
      : dtype_(dtype),
        meaning_(meaning),
        dist_(dist),
        random_{seed * 0x2545F4914F6CDD1Du},
        constant_(kConstants[seed % std::size(kConstants)]),
        flavour_(static_cast<int>(seed % kSpecialFlavours)),
        is_float_(dtype_info(dtype).is_float) {
    nan_end_ = count / 8;
    if (count > 0)
      forced_ = static_cast<int64_t>(random_(~uint64_t{0}) % static_cast<uint64_t>(count));
    nan_end_ += forced_;
  }

  uint64_t operator()(int64_t place) const {
    const uint64_t random = random_(static_cast<uint64_t>(place));
    if (meaning_ == Meaning::kCodebook && is_float_) return ascending(place, random);
    if (dist_ == Dist::kBytes) return dtype_ == DType::kBool ? random & 1 : random;
    if (dtype_ == DType::kBool) return dist_ == Dist::kZeros ? 0 : random & 1;
    switch (meaning_) {
      case Meaning::kScales: return scale(random);
      case Meaning::kZeroPoints: return is_float_ ? encode(dtype_, float(random % 16)) : random;
      case Meaning::kCodebook:
      case Meaning::kCodes: return code(random);
      case Meaning::kIndices: return index(random);
      case Meaning::kOffsets: return offset(random, place);
      case Meaning::kMask: return hides(place) ? lowest() : value(random, place);
      case Meaning::kValues: return value(random, place);
    }
    return 0;
  }

 private:
  // Sixteen values from -1 to 1, at uneven distances; finite, since contracts ask for an order.
  uint64_t ascending(int64_t place, uint64_t random) const {
    const float jitter = static_cast<float>(random >> 44) * 0x1p-21f;
    return encode(dtype_, (static_cast<float>(place % 16) - 8 + jitter) / 8);
  }

  uint64_t code(uint64_t random) const {
    if (dist_ == Dist::kZeros) return 0;
    if (is_float_ && (dist_ != Dist::kSpecial || flavour_ == kNanFlavour))
      return finite_code(dtype_, random);
    return random;
  }

  // Of every magnitude up to 2^16, so that small and large vocabularies meet some of theirs; now
  // and then -100, and among the specials what no vocabulary has.
  uint64_t index(uint64_t random) const {
    if (dist_ == Dist::kZeros) return 0;
    if ((random >> 40) % 16 == 0) return static_cast<uint64_t>(int64_t{-100});
    if (dist_ == Dist::kSpecial && (random >> 44) % 8 == 0) return random | uint64_t{1} << 30;
    return (random & 0xFFFF) >> (random >> 48) % 16;
  }

  // Steps of 0 to 26, 13 on average; neighbours may be equal.
  uint64_t offset(uint64_t random, int64_t place) const {
    if (dist_ == Dist::kZeros || place == 0) return 0;
    // Among outliers sequences that fill tiles.
    const uint64_t most = dist_ == Dist::kOutliers ? 150 : 13;
    return static_cast<uint64_t>(place) * most + random % (most + 1);
  }

  uint64_t scale(uint64_t random) const {
    const bool special = dist_ == Dist::kSpecial && (random >> 40) % 8 == 0;
    if (dtype_ == DType::kE8M0 || dtype_ == DType::kU8) {
      // Also E8M0 kept in bytes: 2^-10 to 2^5; 0 (2^-127) and 255 (NaN) among the specials.
      return special ? (random & 1 ? 0 : flavour_ == 0 ? 255 : 254) : 117 + random % 16;
    }
    if (dtype_ == DType::kE4M3) {
      if (special) return flavour_ == 0 ? random & 0x7F : random % 0x7F;
      return 0x18 + random % 0x40;
    }
    if (special) return special_bits(dtype_, random, flavour_ == 0, flavour_ <= 1);
    // 2^-9 to 2^-5, which takes values of about 1 into the codes' range; one in four has three bits,
    // so that ties of codes are met.
    const uint32_t fraction = (random >> 55) % 4 == 0 ? 0x600000 : 0x7FFFFF;
    const uint32_t bits = (118u + static_cast<uint32_t>(random % 4)) << 23 |
                          (static_cast<uint32_t>(random >> 32) & fraction);
    return encode(dtype_, f32_from_bits(bits));
  }

  uint64_t value(uint64_t random, int64_t place) const {
    const float normal = normal_table()(static_cast<uint32_t>(random));
    switch (dist_) {
      case Dist::kZeros: return random >> 63 << (float_shape(dtype_).bits - 1);
      case Dist::kSubnormal: return subnormal_bits(dtype_, random);
      case Dist::kOutliers: return encode(dtype_, (random >> 40) % 256 == 0 ? normal * 64 : normal);
      case Dist::kSpecial: {
        // One NaN or Inf there is always, however small the tensor.
        const bool nan = flavour_ == 0 || flavour_ == kNanFlavour;
        if (place == forced_ && flavour_ != 2) {
          return special_bits(dtype_, random & ~uint64_t{15}, nan, flavour_ == 1);
        }
        if ((random >> 40) % 4 != 0) break;
        // More of them come in some stretches of 16 only, so that some rows and blocks are finite.
        const uint64_t stretch = random_(~static_cast<uint64_t>(place / 16));
        if (flavour_ == kNanFlavour) {
          if (place < forced_ || place >= nan_end_ || stretch % 3 != 0) break;
          return special_bits(dtype_, random & ~uint64_t{15}, true, false);
        }
        return special_bits(dtype_, random, nan && stretch % 3 == 0,
                            flavour_ <= 1 && stretch % 3 == 1);
      }
      case Dist::kOffset:
        // Of f64, what f32 would lose is there.
        if (dtype_ == DType::kF64) {
          return __builtin_bit_cast(uint64_t, double{offset()} + double{4 * normal});
        }
        return encode(dtype_, offset() + 4 * normal);
      case Dist::kConstant: return encode(dtype_, constant_);
      case Dist::kNormal:
        // Zeros of both signs among finite neighbours, where kernels take their fast paths.
        if ((random >> 40) % 128 == 0) return random >> 63 << (float_shape(dtype_).bits - 1);
        break;
      default: break;
    }
    return encode(dtype_, normal);
  }

  // Among outliers half of a mask's runs are the lowest number there is, as models write what is not
  // to be seen; runs are long enough to hide rows of some hundred keys wholly.
  bool hides(int64_t place) const {
    const uint64_t run = random_(~static_cast<uint64_t>(place / 1024));
    return dist_ == Dist::kOutliers && run % 2 == 0;
  }
  uint64_t lowest() const {
    const FloatShape shape = float_shape(dtype_);
    return (~uint64_t{0} >> (64 - shape.bits)) ^ (uint64_t{1} << shape.mantissa);
  }

  // So large that an eighth (f32) to 1 is what neighbours are apart.
  float offset() const {
    if (dtype_ == DType::kBF16) return 0x1p7f;
    return dtype_ == DType::kF16 ? 0x1p10f : 0x1p20f;
  }

  DType dtype_;
  Meaning meaning_;
  Dist dist_;
  Random random_;
  float constant_;
  int flavour_;
  bool is_float_;
  int64_t forced_ = 0;
  int64_t nan_end_ = 0;  // of kNanFlavour's stretch, which begins at forced_
};

constexpr int64_t kGrain = 1 << 16;

// `filler` gives the bits of the element at a place.
template <class T, class Bits>
void fill_words(void* out, int64_t count, const Bits& filler) {
  auto* bytes = static_cast<char*>(out);
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  cpu::parallel_for(std::min(count, kPeriod), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T word = static_cast<T>(filler(i));
      std::memcpy(bytes + i * kSize, &word, sizeof(T));
    }
  });
  if (count <= kPeriod) return;
  cpu::parallel_for(count - kPeriod, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t to = begin + kPeriod; to < end + kPeriod;) {
      const int64_t from = to % kPeriod;
      const int64_t some = std::min(end + kPeriod - to, kPeriod - from);
      std::memcpy(bytes + to * kSize, bytes + from * kSize, static_cast<size_t>(some * kSize));
      to += some;
    }
  });
}

template <class Bits>
void fill_dtype(void* contiguous, DType dtype, int64_t count, const Bits& filler) {
  switch (dtype_bytes(dtype)) {
    case 1: return fill_words<uint8_t>(contiguous, count, filler);
    case 2: return fill_words<uint16_t>(contiguous, count, filler);
    case 4: return fill_words<uint32_t>(contiguous, count, filler);
    default: return fill_words<uint64_t>(contiguous, count, filler);
  }
}

float users_value(Values values, uint64_t random) {
  const float normal = normal_table()(static_cast<uint32_t>(random));
  switch (values) {
    case Values::kWeights: return 0.02f * normal;
    case Values::kHeavy:
      return normal * std::exp2(normal_table()(static_cast<uint32_t>(random >> 32)));
    case Values::kIntegers: return std::nearbyint(4 * normal);
    default: return normal;
  }
}

constexpr std::string_view kValuesNames[] = {"normal", "weights", "heavy", "integers"};

}  // namespace

std::string_view values_name(Values values) { return kValuesNames[static_cast<size_t>(values)]; }

float fill_values(void* contiguous, DType dtype, int64_t count, Values values, uint64_t seed) {
  const Random random{seed * 0x2545F4914F6CDD1Du};
  const auto value = [&](int64_t place) {
    return users_value(values, random(static_cast<uint64_t>(place)));
  };
  fill_dtype(contiguous, dtype, count, [&](int64_t place) { return encode(dtype, value(place)); });
  std::atomic<uint32_t> most{0};
  cpu::parallel_for(std::min(count, kPeriod), kGrain, [&](int64_t begin, int64_t end) {
    uint32_t own = 0;
    for (int64_t i = begin; i < end; ++i) own = std::max(own, formats::abs_bits(value(i)));
    for (uint32_t seen = most; seen < own && !most.compare_exchange_weak(seen, own);) continue;
  });
  return f32_from_bits(most);
}

std::string_view dist_name(Dist dist) { return kDistNames[static_cast<size_t>(dist)]; }

bool dist_from_name(std::string_view name, Dist& dist) {
  const auto found = std::find(std::begin(kDistNames), std::end(kDistNames), name);
  if (found == std::end(kDistNames)) return false;
  dist = static_cast<Dist>(found - std::begin(kDistNames));
  return true;
}

Meaning meaning_of(const Arg& arg, DType dtype) {
  const std::string_view name = arg.name;
  if (name.find("scale") != std::string_view::npos) return Meaning::kScales;
  if (name.find("codebook") != std::string_view::npos) return Meaning::kCodebook;
  if (name.find("offsets") != std::string_view::npos) return Meaning::kOffsets;
  for (const char* index : {"target", "lengths"}) {
    if (name.find(index) != std::string_view::npos) return Meaning::kIndices;
  }
  if (name.find("zero") != std::string_view::npos) return Meaning::kZeroPoints;
  const bool small_float = dtype == DType::kE4M3 || dtype == DType::kE5M2 || dtype == DType::kE8M0;
  if (!dtype_info(dtype).is_float || small_float) return Meaning::kCodes;
  return name == "mask" ? Meaning::kMask : Meaning::kValues;
}

void fill(void* contiguous, DType dtype, int64_t count, Meaning meaning, Dist dist, uint64_t seed) {
  const Filler filler(dtype, count, meaning, dist, seed);
  fill_dtype(contiguous, dtype, count, filler);
}

}  // namespace pestle::harness
