// Which views share memory, by brute force over the bytes of their elements and by name.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace pestle {
namespace {

std::vector<uintptr_t> addresses(const TensorView& t) {
  std::vector<uintptr_t> all;
  int64_t index[kMaxRank] = {};
  for (int64_t n = numel(t); n > 0; --n) {
    int64_t offset = 0;
    for (int d = 0; d < t.rank; ++d) offset += index[d] * t.strides[d];
    all.push_back(reinterpret_cast<uintptr_t>(t.data) +
                  static_cast<uintptr_t>(offset * dtype_bytes(t.dtype)));
    for (int d = t.rank - 1; d >= 0 && ++index[d] == t.shape[d]; --d) index[d] = 0;
  }
  return all;
}

std::set<uintptr_t> bytes_of(const TensorView& t) {
  std::set<uintptr_t> bytes;
  for (uintptr_t at : addresses(t)) {
    for (int i = 0; i < dtype_bytes(t.dtype); ++i) bytes.insert(at + static_cast<uintptr_t>(i));
  }
  return bytes;
}

struct Views {
  std::mt19937 random{7};
  int64_t number(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  }
  TensorView next() {
    constexpr DType kDTypes[] = {DType::kU8, DType::kBF16, DType::kF32};
    TensorView t;
    t.data = reinterpret_cast<void*>(uintptr_t{100'000} + static_cast<uintptr_t>(number(0, 60)));
    t.dtype = kDTypes[number(0, 2)];
    t.rank = static_cast<int32_t>(number(0, 4));
    for (int d = 0; d < t.rank; ++d) {
      t.shape[d] = number(0, 9) == 0 ? 0 : number(1, 4);
      t.strides[d] = number(-12, 24);
    }
    return t;
  }
};

TEST(Overlap, OfTwoViewsAsTheirBytesSay) {
  Views views;
  int shared = 0, near = 0;
  for (int i = 0; i < 20'000; ++i) {
    const TensorView a = views.next(), b = views.next();
    const auto one = bytes_of(a), other = bytes_of(b);
    bool meet = false;
    for (uintptr_t at : one) meet |= other.count(at) > 0;
    ASSERT_EQ(overlap_of(a, b), meet ? Overlap::kYes : Overlap::kNo) << i;
    shared += meet;
    const ByteRange x = byte_range(a), y = byte_range(b);
    near += !meet && !one.empty() && !other.empty() && x.begin < y.end && y.begin < x.end;
  }
  EXPECT_GT(shared, 2000);
  EXPECT_GT(near, 2000);  // what byte ranges alone would have refused
}

TEST(Overlap, WithinAViewAsItsBytesSay) {
  Views views;
  int shared = 0;
  for (int i = 0; i < 20'000; ++i) {
    const TensorView t = views.next();
    const bool repeats = static_cast<int64_t>(bytes_of(t).size()) < numel(t) * dtype_bytes(t.dtype);
    ASSERT_EQ(overlap_within(t), repeats ? Overlap::kYes : Overlap::kNo) << i;
    shared += repeats;
  }
  EXPECT_GT(shared, 2000);
}

TensorView packed_part(void* memory, int part, int64_t batch, int64_t tokens, int64_t heads) {
  constexpr int64_t kWidth = 128;
  TensorView t;
  t.data = static_cast<uint16_t*>(memory) + part * heads * kWidth;
  t.dtype = DType::kBF16;
  t.rank = 4;
  const int64_t shape[] = {batch, heads, tokens, kWidth};
  const int64_t strides[] = {tokens * 3 * heads * kWidth, kWidth, 3 * heads * kWidth, 1};
  std::copy(shape, shape + 4, t.shape);
  std::copy(strides, strides + 4, t.strides);
  return t;
}

TEST(Overlap, PartsOfAPackedTensorHaveNone) {
  void* memory = reinterpret_cast<void*>(uintptr_t{1} << 40);
  for (int64_t tokens : {1, 77, 4608, 1 << 20}) {
    const TensorView q = packed_part(memory, 0, 2, tokens, 24);
    const TensorView k = packed_part(memory, 1, 2, tokens, 24);
    EXPECT_EQ(overlap_of(q, k), Overlap::kNo);
    EXPECT_EQ(overlap_of(q, q), Overlap::kYes);
    EXPECT_EQ(overlap_within(q), Overlap::kNo);
    TensorView shifted = k;
    shifted.data = static_cast<uint16_t*>(k.data) - 1;  // one element into q
    EXPECT_EQ(overlap_of(q, shifted), Overlap::kYes);
  }
}

// Strides that share no divisor, over ranges that leave many combinations.
TEST(Overlap, GivesUpInWords) {
  TensorView a;
  a.data = reinterpret_cast<void*>(uintptr_t{1} << 40);
  a.dtype = DType::kF32;
  a.rank = 8;
  for (int d = 0; d < 8; ++d) {
    a.shape[d] = 50;
    a.strides[d] = 1'000'003 + 2 * d * d * d;
  }
  TensorView b = a;
  b.data = static_cast<char*>(a.data) + 2'000'001;
  EXPECT_NE(overlap_of(a, b), Overlap::kNo);
}

}  // namespace
}  // namespace pestle
